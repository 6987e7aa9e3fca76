"""Waits for other members, which end with the call: by its deadline, or when it is cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from math import inf
from threading import Thread
from typing import Final, TypeVar

from jitree.errors import DeadlineExceededError
from jitree.hal.local.interrupts import require_going_on

T = TypeVar("T")
LOOK_SECONDS: Final = 0.02
"""Between two looks of a waiting thread whether the call is to end."""


def wait_looking(
    function: Callable[[], T], seconds: float = inf, require_members: Callable[[], object] = bool
) -> T:
    """Returns what a function returns that may wait for long. Another thread calls it, while this one looks
    whether the call is to end, or ``require_members`` raises what has happened to others; if so, or after so
    many seconds (DEADLINE_EXCEEDED), this thread stops waiting for the other."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="jitree waits for a group", daemon=True).start()
    until = time.monotonic() + seconds
    while not wait([future], LOOK_SECONDS).done:
        require_going_on()
        require_members()
        if time.monotonic() >= until:
            raise DeadlineExceededError(f"other members have not come within {seconds:g} s")
    return future.result()
