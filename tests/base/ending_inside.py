"""Has what is forgotten end in the middle of a function: where the garbage collector runs, because a thread
makes an object there."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

_DEPTH = 6
"""Functions that are called from the one looked for."""
TIMEOUT = 20.0


def ending_inside(name: str, work: Callable[[], object], ending: Callable[[], object]) -> None:
    """Does work on another thread, with the ending each time that the collector runs in the function of that
    qualified name. Fails if a thread waits for itself, and if the ending never came there."""
    came, failures = list[str](), list[BaseException]()
    is_ending = False

    def collecting(phase: str, info: dict[str, Any]) -> None:
        nonlocal is_ending
        if phase != "start" or is_ending or threading.get_ident() != thread.ident:
            return
        frame, names = sys._getframe(1), list[str]()
        while frame is not None and len(names) < _DEPTH:
            names.append(frame.f_code.co_qualname)
            frame = frame.f_back  # type: ignore[assignment]
        if name in names:
            is_ending = True
            came.append(name)
            try:
                ending()
            except BaseException as error:
                failures.append(error)
            is_ending = False

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thresholds = gc.get_threshold()
    gc.callbacks.append(collecting)
    gc.set_threshold(1)
    try:
        thread.start()
        thread.join(TIMEOUT)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collecting)
    assert not thread.is_alive(), f"{name}: the thread waits for itself"
    if failures:
        raise failures[0]
    assert came or sys.version_info >= (3, 12), name  # which runs the collector at fewer places
