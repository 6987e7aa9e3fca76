"""Cubins on disk: what the driver's compiler made of a PTX text for one compute capability and driver
version.

The files lie in a folder beside the images of machine code and follow the same rules: written under a
temporary name and renamed, and a file that is missing, damaged, made for another key or that others can have
written is a miss.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jitree.base import private_files
from jitree.codegen.image import cache

_FOLDER: Final = "cuda"
_SUFFIX: Final = ".cubins"
_FORMAT: Final = 2
_HEADER: Final = struct.Struct("<8s32sI")
"""Magic, key, number of cubins; then one u32 size a cubin, then the cubins, then the digest of
all that."""
_DIGEST_SIZE: Final = hashlib.sha256().digest_size
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
    data = private_files.read(str(folder()), _name(key))
    cubins = None if data is None else _decode(data, key)
    if cubins is not None:
        with contextlib.suppress(OSError):  # another user's folder, which that user clears
            os.utime(folder() / _name(key), follow_symlinks=False)
    return cubins


def store(key: bytes, cubins: Sequence[bytes]) -> None:
    """Keeps cubins for later processes. A folder that refuses is no error: they are compiled again."""
    with contextlib.suppress(OSError):
        private_files.make_own_folder(str(folder()))
        private_files.write(str(folder()), _name(key), _encode(key, cubins))
        _drop_oldest(folder())


def folder() -> Path:
    """Where the files are."""
    return cache.directory() / _FOLDER


def _name(key: bytes) -> str:
    return f"{key.hex()[:32]}{_SUFFIX}"


def _encode(key: bytes, cubins: Sequence[bytes]) -> bytes:
    sizes = struct.pack(f"<{len(cubins)}I", *map(len, cubins))
    data = _HEADER.pack(_MAGIC, key, len(cubins)) + sizes + b"".join(cubins)
    return data + hashlib.sha256(data).digest()


def _decode(data: bytes, key: bytes) -> list[bytes] | None:
    if len(data) < _HEADER.size + _DIGEST_SIZE:
        return None
    magic, found, count = _HEADER.unpack_from(data)
    if magic != _MAGIC or found != key:
        return None
    whole = memoryview(data)[:-_DIGEST_SIZE]
    if hashlib.sha256(whole).digest() != data[-_DIGEST_SIZE:]:
        return None
    payload = whole[_HEADER.size :]
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
