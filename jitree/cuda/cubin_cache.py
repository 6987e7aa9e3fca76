"""Cubins on disk: what the driver's compiler made of a PTX text for one compute capability and driver
version.

The files lie in a folder beside the images of machine code and follow the same rules: written under a
temporary name and renamed, and a file that is missing, damaged, made for another key or owned by somebody
else is a miss.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jitree.dispatch.image import cache

_FOLDER: Final = "cuda"
_SUFFIX: Final = ".cubins"
_FORMAT: Final = 1
_HEADER: Final = struct.Struct("<8s32sII")
"""Magic, key, checksum of the rest, number of cubins; then one u32 size a cubin, then the cubins."""
_MAGIC: Final = b"jitreeCU"
_KEPT_BYTES: Final = 256 << 20
"""Of all such files; the least recently used go."""


def key_of(text: bytes, compute_capability: tuple[int, int], driver_version: int) -> bytes:
    """32 bytes that change with anything that decides the machine code."""
    digest = hashlib.sha256(repr((_FORMAT, compute_capability, driver_version)).encode())
    digest.update(text)
    return digest.digest()


def load(key: bytes) -> list[bytes] | None:
    """The cubins of a key, or None."""
    path = _path(key)
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_uid not in (os.geteuid(), 0):
                return None
            cubins = _decode(file.read(), key)
    except OSError:
        return None
    with contextlib.suppress(OSError):  # somebody else's folder: it is not we who clear it
        os.utime(path)
    return cubins


def store(key: bytes, cubins: Sequence[bytes]) -> None:
    """Keeps cubins for later processes. A folder that refuses is no error: they are compiled again."""
    path = _path(key)
    temporary = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(_encode(key, cubins))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _drop_oldest(path.parent)


def folder() -> Path:
    """Where the files are."""
    return cache.directory() / _FOLDER


def _path(key: bytes) -> Path:
    return folder() / f"{key.hex()[:32]}{_SUFFIX}"


def _encode(key: bytes, cubins: Sequence[bytes]) -> bytes:
    payload = struct.pack(f"<{len(cubins)}I", *map(len, cubins)) + b"".join(cubins)
    return _HEADER.pack(_MAGIC, key, zlib.crc32(payload), len(cubins)) + payload


def _decode(data: bytes, key: bytes) -> list[bytes] | None:
    if len(data) < _HEADER.size:
        return None
    magic, found, checksum, count = _HEADER.unpack_from(data)
    payload = memoryview(data)[_HEADER.size :]
    if magic != _MAGIC or found != key or zlib.crc32(payload) != checksum:
        return None
    if 4 * count > len(payload):
        return None
    sizes = struct.unpack_from(f"<{count}I", payload)
    cubins = []
    position = 4 * count
    for size in sizes:
        cubins.append(bytes(payload[position : position + size]))
        position += size
    return cubins


def _drop_oldest(folder: Path) -> None:
    files = []
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another process dropped it
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))
    kept = 0
    for _, size, path in sorted(files, reverse=True):
        kept += size
        if kept > _KEPT_BYTES:
            path.unlink(missing_ok=True)
