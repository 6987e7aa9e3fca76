"""The flat image: position-free machine code with the few facts needed to map it, and its file form.

File: digest of all that follows, magic, key, sizes, title, entry table (offset, name length, name), offsets
of the 64-bit words that hold image-relative addresses, notes, the image itself. The digest tells damage by
disks, copies and bugs. It is no signature: who may write the file can write one that fits, so who may is
checked where files are read (:mod:`jitree.base.private_files`).
"""

from __future__ import annotations

import struct
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.image.hashing import DIGEST_SIZE, hashed

MAGIC: Final = b"jitree\x00\x03"
KEY_SIZE: Final = 32
_HEADER: Final = struct.Struct(f"<8s{KEY_SIZE}s")
_SIZES: Final = struct.Struct("<IIIII")
_ENTRY: Final = struct.Struct("<IH")


class FlatImage(NamedTuple):
    code: bytes
    """Instructions and constants; to be placed at any multiple of the page size."""
    rebase: bytes
    """Little-endian u32 offsets of words to which the load address must be added."""
    entries: dict[str, int]
    """Offsets of the functions that may be called from outside."""
    notes: bytes = b""
    """What the generator wants kept with the code."""


def encode(image: FlatImage, key: bytes, title: str) -> bytes:
    """The file form of an image made for ``key``; ``title`` says what it is to people who list files."""
    names = b"".join(
        _ENTRY.pack(offset, len(name.encode())) + name.encode() for name, offset in image.entries.items()
    )
    label = title.encode()
    sizes = _SIZES.pack(len(label), len(image.entries), len(image.rebase), len(image.notes), len(image.code))
    data = _HEADER.pack(MAGIC, key) + sizes + label + names + image.rebase + image.notes + image.code
    return hashed((data,)) + data


def decode(data: bytes, key: bytes) -> FlatImage | None:
    """The image of a file made for ``key``; None for any other, damaged or short file."""
    payload = _payload(data, key)
    if payload is None:
        return None
    label_size, entry_count, rebase_size, notes_size, code_size = _SIZES.unpack_from(payload)
    entries: dict[str, int] = {}
    position = _SIZES.size + label_size
    for _ in range(entry_count):
        offset, length = _ENTRY.unpack_from(payload, position)
        position += _ENTRY.size
        entries[str(payload[position : position + length], "utf-8")] = offset
        position += length
    notes, code = position + rebase_size, position + rebase_size + notes_size
    if len(payload) != code + code_size:
        return None
    return FlatImage(
        bytes(payload[code:]), bytes(payload[position:notes]), entries, bytes(payload[notes:code])
    )


def title_of(data: bytes) -> str | None:
    """What a file says it is; None for a file that is damaged, short or of another version."""
    payload = _payload(data, data[DIGEST_SIZE + len(MAGIC) : DIGEST_SIZE + _HEADER.size])
    if payload is None:
        return None
    (size, *_) = _SIZES.unpack_from(payload)
    return str(payload[_SIZES.size : _SIZES.size + size], "utf-8", "replace")


def _payload(data: bytes, key: bytes) -> memoryview | None:
    whole = memoryview(data)[DIGEST_SIZE:]
    if len(whole) < _HEADER.size + _SIZES.size or _HEADER.unpack_from(whole) != (MAGIC, key):
        return None
    return whole[_HEADER.size :] if hashed((whole,)) == data[:DIGEST_SIZE] else None
