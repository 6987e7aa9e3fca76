"""For tests of functions that machine code calls."""

from __future__ import annotations

import gc
import math
import sys
from typing import Any

import numpy as np
import pytest

from jitree import CustomModule, Function, Session
from jitree.api.calls.preparation import is_prepared
from jitree.api.function import PREPARED_AFTER
from tests.assembler import Assembler

X = np.arange(4, dtype=np.float32)
ARRAY_TO_ARRAY = {"iree.abi.declaration": "sync func @f(%x: tensor<4xf32>) -> (%y: tensor<4xf32>)"}
NUMBER_TO_NUMBER = {"iree.abi.declaration": "sync func @f(%x: i32) -> (%y: i32)"}

CALLS = PREPARED_AFTER + 1
"""The last of so many is made by machine code, in a process that has prepared it."""

_HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
_IS_KNOWN = sys.implementation.name == "cpython" and _HAS_GIL
_WHY = "machine code makes calls of CPython with the GIL"
needs_machine_code = pytest.mark.skipif(not _IS_KNOWN, reason=_WHY)


def prepare_calls() -> None:
    """Does at once what a process does bit by bit after its first calls."""
    while not is_prepared(math.inf):
        pass


def direct(function: Function, *arguments: Any) -> Function:
    """The function, which machine code calls from now on."""
    if not _IS_KNOWN:
        pytest.skip(_WHY)
    for _ in range(PREPARED_AFTER):
        function(*arguments)
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
