"""What sessions show of single dispatches on CUDA devices: on the fake driver, and on a GPU where there is
one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from jitree import LoneDispatch, Session
from jitree.cuda.device import CudaDevice
from jitree.errors import NonFiniteError
from jitree.observe import tensors
from jitree.observe.tensors import ObservedDispatch
from tests.cuda.fake import FakeDriver
from tests.cuda.programs import PROGRAM_KERNELS, STATEFUL, STATELESS

Vector = npt.NDArray[np.float32]
X = np.arange(8, dtype=np.float32)
FIRST, SECOND = "scale_dispatch_0_elementwise_8_f32", "scale_dispatch_1_elementwise_8_f32"


@pytest.fixture(params=["fake", "gpu"])
def either(request: pytest.FixtureRequest, fake: FakeDriver) -> CudaDevice:
    """The device of the fake driver, and a GPU."""
    fake.kernels.update(PROGRAM_KERNELS)
    found: CudaDevice = request.getfixturevalue("device" if request.param == "fake" else "gpu")
    return found


@pytest.fixture
def session(either: CudaDevice) -> Iterator[Session]:
    with Session(device=either) as session:
        session.load(STATELESS)
        yield session


def scaled(session: Session, x: Vector = X) -> list[bytes]:
    return [np.asarray(result).tobytes() for result in session["module.scale"](x, X)]


def test_taps_tell_what_each_dispatch_makes_and_change_nothing(session: Session) -> None:
    plain = [scaled(session) for _ in range(6)]  # the later ones by recordings or by machine code
    with session.tap() as taps:
        tapped = [scaled(session) for _ in range(3)]
    assert [*tapped, scaled(session), scaled(session)] == [plain[0]] * 5
    assert [(tap.name, tap.ordinal, tap.call) for tap in taps] == [
        (name, ordinal, call) for call in range(3) for ordinal, name in enumerate((FIRST, SECOND))
    ]
    first, second = taps[:2]
    assert [(tensor.type, tensor.source) for tensor in first.inputs] == [("8xf32", "declared")]
    assert {tensor.origin for tensor in second.inputs} == {first.label, "argument 1"}
    assert first.stats is not None and (first.stats.min, first.stats.max, first.stats.zeros) == (0, 14, 1)
    assert second.stats is not None and second.stats.mean == 10.5
    assert first.function == "module.scale" and first.location.startswith("module.scale+")
    assert "test_observed.py" in first.call_site and first.workgroups == (1, 1, 1)
    assert first.outputs[0].array is None


def test_programs_that_read_and_variables(either: CudaDevice) -> None:
    with Session(device=either) as session:
        session.load(STATELESS, STATEFUL)
        repeat, shift = session["module.repeat"], session["module.shift"]
        plain = [np.asarray(repeat(X, np.int32(3))).tobytes() for _ in range(5)]
        with session.tap() as taps:
            assert np.asarray(repeat(X, np.int32(3))).tobytes() == plain[0]
            assert np.array_equal(np.asarray(shift(X)), X + np.arange(1, 9))
            assert np.array_equal(np.asarray(session["stateful.accumulate"](X)), X)
        halves = [tap.outputs[0] for tap in taps if "repeat_dispatch_2" in tap.name]
        assert [tensor.type for tensor in halves] == ["8xf32"] * 3
        assert halves[2].stats is not None and halves[2].stats.max == 7 / 8
        assert np.array_equal(np.asarray(session["stateful.accumulate"](X)), X + X)


def test_nothing_but_single_launches_while_something_looks(fake: FakeDriver, device: CudaDevice) -> None:
    fake.kernels.update(PROGRAM_KERNELS)
    with Session(device=device) as session:
        session.load(STATELESS)
        for _ in range(5):
            scaled(session)
        by_code, launches = fake.count("cuLaunchKernelEx"), fake.count("cuLaunchKernel")
        with session.tap(FIRST):
            scaled(session)
        assert fake.count("cuLaunchKernelEx") == by_code and fake.count("cuLaunchKernel") >= launches + 2
        scaled(session)
        assert fake.count("cuLaunchKernelEx") > by_code


@pytest.mark.parametrize("piece", [32, 64, 1 << 20])
def test_whole_tensors(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(tensors, "_PIECE", piece)
    with session.tap(SECOND, "tensors") as kept:
        results = scaled(session)
    array = kept[0].outputs[0].array
    assert array is not None and array.shape == (8,) and array.tobytes() == results[1]
    with session.tap("*", "tensors", path=tmp_path / "taps.npz") as streamed:
        scaled(session)
    assert streamed[1].outputs[0].array is None
    assert np.load(tmp_path / "taps.npz")[f"{SECOND}.1.output0"].tobytes() == results[1]
    with session.tap(SECOND) as counted:
        scaled(session)
    stats = counted[0].stats
    assert stats is not None and (stats.min, stats.max, sum(stats.histogram)) == (0, 21, 8)


def test_callbacks_may_call_the_session_and_fail(session: Session) -> None:
    looked: list[float] = []

    def look(dispatch: ObservedDispatch) -> None:
        array = dispatch.outputs[0].array
        assert array is not None
        looked.append(float(array.max() + np.asarray(session["module.shift"](X)).max()))

    with session.tap(FIRST, keep=look):
        plain = scaled(session)
    assert looked == [14 + 15]

    def fail(dispatch: ObservedDispatch) -> None:
        raise ZeroDivisionError(dispatch.name)

    with pytest.raises(ZeroDivisionError, match=FIRST), session.tap("*", keep=fail):
        scaled(session)
    assert scaled(session) == plain


@pytest.mark.filterwarnings("ignore:overflow")
def test_the_dispatch_that_makes_infinity_is_named(either: CudaDevice) -> None:
    large = np.where(X == 5, np.float32(3e38), X)
    with Session(device=either, check_finite=True) as session:
        session.load(STATELESS)
        plain = scaled(session)
        for _ in range(3):
            with pytest.raises(NonFiniteError, match=r"makes inf at \(5,\) \(bits 0x7f800000\)") as caught:
                scaled(session, large)
        assert (caught.value.dispatch, caught.value.ordinal) == (FIRST, 0)
        assert [np.asarray(value).tobytes() for value in caught.value.inputs] == [large.tobytes()]
        assert scaled(session) == plain
    with Session(device=either, check_finite="inputs") as session:
        session.load(STATELESS)
        with pytest.raises(NonFiniteError, match=r"argument 0 of module.scale has inf at \(5,\)"):
            scaled(session, np.where(X == 5, np.float32("inf"), X))


def test_other_sessions_of_the_device_are_not_told_of(either: CudaDevice) -> None:
    with Session(device=either) as one, Session(device=either) as other:
        one.load(STATELESS)
        other.load(STATELESS)
        for _ in range(4):
            scaled(other)
        with one.tap() as taps:
            assert scaled(other) == scaled(one)
        assert len(taps) == 2


def test_a_dispatch_alone(session: Session, either: CudaDevice, tmp_path: Path) -> None:
    """Its executable, its memory and what it made; a GPU makes the same of them in another device."""
    alone = LoneDispatch.of_call(session["module.scale"], [X, X], 0)
    alone.save(tmp_path)
    again = LoneDispatch.load(tmp_path)
    assert again.name == FIRST and len(again.bindings) == 2
    assert [made.tolist() for made in again.expected()] == [(2 * X).tolist()]
    if not isinstance(either.context.api.driver, FakeDriver):
        assert again.run()[0].tobytes() == again.expected()[0].tobytes()
