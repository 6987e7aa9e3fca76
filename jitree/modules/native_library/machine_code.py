"""Makes C functions that neither Python nor ctypes can make.

They count atomically, and return structures from callbacks. Others have to work at any moment, also when
Python is interrupted: mapping a buffer.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from typing import Final

from jitree.base.memory import Mapping, map_code, once
from jitree.base.records import NamedTuple
from jitree.errors import IncompatibleError

_ALIGNMENT: Final = 64


class _Snippets(NamedTuple):
    add: str
    """``int32 (int32* p, int32 n)``: adds atomically (acquire, release), returns what was there."""
    name: str
    """``{i64, i64} (i64* p)``: the two words at p."""
    signature: str
    """``{i64 × 5} (i64* p)``: the five words after the first two at p."""
    map: str
    """``i64 (p, mode, i16 access, i64 offset, length, i64* out)``: writes the word at p + 104 plus offset, 0;
    or 7, PERMISSION_DENIED, if access has the bit 2 (write) and the 16 bits at p + 92 have not."""
    nothing: str
    """``i64 ()``: 0, a status without failure."""
    unimplemented: str
    """``i64 ()``: 12, the status UNIMPLEMENTED."""
    pair_at_16: str
    """``{i64, i64} (p)``: the two words at p + 16."""
    pair_at_32: str
    word_at_48: str
    checked_at_32: str
    """``i64 (p, q, i64, i64* out)``: calls the word at p + 32 with the same arguments, which writes an
    address or a code. 0; or the code and writes 0 for it; or 2, UNKNOWN, where nothing was written. What a
    callback returns that was interrupted means nothing."""
    ignored: str
    """``i64 (p, i32, q, r)``: calls the word at p with the same arguments; 0."""


_SNIPPETS: Final = {
    "x86_64": _Snippets(
        "89f0 f00fc107 c3",
        "488b07 488b5708 c3",
        "4889f8 488b4e10 48890f 488b4e18 48894f08 488b4e20 48894f10 488b4e28 48894f18 488b4e30 48894f20 c3",
        "0fb7475c f7d0 21d0 a802 7406 b807000000 c3 48034f68 498909 31c0 c3",
        "31c0 c3",
        "b80c000000 c3",
        "488b4710 488b5718 c3",
        "488b4720 488b5728 c3",
        "488b4730 c3",
        "53 4889cb 48c70100000000 ff5720 488b0b 4883f920 7204 31c0 5b c3 48c70300000000 4885c9 b802000000 "
        "480f45c1 5b c3",
        "50 ff17 31c0 59 c3",
    ),
    "aarch64": _Snippets(
        "08fc5f88 0901010b 09fc0a88 aaffff35 e003082a c0035fd6",
        "080440a9 e00308aa c0035fd6",
        "092841a9 0008c03d 0005803d 092900a9 091840f9 091100f9 c0035fd6",
        "09b84079 4900290a 69000836 e0008052 c0035fd6 e80300aa e0031faa 083540f9 0801038b a80000f9 c0035fd6",
        "e0031faa c0035fd6",
        "80018052 c0035fd6",
        "080441a9 e00308aa c0035fd6",
        "080442a9 e00308aa c0035fd6",
        "001840f9 c0035fd6",
        "fe4fbfa9 7f0000f9 f30303aa 081040f9 00013fd6 680240f9 e0031faa 1f8100f1 a2000054 1f0100f1 49008052 "
        "7f0200f9 2001889a fe4fc1a8 c0035fd6",
        "fe0f1ff8 080040f9 00013fd6 e0031faa fe0741f8 c0035fd6",
    ),
}
"""The functions, as LLVM compiles them for the generic processor of each architecture."""


class MachineCode:
    """The functions at their addresses, as long as the process lives."""

    def __init__(self, mapping: Mapping, offsets: Sequence[int]) -> None:
        self._mapping = mapping
        add, *others = (mapping.address + offset for offset in offsets)
        self.add = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)(add)
        self.name, self.signature, self.map, self.nothing, self.unimplemented, *others = others
        self.pair_at_16, self.pair_at_32, self.word_at_48, self.checked_at_32, self.ignored = others


@once
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
    return MachineCode(map_code(bytes(code)), offsets)
