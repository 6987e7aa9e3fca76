"""Batches the requests of many callers, with limits, deadlines, cancelling and draining.

A batch is what waits when the function is free; so batches grow with the load, and a caller alone waits for
none. Any number of rows is padded to the shapes that a module accepts. Everything but the function runs on
one event loop.
"""

from __future__ import annotations

import abc
import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from jitree.api.calls.refusal import describe
from jitree.api.function import Function
from jitree.base.arguments import said, seconds
from jitree.base.finalizers import Unique
from jitree.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
    UnknownError,
    pass_interruption,
)

Rows = npt.NDArray[Any]

T = TypeVar("T")
_ENDINGS: Final = (StopIteration, StopAsyncIteration, concurrent.futures.CancelledError)
"""Exceptions that end more than a request."""


class PaddedFunction:
    """Takes arrays of any number of rows, and gives as many.

    It calls the function of the smallest size that is large enough, with the last row repeated; more rows
    than the largest takes are several calls. A function whose arguments lack the axis of rows is called for
    each.
    """

    def __init__(self, *functions: Function, sizes: Sequence[int] = ()) -> None:
        """``functions``: one, or one for each number of rows, of equal arguments otherwise.

        ``sizes``: which numbers of rows one is called with that would take any, so that it sees few different
        shapes.

        INVALID_ARGUMENT for functions of which none takes rows of tensors, and sizes that are none.
        """
        if not functions or not all(isinstance(function, Function) for function in functions):
            raise InvalidArgumentError(f"PaddedFunction: expected functions but got {describe(functions)}")
        self._by_size: dict[int, Function] = {}
        self._any: Function | None = None
        self.functions = functions
        for function in functions:
            declared = [argument.tensor for argument in function.arguments]
            shapes = [tensor.shape for tensor in declared if tensor is not None]
            if not shapes or len(shapes) < len(declared):
                raise InvalidArgumentError(
                    f"`{function.declaration}`: expected a function whose arguments are all tensors; bind "
                    "others beforehand"
                )
            self._ranks = tuple(map(len, shapes))
            leading = {shape[0] for shape in shapes if shape} - {None}
            if len(leading) == 1 and all(shape and shape[0] for shape in shapes):
                self._by_size[leading.pop() or 0] = function
            else:
                self._any = function
        if not all(isinstance(size, (int, np.integer)) and size > 0 for size in sizes):
            raise InvalidArgumentError(f"sizes: expected numbers of rows but got {describe(sizes)}")
        if self._any is not None:
            self._by_size |= dict.fromkeys(sizes, self._any)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of rows that it calls functions with; empty where that is any number."""
        return tuple(sorted(self._by_size))

    def __call__(self, *arrays: Any) -> Any:
        """The results, as arrays of numpy with a row for each row given.

        INVALID_ARGUMENT for arrays of different numbers of rows.
        """
        rows = [np.asarray(array) for array in arrays]
        counts = {array.shape[0] if array.ndim else -1 for array in rows}
        if len(rows) != len(self._ranks) or len(counts) != 1 or -1 in counts:
            raise InvalidArgumentError(
                f"`{self.functions[0].declaration}`: expected {len(self._ranks)} arrays with as many rows "
                f"each but got shapes {', '.join(str(array.shape) for array in rows) or 'of none'}"
            )
        count = counts.pop()
        if all(array.ndim == rank + 1 for array, rank in zip(rows, self._ranks, strict=True)):
            parts = [self._items(rows, count)]
        elif self._any is not None and not self._by_size:
            parts = [self._cut(self._any(*rows), count, count)]
        else:
            parts = [self._padded(rows, *chunk) for chunk in self._chunks(count)]
        joined = [
            np.concatenate(column) if len(parts) > 1 else column[0] for column in zip(*parts, strict=True)
        ]
        return joined[0] if len(joined) == 1 else tuple(joined)

    def _chunks(self, count: int) -> list[tuple[int, int, int]]:
        """(first row, end, rows of the call)"""
        chunks: list[tuple[int, int, int]] = []
        start = 0
        while start < count or not chunks:
            size = next((size for size in self.sizes if size >= count - start), self.sizes[-1])
            chunks.append((start, min(start + size, count), size))
            start += size
        return chunks

    def _padded(self, rows: Sequence[Rows], start: int, end: int, size: int) -> list[Rows]:
        given = [array[start:end] for array in rows]
        if end - start < size:
            given = [
                np.concatenate([part, np.repeat(part[-1:], size - len(part), 0)])
                if len(part)
                else np.zeros((size, *part.shape[1:]), part.dtype)
                for part in given
            ]
        return self._cut(self._by_size[size](*given), end - start, size)

    def _items(self, rows: Sequence[Rows], count: int) -> list[Rows]:
        """Calls a function that takes one row without the axis, for each row."""
        function = self.functions[0]
        made = [_results(function(*items)) for items in zip(*rows, strict=True)]
        if not made:
            zeros = [np.zeros(array.shape[1:], array.dtype) for array in rows]
            return [np.empty((0, *np.shape(value)), value.dtype) for value in _results(function(*zeros))]
        return [np.stack(column) for column in zip(*made, strict=True)]

    def _cut(self, results: Any, count: int, size: int) -> list[Rows]:
        values = _results(results)
        for value in values:
            if value.ndim == 0 or value.shape[0] != size:
                raise FailedPreconditionError(
                    f"`{self.functions[0].declaration}`: a call with {size} rows gave shape {value.shape}; "
                    "each result must have as many rows"
                )
        return [value[:count] for value in values]


def _results(results: Any) -> list[Rows]:
    return [np.asarray(value) for value in (results if isinstance(results, tuple) else (results,))]


def stacked(items: Sequence[Rows], fill: float | None) -> Rows:
    """Items as rows; with ``fill``, shorter ones are filled up at their ends.

    INVALID_ARGUMENT for a number that integers do not have.
    """
    if fill is None:
        return np.stack(items)
    kind = items[0].dtype
    with np.errstate(invalid="ignore"):
        held = np.asarray(fill).astype(kind)
    if kind.kind in "biu" and held != fill:
        raise InvalidArgumentError(f"fill: arrays of {kind} cannot be filled up with {fill}")
    shape = tuple(max(sizes) for sizes in zip(*(item.shape for item in items), strict=True))
    rows = np.full((len(items), *shape), held)
    for number, item in enumerate(items):
        part: tuple[Any, ...] = (number, *(slice(size) for size in item.shape))
        rows[part] = item
    return rows


def contained(function: Callable[..., T], *arguments: Any) -> T:
    """What a function gives on a thread.

    UNKNOWN for what would end the task that waits for it, or the whole server: SystemExit, StopIteration,
    that something it waited for was cancelled.
    """
    try:
        return function(*arguments)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, _ENDINGS):
            raise
        raise UnknownError(f"the function ended with {said(error)}") from error


class Admission(Unique, abc.ABC):
    """Lets as many requests wait as have room, until no more are taken."""

    def __init__(self, waiting: int, timeout: float | None) -> None:
        if waiting < 1:
            raise InvalidArgumentError(f"waiting: expected room for one request or more, not {waiting}")
        self._most = waiting
        self._timeout = None if timeout is None else seconds("timeout", timeout)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._executor: ThreadPoolExecutor | None = None
        self.draining = False
        self.metrics = dict.fromkeys(
            ("accepted", "refused", "answered", "failed", "late", "cancelled", "batches", "rows"), 0
        )
        """How many requests there were, and what became of them."""

    @property
    @abc.abstractmethod
    def waiting(self) -> int:
        """Requests that have been accepted and not begun."""

    @abc.abstractmethod
    async def _work(self) -> None:
        """Answers requests until no more are taken. Runs once a thread."""

    def _admit(self, threads: int) -> None:
        """Admits a request. UNAVAILABLE when no more are taken, RESOURCE_EXHAUSTED when too many wait,
        FAILED_PRECONDITION on another event loop than that of the first request: nothing works there."""
        if self.draining:
            self.metrics["refused"] += 1
            raise UnavailableError("no more requests are taken; the server is being drained")
        if self.waiting >= self._most:
            self.metrics["refused"] += 1
            raise ResourceExhaustedError(f"{self.waiting} requests wait already; try again later")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._executor = ThreadPoolExecutor(threads, "jitree-batches")
            self._tasks = [asyncio.create_task(self._work()) for _ in range(threads)]
        elif self._loop is not asyncio.get_running_loop():
            raise FailedPreconditionError("its requests are on another event loop; make one for each loop")
        self.metrics["accepted"] += 1

    def _seconds(self, timeout: float | None) -> float | None:
        """How long a request may take.

        INVALID_ARGUMENT for what is no number: an event loop with a timer of no time holds up all others.
        """
        return self._timeout if timeout is None else seconds("timeout", timeout)

    async def room(self) -> None:
        """Waits until a request would not be refused for others that wait."""
        while self.waiting >= self._most:
            self._has_room.clear()
            await self._has_room.wait()

    def _left(self) -> None:
        """One waits no more."""
        self._has_room.set()

    def count_on(self, earlier: Admission) -> None:
        """Adds the counts of what it replaces, which may still answer requests."""
        self.metrics = earlier.metrics

    async def drain(self) -> None:
        """Takes no more requests, and returns when those that were accepted are answered."""
        self.draining = True
        self._news.set()
        await asyncio.gather(*self._tasks)
        if self._executor is not None:
            self._executor.shutdown(wait=False)  # its threads have nothing to do any more

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.drain()


class _Request:
    __slots__ = ("answer", "items", "kind", "since")

    def __init__(self, items: tuple[Rows, ...], kind: object, loop: asyncio.AbstractEventLoop) -> None:
        self.items = items
        self.kind = kind
        """Requests of one kind can be rows of one batch."""
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.since = loop.time()


class Batcher(Admission):
    """Gives each caller the row of a batch that is its own: ``await batcher(image)``."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        size: int | None = None,
        delay: float = 0.0,
        waiting: int = 1024,
        in_flight: int = 1,
        timeout: float | None = None,
        fill: float | None = None,
    ) -> None:
        """``function``: takes arrays of rows and returns such, as :class:`PaddedFunction` does, on a thread.

        ``size``: rows of a batch at most; None takes the largest size of the function, or 32. ``delay``:
        seconds for which an incomplete batch waits for more. ``waiting``: requests that may wait.
        ``in_flight``: batches that are computed at one time. ``timeout``: seconds that a request may take.
        ``fill``: with what shorter arrays are filled up to the longest of a batch; None puts only arrays of
        one shape into a batch.
        """
        super().__init__(waiting, timeout)
        for name, number in (("size", 1 if size is None else size), ("in_flight", in_flight)):
            if number < 1:
                raise InvalidArgumentError(f"{name}: expected one or more, not {number}")
        if not delay >= 0:
            raise InvalidArgumentError(f"delay: expected seconds, not {delay}")
        sizes = function.sizes if isinstance(function, PaddedFunction) else ()
        self._function = function
        self.size = max(sizes, default=32) if size is None else size
        self._delay = delay
        self._in_flight = in_flight
        self._fill = fill
        self._requests: deque[_Request] = deque()

    @property
    def waiting(self) -> int:
        return len(self._requests)

    async def __call__(self, *items: Any, timeout: float | None = None) -> Any:
        """The result for one row, given without the axis of rows.

        DEADLINE_EXCEEDED after ``timeout`` seconds, RESOURCE_EXHAUSTED when too many requests wait,
        UNAVAILABLE while draining, and what the function fails with for this row.
        """
        arrays = tuple(np.asarray(item) for item in items)
        for array in arrays:
            if array.dtype.hasobject:
                raise InvalidArgumentError(f"expected an array of numbers but got elements of {array.dtype}")
        kind = tuple((array.dtype, array.shape if self._fill is None else array.ndim) for array in arrays)
        seconds = self._seconds(timeout)
        self._admit(self._in_flight)
        loop = asyncio.get_running_loop()
        request = _Request(arrays, kind, loop)
        self._requests.append(request)
        if len(self._requests) in (1, self.size):  # others change nothing for the task that waits for a batch
            self._news.set()
        timer = None if seconds is None else loop.call_later(seconds, self._end_late, request, seconds)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self.metrics["cancelled"] += 1
            request.answer.cancel()
            self._forget(request)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _end_late(self, request: _Request, seconds: float) -> None:
        if not request.answer.done():
            self.metrics["late"] += 1
            late = DeadlineExceededError(f"the request was not answered within {seconds} s")
            request.answer.set_exception(late)
            self._forget(request)

    def _forget(self, request: _Request) -> None:
        """It is not computed any more, if it waits."""
        if request in self._requests:
            self._requests.remove(request)
            self._left()

    async def _work(self) -> None:
        while True:
            while not self._requests:
                if self.draining:
                    return
                self._news.clear()
                await self._news.wait()
            if self._delay and await self._is_incomplete():
                continue
            batch = self._take()
            self.metrics["batches"] += 1
            self.metrics["rows"] += len(batch)
            await self._answer(batch)

    async def _is_incomplete(self) -> bool:
        """Waits for more requests, or until the oldest has waited long enough: whether to look again."""
        left = self._requests[0].since + self._delay - asyncio.get_running_loop().time()
        if left <= 0 or self.draining or len(self._requests) >= self.size:
            return False
        self._news.clear()
        try:
            async with asyncio.timeout(left):
                await self._news.wait()
        except TimeoutError as error:
            pass_interruption(error)
        return True

    def _take(self) -> list[_Request]:
        """The oldest request, and others that can be rows of its batch."""
        kind = self._requests[0].kind
        batch = [request for request in self._requests if request.kind == kind][: self.size]
        taken = set(map(id, batch))
        self._requests = deque(request for request in self._requests if id(request) not in taken)
        if self._requests:
            self._news.set()
        self._left()
        return batch

    async def _answer(self, batch: Sequence[_Request]) -> None:
        loop = asyncio.get_running_loop()
        try:
            rows = await loop.run_in_executor(self._executor, contained, self._compute, batch)
        except Exception as error:
            if len(batch) > 1:  # one may be what the others fail of
                for request in batch:
                    if not request.answer.done():
                        await self._answer([request])
            elif not batch[0].answer.done():
                self.metrics["failed"] += 1
                batch[0].answer.set_exception(error)
            return
        for request, row in zip(batch, rows, strict=True):
            if not request.answer.done():
                self.metrics["answered"] += 1
                request.answer.set_result(row)

    def _compute(self, batch: Sequence[_Request]) -> list[Any]:
        """On a thread: the results of each row."""
        columns = zip(*(request.items for request in batch), strict=True)
        results = self._function(*(stacked(column, self._fill) for column in columns))
        made = [np.asarray(value) for value in (results if isinstance(results, tuple) else (results,))]
        if not made or any(value.ndim == 0 or len(value) != len(batch) for value in made):
            shapes = ", ".join(str(value.shape) for value in made) or "of none"
            raise FailedPreconditionError(f"the function gave shapes {shapes} for {len(batch)} rows")
        if isinstance(results, tuple):
            return list(zip(*made, strict=True))
        return list(made[0])
