"""Makes timeline semaphores: growing payloads, callbacks that wait, work that signals.

Everything here is correct with threads that run at the same time: payload and failure change under the
semaphore's lock, callbacks run outside of it. A payload once reached stays reached and a failure is never
taken back, so reading either without the lock can only miss news, which the locked path then sees.

The end of a device signals or fails what waits for it, and may come from the garbage collector, wherever a
thread makes an object. So the lock is reentrant, and whoever takes a timepoint out of the dictionary calls
it. It is taken out right before that: when a signal's handler raises between two of them, the others are
called by who signals or fails the semaphore again.
"""

from __future__ import annotations

from _thread import _local
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from jitree.base.arguments import integer, seconds
from jitree.base.finalizers import Unique, brief_guard
from jitree.errors import InvalidArgumentError, StatusError, again, is_interruption
from jitree.hal.enums import MAXIMUM_PAYLOAD

if TYPE_CHECKING:
    from jitree.hal.waiting import Producer

ReachedCallback = Callable[[StatusError | None], None]
"""Called once, with None when the value was reached and with the failure otherwise, on the thread that caused
it. Must be short, must not block and must not raise. One that a signal's handler interrupts is called
again."""

Work = tuple[Callable[[], None], Callable[[BaseException], None]]
"""Something to do, and what ends it where an interrupt kept it from beginning."""

News = tuple["Semaphore", int, StatusError | None]
"""A semaphore, the value up to which its timepoints are due, and its failure."""


class _Telling(_local):
    turns: deque[News] | None = None
    """What the thread has still to tell, while it does."""

    works: list[Work] | None = None
    """What it does after that."""


_this_thread: Final = _Telling()


class Timepoint:
    """Calls back when a semaphore reaches a value."""

    __slots__ = ("_callback", "_semaphore", "value")

    def __init__(self, semaphore: Semaphore, value: int, callback: ReachedCallback) -> None:
        self._semaphore = semaphore
        self._callback = callback
        self.value = value

    def cancel(self) -> bool:
        """Takes the callback back; False when it has been called or is being called."""
        return self._semaphore._forget(self)


class Timepoints:
    """Orders the timepoints of a semaphore by value. Thousands may wait, each for its own value; the first
    one is found at once, however many others there are."""

    __slots__ = ("_heap", "_of_value")

    def __init__(self) -> None:
        self._of_value: dict[int, dict[Timepoint, None]] = {}
        self._heap: list[int] = []
        """The values, and some that nothing waits for any more."""

    def __bool__(self) -> bool:
        return bool(self._of_value)

    def add(self, timepoint: Timepoint) -> None:
        same = self._of_value.get(timepoint.value)
        if same is None:
            if len(self._heap) > 2 * len(self._of_value) + _FEW_VALUES:
                self._heap = sorted(self._of_value)
            heappush(self._heap, timepoint.value)
            same = self._of_value.setdefault(timepoint.value, {})
        same[timepoint] = None

    def remove(self, timepoint: Timepoint) -> bool:
        """Whether it was there."""
        same = self._of_value.get(timepoint.value)
        if same is None or timepoint not in same:
            return False
        del same[timepoint]
        if not same:
            del self._of_value[timepoint.value]
            while self._heap and self._heap[0] not in self._of_value:
                heappop(self._heap)
        return True

    def first(self, value: int) -> Timepoint | None:
        """The first of the lowest value, if that is at most this one."""
        heap = self._heap
        while heap and heap[0] <= value:
            due = heap[0]
            for timepoint in self._of_value.get(due, ()):
                return timepoint  # no end of a device comes between the two, as it could between calls
            if due not in self._of_value:
                if heap and heap[0] == due:
                    heappop(heap)
            elif not self._of_value[due]:  # a removal was interrupted
                del self._of_value[due]
        return None


_FEW_VALUES: Final = 16
_MOST_ATTEMPTS: Final = 64
"""To call what an interrupt has left: signals can come faster than any step of it."""


class Expected:
    """Finds what will signal a semaphore, by value, without looking at all of it."""

    __slots__ = ("_of_value", "_values")

    def __init__(self) -> None:
        self._of_value: dict[int, Producer] = {}
        self._values: list[int] = []
        """Sorted; after an interrupt it may have some more."""

    def add(self, value: int, producer: Producer) -> None:
        if value not in self._of_value:
            insort(self._values, value)
        self._of_value[value] = producer

    def remove(self, value: int, producer: Producer) -> None:
        if self._of_value.get(value) is producer:
            del self._of_value[value]
            place = bisect_left(self._values, value)
            del self._values[place : bisect_right(self._values, value)]

    def find(self, value: int) -> Producer | None:
        """Of this value, or of the next one."""
        place = bisect_left(self._values, value)
        while place < len(self._values):
            found = self._of_value.get(self._values[place])
            if found is not None:
                return found
            place += 1
        return None


