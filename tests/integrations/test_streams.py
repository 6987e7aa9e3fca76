"""Requests that share steps: each gets its own parts, in order, and gives its slot back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from jitree.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
    UnknownError,
)
from jitree.integrations.streams import Streams
from tests.integrations.test_batching import run, turns


class Counter:
    """Counts each request down from its number. Some numbers are refused, or break a step."""

    size = 2

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.steps = 0

    def start(self, slot: int, request: int) -> None:
        assert slot not in self.left
        if request < 0:
            raise InvalidArgumentError("a negative number")
        self.left[slot] = request

    def step(self) -> Iterator[tuple[int, Any, bool]]:
        self.steps += 1
        for slot, number in list(self.left.items()):
            if number == 13:
                raise InvalidArgumentError("thirteen")
            self.left[slot] -= 1
            if number == 1:
                del self.left[slot]
            yield slot, number, number == 1

    def stop(self, slot: int) -> None:
        del self.left[slot]


async def parts(streams: Streams, number: int) -> list[int]:
    async with streams(number) as stream:
        return [part async for part in stream]


@run
async def test_each_gets_what_is_its_own() -> None:
    engine = Counter()
    async with Streams(engine) as streams:
        made = await asyncio.gather(*(parts(streams, number) for number in range(1, 7)))
    assert made == [list(range(number, 0, -1)) for number in range(1, 7)]
    assert engine.steps < 21 and not engine.left and streams.metrics["answered"] == 6
    with pytest.raises(UnavailableError):
        await parts(streams, 1)


@run
async def test_leaving_early_gives_the_slot_to_another() -> None:
    engine = Counter()
    async with Streams(engine, waiting=1) as streams:
        async with AsyncExitStack() as stack:
            for _ in range(2):
                stream = await stack.enter_async_context(streams(10**9))
                assert await anext(stream) == 10**9
            waiting = asyncio.create_task(parts(streams, 2))
            await turns(lambda: streams.waiting == 1)
            with pytest.raises(ResourceExhaustedError):
                await parts(streams, 1)
        assert await waiting == [2, 1]
    assert not engine.left and streams.metrics["cancelled"] == 2


@run
async def test_what_leaves_while_it_waits_never_begins() -> None:
    engine = Counter()
    async with Streams(engine) as streams, streams(10**9) as first, streams(10**9) as second:
        assert await anext(first) and await anext(second)
        with pytest.raises(DeadlineExceededError, match=r"was not complete within 0\.001 s"):
            async with streams(5, timeout=0.001) as third:
                await anext(third)
        assert streams.waiting == 0 and streams.metrics["late"] == 1


@run
async def test_failures() -> None:
    engine = Counter()
    async with Streams(engine) as streams:
        async with streams(10**9) as going:
            assert await anext(going) == 10**9
            with pytest.raises(InvalidArgumentError, match="negative"):
                await parts(streams, -1)
            assert await anext(going) == 10**9 - 1, "goes on"
            with pytest.raises(InvalidArgumentError, match="thirteen"):
                await parts(streams, 13)
            with pytest.raises(InvalidArgumentError, match="thirteen"):
                while True:
                    await anext(going)
        assert await parts(streams, 2) == [2, 1], "and so do others"
    assert streams.metrics["failed"] == 3 and streams.metrics["answered"] == 1


class Odd(Counter):
    """Does not keep to what engines promise."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []
        self.is_ending = False

    def start(self, slot: int, request: int) -> None:
        if request == 0:
            raise StopIteration

    def step(self) -> Iterator[tuple[int, Any, bool]]:
        if self.is_ending:
            raise SystemExit(3)
        return iter(self.made)

    def stop(self, slot: int) -> None:
        raise KeyError(slot)


@run
async def test_engines_that_are_wrong() -> None:
    """Each request gets an error, and the next one its answer."""
    engine = Odd()
    async with Streams(engine) as streams:
        for made in ([(1, 3, False)], [(2, 3, False)], [(-1, 3, False)], [(0, 1, True), (0, 0, True)]):
            engine.made = made
            with pytest.raises(FailedPreconditionError, match="which no request has") as failure:
                await parts(streams, 1)
            assert "could not stop slot 0" in failure.value.__notes__[0]
        engine.is_ending = True
        with pytest.raises(UnknownError, match="SystemExit: 3"):
            await parts(streams, 1)
        with pytest.raises(UnknownError, match="StopIteration"):
            await parts(streams, 0)
        engine.is_ending, engine.made = False, [(0, 7, True)]
        assert await parts(streams, 1) == [7]


@run
async def test_no_time_is_a_time() -> None:
    async with Streams(Counter(), timeout=0) as streams:
        with pytest.raises(DeadlineExceededError):
            await parts(streams, 5)
    with pytest.raises(InvalidArgumentError, match="timeout: expected"):
        Streams(Counter(), timeout=-1)
