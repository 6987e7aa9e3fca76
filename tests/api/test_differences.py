"""Two programs side by side: where they first depart, and the one dispatch that does, alone."""

from __future__ import annotations

import runpy
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import jitree
from jitree import Session
from jitree.base import dlpack
from jitree.compare import sides
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StatusError,
    UnavailableError,
)
from jitree.observe.fingerprints import CallFingerprints, TensorFingerprint, align
from jitree.observe.lockstep import Arrival, Meeting
from jitree.observe.regions import SCRATCH
from jitree.observe.tolerance import EXACT, Tolerance, compare
from tests.api.programs import ASYNCHRONOUS, PROGRAMS, TORCH_STYLE
from tests.tools.command import jitree as command

CHAIN = PROGRAMS / "chain.vmfb"
TILED = PROGRAMS / "chain_tiled.vmfb"
X = np.arange(32, dtype=np.float32).reshape(4, 8) / 7
MATMUL, SOFTMAX = (
    "layers_dispatch_0_matmul_4x8x8_f32",
    "layers_dispatch_1_softmax_4x8xf32_dispatch_tensor_store",
)
ELEMENTS = "4x8xf32=" + " ".join(map(repr, X.ravel().tolist()))


def weights(data: bytes, layer: int, source: str = "chain.mlir") -> int:
    """Where the weights of a layer begin, as the source has them."""
    text = (PROGRAMS / source).read_text().split('"0x')[layer + 1].split('"')[0]
    place = data.index(bytes.fromhex(text))
    return place


def changed(path: Path, folder: Path, *, layer: int, element: tuple[int, int], bits: int) -> Path:
    """A copy of a module with one weight a few representable numbers larger."""
    data = bytearray(path.read_bytes())
    place = weights(bytes(data), layer) + 4 * (8 * element[0] + element[1])
    value = int.from_bytes(data[place : place + 4], "little") + bits
    data[place : place + 4] = value.to_bytes(4, "little")
    target = folder / "changed.vmfb"
    target.write_bytes(data)
    return target


@pytest.mark.parametrize("devices", [("local-sync", "local-sync"), ("local-sync", "local-task")])
def test_one_program_on_two_devices(devices: tuple[str, str]) -> None:
    d = jitree.diff((CHAIN, devices[0]), (CHAIN, devices[1]), function="layers", inputs=[X])
    assert d.equal and d.first is None and d.alone == ([], [])
    assert [row.names[0] for row in d.rows[:6]] == [MATMUL, SOFTMAX] * 3 and len(d.rows) == 7
    assert str(d) == "equal (exact): 7 tensors compared"
    tiers = jitree.diff((CHAIN, "local-sync", {"tier": "plain"}), (CHAIN, "local-sync"), inputs=[X])
    assert tiers.equal
    with pytest.raises(FailedPreconditionError, match="no dispatch departs"):
        d.save("nowhere")


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_a_changed_weight_is_found(device: str, tmp_path: Path) -> None:
    other = changed(CHAIN, tmp_path, layer=1, element=(5, 3), bits=1 << 12)
    d = jitree.diff((CHAIN, device), (other, device), inputs=[X])
    assert not d.equal and d.first is not None
    first = d.first
    assert (first.dispatch, first.ordinal, first.operand) == (MATMUL, 2, "output 0")
    assert first.coordinate == (0, 3) and first.values[0] != first.values[1]
    assert [int(bits, 16) for bits in first.bits] == [
        int.from_bytes(np.float32(value).tobytes(), "little") for value in first.values
    ]
    activation, weight = first.inputs
    assert activation.first is None and activation.origin == f"{SOFTMAX} (dispatch 1)"
    assert weight.first is not None and weight.first.coordinate == (5, 3)
    assert weight.origin.startswith("no dispatch (constants") and "input 1" in first.reason
    assert first.location.startswith("module.layers+") and "test_differences.py" in first.call_site
    assert "2|" not in d.table() and MATMUL in d.table() and "8 of 32" not in str(d)
    assert jitree.diff((CHAIN, device), (other, device), inputs=[X], rtol=0.1).equal


