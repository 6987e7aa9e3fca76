"""Programs beside what is no program: results, and where they depart what the other one shows."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitree
from jitree.compare import peers
from jitree.compare.peers import GraphValue, outputs_of, traced, values_of, with_outputs
from jitree.compare.sides import Shower
from jitree.errors import InvalidArgumentError, NotFoundError, UnavailableError
from tests.api import onnx_files
from tests.api.test_differences import CHAIN, ELEMENTS, MATMUL, SOFTMAX, X, weights
from tests.tools.command import jitree as command

Array = npt.NDArray[Any]
PROGRAM = (CHAIN, "local-sync")
NEAR: dict[str, Any] = {"atol": 1e-6, "rtol": 1e-5}


def weight(layer: int) -> npt.NDArray[np.float32]:
    data = CHAIN.read_bytes()
    return np.frombuffer(data, "<f4", 64, weights(data, layer)).reshape(8, 8).copy()


WEIGHTS = [weight(layer) for layer in range(3)]
WRONG = [WEIGHTS[0], WEIGHTS[1] + np.float32(0.01) * (np.arange(64).reshape(8, 8) == 43), WEIGHTS[2]]
"""Row 5, column 3 of the second one."""


def softmax(y: Array) -> Array:
    y = np.exp(y - y.max(1, keepdims=True))
    y /= y.sum(1, keepdims=True)
    return y


def wrong_in_numpy(x: Array) -> Array:
    for matrix in WRONG:
        x = softmax(x @ matrix)
    return x


# -- functions of Python ---------------------------------------------------------------------------------


def test_local_variables_of_a_function_narrow_a_departure(tmp_path: Path) -> None:
    d = jitree.diff(PROGRAM, wrong_in_numpy, inputs=[X], **NEAR)
    first = d.first
    assert first is not None and first.ordinals == (3, None) and first.dispatch == SOFTMAX
    assert first.other.startswith(f"y ({__file__}:") and first.other.endswith(" in softmax)")
    assert "made after dispatch 1 and value " in first.reason and f"{MATMUL} (dispatch 2)" in first.reason
    assert str(first).startswith(f"{SOFTMAX} (dispatch 3) and y ({__file__}:") and first.call_site
    assert next(row.ordinals for row in d.rows if row.closeness.differing) == (3, None)
    d.save(tmp_path)
    alone = jitree.LoneDispatch.load(tmp_path / "a")
    made, expected = alone.run()[0], alone.expected()[0]
    assert np.allclose(expected, softmax(softmax(X @ WRONG[0]) @ WRONG[1]), atol=1e-6)
    assert not np.allclose(made, expected, atol=1e-6), "it is compared with what the function has"


def test_the_function_may_be_the_first_one() -> None:
    d = jitree.diff(wrong_in_numpy, PROGRAM, inputs=[X], **NEAR)
    assert d.first is not None and (d.first.other, d.first.ordinals) == (SOFTMAX, (None, 3))
    assert "in test_the_function_may_be_the_first_one" in d.first.call_site
    assert d.first.inputs and d.first.inputs[0].origin == f"{MATMUL} (dispatch 2)"


def test_what_shows_nothing_is_said() -> None:
    def opaque(x: Array) -> Array:
        return softmax.__wrapped__(x)  # type: ignore[attr-defined, no-any-return]

    softmax.__wrapped__ = np.tanh  # type: ignore[attr-defined]
    try:
        d = jitree.diff(PROGRAM, opaque, inputs=[X])
    finally:
        del softmax.__wrapped__  # type: ignore[attr-defined]
    assert d.first is not None and d.first.operand == "result 0" and d.first.ordinals == (5, None)
    assert "b shows nothing between arguments and results: no array is assigned" in d.first.reason


def test_values_that_agree_later_are_not_the_same_tensor() -> None:
    """A value that is only near to what a dispatch makes, as of another rounding, does not hide where it
    departs."""

    def function(x: Array) -> Array:
        near = softmax(x @ WEIGHTS[0]) * np.float32(1.001)
        rest = near / np.float32(1.001)
        for matrix in WRONG[1:]:
            rest = softmax(rest @ matrix)
        return rest

    d = jitree.diff(PROGRAM, function, inputs=[X], **NEAR)
    assert d.first is not None and d.first.ordinals == (3, None)


def test_lines_that_assign_and_change_arrays() -> None:
    seen: list[tuple[str, float]] = []

    def inner(a: Array) -> Array:
        b = a + 1
        b *= 2
        c = b
        return c

    def work() -> Array:
        number, text, kind = 3, "text", np.ndarray
        found = inner(np.ones(4)) + number
        return found if text else inner(kind(4))

    outer = sys.gettrace()
    result = traced(work, lambda name, value: seen.append((name.split(" ")[0], float(value[0]))))
    assert result.tolist() == [7.0] * 4 and sys.gettrace() is outer
    assert seen == [("b", 2.0), ("b", 4.0), ("c", 4.0), ("found", 7.0)]
    with pytest.raises(ZeroDivisionError):
        traced(lambda: 1 // 0, lambda name, value: None)
    assert sys.gettrace() is outer


def test_numpy_is_no_code_of_the_user_wherever_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = [part for part in peers._LIBRARIES if not part.endswith("-packages")]
    monkeypatch.setattr(peers, "_LIBRARIES", [part for part in elsewhere if part not in os.__file__])
    seen: list[str] = []
    traced(lambda: np.ones(4), lambda name, value: seen.append(name))
    assert seen == []


def test_values_that_are_shown_twice_count_once() -> None:
    from jitree.observe.fingerprints import CallFingerprints

    fingerprint = CallFingerprints()
    shower = Shower([fingerprint])
    for array in (np.arange(4.0), np.arange(4.0), np.arange(4.0, dtype=">f8"), np.arange(4.0).reshape(2, 2)):
        shower("x", array)
    assert [(fingerprint.type, fingerprint.label) for fingerprint in fingerprint.fingerprints] == [
        ("4xf64", "x (value 0)"), ("2x2xf64", "x (value 1)")
    ]  # fmt: skip


def test_functions_that_give_arrays_of_a_library_are_programs() -> None:
    with jitree.Session("local-sync") as session:
        function = session.load(CHAIN).layers.to("numpy")
        d = jitree.diff(function, wrong_in_numpy, inputs=[X], **NEAR)
        assert d.first is not None and d.first.ordinals == (3, None)


# -- PyTorch -----------------------------------------------------------------------------------------------


def torch_model(matrices: list[npt.NDArray[np.float32]]) -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    layers = []
    for matrix in matrices:
        layer = torch.nn.Linear(8, 8, bias=False)
        layer.weight.data = torch.from_numpy(np.ascontiguousarray(matrix.T))
        layers += [layer, torch.nn.Softmax(-1)]
    return torch.nn.Sequential(*layers)


def test_modules_of_pytorch() -> None:
    assert jitree.diff(PROGRAM, torch_model(WEIGHTS), inputs=[X], **NEAR).equal
    model = torch_model(WRONG)
    d = jitree.diff(PROGRAM, model, inputs=[X], **NEAR)
    assert d.first is not None and d.first.ordinals == (2, None) and d.first.dispatch == MATMUL
    assert d.first.other == "linear in 2" and d.first.inputs[0].is_known
    import torch

    def function(x: Array) -> Any:
        return model(torch.from_numpy(x))

    found = jitree.diff(PROGRAM, function, inputs=[X], **NEAR)
    assert found.first is not None and found.first.other == "linear in Linear"
    compiled = jitree.diff(PROGRAM, torch.compile(model, backend="eager"), inputs=[X], **NEAR)
    assert compiled.first is not None and compiled.first.ordinals == (2, None)
    scripted = jitree.diff(PROGRAM, torch.jit.script(model), inputs=[X], **NEAR)
    assert scripted.first is not None and scripted.first.operand == "result 0"
    assert scripted.first.reason.endswith("it calls no functions of PyTorch from Python")
    two = jitree.diff(model, wrong_in_numpy, inputs=[X], **NEAR)
    assert two.equal, "of two that are no programs"


# -- ONNX ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["onnxruntime", "as onnxruntime"])
def runtime(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "onnxruntime":
        return pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    made = onnx_files.runtime()
    monkeypatch.setitem(sys.modules, "onnxruntime", made)
    return made


def test_models_of_onnx(runtime: Any, tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.onnx", tmp_path / "wrong.onnx"
    right.write_bytes(onnx_files.chain(WEIGHTS, 4))
    wrong.write_bytes(onnx_files.chain(WRONG, 4))
    assert jitree.diff(PROGRAM, right, inputs=[X], **NEAR).equal
    for peer in (wrong, str(wrong), runtime.InferenceSession(str(wrong))):
        d = jitree.diff(PROGRAM, peer, inputs=[X], **NEAR)
        assert d.first is not None and (d.first.dispatch, d.first.other) == (MATMUL, "MatMul product_1")
        assert d.first.ordinals == (2, None) and d.first.coordinate == (0, 3)
    assert "MatMul product_0" in d.table() and len(d.rows) == 7
    d.save(tmp_path / "saved")
    runpy.run_path(str(tmp_path / "saved" / "run.py"))
    with pytest.raises(InvalidArgumentError, match="takes 1 inputs"):
        jitree.diff(right, wrong, inputs=[X, X])
    with pytest.raises(InvalidArgumentError, match="cannot run the ONNX model"):
        jitree.diff(right, wrong, inputs=[X.astype(np.float64)])
    (tmp_path / "other.onnx").write_bytes(b"text")
    with pytest.raises(InvalidArgumentError, match="ONNX model"):
        jitree.diff(right, tmp_path / "other.onnx", inputs=[X])
    with pytest.raises(NotFoundError, match=r"missing\.onnx"):
        jitree.diff(PROGRAM, "missing.onnx", inputs=[X])


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "model.onnx").write_bytes(onnx_files.chain(WEIGHTS, 4))
    with pytest.raises(UnavailableError, match="install it"):
        jitree.diff(PROGRAM, tmp_path / "model.onnx", inputs=[X])


def test_values_of_a_graph() -> None:
    model = onnx_files.chain(WEIGHTS[:1], 4)
    assert values_of(model) == [GraphValue("product_0", "MatMul"), GraphValue("soft_0", "Softmax")]
    more = with_outputs(model, ["product_0"])
    assert outputs_of(model) == ["soft_0"] and outputs_of(more) == ["soft_0", "product_0"]
    constant = onnx_files.field(7, onnx_files.field(1, onnx_files.node("Constant", [], "c")))
    assert values_of(constant) == []


@given(st.data())
def test_damaged_models(data: st.DataObject) -> None:
    model = bytearray(onnx_files.chain(WEIGHTS[:1], 4))
    place = data.draw(st.integers(0, len(model) - 1))
    model[place] = data.draw(st.integers(0, 255))
    try:
        values_of(bytes(model[: data.draw(st.integers(0, len(model)))]))
    except InvalidArgumentError as error:
        assert "damaged" in str(error)


@pytest.mark.parametrize(
    "message", [b"\x3a\x05abc", b"\x3b", b"\xff" * 11, b"\x3a\x04\x0a\x02\x12\x09", b"\x08"]
)
def test_what_is_no_model(message: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="no ONNX model, or damaged"):
        values_of(message)


def test_the_command(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.onnx"
    wrong.write_bytes(onnx_files.chain(WRONG, 4))
    flags = ("--function=layers", f"--input={ELEMENTS}", "--rtol=1e-5")
    for arguments, text in (
        ((wrong, wrong), "one of the two is to be a compiled module"),
        ((CHAIN, wrong, "--device=local-sync", "--device=local-task"), "onnxruntime runs ONNX models"),
    ):
        outcome = command("diff", *arguments, *flags)
        assert outcome.code == 1 and text in outcome.stderr
    found = command("diff", wrong, CHAIN, *flags)
    assert found.code == 1
    if importlib.util.find_spec("onnxruntime") is None:
        assert "UNAVAILABLE; onnxruntime cannot be imported" in found.stderr
    else:
        assert found.stdout.startswith(f"MatMul product_1 and {MATMUL} (dispatch 2): output 0")
