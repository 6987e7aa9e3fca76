"""What machine code of calls needs in a process: imported and loaded in steps, after the first calls.

All of them take some 1.5 ms, as long as several calls of a small kernel: each call takes a few, so that it is
not felt. Nothing depends on the steps: what is not there when it is used is loaded then.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Final

_STEPS: Final = (
    "layout", "objects", "producers", "interface", "interface:is_supported", "interface:code",
    "interface:addresses", "rest", "keeper", "direct", "session", "session:interface",
)  # fmt: skip
"""Files of :mod:`jitree.api.calls.native`, each of which imports earlier ones, and functions in them."""
_left: Final = iter(_STEPS)


def is_prepared(seconds: float) -> bool:
    """Whether nothing was left to do; else that is done, for about so long."""
    end = time.thread_time() + seconds
    was_all = True
    for step in _left:
        was_all = False
        file, _, function = step.partition(":")
        module = import_module(f"jitree.api.calls.native.{file}")
        if function:
            getattr(module, function)()
        if time.thread_time() >= end:
            break
    return was_all