def test_a_weight_whose_change_is_rounded_away_is_found(tmp_path: Path) -> None:
    """What dispatches make may agree all the same."""
    other = changed(CHAIN, tmp_path, layer=2, element=(0, 0), bits=1)
    d = jitree.diff(
        (CHAIN, "local-sync"), (other, "local-sync"), inputs=[np.zeros((4, 8), np.float32) + 1e-9]
    )
    assert d.first is not None and (d.first.dispatch, d.first.ordinal) == (MATMUL, 4)
    weight = d.first if d.first.operand == "input 1" else d.first.inputs[1].first
    assert weight is not None and weight.coordinate == (0, 0)
    assert int(weight.bits[1], 16) - int(weight.bits[0], 16) == 1


def test_which_dispatch_reads_a_constant_is_found(tmp_path: Path) -> None:
    """All weights are bound to each; and what is made of the one that departs may be the same."""
    packed, other = PROGRAMS / "packed.vmfb", tmp_path / "other.vmfb"
    for layer, (row, column) in enumerate(((5, 3), (0, 0), (15, 15))):
        data = bytearray(packed.read_bytes())
        data[weights(bytes(data), layer, "packed.mlir") + 4 * (16 * row + column)] ^= 1
        other.write_bytes(data)
        sides = (packed, "local-sync"), (other, "local-sync")
        d = jitree.diff(*sides, inputs=[np.full((4, 16), 1e-9, np.float32)])
        assert d.first is not None and d.first.ordinal == 2 * layer and "_matmul_" in d.first.dispatch
        if d.first.operand == "input 1":
            assert d.first.coordinate == ((row, column) if layer else (16 * row + column,))
            assert d.first.type == ("16x16xf32" if layer else "768xf32")
            assert d.first.reason.endswith("this dispatch reads it")


def test_bytes_that_nobody_reads_do_not_depart(tmp_path: Path) -> None:
    """Weights share a block; what is between them is no part of any, and may be of memory that nobody has
    written. A change of a weight that is rounded away beside it still departs."""
    padded, other = PROGRAMS / "padded.vmfb", tmp_path / "other.vmfb"
    data = padded.read_bytes()
    first, second = (weights(data, layer, "padded.mlir") for layer in (0, 1))
    between = range(first + 4 * 81, second)
    assert len(between) == 60 and not any(data[place] for place in between)
    sides = (padded, "local-sync"), (other, "local-sync")
    for places in ([between[0]], list(between), [between[-1], second + 4 * 81]):
        found = bytearray(data)
        for place in places:
            found[place] = 0x5A
        other.write_bytes(found)
        d = jitree.diff(*sides, inputs=[np.ones((4, 9), np.float32)])
        assert d.equal and len(d.rows) == 3, str(d)
    found[first + 4 * 50] ^= 1
    other.write_bytes(found)
    d = jitree.diff(*sides, inputs=[np.full((4, 9), 1e-9, np.float32)])
    assert d.first is not None and d.first.ordinal == 0


def test_a_weight_that_a_dispatch_packs_departs_where_it_is_computed_with(tmp_path: Path) -> None:
    encoded, other = PROGRAMS / "encoded.vmfb", tmp_path / "other.vmfb"
    data = bytearray(encoded.read_bytes())
    data[weights(bytes(data), 0, "encoded.mlir") + 4 * (40 * 9 + 20) + 1] ^= 16
    other.write_bytes(data)
    packing, matmul = "product_dispatch_1_set_encoding_RHS_28x40", "product_dispatch_2_matmul_14x40x28_f32"
    for value, named in ((1.0, matmul), (0.0, packing)):
        x = np.full((14, 28), value, np.float32)
        d = jitree.diff((encoded, "local-sync"), (other, "local-sync"), inputs=[x])
        assert d.first is not None and d.first.dispatch == named
        packed = d.first.place if named == packing else d.first.inputs[0].first
        assert packed is not None and int(packed.bits[0], 16) ^ int(packed.bits[1], 16) == 4096
        assert f"{packing} (dispatch 1)" in str(d) and f"{matmul} (dispatch 2)" in str(d)


