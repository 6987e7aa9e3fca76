"""For tests of functions that machine code calls."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

from jitree import CustomModule, Function, Session
from jitree.api.function import _POSTPONED
from tests.assembler import Assembler

X = np.arange(4, dtype=np.float32)
ARRAY_TO_ARRAY = {"iree.abi.declaration": "sync func @f(%x: tensor<4xf32>) -> (%y: tensor<4xf32>)"}
NUMBER_TO_NUMBER = {"iree.abi.declaration": "sync func @f(%x: i32) -> (%y: i32)"}

CALLS = max(_POSTPONED.values()) + 1
"""After so many, machine code calls any function, however slow the processor was."""

_HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
needs_machine_code = pytest.mark.skipif(
    sys.implementation.name != "cpython" or not _HAS_GIL,
    reason="machine code makes calls of CPython with the GIL",
)


def direct(function: Function, *arguments: Any) -> Function:
    """The function, which machine code calls from the third call on, or later where a call took long: the
    processor may have been slow, and the garbage of other tests may have been collected in it."""
    function(*arguments)
    for _ in range(CALLS - 2):
        function(*arguments)
        if function.is_direct:
            break
    assert function.is_direct
    return function


def live(session: Session) -> int:
    """References of the session's context, after what is only kept for later is gone."""
    gc.collect()
    session.trim()
    return session.context.table.live_count


def through(session: Session, custom: CustomModule, cconv: str, attrs: dict[str, str]) -> Function:
    """The function ``m.f`` that passes its argument to ``host.g`` and returns what that gives."""
    register = "r" if "r" in cconv else "i"
    text = f"[%{register}1] = call @host.g [%{register}0]\nreturn [%{register}1]"
    program = Assembler("m").import_function("host.g", cconv).function("f", cconv, text, attrs=attrs)
    session.load(program.build(), custom)
    return session["m.f"]
