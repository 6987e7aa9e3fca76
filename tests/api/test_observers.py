"""What sessions show of single dispatches: taps, and the first value that is not finite."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

import jitree
from jitree import Session
from jitree.errors import (
    InvalidArgumentError,
    NonFiniteError,
    NotFoundError,
    OutOfRangeError,
    ResourceExhaustedError,
    StatusCode,
    UnavailableError,
    UnimplementedError,
)
from jitree.observe import taps as tapping
from jitree.observe.export_names import TensorKind
from jitree.observe.finite import CHECKS, FiniteCheck, find
from jitree.observe.tensors import NAMED, ObservedDispatch, ObservedTensor
from jitree.params import open_providers
from jitree.types import BY_NAME
from tests.api.programs import ASYNCHRONOUS, CACHES, PROGRAMS

SEEN = PROGRAMS / "seen.vmfb"
GENERATOR = np.random.default_rng(5)
LEFT = GENERATOR.random((4, 64), np.float32)
RIGHT = GENERATOR.random((64, 71), np.float32)
SHIFT = np.zeros(71, np.float32)
TOO_LARGE = np.where(np.arange(71) == 17, np.float32(1e9), np.float32(0))
"""Shifts column 17 below zero, whose logarithm is NaN."""
MATMUL, SOFTMAX, REDUCTION = (
    "normalized_dispatch_0_matmul_4x71x64_f32",
    "normalized_dispatch_1_softmax_4x71xf32_dispatch_tensor_store",
    "normalized_dispatch_2_reduction_4x71_f32xf32xi64",
)


def results(session: Session, shift: npt.NDArray[np.float32] = SHIFT) -> list[npt.NDArray[Any]]:
    return [np.array(result) for result in session["module.normalized"](LEFT, RIGHT, shift)]


@pytest.fixture
def seen(session: Session) -> Session:
    session.load(SEEN)
    return session


def test_taps_tell_what_each_dispatch_makes_and_change_nothing(seen: Session) -> None:
    before = results(seen)
    with seen.tap() as taps:
        tapped = results(seen)
    assert [one.tobytes() for one in tapped] == [one.tobytes() for one in before]
    assert [(tap.name, tap.ordinal) for tap in taps] == [(MATMUL, 0), (SOFTMAX, 1), (REDUCTION, 2)]
    first, second, third = taps
    assert [tensor.type for tensor in first.inputs] == ["4x64xf32", "64x71xf32", "71xf32"]
    assert {tensor.source for tensor in first.inputs} == {"declared"}
    assert [(tensor.type, tensor.origin) for tensor in second.inputs] == [("4x71xf32", first.label)]
    assert [tensor.type for tensor in third.outputs] == ["4xi64"], (
        "the second of two results in one allocation"
    )
    assert second.function == "module.normalized" and second.location.startswith("module.normalized+")
    assert "test_observers.py" in second.call_site and second.workgroups[0] >= 1
    made, values = second.stats, before[0].astype(np.float64)
    assert made is not None and (made.shape, made.zeros, made.nans, made.infinities) == ((4, 71), 0, 0, 0)
    found = made.min, made.max, made.mean, made.rms, made.absmax
    expected = values.min(), values.max(), values.mean(), np.sqrt((values**2).mean()), values.max()
    assert np.allclose(found, expected, rtol=1e-12) and sum(made.histogram) == 284
    assert f"{SOFTMAX} (dispatch 1): 4x71xf32 min" in str(taps)
    assert first.outputs[0].array is None, "the memory is the device's again"


def test_taps_of_whole_tensors(seen: Session, tmp_path: Path) -> None:
    with seen.tap("*softmax*", keep="tensors") as taps:
        softmax = results(seen)[0]
    array = taps[0].outputs[0].array
    assert array is not None and array.tobytes() == softmax.tobytes() and array.shape == (4, 71)
    for name in ("taps.npz", "taps.safetensors", "streamed.npz", "streamed.safetensors"):
        if name.startswith("taps"):
            taps.save(tmp_path / name)
        else:
            with seen.tap("*softmax*", "tensors", path=tmp_path / name) as streamed:
                results(seen)
            assert streamed[0].outputs[0].array is None
        (provider,) = open_providers([str(tmp_path / name)])
        for key in (f"{SOFTMAX}.1.input0", f"{SOFTMAX}.1.output0"):
            provider.get(key)  # NOT_FOUND if it is not there
    assert np.load(tmp_path / "taps.npz")[f"{SOFTMAX}.1.output0"].tobytes() == softmax.tobytes()
    with pytest.raises(InvalidArgumentError, match=r"\.npz or \.safetensors"):
        taps.save(tmp_path / "taps.txt")


def test_selections(seen: Session) -> None:
    for choice, names in (
        ({"ordinals": 1}, [SOFTMAX]),
        ({"ordinals": range(1, 3)}, [SOFTMAX, REDUCTION]),
        ({"ordinals": slice(2)}, [MATMUL, SOFTMAX]),
        ({"ordinals": [0, 2]}, [MATMUL, REDUCTION]),
        ({"pattern": ["*matmul*", "*softmax*"]}, [MATMUL, SOFTMAX]),
        ({"function": "normalized", "pattern": "*reduction*"}, [REDUCTION]),
        ({"module": "module", "ordinals": 0}, [MATMUL]),
    ):
        with seen.tap(**choice) as taps:
            results(seen)
        assert [tap.name for tap in taps] == names


def test_what_is_meant_by_nothing_says_what_is_near(seen: Session) -> None:
    with pytest.raises(NotFoundError, match=f"names near it: {SOFTMAX}"), seen.tap("*sofmtax*"):
        results(seen)
    near = "names near it: normalized_dispatch_1_softmax"  # however much longer names are
    with pytest.raises(NotFoundError, match=near), seen.tap("normalized_dispatch_2_softmax"):
        results(seen)
    ran = "with these ordinals.*dispatches up to 2 ran, in calls of module.normalized"
    for nothing in ({"ordinals": 7}, {"function": "normalised"}, {"module": "model"}):
        with pytest.raises(NotFoundError, match=ran), seen.tap(SOFTMAX, **nothing):
            results(seen)
    with seen.tap("*sofmtax*") as taps:
        pass
    with pytest.raises(OutOfRangeError, match="no dispatch has run"):
        taps[0]
    wrong: dict[str, Any]
    for wrong in (
        {"keep": "all"}, {"pattern": 3}, {"types": {0: "4xf31"}}, {"types": 3}, {"types": {"x": "4xf32"}},
        {"types": {0: 3}}, {"ordinals": "x"}, {"ordinals": slice(-1, None)}, {"ordinals": slice(0, -1)},
        {"ordinals": -1}, {"ordinals": range(-3, 2)}, {"ordinals": [0, -2]}, {"ordinals": [0.5]},
        {"path": "a"}, {"path": 5, "keep": "tensors"}, {"path": "a.txt", "keep": "tensors"},
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            seen.tap(**wrong)
    with pytest.raises(UnavailableError, match="cannot write"):
        seen.tap(keep="tensors", path="/no/such/folder/taps.npz")
    assert not seen.is_observed


def test_callbacks_may_call_the_session_and_fail(seen: Session) -> None:
    looked: list[tuple[str, float]] = []

    def look(dispatch: ObservedDispatch) -> None:
        array = dispatch.outputs[0].array
        assert array is not None
        root = np.asarray(seen["module.folded"](np.full((4, 71), 4, np.float32)))
        looked.append((dispatch.name, float(array.max() * root[0, 0])))

    with seen.tap("*softmax*", keep=look):
        softmax = results(seen)[0]
    assert looked == [(SOFTMAX, float(softmax.max() * 2))]

    def fail(dispatch: ObservedDispatch) -> None:
        raise ZeroDivisionError(dispatch.name)

    with pytest.raises(ZeroDivisionError, match="normalized_dispatch_0"), seen.tap("*", keep=fail):
        results(seen)
    assert np.array_equal(results(seen)[0], softmax)


def test_what_a_function_raises_arrives_as_it_is() -> None:
    def fail(dispatch: ObservedDispatch) -> None:
        raise KeyError(dispatch.name)

    x = np.ones((256, 256), np.float32)
    for device in ("local-sync", "local-task"):
        with Session(device) as session:
            product = session.load(ASYNCHRONOUS).product
            tap = session.tap(keep=fail)
            with pytest.raises(KeyError, match="product_dispatch_0"):
                product(x)
            with pytest.raises(KeyError, match="product_dispatch_0"):
                asyncio.run(product.async_(x))
            with pytest.raises(KeyError, match="product_dispatch_0"):
                np.asarray(product.submit(x))
            tap.stop()


def test_a_tap_that_nothing_refers_to_ends(seen: Session, tmp_path: Path) -> None:
    def tapped() -> None:
        tap = seen.tap(keep="tensors", path=tmp_path / "taps.npz")
        results(seen)
        del tap
        gc.collect()

    with pytest.warns(ResourceWarning, match="a tap ended"):
        tapped()
    assert len(np.load(tmp_path / "taps.npz").files) == 8
    results(seen)
    assert not seen.is_observed


def test_names_with_several_types() -> None:
    x, mask = np.arange(9, dtype=np.float32) - 3, np.arange(9) % 2 == 0
    with Session("local-sync") as session:
        masked = session.load(PROGRAMS / "mixed.vmfb").masked
        with session.tap() as taps:
            masked(x, mask)
        assert taps[0].name == "masked_dispatch_0_elementwise_D_f32xi1xf32"
        assert [tensor.type for tensor in taps[0].outputs] == ["9xf32"]
        session.check_finite(True)
        with pytest.raises(NonFiniteError, match=r"makes nan at \(0,\)"):
            masked(x, mask)


def test_a_process_of_its_own_shows_nothing() -> None:
    with pytest.raises(UnimplementedError, match="is in the process of the sandbox"):
        Session(sandbox="process").tap()


def test_types_that_the_user_gives(seen: Session) -> None:
    with seen.tap("*softmax*", types={1: "71x4xi32"}) as taps:
        results(seen)
    assert (taps[0].outputs[0].type, taps[0].outputs[0].source) == ("71x4xi32", "given")
    for binding, kind, said in (
        (0, "4000x71xf32", "1136000 bytes of 4000x71xf32"),
        (17, "2xf32", "in binding 17"),
    ):
        expected = pytest.raises(InvalidArgumentError, match=said)
        with expected, seen.tap("*softmax*", types={1: "71x4xi32", binding: kind}):
            results(seen)


def test_types_that_were_given_end_with_their_tap(seen: Session) -> None:
    def shown() -> list[tuple[str, str]]:
        with seen.tap() as taps:
            results(seen)
        return [(tensor.type, tensor.source) for tap in taps for tensor in tap.inputs + tap.outputs]

    plain = shown()
    with seen.tap("*softmax*", types={1: "294xf32"}) as taps:
        results(seen)
    assert taps[0].outputs[0].type == "294xf32"
    assert shown() == plain


def test_memory_that_a_tap_would_need(seen: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapping, "_LOOKED_FOR", 0)
    monkeypatch.setattr(tapping, "available_memory", lambda: 1000)
    expected = pytest.raises(ResourceExhaustedError, match=r"takes \d+ bytes of memory and 1000 are left")
    with expected, seen.tap("*", keep="tensors"):
        results(seen)


def test_machine_code_calls_again_afterwards(session: Session) -> None:
    module = session.load(SEEN)
    for _ in range(4):
        results(session)
    was_direct = module.normalized.is_direct
    with session.tap() as outer, session.tap("*softmax*") as inner:
        assert module.normalized.is_direct == was_direct
        for _ in range(4):
            results(session)
        assert module.normalized.is_direct == was_direct
        inner.stop()
        results(session)
    assert (len(outer), len(inner)) == (15, 4) and [tap.call for tap in inner] == [0, 1, 2, 3]
    for _ in range(4):
        results(session)
    assert module.normalized.is_direct == was_direct


def test_several_modules_and_threads(session: Session) -> None:
    session.load(SEEN, CACHES)
    with session.tap(module="module") as taps:
        threads = [threading.Thread(target=results, args=(session,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        session["caches.own"](np.full(8, 3, np.float32), 5)
    assert [[tap.ordinal for tap in taps if tap.call == call] for call in range(4)] == [[0, 1, 2]] * 4
    assert len(taps) == 12


def test_two_sessions_on_one_device() -> None:
    device = jitree.Instance.default().create_device("local-task")
    with Session(device) as one, Session(device) as other:
        one.load(SEEN)
        other.load(SEEN)
        with one.tap() as taps:
            results(other)
            results(one)
        assert len(taps) == 3
    device.close()


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_submitted_and_awaited_calls(device: str) -> None:
    x = GENERATOR.random((256, 256), np.float32)
    with Session(device) as session:
        product = session.load(ASYNCHRONOUS).product
        plain = np.array(product(x))
        with session.tap() as taps:
            submitted = np.array(product.submit(x))
            awaited = np.array(asyncio.run(product.async_(x)))
        assert plain.tobytes() == submitted.tobytes() == awaited.tobytes()
        assert {tap.call for tap in taps} == {0, 1} and {tap.function for tap in taps} == {product.full_name}
        session.check_finite("inputs")
        x[3, 4] = np.nan
        with pytest.raises(NonFiniteError, match=r"argument 0 of asynchronous.product has nan at \(3, 4\)"):
            np.asarray(product.submit(x))


def test_transfers_and_programs_without_a_device(session: Session) -> None:
    inline = session.load(PROGRAMS / "inline_cpu.vmfb")
    x = np.arange(5, dtype=np.float32)
    with session.tap() as taps:
        inline.scaled_sum(x, x)
    assert taps[0].function.endswith(".scaled_sum") and taps[0].outputs
    with Session("local-sync") as other:
        caches = other.load(CACHES)
        with other.tap("copy") as copies:
            for _ in range(2):
                caches.own(np.full(8, 3, np.float32), 5)
        assert {tap.kind for tap in copies} == {"copy"} and {tap.ordinal for tap in copies} == {None}
        assert {tap.outputs[0].origin for tap in copies} == {"a copy of argument 0"}


# -- the first wrong number ------------------------------------------------------------------------------


@pytest.fixture(params=["local-sync", "local-task"])
def checked(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(request.param, check_finite=True) as session:
        session.load(SEEN)
        yield session


def test_the_dispatch_that_makes_a_nan_is_named(checked: Session) -> None:
    results(checked)
    for _ in range(3):  # also where the same was left in memory
        with pytest.raises(NonFiniteError, match=r"makes nan at \(0, 17\) \(bits 0x[7f]fc00000\)") as caught:
            results(checked, TOO_LARGE)
        error = caught.value
        assert (error.dispatch, error.ordinal, error.coordinate) == (MATMUL, 0, (0, 17))
        assert np.isnan(error.value) and error.bits in ("0x7fc00000", "0xffc00000")
        assert error.operand == "output 0" and error.location.startswith("module.normalized+")
        assert all(map(np.array_equal, error.inputs, (LEFT, RIGHT, TOO_LARGE)))  # type: ignore[arg-type]
        assert error.code is StatusCode.DATA_LOSS and isinstance(error, FloatingPointError)
    results(checked)
    copied = pickle.loads(pickle.dumps(copy.copy(error)))
    assert (copied.dispatch, copied.coordinate, str(copied)) == (MATMUL, (0, 17), str(error))


def test_infinity_of_finite_values(checked: Session) -> None:
    ones, shift = np.ones((64, 71), np.float32), np.where(np.arange(71) == 3, np.float32(64), SHIFT)
    with pytest.raises(NonFiniteError, match=r"makes -inf at \(0, 3\) \(bits 0xff800000\)"):
        checked["module.normalized"](np.ones((4, 64), np.float32), ones, shift)


def test_values_that_come_from_elsewhere_are_no_dispatch_s_fault(checked: Session) -> None:
    shift = np.where(np.arange(71) == 3, np.float32("nan"), np.float32(0))
    assert np.isnan(results(checked, shift)[0][:, 3]).all()
    assert checked.finite_check is not None
    assert "reads nan at (3,) (bits 0x7fc00000) in input 2, which comes from argument 2" in (
        checked.finite_check.first_read
    )


def test_two_operands_in_one_allocation() -> None:
    """Of which one has the length that the name of the dispatch says."""
    x = np.where(np.arange(28) == 4, np.float32("nan"), np.ones((14, 28), np.float32))
    with Session("local-sync", check_finite=True) as session:
        product = session.load(PROGRAMS / "encoded.vmfb").product
        assert np.isnan(product(x)).all() and session.finite_check is not None
        assert "comes from argument 0" in session.finite_check.first_read
        with session.tap("*set_encoding_RHS*") as taps:
            product(np.ones_like(x))
        packed = taps[0].outputs[0]
        assert packed.type == "1120xf32" and taps[0].inputs[0].source == "guess: as all other tensors"


def test_a_dispatch_does_not_read_what_it_writes() -> None:
    """In an allocation that is bound as an input and as the output: the NaN was in a weight."""
    block, weights = np.ones(64, np.float32), np.ones(16, np.float32)
    block[40], weights[3] = np.nan, np.nan
    place = block.ctypes.data
    whole, made, read = (
        ObservedTensor(binding, (address, 4 * count), TensorKind(BY_NAME["f32"], (count,)), NAMED, "")
        for binding, (address, count) in enumerate(
            [(place, 64), (place + 128, 16), (weights.ctypes.data, 16)]
        )
    )
    made.changes = [made.extent]
    dispatch = SimpleNamespace(
        kind="dispatch",
        inputs=[whole, read],
        outputs=[made],
        bound=tuple,
        label="f (dispatch 3)",
        ordinal=3,
        location="",
    )
    check = FiniteCheck(["nan"])
    check.looks_at(cast("ObservedDispatch", dispatch))
    assert check.first_read.startswith("f (dispatch 3) reads nan at (3,) (bits 0x7fc00000) in input 1")


@pytest.mark.parametrize("offset", [0, 1])
def test_what_reads_of_constants_put_somewhere_is_named(offset: int) -> None:
    """Also where they need no copy, because they are aligned in the file."""
    data = bytearray(offset) + (PROGRAMS / "layers_packed.vmfb").read_bytes()
    weights = (PROGRAMS / "layers.mlir").read_text().split('"0x')[2].split('"')[0]
    place = data.index(bytes.fromhex(weights)[:16])
    data[place : place + 4] = np.float32("nan").tobytes()
    with Session("local-sync", check_finite=True) as session:
        program = session.load(memoryview(data)[offset:])
        result = np.asarray(program.layers(np.ones((16, 16), np.float32)))
        assert np.isnan(result).any() and session.finite_check is not None
        assert " comes from " in session.finite_check.first_read
        assert "constants" in session.finite_check.first_read


def test_a_weight_among_all_constants_is_named_by_its_row_and_column() -> None:
    data = bytearray((PROGRAMS / "packed.vmfb").read_bytes())
    weights = (PROGRAMS / "packed.mlir").read_text().split('"0x')[2].split('"')[0]
    place = data.index(bytes.fromhex(weights)) + 4 * (16 * 2 + 7)
    data[place : place + 4] = np.float32("nan").tobytes()
    with Session("local-sync", check_finite=True) as session:
        module = session.load(bytes(data))
        np.asarray(module[next(iter(module))](np.ones((4, 16), np.float32)))
        assert session.finite_check is not None
        assert "(dispatch 2) reads nan at (2, 7) " in session.finite_check.first_read


def test_arguments_that_are_refused() -> None:
    with Session("local-sync", check_finite="inputs") as session:
        session.load(SEEN)
        results(session)
        shift = np.where(np.arange(71) == 3, np.float32("inf"), np.float32(0))
        with pytest.raises(NonFiniteError, match=r"argument 2 of module.normalized has inf at \(3,\)"):
            results(session, shift)


@pytest.mark.parametrize(
    ("check", "value", "found"),
    [
        ("overflow", 7e4, "inf at"),
        ("nan", 7e4, ""),
        (True, 7e4, "inf"),
    ],
)
def test_what_can_be_asked_for(check: Any, value: float, found: str) -> None:
    with Session("local-sync", check_finite=check) as session:
        narrow = session.load(SEEN).narrow
        narrow(np.ones(8, np.float32))
        if found:
            with pytest.raises(NonFiniteError, match=found):
                narrow(np.full(8, value, np.float32))
        else:
            narrow(np.full(8, value, np.float32))
    with pytest.raises(InvalidArgumentError, match="nan, infinity, overflow"):
        Session("local-sync", check_finite="everything")


def test_elements_that_checks_find() -> None:
    for name, array, expected in (
        ("denormals", np.array([0, 1e-30, -1e-40, 1], np.float32), [False, False, True, False]),
        ("saturated", np.array([-128, 0, 127], np.int8), [True, False, True]),
        ("overflow", np.array([1, np.inf, np.nan], np.float16), [False, True, True]),
        ("infinity", np.array([1, np.inf, np.nan], np.float64), [False, True, False]),
    ):
        assert CHECKS[name].finds(array).tolist() == expected, name


@pytest.mark.parametrize("integers", [[-1, 0, 3], [5, -7, 2], [1, 2, 3]])
def test_integers_that_a_name_calls_numbers_raise_no_alarm(integers: list[int]) -> None:
    """A dispatch that is named after one type may make another."""
    for size, name in ((4, "f32"), (8, "f64"), (2, "f16"), (2, "bf16")):
        kind = TensorKind(BY_NAME[name], (3,))
        data = np.array(integers, f"i{size}")
        tensor = ObservedTensor(0, (data.ctypes.data, data.nbytes), kind, NAMED, "")
        assert find(tensor, CHECKS["nan"].applies, CHECKS["nan"].finds) is None
        for bits in {4: (0x7FC00000, 0xFFC00000), 2: ()}.get(size, ()):
            data.view("u4")[1] = bits
            data[[0, 2]] = np.float32(1).view("i4")
            fault = find(tensor, CHECKS["nan"].applies, CHECKS["nan"].finds)
            assert fault is not None and str(fault) == f"nan at (1,) (bits {bits:#010x})"


def test_devices_that_do_not_tell() -> None:
    with pytest.raises(UnimplementedError, match="local-sync or local-task"), Session("null") as session:
        session.tap()
    with pytest.raises(UnimplementedError, match="local-sync or local-task"):
        Session("null", check_finite=True)