def test_two_compilations_are_aligned_by_their_values(tmp_path: Path) -> None:
    d = jitree.diff((CHAIN, "local-sync"), (TILED, "local-sync"), inputs=[X], rtol=1e-5)
    assert d.equal and len(d.rows) == 7
    assert [row.ordinals for row in d.rows[:6]] == [(0, 2), (1, 3), (2, 6), (3, 7), (4, 10), (5, 11)]
    assert d.alone[0] == [] and len(d.alone[1]) == 6 and "_encoding_0_encode" in d.alone[1][0]
    other = changed(TILED, tmp_path, layer=1, element=(5, 3), bits=1 << 12)
    found = jitree.diff((CHAIN, "local-sync"), (other, "local-task"), inputs=[X], rtol=1e-5)
    assert found.first is not None and found.first.ordinals == (2, 6)
    assert found.first.coordinate == (0, 3)
    assert found.first.reason.endswith(
        f"made after dispatches 1 and 3: by {MATMUL} (dispatch 2) in a, by "
        f"_encoding_1_encode_8x8xf32_to_8x8xf32 (dispatch 5), {MATMUL} (dispatch 6) in b"
    ), "the other encoding only lays out what the first program has, too"


def test_a_reproduction_runs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, other in enumerate((CHAIN, TILED)):
        target = changed(other, tmp_path, layer=1, element=(5, 3), bits=1 << 12)
        d = jitree.diff((CHAIN, "local-sync"), (target, "local-sync"), inputs=[X], rtol=1e-6)
        assert d.first is not None
        folder = tmp_path / f"saved{number}"
        d.save(folder)
        script = (folder / "run.py").read_text()
        assert len(script.partition('"""\n')[2].split("\n")) <= 11
        runpy.run_path(str(folder / "run.py"))
        printed = capsys.readouterr().out
        assert printed.startswith(MATMUL) and "4x8xf32 min" in printed
        assert str(d.first.bits[0]) in printed and str(d.first.bits[1]) in printed
        assert "no dispatch" not in printed, "it is the dispatch that made it"
        alone = jitree.LoneDispatch.load(folder / "a")
        assert alone.name == MATMUL and len(alone.bindings) == 3
        assert alone.run("local-task")[0].tobytes() == alone.expected()[0].tobytes()
    with pytest.raises(NotFoundError, match="no dispatch was saved"):
        jitree.LoneDispatch.load(tmp_path / "nothing")
    (folder / "a" / "dispatch.json").write_text("{}")
    with pytest.raises(InvalidArgumentError, match="is damaged"):
        jitree.LoneDispatch.load(folder / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="cannot write"):
        alone.save(tmp_path / "file" / "a")


def reference(x: npt.NDArray[np.float32], wrong: bool = False) -> npt.NDArray[np.float64]:
    data = CHAIN.read_bytes()
    y = x.astype(np.float64)
    for layer in range(3):
        weight = np.frombuffer(data, "<f4", 64, weights(data, layer)).reshape(8, 8)
        y = y @ weight
        y = np.exp(y - y.max(1, keepdims=True))
        y /= y.sum(1, keepdims=True)
    return y + (np.arange(8) == 3) * 0.1 if wrong else y


