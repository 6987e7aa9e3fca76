"""Names the C library's functions in the official runtime's versions.

Its wheels are built for a C library of before 2.29, which gave binary64 exp, exp2, log, log2 and pow new
versions. The old ones are there still, and call the new ones, but for an invalid operand they answer +NaN
where the new ones answer what the processor makes of it: -NaN.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Final

from jitree.base.memory import C_LIBRARY
from jitree.errors import pass_interruption
from jitree.regs.layout import MATH_FUNCTIONS

_FIRST_VERSIONS: Final = {"x86_64": b"GLIBC_2.2.5", "aarch64": b"GLIBC_2.17"}
"""What the C library calls its first version for a machine."""
_REPLACED: Final = frozenset(("exp", "exp2", "log", "log2", "pow"))


def address_of_function(name: str) -> int:
    """The address of a function of the C library."""
    version = _FIRST_VERSIONS.get(os.uname().machine)
    address = _versioned(name, version) if name in _REPLACED and version else None
    return address or ctypes.cast(C_LIBRARY[name], ctypes.c_void_p).value or 0


def _versioned(name: str, version: bytes) -> int | None:
    """None where the C library has no versions, or not this one."""
    try:
        find = C_LIBRARY.dlvsym
    except AttributeError as error:
        pass_interruption(error)
        return None
    find.argtypes, find.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p), ctypes.c_void_p
    found: int | None = find(None, name.encode(), version)
    return found


def _math_function(name: str) -> Callable[..., float]:
    kind = ctypes.c_float if name == "remainderf" else ctypes.c_double
    operands = (kind,) * (2 if name in ("atan2", "pow", "remainder", "remainderf") else 1)
    return ctypes.CFUNCTYPE(kind, *operands)(address_of_function(name))


@cache
def math_functions() -> dict[str, Callable[..., float]]:
    """The functions by name; every tier calls them, so all agree bit for bit."""
    return {name: _math_function(name) for name in MATH_FUNCTIONS}
