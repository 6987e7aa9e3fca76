"""Signal handlers that raise while operations are executed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

import pytest

from jitree.errors import StatusCode
from jitree.hal.fence import Fence
from jitree.hal.local.queue import CallerExecutor, LocalQueue
from jitree.hal.profiling import Profiler
from jitree.hal.semaphore import Semaphore


class Timeout(Exception):
    """What a handler for ``signal.alarm`` usually raises."""


class Handlers:
    """Signal handlers of all forms."""

    @staticmethod
    def function(number: int, frame: object) -> None:
        raise Timeout

    @staticmethod
    def variadic(*_: object) -> None:
        raise Timeout

    def method(self, number: int, frame: object) -> None:
        self.deeper()

    def deeper(self) -> None:
        raise Timeout

    def __call__(self, number: int, frame: object) -> None:
        raise Timeout


HANDLERS = [
    Handlers.function, Handlers.variadic, Handlers().method, Handlers(), partial(Handlers().method)
]  # fmt: skip


@pytest.mark.parametrize("handler", HANDLERS, ids=["function", "variadic", "method", "object", "partial"])
def test_what_a_signal_handler_raises_goes_through(handler: Callable[[int, object], None]) -> None:
    """As itself, from operations that start at once and from those that another signals."""
    queue = LocalQueue(CallerExecutor(), Profiler())
    before = signal.signal(signal.SIGALRM, handler)
    work = partial(signal.raise_signal, signal.SIGALRM)
    wait, first, second = (Fence([(Semaphore(), 1)]) for _ in range(3))
    try:
        with pytest.raises(Timeout):
            queue.submit("work", None, first, work)
        queue.submit("work", wait, second, work)
        with pytest.raises(Timeout):
            wait.signal()
        assert first.query() == second.query() == StatusCode.CANCELLED
    finally:
        signal.signal(signal.SIGALRM, before)