def test_something_that_can_be_called() -> None:
    d = jitree.diff((CHAIN, "local-sync"), reference, inputs=[X], atol=1e-5)
    assert d.equal and len(d.rows) == 1
    d = jitree.diff((CHAIN, "local-sync"), lambda x: reference(x, wrong=True), inputs=[X], atol=1e-5)
    assert d.first is not None and (d.first.dispatch, d.first.ordinal) == (SOFTMAX, 5)
    assert (d.first.operand, d.first.coordinate) == ("result 0", (0, 3))
    assert d.first.inputs[0].origin == f"{MATMUL} (dispatch 4)"
    both = jitree.diff(reference, lambda x: reference(x, wrong=True), inputs=[X])
    assert both.first is not None and both.first.dispatch == ""
    said = str(both.first)
    assert said.startswith("result 0 (") and "neither of the two is a program" in said
    with pytest.raises(FailedPreconditionError):
        both.save("nowhere")


def test_functions_of_sessions() -> None:
    with Session("local-sync") as one, Session("local-task") as other:
        first, second = one.load(CHAIN).layers, other.load(CHAIN).layers
        assert jitree.diff(first, second, inputs=[X]).equal
        assert not one.is_observed and not other.is_observed
        with pytest.raises(InvalidArgumentError, match="two sessions"):
            jitree.diff(first, first, inputs=[X])
    ones = [np.ones(4, np.float32)] * 2
    assert jitree.diff(TORCH_STYLE, lambda a, b: a + b, inputs=ones).equal, "main, not its twin main$async"
    product = (ASYNCHRONOUS, "local-task")
    assert jitree.diff(
        product, (ASYNCHRONOUS, "local-sync"), "product", [np.ones((256, 256), np.float32)]
    ).equal


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"a": 3}, "a: expected the path of a module"),
        ({"function": "other"}, "exports layers, no 'other'"),
        ({"inputs": [X[:2]]}, "of the first program"),
        ({"b": lambda x: (x, x)}, "a gives 1 results and b 2"),
        ({"b": lambda x: x[:1]}, "no two to compare"),
        ({"b": lambda x: object()}, "results are compared as arrays"),
        ({"b": lambda x: x.T}, r"result 0 has the shape \(4, 8\) in a and \(8, 4\) in b"),
        ({"b": lambda x: [[[1, 2], [3]]]}, "results are compared as arrays"),
        ({"b": lambda x: "text"}, "results are compared as arrays"),
        ({"b": lambda x: x.astype("U")}, "results are compared as arrays"),
        ({"inputs": 3}, "inputs: expected a sequence"),
        ({"ulp": True}, "ulp: expected a number"),
        ({"rtol": -1}, "rtol: expected a number from 0 on"),
        ({"ulp": "x"}, "ulp: expected a number"),
    ],
)
def test_what_cannot_be_compared(wrong: dict[str, Any], match: str) -> None:
    given: dict[str, Any] = {"a": (CHAIN, "local-sync"), "b": (CHAIN, "local-sync"), "inputs": [X], **wrong}
    with pytest.raises(StatusError, match=match):
        jitree.diff(given.pop("a"), given.pop("b"), **given)
    assert not [thread for thread in threading.enumerate() if thread.name == "jitree-diff"]


