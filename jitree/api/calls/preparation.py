"""Loads what machine code of calls needs, in steps, after the first calls.

All of them take some 1.5 ms, as long as several calls of a small kernel, and ten times as long where Python
has to compile the files: calls share them, so that it is not felt. That is what machine code saves in a
hundred calls, so the first ones prepare nothing: programs that make no more of them end sooner. Nothing
depends on the steps: what is not there when it is used is loaded then.
"""

from __future__ import annotations

import time
from typing import Final

from jitree.base import start

_STEPS: Final = (
    "layout", "acceptance", "cpython_layout", "cpython_layout:is_supported", "cpython_layout:code",
    "cpython_layout:addresses", "jitree.hal.fence", "python_fallback", "handle_owners", "direct", "session",
    "session:interface",
)  # fmt: skip
"""Files of :mod:`jitree.api.calls.native` and others, each of which imports earlier ones, and functions in
them."""
_SPARED: Final = 5
"""Calls of functions that have been called before, which prepare nothing either."""


class _Left:
    """Holds what is left to do, and how long calls allow it."""

    spared: int = _SPARED
    """Calls that still prepare nothing."""
    steps: Final = iter(_STEPS)
    seconds: float = 0.0
    """Less than nothing after a step that took longer, such as a file that Python had to compile."""


def is_prepared(seconds: float) -> bool:
    """Whether nothing was left to do; else some is done, for ``seconds`` a call on average."""
    if _Left.spared:
        _Left.spared -= 1
        return False
    _Left.seconds += seconds
    was_all = True
    while _Left.seconds > 0:
        step = next(_Left.steps, None)
        if step is None:
            return was_all
        was_all = False
        begun = time.thread_time()
        file, _, function = step.partition(":")
        module = start.imported(file if "." in file else f"jitree.api.calls.native.{file}")
        if function:
            getattr(module, function)()
        _Left.seconds -= time.thread_time() - begun
    return False


def note_slow(name: str) -> None:
    """Tells the log, once, of a function whose calls Python makes: that takes some times as long."""
    from jitree.base.events import SLOW
    from jitree.base.logs import note

    note(SLOW, f"calls of {name} are made by Python: machine code does not take what it takes")
