"""What machine code of calls does without Python on a CUDA device: numbers, short waits of awaited calls."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

import jitree
from jitree import Session
from jitree.cuda.device import CudaDevice
from jitree.hal.exchange import HostTransfers
from tests.api import producers
from tests.assembler import Assembler
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_results import CUresult
from tests.cuda.programs import LENDING, LENDING_ASYNC, PROGRAM_KERNELS
from tests.cuda.test_lending import SUBMITS, Tensor, warm

pytestmark = pytest.mark.usefixtures("machine_code")

X = np.arange(8, dtype=np.float32)
PACKAGE = str(Path(jitree.__file__).parent)


def functions_of(call: Callable[[], Any]) -> tuple[Any, set[str]]:
    """The result of a call, and the package's Python functions that it has called; those do not count that
    the collector calls when it takes apart what earlier tests have left."""
    found: set[str] = set()
    gc.collect()
    gc.disable()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            found.add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return result, found


@pytest.mark.parametrize("value", [X.tolist(), tuple(X.tolist()), [*range(8)], [*X]])
def test_numbers_go_to_the_device_without_python(session: Session, value: Any) -> None:
    add, x = session.load(LENDING).add, session.to_device(X)
    warm(add, x, value)
    result, called = functions_of(lambda: add(x, value))
    assert not called and np.array_equal(np.asarray(result), 2 * X)
    with pytest.raises(jitree.errors.InvalidArgumentError):
        add(x, [1.0] * 7)
    with pytest.raises(jitree.errors.InvalidArgumentError):
        add(x, [1.0] * 7 + ["a"])
    assert np.array_equal(np.asarray(add(x, value)), 2 * X)


@pytest.mark.parametrize("module", [LENDING, LENDING_ASYNC])
def test_an_awaited_call_waits_a_moment_before_it_is_called_back(
    fake: FakeDriver, session: Session, module: Path
) -> None:
    add, x = session.load(module).add, session.to_device(X)

    async def calls(count: int) -> list[Any]:
        return [await add.async_(x, x) for _ in range(count)]

    asyncio.run(calls(20))
    assert add.is_direct
    fake.calls.clear()
    results = asyncio.run(calls(3))
    assert all(np.array_equal(np.asarray(result), 2 * X) for result in results)
    assert not {"cuEventRecord", "cuEventSynchronize"} & set(fake.names())

    async def late() -> Any:
        fake.hold()
        call = asyncio.ensure_future(add.async_(x, x))
        await asyncio.sleep(0.01)
        assert not call.done()
        fake.release()
        return await call

    assert np.array_equal(np.asarray(asyncio.run(late())), 2 * X)


class PlainProducer:
    """Another library's array in host memory, with the Python protocol of DLPack only."""

    def __init__(self, array: npt.NDArray[np.float32] = X) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("array", [X, np.repeat(X, 2)[::2], X[::-1]], ids=["dense", "steps", "reversed"])
@pytest.mark.parametrize("kind", [PlainProducer, np.asarray])
def test_arrays_of_the_host_go_to_the_device_without_python(
    session: Session, kind: Callable[..., Any], array: npt.NDArray[np.float32]
) -> None:
    add, x, value = session.load(LENDING).add, session.to_device(X), kind(array)
    warm(add, x, value)
    result, called = functions_of(lambda: add(x, value))
    assert not called and np.array_equal(np.asarray(result), X + array)
    with pytest.raises(jitree.errors.InvalidArgumentError):
        add(x, kind(array[:7]))
    assert np.array_equal(np.asarray(add(x, value)), X + array)


def test_the_host_is_told_of_transfers_where_it_wants_to(fake: FakeDriver) -> None:
    fake.kernels.update(PROGRAM_KERNELS)
    with CudaDevice(fake, 0, HostTransfers.EXPLICIT) as device, Session(device=device) as session:
        add, x = session.load(LENDING).add, session.to_device(X)
        warm(add, x, x)
        for value in (X, X[::-1], X.tolist(), PlainProducer()):
            for arguments in ((x, value), (value, value)):
                with pytest.raises(jitree.errors.FailedPreconditionError, match="to_device"):
                    add(*arguments)
        placed = [session.to_device(X + number) for number in range(3)]
        assert [array._view for array in placed] == [None] * 3
        assert np.array_equal(add(*placed[:2]).to_host(), 2 * X + 1)


def test_small_arrays_of_one_call_go_to_the_device_together(fake: FakeDriver, session: Session) -> None:
    """Each as it is: they lie side by side, and results over one of them keep no other."""
    add, arrays = session.load(LENDING).add, [X, X + 8]
    pairs: list[list[Any]] = [arrays, [X.tolist(), PlainProducer(X + 8)], [X[::-1], (X + 8).tolist()]]
    for pair in pairs:
        warm(add, *pair)
        fake.calls.clear()
        result = add(*pair)
        assert fake.count("cuMemcpyHtoDAsync") + fake.count("cuLaunchKernelEx") == 2, "arrays and program"
        first, second = (getattr(value, "array", value) for value in pair)
        assert np.array_equal(np.asarray(result), np.add(first, second))
    live = session.context.table.live_count
    for _ in range(100):
        add(*arrays)
    assert session.context.table.live_count <= live
    with pytest.raises(jitree.errors.InvalidArgumentError):
        add(X, X[:7])
    assert np.array_equal(np.asarray(add(*arrays)), 2 * X + 8)


