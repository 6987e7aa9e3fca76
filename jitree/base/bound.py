"""C functions with one argument less than another one has, which is always the same: they go on with that."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from jitree.base.memory import Mapping, map_code

_BOUND: Final = {
    # mov REGISTER, argument; mov rax, function; jmp rax
    "x86_64": ({2: "48ba", 3: "48b9", 4: "49b8"}, "", "48b8", "ffe0"),
    # ldr REGISTER, argument; ldr x16, function; br x16; nop
    "aarch64": ({2: "82000058", 3: "83000058", 4: "84000058"}, "b000005800021fd61f2003d5", "", ""),
}
"""By the number of arguments that come before; what stands around the two addresses."""

STRIDE: Final = 32


def can_bind() -> bool:
    """Whether :func:`bound` knows this machine."""
    return os.uname().machine in _BOUND


def bound(function: int, count: int, argument: int) -> Mapping:
    """A C function of ``count`` arguments, at the mapping's address, which goes on with another one that has
    one more argument, always the same."""
    return map_code(_code(function, count, argument))


def bound_together(functions: Iterable[int], count: int, argument: int) -> Mapping:
    """As :func:`bound`, of several: STRIDE bytes apart."""
    return map_code(
        b"".join([_code(function, count, argument).ljust(STRIDE, b"\0") for function in functions])
    )


def _code(function: int, count: int, argument: int) -> bytes:
    register, *around = _BOUND[os.uname().machine]
    before, between, after = map(bytes.fromhex, around)
    words = argument.to_bytes(8, "little") + between + function.to_bytes(8, "little")
    return bytes.fromhex(register[count]) + before + words + after
