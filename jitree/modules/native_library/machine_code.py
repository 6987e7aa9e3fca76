"""What neither Python nor ctypes can do: count atomically, and return structures from callbacks."""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from typing import Final

from jitree.errors import IncompatibleError
from jitree.memory import Mapping, map_code
from jitree.records import NamedTuple

_ALIGNMENT: Final = 64


class _Snippets(NamedTuple):
    add: str
    """``int32 (int32* p, int32 n)``: adds atomically (acquire, release), returns what was there."""
    name: str
    """``{i64, i64} (i64* p)``: the two words at p."""
    signature: str
    """``{i64 × 5} (i64* p)``: the five words behind the first two at p."""


_SNIPPETS: Final = {
    "x86_64": _Snippets(
        "89f0 f00fc107 c3",
        "488b07 488b5708 c3",
        "4889f8 488b4e10 48890f 488b4e18 48894f08 488b4e20 48894f10 488b4e28 48894f18 488b4e30 48894f20 c3",
    ),
    "aarch64": _Snippets(
        "08fc5f88 0901010b 09fc0a88 aaffff35 e003082a c0035fd6",
        "080440a9 e00308aa c0035fd6",
        "092841a9 0008c03d 0005803d 092900a9 091840f9 091100f9 c0035fd6",
    ),
}
"""As LLVM compiles the functions for the generic processor of each architecture."""


class MachineCode:
    """The functions at their addresses, as long as the process lives."""

    def __init__(self, mapping: Mapping, offsets: tuple[int, int, int]) -> None:
        self._mapping = mapping
        add, name, signature = (mapping.address + offset for offset in offsets)
        self.add = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)(add)
        self.name = name
        self.signature = signature


@cache
def machine_code() -> MachineCode:
    """INCOMPATIBLE on other architectures than x86-64 and AArch64."""
    snippets = _SNIPPETS.get(platform.machine())
    if snippets is None:
        raise IncompatibleError(
            f"C modules are not supported on {platform.machine()}; write the module in Python"
        )
    code, offsets = bytearray(), []
    for text in snippets:
        code.extend(bytes(-len(code) % _ALIGNMENT))
        offsets.append(len(code))
        code.extend(bytes.fromhex(text))
    return MachineCode(map_code(bytes(code)), (offsets[0], offsets[1], offsets[2]))