def test_an_idle_device_gets_elements_by_the_driver_and_a_busy_one_by_a_kernel(
    fake: FakeDriver, session: Session
) -> None:
    add, x = session.load(LENDING_ASYNC).add, session.to_device(X)
    warm(add, X, x)
    copy, launch = "cuMemcpyHtoDAsync", "cuLaunchKernelEx"

    def submitted(function: Callable[..., Any], *arguments: Any) -> list[str]:
        fake.calls.clear()
        arrays.append(function(*arguments))
        return [name for name in fake.names() if name in (copy, launch)]

    arrays: list[Any] = []
    fake.be_lazy()
    np.asarray(x + 1)
    assert submitted(session.to_device, 2 * X + 1) == [copy]
    assert submitted(session.to_device, 2 * X + 1) == [copy], "nothing but uploads was submitted before"
    assert submitted(add.submit, X + 1, x)[:2] == [copy, launch]
    assert submitted(session.to_device, 2 * X + 1) == [], "it is held back"
    fake.calls.clear()
    cast(CudaDevice, session.device).stream.finish()
    assert fake.count(launch) == 1
    np.asarray(arrays[-1])
    fake.fail_next(copy, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    assert submitted(session.to_device, 2 * X + 1) == [copy, launch]
    for array in arrays:
        assert np.array_equal(np.asarray(array), 2 * X + 1)


def test_arrays_of_no_declared_type_are_passed_by_machine_code(fake: FakeDriver, session: Session) -> None:
    add, x = session.load(LENDING).add, session.to_device(X)
    warm(add, x, x)
    echo = session.load(Assembler("echo").function("f", "0r_r", "return [%R0]").build()).f
    warm(echo, X)
    foreign = producers.new_type()
    for value in (X, X[::-1], np.arange(6, dtype=np.uint8).reshape(2, 3), x, foreign(X + 1), np.array(2.0)):
        echo(value)
        fake.calls.clear()
        result = echo(value)
        assert set(fake.names()) <= SUBMITS
        expected = np.asarray(getattr(value, "array", value))
        assert result.dtype == expected.dtype and np.array_equal(np.asarray(result), expected)
    with Session(device="local-sync") as other:
        there = other.to_device(X + 2)
        assert np.array_equal(np.asarray(echo(there)), X + 2)
    for wrong in ("text", object(), np.array(["x"])):
        with pytest.raises((TypeError, jitree.errors.StatusError)):
            echo(wrong)
    assert np.array_equal(np.asarray(echo(x)), X)


@pytest.mark.parametrize("size", [1 << 10, 1 << 16, 1 << 20])
def test_arrays_are_placed_on_the_device_by_machine_code(session: Session, size: int) -> None:
    """Many in a row, for none of which anybody waits."""
    add, elements = session.load(LENDING).add, np.arange(size // 4, dtype=np.float32)
    warm(add, X, X)
    placed = [session.to_device(elements + index) for index in range(100)]
    assert all(array._view is None for array in placed[-50:]), "Python has made none of them"
    for index, array in enumerate(placed):
        assert np.array_equal(np.asarray(array), elements + index)


def test_arrays_of_a_new_type_are_placed_while_a_call_passes_its_own(session: Session) -> None:
    """What that call has so far is its own: its small arrays were uploaded again, from address 0."""
    add, placed = session.load(LENDING).add, list[jitree.Array]()
    elements = np.arange(12, dtype=np.int16).reshape(3, 4)

    class Placing(PlainProducer):
        places = False

        def __dlpack__(self, **options: Any) -> Any:
            if self.places:
                placed.append(session.to_device(elements))
            return super().__dlpack__(**options)

    value = Placing()
    warm(add, X, value)
    value.places = True
    results = [add(X, value)]
    placed += [session.to_device(elements) for _ in range(3)]
    results.append(add(X, X))
    assert len(placed) > 3 and placed[-1]._view is None, "Python has not made it"
    assert all(np.array_equal(np.asarray(array), elements) for array in placed)
    assert all(np.array_equal(np.asarray(result), 2 * X) for result in results)


def test_calls_left_to_python_keep_machine_code(session: Session) -> None:
    add, x = session.load(LENDING).add, session.to_device(X)
    odd = Tensor(x, device_kind=13)
    warm(add, x, odd)
    direct = add._direct
    result, called = functions_of(lambda: add(x, odd))
    assert called and np.array_equal(np.asarray(result), 2 * X) and add._direct is direct
