"""The flat image: position-free machine code with the few facts needed to map it, and its file form.

File: magic, key, and the checksum of all that follows: sizes, entry table (offset, name length, name),
offsets of the 64-bit words that hold image-relative addresses, the image itself.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"jitree\x00\x01"
KEY_SIZE: Final = 32
_HEADER: Final = struct.Struct(f"<8s{KEY_SIZE}sI")
_SIZES: Final = struct.Struct("<III")
_ENTRY: Final = struct.Struct("<IH")


@dataclass(frozen=True, slots=True)
class FlatImage:
    code: bytes
    """Instructions and constants; to be placed at any multiple of the page size."""
    rebase: bytes
    """Little-endian u32 offsets of words to which the load address must be added."""
    entries: dict[str, int]
    """Offsets of the functions that may be called from outside."""


def encode(image: FlatImage, key: bytes) -> bytes:
    """The file form of an image made for ``key``."""
    names = b"".join(
        _ENTRY.pack(offset, len(name.encode())) + name.encode() for name, offset in image.entries.items()
    )
    sizes = _SIZES.pack(len(image.entries), len(image.rebase), len(image.code))
    payload = sizes + names + image.rebase + image.code
    return _HEADER.pack(MAGIC, key, zlib.crc32(payload)) + payload


def decode(data: bytes, key: bytes) -> FlatImage | None:
    """The image of a file made for ``key``; None for any other, damaged or short file."""
    if len(data) < _HEADER.size + _SIZES.size:
        return None
    magic, file_key, checksum = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if magic != MAGIC or file_key != key or zlib.crc32(payload) != checksum:
        return None
    entry_count, rebase_size, code_size = _SIZES.unpack_from(payload)
    entries: dict[str, int] = {}
    position = _SIZES.size
    for _ in range(entry_count):
        offset, length = _ENTRY.unpack_from(payload, position)
        position += _ENTRY.size
        entries[payload[position : position + length].decode()] = offset
        position += length
    if len(payload) != position + rebase_size + code_size:
        return None
    return FlatImage(payload[position + rebase_size :], payload[position : position + rebase_size], entries)