class Semaphore(Unique):
    """Counts up on the host: a timeline semaphore."""

    VM_TYPE: Final = "hal.semaphore"
    _lock: Final = brief_guard()
    """One for all: each is held for a few steps, and semaphores are made for every call that is submitted."""
    __slots__ = ("__weakref__", "_failure", "_producers", "_timepoints", "_value")

    def __init__(self, initial_value: int = 0) -> None:
        self._value = initial_value
        self._failure: StatusError | None = None
        self._timepoints: Timepoints | None = None
        self._producers: Expected | None = None

    @property
    def failure(self) -> StatusError | None:
        """The failure, or None. To raise it use :meth:`query`, which makes a copy."""
        return self._failure

    def query(self) -> int:
        """The payload. Raises the failure of a failed semaphore."""
        failure = self._failure
        if failure is not None:
            raise again(failure)
        return self._value

    def is_reached(self, value: int) -> bool:
        """Whether the payload is at least ``value`` without failure; costs nothing."""
        return self._failure is None and self._value >= value

    def signal(self, value: int) -> None:
        """Raises the payload to ``value``, which must be larger than the present one (INVALID_ARGUMENT).

        Raises the failure of a failed semaphore.
        """
        if not 0 < integer("value", value) <= MAXIMUM_PAYLOAD:
            raise InvalidArgumentError(
                f"a semaphore cannot be signalled to {value}; payloads are 1 to {MAXIMUM_PAYLOAD}"
            )
        try:
            with self._lock:
                present, failure = self._value, self._failure
                if failure is None and value > present:
                    self._value = value
            if failure is not None:
                raise again(failure)
            if value <= present:
                raise InvalidArgumentError(
                    f"a semaphore at {present} cannot be signalled to {value}: payloads only grow"
                )
            _call(self, value, None)
        except BaseException as error:
            self._tell_rest(error)
            raise

    def advance(self, value: int) -> None:
        """Raises the payload to at least ``value``. When it is there already, or has failed, it only calls
        what an interrupted one has left."""
        try:
            if self._is_advanced(value):
                _call(self, value, None)
        except BaseException as error:
            self._tell_rest(error)
            raise

    def advance_in_turn(self, value: int) -> None:
        """As :meth:`advance`. Callbacks that do so to further semaphores do not nest, as with failures."""
        try:
            if self._is_advanced(value):
                _call_in_turn(self, value, None)
        except BaseException as error:
            self._tell_rest(error)
            raise

    def _tell_rest(self, error: BaseException) -> None:
        """Calls what an interrupt left: it may have come between a change of the state and its callbacks,
        which no other thread would call."""
        if is_interruption(error):
            for _ in range(_MOST_ATTEMPTS):
                with suppress(BaseException):
                    _call_each(self, self._due, self._failure)
                    return

    @property
    def _due(self) -> int:
        return self._value if self._failure is None else MAXIMUM_PAYLOAD

    def _is_advanced(self, value: int) -> bool:
        """Raises the payload. Whether something is to be called."""
        with self._lock:
            if self._failure is not None:
                return False
            if value > self._value:
                self._value = value
            return self._first_due(value) is not None

    def fail(self, error: StatusError) -> None:
        """Fails the semaphore for good; the first failure stays. It loses the frames of what has failed:
        these may refer to the semaphore, and would keep the memory of the whole call until garbage is
        collected. A later one only calls what an interrupted one has left."""
        from jitree.base.folding import fold_tracebacks

        fold_tracebacks(error)
        try:
            with self._lock:
                if self._failure is None:
                    self._failure = error
                failure, is_due = self._failure, self._first_due(MAXIMUM_PAYLOAD) is not None
            if is_due:
                _call_in_turn(self, MAXIMUM_PAYLOAD, failure)
        except BaseException as interruption:
            self._tell_rest(interruption)
            raise

    def on_reached(self, value: int, callback: ReachedCallback) -> Timepoint | None:
        """Calls ``callback`` once when ``value`` is reached or the semaphore fails.

        Called at once, with None returned, when that is so already; otherwise the timepoint can be cancelled.
        """
        if self._failure is None and self._value < value:
            timepoint = Timepoint(self, value, callback)
            first = Timepoints()
            with self._lock:
                if self._failure is None and self._value < value:
                    if self._timepoints is None:
                        self._timepoints = first
                    self._timepoints.add(timepoint)
                    return timepoint
        callback(self._failure)
        return None

    def expect(self, value: int, producer: Producer) -> None:
        """States what will signal ``value``: for work that does not run at once. Taken back by
        :meth:`settle`."""
        with self._lock:
            if self._producers is None:
                self._producers = Expected()
            self._producers.add(value, producer)

    def settle(self, value: int, producer: Producer) -> None:
        """The work that was to signal ``value`` has ended."""
        with self._lock:
            if self._producers is not None:
                self._producers.remove(value, producer)

    def producer(self, value: int) -> Producer | None:
        """Finds the stated work that will raise the payload to ``value``."""
        if self._producers is None:
            return None
        with self._lock:
            return self._producers.find(value)

    def look(self) -> None:
        """Notices how far a device has got that signals it by itself. Nothing for others."""

    def await_device(self, value: int, deadline: float | None) -> None:
        """Blocks while a device is to reach ``value``, up to ``deadline`` (``time.monotonic``).

        For the semaphores of devices that work by themselves; with others there is no work to wait for.
        """

    def wait(self, value: int, timeout: float | None = None) -> bool:
        """Waits until the payload is at least ``value``; the GIL is released meanwhile.

        ``timeout`` in seconds, None = for ever, 0 = look only. False when the time ran out. Raises the
        failure of a failed semaphore.
        """
        if timeout is not None:
            seconds("timeout", timeout)
        if self._failure is None and self._value >= integer("value", value):
            return True
        from jitree.hal.waiting import WaitMode, wait_for

        return wait_for(((self, value),), WaitMode.ALL, timeout)

    def _first_due(self, value: int) -> Timepoint | None:
        timepoints = self._timepoints
        if not timepoints:
            return None
        with self._lock:
            return timepoints.first(value)

    def _forget(self, timepoint: Timepoint) -> bool:
        with self._lock:
            timepoints = self._timepoints
            return timepoints is not None and timepoints.remove(timepoint)


