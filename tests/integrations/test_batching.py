"""Batches of requests: each gets an answer, and its own. What is computed waits for the test, so that nothing
depends on time."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
    UnknownError,
)
from jitree.integrations.batching import Batcher, PaddedFunction
from tests.api.programs import ARITHMETIC


class Held:
    """Doubles rows when it may."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may = threading.Semaphore(0)
        self.batches: list[Any] = []
        self.loop = asyncio.get_running_loop()

    def __call__(self, rows: Any) -> Any:
        self.batches.append(rows.tolist())
        self.loop.call_soon_threadsafe(self.begun.set)
        assert self.may.acquire(timeout=60)
        if (rows < 0).any():
            raise InvalidArgumentError("a negative row")
        return 2 * rows

    async def hold(self, batcher: Batcher, value: float = 0) -> asyncio.Task[Any]:
        """A request that is being computed."""
        self.begun.clear()
        task = asyncio.create_task(batcher(value))
        await self.begun.wait()
        return task


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def wrapped() -> None:
        async def limited() -> None:
            async with asyncio.timeout(60):
                await test()

        asyncio.run(limited())

    wrapped.__name__ = test.__name__
    return wrapped


async def turns(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def gathered(*tasks: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


@run
async def test_what_waits_is_a_batch() -> None:
    held = Held()
    async with Batcher(held, size=3) as batcher:
        first = await held.hold(batcher, 1)
        others = [asyncio.create_task(batcher(value)) for value in (2, 3, 4, 5)]
        await turns(lambda: batcher.waiting == 4)
        held.may.release(3)
        assert await gathered(first, *others) == [2, 4, 6, 8, 10]
    assert held.batches == [[1], [2, 3, 4], [5]]
    assert batcher.metrics["accepted"] == batcher.metrics["answered"] == batcher.metrics["rows"] == 5


@run
async def test_a_row_that_fails_fails_alone() -> None:
    held = Held()
    async with Batcher(held, size=4) as batcher:
        first = await held.hold(batcher)
        others = [asyncio.create_task(batcher(value)) for value in (1, -1, 2)]
        await turns(lambda: batcher.waiting == 3)
        held.may.release(5)
        _, one, two, three = await gathered(first, *others)
    assert (one, three) == (2, 4) and isinstance(two, InvalidArgumentError)
    assert batcher.metrics["failed"] == 1 and batcher.metrics["answered"] == 3


@run
async def test_arrays_of_other_shapes_are_other_batches() -> None:
    held = Held()
    async with Batcher(held) as batcher:
        first = await held.hold(batcher)
        given: list[Any] = [np.ones(2), np.ones(3), np.ones(2, np.float32), np.ones(2) * 2]
        others = [asyncio.create_task(batcher(value)) for value in given]
        await turns(lambda: batcher.waiting == 4)
        held.may.release(4)
        made = await gathered(first, *others)
    for value, result in zip(given, made[1:], strict=True):
        assert np.array_equal(result, 2 * value) and result.dtype == value.dtype
    assert held.batches == [[0], [[1, 1], [2, 2]], [[1, 1, 1]], [[1, 1]]]


@run
async def test_shorter_arrays_are_filled_up() -> None:
    held = Held()
    async with Batcher(held, fill=7) as batcher:
        first = await held.hold(batcher)
        others = [asyncio.create_task(batcher(np.arange(size))) for size in (1, 2)]
        await turns(lambda: batcher.waiting == 2)
        held.may.release(2)
        await gathered(first, *others)
    assert held.batches[1] == [[0, 7], [0, 1]]


@run
async def test_too_many_requests_are_refused() -> None:
    held = Held()
    async with Batcher(held, waiting=2) as batcher:
        tasks = [await held.hold(batcher), *(asyncio.create_task(batcher(value)) for value in (1, 2))]
        await turns(lambda: batcher.waiting == 2)
        with pytest.raises(ResourceExhaustedError, match="2 requests wait already"):
            await batcher(3)
        room = asyncio.create_task(batcher.room())
        await asyncio.sleep(0)
        assert not room.done()
        held.may.release(1)
        await room
        held.may.release(2)
        assert await gathered(*tasks, batcher(3)) == [0, 2, 4, 6]
    assert batcher.metrics["refused"] == 1


@run
async def test_requests_that_are_late_or_cancelled_are_not_computed() -> None:
    held = Held()
    async with Batcher(held) as batcher:
        first = await held.hold(batcher)
        with pytest.raises(DeadlineExceededError, match="was not answered within 0"):
            await batcher(1, timeout=0)
        leaving, staying = asyncio.create_task(batcher(2)), asyncio.create_task(batcher(3))
        await turns(lambda: batcher.waiting == 2)
        leaving.cancel()
        await turns(leaving.done)
        assert leaving.cancelled() and batcher.waiting == 1
        held.may.release(2)
        assert await gathered(first, staying) == [0, 6]
    assert held.batches == [[0], [3]]
    assert batcher.metrics["late"] == batcher.metrics["cancelled"] == 1


@run
async def test_counts_go_on_in_the_next_batcher() -> None:
    """Also those of requests that the one before still answers."""
    held, function = Held(), lambda rows: rows
    async with Batcher(held) as before, Batcher(function) as after:
        first = await held.hold(before)
        after.count_on(before)
        await after(1)
        held.may.release(1)
        await first
    assert after.metrics["accepted"] == after.metrics["answered"] == 2


@run
async def test_a_request_that_is_left_while_it_is_computed() -> None:
    held = Held()
    async with Batcher(held) as batcher:
        first = await held.hold(batcher)
        first.cancel()
        await turns(first.done)
        next_one = asyncio.create_task(batcher(1))
        held.may.release(2)
        assert await next_one == 2
    assert batcher.metrics["answered"] == 1


@run
async def test_draining_answers_what_was_accepted() -> None:
    held = Held()
    batcher = Batcher(held)
    tasks = [await held.hold(batcher), asyncio.create_task(batcher(1))]
    await turns(lambda: batcher.waiting == 1)
    draining = asyncio.create_task(batcher.drain())
    await turns(lambda: batcher.draining)
    with pytest.raises(UnavailableError, match="being drained"):
        await batcher(2)
    assert not draining.done()
    held.may.release(2)
    await draining
    assert await gathered(*tasks) == [0, 2]
    await batcher.drain()


@run
async def test_batches_in_flight() -> None:
    held = Held()
    async with Batcher(held, in_flight=2) as batcher:
        first = await held.hold(batcher, 1)
        second = await held.hold(batcher, 2)
        assert held.batches == [[1], [2]], "at one time"
        held.may.release(2)
        assert await gathered(first, second) == [2, 4]


@run
async def test_a_delay_lets_batches_grow() -> None:
    held = Held()
    held.may.release(2)
    async with Batcher(held, size=2, delay=3600) as batcher:
        assert await gathered(batcher(1), batcher(2)) == [2, 4], "a full one does not wait"
        last = asyncio.create_task(batcher(3))
        await turns(lambda: batcher.waiting == 1)
    assert await last == 6, "nor do the last ones"
    held.may.release(1)
    async with Batcher(held, delay=0.001) as batcher:
        assert await batcher(4) == 8
    assert held.batches == [[1, 2], [3], [4]]


@run
async def test_functions_that_give_other_than_rows() -> None:
    for function in (lambda rows: rows[:0], lambda rows: 3, lambda rows: (rows, 1), lambda rows: ()):
        async with Batcher(function) as batcher:
            with pytest.raises(FailedPreconditionError, match="for 1 rows"):
                await batcher(1)
    async with Batcher(lambda rows: (rows, -rows)) as batcher:
        assert await batcher(1) == (1, -1)
        with pytest.raises(InvalidArgumentError, match="array of numbers"):
            await batcher(None)
    with pytest.raises(InvalidArgumentError, match="room for one request"):
        Batcher(len, waiting=0)


def cancelled(rows: Any) -> None:
    future = Future[None]()
    future.cancel()
    future.result()


def cancelled_here(rows: Any) -> None:
    raise asyncio.CancelledError


@run
async def test_functions_that_end_more_than_a_request() -> None:
    """The batcher goes on: none of these reaches the event loop, where they ended the task that answers."""
    for function in (lambda rows: next(iter(())), lambda rows: sys.exit(3), cancelled, cancelled_here):
        async with Batcher(function) as batcher:
            for _ in range(2):
                with pytest.raises(UnknownError, match="the function ended with"):
                    await batcher(1)


def test_a_second_event_loop_is_refused() -> None:
    """What answers is on the first: a request there waited forever."""
    batcher = Batcher(np.negative)

    async def answer() -> Any:
        async with asyncio.timeout(60):
            return await batcher(1)

    assert asyncio.run(answer()) == -1
    with pytest.raises(FailedPreconditionError, match="on another event loop"):
        asyncio.run(answer())


@run
async def test_a_time_that_is_none_is_refused() -> None:
    async with Batcher(np.negative) as batcher:
        with pytest.raises(
            InvalidArgumentError, match="timeout: expected a number of seconds from 0 on but got nan"
        ):
            await batcher(1, timeout=float("nan"))
        assert batcher.metrics["accepted"] == 0


@run
async def test_a_module_that_serves_a_queue() -> None:
    with jitree.Session("local-sync", tier="plain") as session:
        function = PaddedFunction(session.load(ARITHMETIC).add)
        async with Batcher(function, in_flight=2) as batcher:
            assert batcher.size == 4
            made = await asyncio.gather(*(batcher(np.float32(n), np.float32(1)) for n in range(50)))
            assert made == [n + 1 for n in range(50)]


@pytest.mark.parametrize(
    "options", [{"size": 0}, {"size": -1}, {"in_flight": 0}, {"delay": -1}, {"timeout": float("nan")}]
)
def test_options_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{next(iter(options))}: expected"):
        Batcher(np.negative, **options)
