"""The flat image: position-free machine code with the few facts needed to map it, and its file form.

File: digest of all that follows, magic, key, sizes of the parts; title, entry table (offset, name length,
name), offsets of the 64-bit words that hold image-relative addresses, notes, the image itself. The digest
tells damage by disks, copies and bugs. It is no signature: who may write the file can write one that fits, so
who may is checked where files are read (:mod:`jitree.base.private_files`).
"""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.image.hashing import DIGEST_SIZE, hashed

MAGIC: Final = b"jitree\x00\x04"
"""Ends in the number of the format."""
SUFFIX: Final = ".image"
KEY_SIZE: Final = 32
_HEADER: Final = struct.Struct(f"<8s{KEY_SIZE}s5I")
_ENTRY: Final = struct.Struct("<IH")
_START: Final = DIGEST_SIZE + _HEADER.size


class FlatImage(NamedTuple):
    code: bytes
    """Instructions and constants; to be placed at any multiple of the page size."""
    rebase: bytes
    """Little-endian u32 offsets of words to which the load address must be added."""
    entries: dict[str, int]
    """Offsets of the functions that may be called from outside."""
    notes: bytes = b""
    """What the generator wants kept with the code."""


class _Parts(NamedTuple):
    """What a file consists of, in its order."""

    key: bytes
    title: bytes
    names: bytes
    rebase: bytes
    notes: bytes
    code: bytes


def encode(image: FlatImage, key: bytes, title: str) -> bytes:
    """The file form of an image made for ``key``; ``title`` says what it is to people who list files."""
    names = b"".join(
        _ENTRY.pack(offset, len(name.encode())) + name.encode() for name, offset in image.entries.items()
    )
    parts = (title.encode(), names, image.rebase, image.notes, image.code)
    data = b"".join((_HEADER.pack(MAGIC, key, *map(len, parts)), *parts))
    return hashed((data,)) + data


def decode(data: bytes, key: bytes) -> FlatImage | None:
    """The image of a file made for ``key``; None for any other, damaged or short file."""
    parts = _parts(data)
    return _image(parts) if parts is not None and parts.key == key and _is_whole(data) else None


def decode_trusted(data: bytes) -> FlatImage | None:
    """The image of a file for any key, which is not searched for damage; None for one of another format."""
    parts = _parts(data)
    return None if parts is None else _image(parts)


def key_of(data: bytes) -> bytes | None:
    """The key that a file was made for; None for one that is damaged, short or of another format."""
    parts = _parts(data)
    return parts.key if parts is not None and _is_whole(data) else None


def title_of(data: bytes) -> str | None:
    """What a file says it is; None for one that is damaged, short or of another format."""
    parts = _parts(data)
    return parts.title.decode() if parts is not None and _is_whole(data) else None


def _parts(data: bytes) -> _Parts | None:
    if len(data) < _START:
        return None
    magic, key, *sizes = _HEADER.unpack_from(data, DIGEST_SIZE)
    ends = list(accumulate(sizes, initial=_START))
    if magic != MAGIC or ends[-1] != len(data):
        return None
    return _Parts(key, *(data[start:end] for start, end in pairwise(ends)))


def _image(parts: _Parts) -> FlatImage:
    entries: dict[str, int] = {}
    position = 0
    while position < len(parts.names):
        offset, length = _ENTRY.unpack_from(parts.names, position)
        position += _ENTRY.size + length
        entries[parts.names[position - length : position].decode()] = offset
    return FlatImage(parts.code, parts.rebase, entries, parts.notes)


def _is_whole(data: bytes) -> bool:
    return hashed((memoryview(data)[DIGEST_SIZE:],)) == data[:DIGEST_SIZE]
