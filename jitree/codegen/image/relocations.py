"""How each relocation type of the supported machines patches a word, one row each.

Offsets are inside the image, which is placed at a multiple of 4096, so page-relative forms can be resolved
at link time; only absolute words remain to be rebased when the image is mapped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from jitree.errors import UnimplementedError

Patch = Callable[[bytearray, int, int], None]
"""Patches the word at a place with a target value (symbol plus addend)."""


def _relative32(code: bytearray, place: int, target: int) -> None:
    distance = target - place
    if not -(2**31) <= distance < 2**31:
        raise UnimplementedError(f"machine code of more than 2 GiB: distance {distance}")
    struct.pack_into("<i", code, place, distance)


def absolute64(code: bytearray, place: int, target: int) -> None:
    """Stores an image offset; the place must also be in the image's rebase list."""
    struct.pack_into("<q", code, place, target)


def _insert(code: bytearray, place: int, bits: int) -> None:
    (word,) = struct.unpack_from("<I", code, place)
    struct.pack_into("<I", code, place, word | bits)


def _branch26(code: bytearray, place: int, target: int) -> None:
    distance = target - place
    if not -(2**27) <= distance < 2**27:
        raise UnimplementedError(f"branch over {distance} bytes")
    _insert(code, place, (distance >> 2) & 0x3FFFFFF)


def _address21(code: bytearray, place: int, value: int) -> None:
    _insert(code, place, (value & 3) << 29 | ((value >> 2) & 0x7FFFF) << 5)


def _page21(code: bytearray, place: int, target: int) -> None:
    _address21(code, place, (target >> 12) - (place >> 12))


def _near21(code: bytearray, place: int, target: int) -> None:
    _address21(code, place, target - place)


def _low12(scale: int) -> Patch:
    def patch(code: bytearray, place: int, target: int) -> None:
        _insert(code, place, ((target & 0xFFF) >> scale) << 10)

    return patch


MACHINES: Final = {62: "EM_X86_64", 183: "EM_AARCH64"}
"""Names of the machines by their number in ELF files."""

RELOCATIONS: Final[dict[str, dict[int, Patch]]] = {
    "EM_X86_64": {
        1: absolute64,  # R_X86_64_64
        2: _relative32,  # R_X86_64_PC32
        4: _relative32,  # R_X86_64_PLT32
    },
    "EM_AARCH64": {
        257: absolute64,  # R_AARCH64_ABS64
        261: _relative32,  # R_AARCH64_PREL32
        274: _near21,  # R_AARCH64_ADR_PREL_LO21
        275: _page21,  # R_AARCH64_ADR_PREL_PG_HI21
        277: _low12(0),  # R_AARCH64_ADD_ABS_LO12_NC
        278: _low12(0),  # R_AARCH64_LDST8_ABS_LO12_NC
        282: _branch26,  # R_AARCH64_JUMP26
        283: _branch26,  # R_AARCH64_CALL26
        284: _low12(1),  # R_AARCH64_LDST16_ABS_LO12_NC
        285: _low12(2),  # R_AARCH64_LDST32_ABS_LO12_NC
        286: _low12(3),  # R_AARCH64_LDST64_ABS_LO12_NC
        299: _low12(4),  # R_AARCH64_LDST128_ABS_LO12_NC
    },
}
