"""Asynchronous entry points: called plainly, awaited, and with results that are still computed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from jitree import Array, Function, HostExport, HostModule, Session
from jitree.api.module import Module
from jitree.dispatch.engine import Pending
from jitree.errors import DataLossError, DeadlineExceededError, InvalidArgumentError, StatusCode
from jitree.hal.fence import Fence
from tests.api.programs import ASYNCHRONOUS, PROGRAMS, STATE, TORCH_STYLE
from tests.assembler import Assembler

X = np.arange(64, dtype=np.float32)
SQUARE = np.eye(256, dtype=np.float32) * 2


@pytest.fixture
def module(session: Session) -> Module:
    """On the fast tier machine code makes the usual calls."""
    module = session.load(ASYNCHRONOUS)
    for name, argument in (
        ("add", (X, X)),
        ("two", (X[:4],)),
        ("product", (SQUARE,)),
        ("synchronous", (X[:4],)),
    ):
        module[name](*argument)
        module[name].submit(*argument)
        assert module[name].is_direct == (session.tier == "fast")
    return module


def pending(session: Session, values: np.ndarray[Any, Any]) -> tuple[Array, Fence]:
    """An array whose elements are there when the fence is signalled."""
    fence = Fence.create(session.device)
    return Array(session.to_device(values).buffer_view, session.device, fence), fence


def test_a_plain_call_waits(module: Module) -> None:
    result = module.add(X, X)
    assert result.ready and np.array_equal(result, X + X)
    first, second = module.two(X[:4])
    assert np.array_equal(first, X[:4] * 2) and np.array_equal(second, X[:4] ** 2)


def test_declarations_leave_the_fences_out(module: Module) -> None:
    assert module.add.cconv == "0rrrr_r" and len(module.add.arguments) == 2
    assert module.add.declaration.startswith("async func @add(")
    with pytest.raises(InvalidArgumentError, match="expected 2 arguments but passed 4"):
        module.add(X, X, None, None)
    with pytest.raises(InvalidArgumentError, match="input1 shape dimension 0 mismatch"):
        module.add(X, X[:63])


def test_results_of_one_call_are_arguments_of_the_next(module: Module, session: Session) -> None:
    start, fence = pending(session, X)
    value = start
    for _ in range(5):
        value = module.add.submit(value, value)
    assert not value.ready and "being computed" in repr(value)
    fence.signal()
    assert np.array_equal(value, X * 32) and value.ready


def test_a_plain_call_waits_for_its_arguments(module: Module, session: Session) -> None:
    functions: tuple[Callable[..., Any], ...] = (module.add, lambda a, b: module.synchronous(a))
    for function in functions:
        value, fence = pending(session, X if function is module.add else X[:4])
        timer = threading.Timer(0.03, fence.signal)
        start = time.monotonic()
        timer.start()
        assert np.array_equal(function(value, value), np.asarray(value) * 2)
        assert time.monotonic() - start > 0.02
        timer.join()


def test_failures_arrive_where_results_are_read(module: Module, session: Session) -> None:
    value, fence = pending(session, X)
    result = module.add.submit(value, value)
    fence.fail(DataLossError("the link is gone"))
    with pytest.raises(DataLossError, match="the link is gone"):
        np.asarray(result)
    with pytest.raises(DataLossError, match=r"the link is gone.*invoking function 'add'"):
        module.add(value, X)
    assert np.array_equal(module.add(X, X), X + X)


def test_submitted_work_goes_on_after_the_call(module: Module, session: Session) -> None:
    """Arrays that are still computed know when they are there, and can be arguments."""
    square = session.to_device(SQUARE)
    for _ in range(8):
        first = module.product.submit(square)
        second = module.product.submit(first)
        assert np.array_equal(first, SQUARE @ SQUARE) and first.ready
        assert np.array_equal(second, SQUARE @ SQUARE @ SQUARE @ SQUARE) and second.fence is None


def test_plain_calls_of_several_threads(module: Module) -> None:
    """Each waits for its own results while others use the same registers."""
    wrong: list[float] = []

    def work(number: float) -> None:
        for turn in range(8):
            factor = np.float32(number + turn)
            squared = module.product(SQUARE * factor)
            if not np.array_equal(squared, SQUARE @ SQUARE * factor * factor):
                wrong.append(number)
            if not np.array_equal(module.add(X * factor, X), X * factor + X):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(100.0 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_numpy_arguments_may_change_after_submission(module: Module, session: Session) -> None:
    values = X.copy()
    blocker, fence = pending(session, X)
    result = module.add.submit(blocker, values)
    values[:] = -1
    fence.signal()
    assert np.array_equal(result, X + X)


def test_awaiting(module: Module, session: Session) -> None:
    async def main() -> list[Any]:
        value, fence = pending(session, X)
        asyncio.get_running_loop().call_later(0.02, fence.signal)
        first = await module.add.async_(value, input1=X)
        second = await module.synchronous.async_(X[:4])
        third = await module.add.submit(first, X)
        return [np.asarray(item).tolist() for item in (first, second, third)]

    assert asyncio.run(main()) == [(X * 2).tolist(), (X[:4] * 2).tolist(), (X * 3).tolist()]


def test_the_loop_goes_on_while_calls_wait(module: Module, session: Session) -> None:
    """Many calls that wait for one event overlap; others are served meanwhile."""

    async def main() -> int:
        value, fence = pending(session, X)
        calls = [asyncio.ensure_future(module.add.async_(value, X * number)) for number in range(100)]
        ticks = 0
        while ticks < 20:
            await asyncio.sleep(0.001)
            assert np.array_equal(await module.add.async_(X, X), X + X)
            ticks += 1
        assert not any(call.done() for call in calls)
        fence.signal()
        for number, result in enumerate(await asyncio.gather(*calls)):
            assert np.array_equal(result, X + X * number)
        return ticks

    assert asyncio.run(main()) == 20


def test_giving_up(module: Module, session: Session) -> None:
    async def main() -> None:
        value, fence = pending(session, X)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(module.add.async_(value, X), 0.02)
        task = asyncio.ensure_future(module.add.async_(value, X))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fence.signal()
        assert np.array_equal(await module.add.async_(X, X), X + X)

    asyncio.run(main())
    assert np.array_equal(module.add(X, X), X + X)


def test_awaited_failures(module: Module, session: Session) -> None:
    async def main() -> None:
        value, fence = pending(session, X)
        asyncio.get_running_loop().call_later(0.01, fence.fail, DeadlineExceededError("too slow"))
        with pytest.raises(DeadlineExceededError, match=r"too slow.*async func @add"):
            await module.add.async_(value, X)
        with pytest.raises(InvalidArgumentError, match="input0"):
            await module.add.async_(None, X)
        state = session.load(STATE)
        with pytest.raises(RuntimeError, match="value must be positive"):
            await state.positive.async_(-1)

    asyncio.run(main())


def test_a_program_that_waits(module: Module, session: Session) -> None:
    """``hal.fence.await`` inside of a call: other threads may use the session meanwhile."""
    fence = Fence.create(session.device)
    results: list[int] = []
    waiting = threading.Thread(target=lambda: results.append(module.await_fence(fence, -1)))
    waiting.start()
    time.sleep(0.02)
    assert np.array_equal(module.add(X, X), X + X)
    assert results == []
    fence.signal()
    waiting.join(10)
    assert results == [0]
    assert module.await_fence(None, -1) == 0
    assert module.await_fence(Fence.create(session.device), 1) == StatusCode.DEADLINE_EXCEEDED


def test_an_awaited_program_that_waits(module: Module, session: Session) -> None:
    async def main() -> list[int]:
        fence, never = Fence.create(session.device), Fence.create(session.device)
        asyncio.get_running_loop().call_later(0.02, fence.signal)
        calls = [module.await_fence.async_(fence, -1), module.await_fence.async_(never, 5)]
        return list(await asyncio.gather(*calls))

    assert asyncio.run(main()) == [0, StatusCode.DEADLINE_EXCEEDED]


@pytest.mark.parametrize("name", ["main", "main$async"])
def test_pairs_of_the_torch_front_end(session: Session, name: str) -> None:
    function = session.load(TORCH_STYLE)[name]
    assert len(function.arguments) == 2
    values = X[:4]
    assert np.array_equal(function(values, values), values * 2)
    blocker, fence = pending(session, values)
    result = function.submit(blocker, values)
    assert not result.ready
    fence.signal()
    assert np.array_equal(result, values * 2)
    assert np.array_equal(asyncio.run(function.async_(values, values)), values * 2)


class Slow(HostModule):
    """A host function that has to be waited for."""

    name = "slow"

    def exports(self) -> Iterable[HostExport]:
        return [HostExport("answer", "0i_i", self._answer)]

    def _answer(self, state: object, value: int) -> Pending:
        return Pending(lambda timeout: True, lambda: value + 1)


def test_native_functions_that_wait(session: Session) -> None:
    session.append_module(Slow())
    program = Assembler("program").import_function("slow.answer", "0i_i")
    program.function("f", "0i_i", "%i1 = call @slow.answer [%i0]\nreturn [%i1]")
    module = session.load(program.build())
    assert module.f(1) == 2 and session["slow.answer"](5) == 6
    assert asyncio.run(module.f.async_(1)) == 2


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_an_event_loop_has_turns_while_python_interprets_a_kernel(device: str) -> None:
    async def turns_of(search: Function) -> int:
        call = asyncio.ensure_future(search.async_(np.full(4096, 3, np.int32), 2, timeout=0.5))
        turns = 0
        while not call.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert isinstance(call.exception(), DeadlineExceededError)
        return turns

    with Session(device, tier="plain") as session:
        assert asyncio.run(turns_of(session.load(PROGRAMS / "endless.vmfb").f)) > 3
