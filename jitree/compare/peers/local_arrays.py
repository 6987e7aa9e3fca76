"""Traces arrays that Python lines assign to local variables, or change."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import numpy as np

from jitree.base.folding import is_of_user
from jitree.errors import has_attribute

_LIBRARIES: Final = (os.path.dirname(os.__file__), "site-packages", "dist-packages")
_SAMPLES: Final = 64

Trace = Callable[[FrameType, str, Any], Any]


def shown(work: Callable[[], Any], show: Callable[[str, Any], None]) -> Any:
    """Does the work; ``show`` is told of arrays of functions that are the user's, with their lines. What
    traces this thread (debuggers, coverage) rests meanwhile."""

    def enters(frame: FrameType, event: str, argument: Any) -> Trace | None:
        file = frame.f_code.co_filename
        if event != "call" or not is_of_user(file) or any(part in file for part in _LIBRARIES):
            return None
        return _TracedFunction(frame, show).goes_on

    outer = sys.gettrace()
    sys.settrace(enters)
    try:
        return work()
    finally:
        sys.settrace(outer)


class _TracedFunction:
    """One call of a function: which arrays its variables had when they were looked at last."""

    def __init__(self, frame: FrameType, show: Callable[[str, Any], None]) -> None:
        self._show = show
        self._line = frame.f_lineno
        self._known = {name: _mark(value) for name, value in _arrays(frame)}

    def goes_on(self, frame: FrameType, event: str, argument: Any) -> Trace:
        """A line is about to begin, or the function returns: the line before has done its work."""
        code = frame.f_code
        for name, value in _arrays(frame):
            mark = _mark(value)
            if self._known.get(name) != mark:
                self._known[name] = mark
                self._show(f"{name} ({code.co_filename}:{self._line} in {code.co_qualname})", value)
        self._line = frame.f_lineno
        return self.goes_on


def _arrays(frame: FrameType) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in frame.f_locals.items()
        if (has_attribute(value, "__array__") or has_attribute(value, "__dlpack__"))
        and not isinstance(value, type)
    ]


def _mark(value: Any) -> tuple[int, bytes]:
    """Another one where a variable has another array, or most of its elements have changed."""
    if not isinstance(value, np.ndarray) or value.dtype.hasobject or not value.size:
        return id(value), b""
    step = max(1, value.size // _SAMPLES)
    return id(value), value.flat[::step].tobytes()
