"""Waits for other members, which end with the call: by its deadline, or when it is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Final, TypeVar

from jitree.hal.local.interrupts import require_going_on

T = TypeVar("T")
LOOK_SECONDS: Final = 0.02
"""Between two looks of a waiting thread whether the call is to end."""


def wait_looking(function: Callable[[], T]) -> T:
    """Returns what a function returns that may wait for long. Another thread calls it, while this one looks
    whether the call is to end; if so, this thread stops waiting for the other."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="jitree waits for a group", daemon=True).start()
    while not wait([future], LOOK_SECONDS).done:
        require_going_on()
    return future.result()