def test_what_gives_results() -> None:
    class Elsewhere:
        def __init__(self, array: npt.NDArray[Any]) -> None:
            self.array = array

        def detach(self) -> Elsewhere:
            return self

        def cpu(self) -> npt.NDArray[Any]:
            return self.array

    class Narrow:
        """As PyTorch's of 16 bits, which numpy does not know."""

        def __array__(self, *arguments: object, **named: object) -> npt.NDArray[Any]:
            raise TypeError("unsupported")

        def __dlpack__(self, **options: Any) -> Any:
            return dlpack.export(X.astype(ml_dtypes.bfloat16), **options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    assert sides.arrays_of(Narrow())[0].dtype == ml_dtypes.bfloat16
    assert sides.arrays_of({"y": Elsewhere(X)})[0] is X
    assert [array.tolist() for array in sides.arrays_of((1, None, [2.0]))] == [1, [2.0]]


# -- commands --------------------------------------------------------------------------------------------


def test_the_commands(tmp_path: Path) -> None:
    other = changed(CHAIN, tmp_path, layer=1, element=(5, 3), bits=1 << 12)
    flags = ("--function=layers", f"--input={ELEMENTS}", "--device=local-sync")
    same = command("diff", CHAIN, CHAIN, *flags)
    assert (same.code, same.stdout) == (0, "equal (exact): 7 tensors compared\n"), same.stderr
    found = command("diff", CHAIN, other, *flags, f"--save={tmp_path / 'saved'}")
    assert found.code == 1 and found.stdout.startswith(
        f"{MATMUL} (dispatch 2): output 0 (4x8xf32) departs at (0, 3)"
    )
    assert (tmp_path / "saved" / "run.py").exists()
    assert command("diff", CHAIN, other, *flags, "--rtol=0.1", "--atol=0").code == 0
    assert command("diff", CHAIN, "--device=local-sync", *flags[:2], "--device=local-task").code == 0
    for wrong, text in (
        ((CHAIN,), "two are compared"),
        ((CHAIN, other, "--ulp=x"), "flag 'ulp': expected a number"),
        ((CHAIN, CHAIN, CHAIN), "two are compared"),
    ):
        outcome = command("diff", *wrong, *flags)
        assert outcome.code == 1 and text in outcome.stderr


def test_calls_that_are_reduced(tmp_path: Path) -> None:
    flags = ("--function=layers", "--device=local-sync", f"--save={tmp_path / 'saved'}")
    not_finite = command("reduce", CHAIN, *flags, "--input=4x8xf32=3e38")
    assert not_finite.code == 0 and f"{SOFTMAX} (dispatch 1) makes nan" in not_finite.stdout, (
        not_finite.stderr
    )
    alone = jitree.LoneDispatch.load(tmp_path / "saved" / "a")
    assert np.isnan(alone.run()[0]).any() and alone.statistics()[0].nans == 32
    assert f"none: input 0 (4x8xf32), which comes from {MATMUL} (dispatch 0)" in not_finite.stdout
    other_check = command(
        "reduce", CHAIN, *flags, "--input=4x8xf32=3e38", "--check-finite=infinity,denormals"
    )
    assert "does not fail and makes no infinity or denormals; compare it" in other_check.stderr
    fine = command("reduce", CHAIN, *flags, "--input=4x8xf32=1")
    assert fine.code == 1 and "FAILED_PRECONDITION; reduce: no dispatch is wrong" in fine.stderr
    given = command("reduce", CHAIN, *flags, "--input=4x8xf32=nan")
    assert given.code == 0 and "no dispatch makes what is not finite" in given.stdout, given.stderr
    assert "(dispatch 0) reads nan at (0, 0)" in given.stdout
    assert np.isnan(jitree.LoneDispatch.load(tmp_path / "saved" / "a").run()[0]).any()
    failing = command("reduce", CHAIN, *flags, "--input=4x7xf32=1")
    assert failing.code == 1 and "the call fails in no dispatch: INVALID_ARGUMENT; " in failing.stderr
    assert "--save=FOLDER" in command("reduce", CHAIN, *flags[:2]).stderr
    other = changed(CHAIN, tmp_path, layer=1, element=(5, 3), bits=1 << 12)
    wrong = command("reduce", CHAIN, other, *flags, f"--input={ELEMENTS}")
    assert wrong.code == 0 and jitree.LoneDispatch.load(tmp_path / "saved" / "b").name == MATMUL
    with pytest.raises(InvalidArgumentError, match="no dispatches"):
        jitree.reduce(reference, tmp_path, inputs=[X])


# -- parts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "bfloat16", "i4", "i8", "c8"])
def test_how_far_elements_are_apart(dtype: str) -> None:
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    a = np.array([1, 2, 3, 4, 5, 6], kind).reshape(2, 3)
    b = a.copy()
    assert compare(a, b, a.shape, EXACT).first is None
    b[1, 1] += kind.type(1)
    found = compare(a, b, a.shape, EXACT)
    assert found.first is not None and (found.differing, found.first.coordinate) == (1, (1, 1))
    assert (found.max_abs, found.size) == (1.0, 6) and found.max_rel == pytest.approx(1 / 6)
    assert compare(a, b, a.shape, Tolerance(atol=1.0)).first is None
    assert compare(a, b, a.shape, Tolerance(rtol=0.1)).first is not None
    assert compare(a, b, a.shape, Tolerance(rtol=0.17)).first is None


def test_representable_numbers_apart() -> None:
    for kind, size in (("f4", 4), ("f8", 8), ("f2", 2)):
        one = np.array([1, -1, 0, np.nan, np.inf], kind)
        other = one.copy()
        other.view(f"u{size}")[:2] += 3
        other[2] = -0.0
        found = compare(one, other, one.shape, Tolerance(ulp=3))
        assert found.max_ulp == 3 and found.first is None
        assert compare(one, other, one.shape, Tolerance(ulp=2)).differing == 2
        assert compare(one, other, one.shape, EXACT).differing == 3, "the two zeros have other bits"
    far = compare(np.array([-1.7e308]), np.array([1.7e308]), (1,), Tolerance(ulp=1e18))
    assert far.max_ulp > 1.8e19 and far.differing == 1
    for value in (np.inf, -np.inf, np.nan):
        apart = compare(np.array([1.0]), np.array([value]), (1,), Tolerance(rtol=1e9, atol=1e9, ulp=1e30))
        assert apart.differing == 1
    mixed = compare(np.array([0.5], "f2"), np.array([0.5], "f8"), (1,), EXACT)
    assert mixed.first is None


def fingerprint(ordinal: int, name: str, values: list[float]) -> TensorFingerprint:
    samples = np.array(values, np.float64)
    return TensorFingerprint(ordinal, 0, name, f"{len(values)}xf32", len(values), samples.tobytes(), samples)


def test_alignment() -> None:
    one = [
        fingerprint(0, "f_dispatch_0_matmul_3x3_f32", [1, 2, 3]),
        fingerprint(1, "f_dispatch_1_slow_3_f32", [4, 5, 6]),
        fingerprint(2, "f_dispatch_2_reduction_3_f32", [7, 8, 9]),
    ]
    other = [
        fingerprint(0, "g_dispatch_0_pack_3_f32", [3, 1, 2]),
        fingerprint(1, "g_dispatch_1_matmul_3x3_f32", [1.001, 2, 3]),
        fingerprint(2, "g_dispatch_2_reduction_3_f32", [-7, 8, 90]),
    ]
    assert [(a.ordinal, b.ordinal) for a, b in align(one, other)[0]] == [(0, 1), (2, 2)]
    one[2] = one[2]._replace(sources=(1,))
    later = [fingerprint(3, "f_dispatch_3_transpose_3_f32", [1, 1, 4])._replace(sources=(2,))]
    assert [(a.ordinal, b.ordinal) for a, b in align(one + later, other + later)[0]] == [(0, 1), (3, 3)], (
        "what both make of it agrees, so the two reductions are not the same tensor"
    )
    assert [(a.ordinal, b.ordinal) for a, b in align(one, one)[0]] == [(0, 0), (1, 1), (2, 2)]
    assert align(one, []) == ([], []) == align([], [])


def fingerprinted(
    ordinal: int, name: str, array: np.ndarray[Any, Any], sources: Sequence[int] = ()
) -> TensorFingerprint:
    recorder = CallFingerprints()
    output = SimpleNamespace(array=array, kind="f32", type=f"{array.size}xf32")
    inputs = [SimpleNamespace(origin=f"f (dispatch {source})") for source in sources]
    dispatch: Any = SimpleNamespace(
        kind="dispatch", what="dispatch", ordinal=ordinal, name=name, inputs=inputs, outputs=[output]
    )
    recorder.looks_at(dispatch)
    return recorder.fingerprints[0]


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_tensors_in_another_order(dtype: str) -> None:
    """They are no departure though nothing after them agrees, and what departs lies after them."""
    made = np.random.default_rng(3).standard_normal((6, 32, 64)).astype(dtype)
    packed = made.reshape(6, 4, 8, 64).swapaxes(2, 3) * np.array(1 + np.finfo(dtype).eps, dtype)
    packed[:, 3, 60:] = made[:, 24:, 60:].swapaxes(1, 2)
    made[3:], wrong = -made[3:], made[3:] * 2
    name = "f_dispatch_{}_elementwise_{}_f32"
    one = [fingerprinted(n, name.format(n, n), array, (n - 1,)) for n, array in enumerate(made)]
    other = [
        fingerprinted(n, name.format(n + 9, n), array, (n - 1,))
        for n, array in enumerate([*packed[:3], *wrong])
    ]
    pairs, rearranged = align(one, other)
    assert [(a.ordinal, b.ordinal) for a, b in rearranged] == [(0, 0), (1, 1), (2, 2)]
    assert [(a.ordinal, b.ordinal) for a, b in pairs] == [(3, 3), (4, 4), (5, 5)]
    padded = np.concatenate((made[0].ravel()[::-1], np.zeros(99, dtype)))
    assert one[0].is_rearranged(fingerprinted(0, "padded", padded)), "with padding, of any size"
    again = fingerprinted(0, "again", np.random.default_rng(4).standard_normal(made[0].shape).astype(dtype))
    assert not one[0].is_rearranged(again), "other tensors of one distribution"
    masks = [fingerprinted(0, "mask", np.roll(np.arange(64) % 4 == 0, step)) for step in (0, 1)]
    assert not masks[0].is_rearranged(masks[1]), "as many ones tell nothing"
    unknown = made[0].copy()
    unknown.flat[9] = np.nan
    assert not one[0].is_rearranged(fingerprinted(0, "one NaN", unknown))


@pytest.mark.parametrize(
    ("origins", "sources"),
    [(["f (dispatch 2)", ""], (2,)), ([SCRATCH], (6,)), (["f (dispatch 2)", SCRATCH], (2, 6)), ([""], ())],
)
def test_what_an_output_is_made_of(origins: list[str], sources: tuple[int, ...]) -> None:
    recorder, array = CallFingerprints(), np.ones(4, np.float32)
    output = SimpleNamespace(array=array, kind=None, type="4xf32")
    inputs = [SimpleNamespace(origin=origin) for origin in origins]
    dispatch: Any = SimpleNamespace(
        kind="dispatch", what="dispatch", ordinal=7, name="f", inputs=inputs, outputs=[output]
    )
    recorder.looks_at(dispatch)
    assert recorder.fingerprints[0].sources == sources


def test_calls_that_meet_in_another_order() -> None:
    """None waits for ever, and each tensor is compared."""
    met: list[int] = []

    def compare_numbers(number: int, one: Arrival, other: Arrival) -> bool:
        met.append(number)
        return True

    meeting = Meeting(compare_numbers)

    def walk(side: int, numbers: list[int]) -> None:
        for number in numbers:
            meeting.arrive(side, number, Arrival(None, ()))  # type: ignore[arg-type]  # nothing looks at it
        meeting.end(side)

    orders = ([0, 2, 1, 3, 5], [0, 1, 3, 2, 4])
    threads = [threading.Thread(target=walk, args=(side, orders[side])) for side in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(met) == [0, 1, 2, 3] and [sorted(alone) for alone in meeting.alone] == [[5], [4]]
