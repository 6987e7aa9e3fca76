"""Answers requests step by step, such as texts letter by letter, in shared steps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Protocol, Self

from jitree.base.finalizers import Unique
from jitree.errors import DeadlineExceededError, FailedPreconditionError, pass_interruption
from jitree.integrations.batching import Admission, contained

_END: Final = object()


class StepEngine(Protocol):
    """What makes the steps, on a thread."""

    size: int
    """How many requests share a step."""

    def start(self, slot: int, request: Any) -> None:
        """A request takes part from the next step on.

        What this raises is the answer of it alone.
        """

    def step(self) -> Iterable[tuple[int, Any, bool]]:
        """(slot, what its request gets, whether that is the last)"""

    def stop(self, slot: int) -> None:
        """The request of a slot is over."""


class AnswerStream(Unique):
    """Gives the answer to one request. ``async with streams(request) as stream: async for part in stream``
    reads it. Leaving the block early gives the slot to another."""

    def __init__(self, owner: Streams, request: Any, timeout: float | None) -> None:
        self.request = request
        self.parts: asyncio.Queue[Any] = asyncio.Queue()
        self.is_left = False
        self.is_over = False
        """Whether the engine has given all of it."""
        self._owner = owner
        self._timeout = timeout
        self._end: float | None = None

    async def __aenter__(self) -> Self:
        """RESOURCE_EXHAUSTED when too many requests wait, UNAVAILABLE while draining."""
        self._owner.enter(self)
        if self._timeout is not None:
            self._end = asyncio.get_running_loop().time() + self._timeout
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._owner.leave(self, kind)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """DEADLINE_EXCEEDED when the whole answer takes too long, and what the engine fails with."""
        try:
            async with asyncio.timeout_at(self._end):
                part = await self.parts.get()
        except TimeoutError as error:
            pass_interruption(error)
            raise DeadlineExceededError(f"the answer was not complete within {self._timeout} s") from None
        if part is _END:
            raise StopAsyncIteration
        if isinstance(part, _Failure):
            raise part.error
        return part


class _Failure:
    def __init__(self, error: Exception) -> None:
        self.error = error


class Streams(Admission):
    """Gives the requests that wait the slots of an engine that are free."""

    def __init__(self, engine: StepEngine, *, waiting: int = 1024, timeout: float | None = None) -> None:
        """``waiting``: requests that may wait for a slot.

        ``timeout``: seconds that an answer may take.
        """
        super().__init__(waiting, timeout)
        self._engine = engine
        self._requests: deque[AnswerStream] = deque()
        self._slots: list[AnswerStream | None] = [None] * engine.size

    @property
    def waiting(self) -> int:
        return len(self._requests)

    def __call__(self, request: Any, timeout: float | None = None) -> AnswerStream:
        return AnswerStream(self, request, self._seconds(timeout))

    def enter(self, stream: AnswerStream) -> None:
        self._admit(1)
        self._requests.append(stream)
        self._news.set()

    def leave(self, stream: AnswerStream, kind: type[BaseException] | None) -> None:
        """Its caller takes no more parts."""
        if not stream.is_over:
            is_late = kind is not None and issubclass(kind, DeadlineExceededError)
            self.metrics["late" if is_late else "cancelled"] += 1
        stream.is_left = True
        if stream in self._requests:
            self._requests.remove(stream)
            self._left()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._requests and not any(self._slots):
                if self.draining:
                    return
                self._news.clear()
                await self._news.wait()
            started, stopped = self._changes()
            try:
                failed, made = await loop.run_in_executor(
                    self._executor, contained, self._advance, started, stopped
                )
            except Exception as error:  # of a step: nothing is known of any of its requests
                failed, made = [(slot, error) for slot, stream in enumerate(self._slots) if stream], []
                slots = [slot for slot, _ in failed]
                await loop.run_in_executor(self._executor, self._stop_all, slots, error)
            for slot, failure in failed:
                self.metrics["failed"] += 1
                self._give(slot, _Failure(failure))
                self._end(slot)
            self.metrics["batches"] += 1
            self.metrics["rows"] += len(made)
            for slot, part, is_last in made:
                self._give(slot, part)
                if is_last:
                    self._give(slot, _END)
                    self._end(slot)
                    self.metrics["answered"] += 1

    def _changes(self) -> tuple[list[tuple[int, Any]], list[int]]:
        """(slot, request) of those that begin, and slots of those that have been left."""
        stopped = [slot for slot, stream in enumerate(self._slots) if stream and stream.is_left]
        started = []
        for slot in stopped:
            self._slots[slot] = None
        for slot, stream in enumerate(self._slots):
            if stream is None and self._requests:
                begun = self._slots[slot] = self._requests.popleft()
                started.append((slot, begun.request))
                self._left()
        return started, stopped

    def _advance(self, started: list[tuple[int, Any]], stopped: list[int]) -> Any:
        """On a thread: slots whose requests could not begin, with the reason, and what a step gives."""
        for slot in stopped:
            self._engine.stop(slot)
        failed = []
        for slot, request in started:
            try:
                contained(self._engine.start, slot, request)
            except Exception as error:
                failed.append((slot, error))
        refused = {slot for slot, _ in failed}
        if any(stream and slot not in refused for slot, stream in enumerate(self._slots)):
            return failed, self._step(refused)
        return failed, []

    def _step(self, over: set[int]) -> list[tuple[int, Any, bool]]:
        """FAILED_PRECONDITION for an engine that goes on with a request that is over."""
        made = []
        for slot, part, is_last in self._engine.step():
            if slot in over or slot not in range(len(self._slots)) or self._slots[slot] is None:
                raise FailedPreconditionError(f"the engine gave a part for slot {slot}, which no request has")
            if is_last:
                over.add(slot)
            made.append((slot, part, is_last))
        return made

    def _stop_all(self, slots: list[int], error: Exception) -> None:
        for slot in slots:
            try:
                contained(self._engine.stop, slot)
            except Exception as another:
                error.add_note(f"the engine could not stop slot {slot}, too: {another}")

    def _give(self, slot: int, part: Any) -> None:
        stream = self._slots[slot]
        assert stream is not None
        stream.parts.put_nowait(part)

    def _end(self, slot: int) -> None:
        stream = self._slots[slot]
        assert stream is not None
        stream.is_over, self._slots[slot] = True, None
