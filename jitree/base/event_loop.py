"""Ctrl-C on the thread of an event loop: asyncio takes the first one to cancel a task, which raises nothing
before the loop has its next turn. What keeps the loop from that has to look for itself.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


def runs_here() -> bool:
    """Whether the calling thread is in a turn of an event loop."""
    return _running_loop() is not None


def require_uncancelled() -> None:
    """Raises asyncio.CancelledError if the running task is to get that, or the main task, which Ctrl-C is
    for."""
    loop = _running_loop()
    if loop is None:
        return
    import asyncio
    import signal

    handler = signal.getsignal(signal.SIGINT)
    main: Any = getattr(handler, "keywords", {}).get("main_task")  # of asyncio.Runner
    if main is not None and main.get_loop() is not loop:
        main = None
    if any(map(_is_to_end, (asyncio.current_task(loop), main))):
        raise asyncio.CancelledError


def _running_loop() -> asyncio.AbstractEventLoop | None:
    look = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)  # it may be half imported
    return None if look is None else look()


def _is_to_end(task: Any) -> bool:
    """Whether a task has been cancelled since the loop's last turn: it is marked, or what it waits for is."""
    waiter = getattr(task, "_fut_waiter", None)
    return getattr(task, "_must_cancel", False) or (waiter is not None and waiter.cancelled())