def _call(semaphore: Semaphore, value: int, failure: StatusError | None) -> None:
    """Calls all; a callback that raises is a bug or was interrupted; that is raised after the others have
    been called."""
    raised = _call_each(semaphore, value, failure)
    if raised is not None:
        raise raised


def _call_in_turn(semaphore: Semaphore, value: int, failure: StatusError | None) -> None:
    """Callbacks that fail further semaphores do not nest: those take turns in one loop, so that a chain of
    any length fails in a flat stack."""
    turns = _this_thread.turns
    if turns is not None:
        turns.append((semaphore, value, failure))
        return
    raised = _tell(deque(((semaphore, value, failure),)))
    if raised is not None:
        raise raised


def _call_each(semaphore: Semaphore, value: int, failure: StatusError | None) -> BaseException | None:
    """Finds one after the other, as callbacks may fail the same semaphore again: each of a chain does.

    Python looks for signals where a loop begins again, too: that is inside of ``try``."""
    raised: BaseException | None = None
    timepoint: Timepoint | None = None
    while True:
        try:
            while (timepoint := semaphore._first_due(value)) is not None:
                if timepoint.cancel():
                    timepoint._callback(failure)
                timepoint = None
            return raised
        except BaseException as error:
            raised = raised or error
            if not is_interruption(error):
                if timepoint is None:  # no stack is left to look for it
                    return raised
            elif timepoint is not None:  # perhaps before the callback had begun
                with suppress(BaseException):
                    timepoint.cancel()
                    timepoint._callback(failure)
                timepoint = None


def _tell(turns: deque[News]) -> BaseException | None:
    """Tells of failures and what comes of them, then does what was put off."""
    raised: BaseException | None = None
    _this_thread.turns = turns
    try:
        while turns:
            try:
                while turns:
                    found = _call_each(*turns[0])
                    raised = raised or found
                    del turns[0]
            except BaseException as error:  # of a signal handler; the others wait for what they were promised
                raised = raised or error
                if isinstance(error, (RecursionError, MemoryError)):  # no room for a call
                    del turns[0]
    finally:
        _this_thread.turns = None
    works, _this_thread.works = _this_thread.works, None
    while works:
        begun: Work | None = None
        try:
            while works:
                begun = works[0]
                begun[0]()
                begun = None
                del works[0]
        except BaseException as error:
            raised = raised or error
            if begun is not None:
                with suppress(BaseException):
                    begun[1](error)
                del works[0]
    return raised


def after_failures(work: Callable[[], None], stop: Callable[[BaseException], None]) -> None:
    """Does long work at once, or after failures that this thread tells; ``stop`` ends it if it is interrupted
    before it has begun. At once the caller does that."""
    if _this_thread.turns is None:
        work()
    elif _this_thread.works is None:
        _this_thread.works = [(work, stop)]
    else:
        _this_thread.works.append((work, stop))
