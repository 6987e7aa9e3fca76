"""What is in the cache folder: listing it, emptying it, and keeping it below a size.

Only files named as the cache names them are looked at. Removing one is always safe: a process that uses an
image has copied it into its memory, and one that wants it builds it again.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

from jitree.base import private_files
from jitree.base.records import NamedTuple
from jitree.codegen.image import cache
from jitree.codegen.image.cache import place
from jitree.codegen.image.flat import SUFFIX, title_of
from jitree.errors import InvalidArgumentError, pass_interruption

SIZE_VARIABLE: Final = "JITREE_CACHE_SIZE"
DEFAULT_SIZE: Final = 256 << 20
"""Bytes; a module's image has some 10 KiB to 1 MiB."""

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_NUMBER: Final = re.compile(r"([0-9]{1,15})([KMG]?)")
_NAME: Final = re.compile(r"(?P<name>[a-z][a-z0-9_]*)-[0-9a-f]{32}(?P<suffix>\.[a-z0-9]+)")
_ABANDONED_SECONDS: Final = 3600.0
"""Age of a temporary file, which takes milliseconds to write, of a process that must have been killed."""


class CacheFile(NamedTuple):
    """A file in the folder."""

    path: Path
    name: str
    """What the recipe of its image is called."""
    suffix: str
    size: int
    """Bytes of the file."""
    used: float
    """When it was last mapped or built, in seconds since the epoch."""

    @property
    def title(self) -> str | None:
        """What an image is; None if it is damaged, of another version of jitree, or not to be trusted."""
        return title_of(private_files.read(str(self.path.parent), self.path.name) or b"")


def maximum_size() -> int:
    """Bytes that all images may take: ``JITREE_CACHE_SIZE`` (a number, perhaps with K, M or G), else 256 MiB.

    INVALID_ARGUMENT for anything else in that variable.
    """
    text = os.environ.get(SIZE_VARIABLE)
    if not text:
        return DEFAULT_SIZE
    match = _NUMBER.fullmatch(text.upper())
    if match is None:
        raise InvalidArgumentError(
            f"{SIZE_VARIABLE} = '{text}': expected a number of bytes, which may end in K, M or G"
        )
    return int(match[1]) * _UNITS[match[2]]


def entries() -> list[CacheFile]:
    """The images that are found, the most recently used first."""
    images = (file for folder in place().folders for file in _files(folder) if file.suffix == SUFFIX)
    return sorted(images, key=lambda file: (-file.used, file.path.name))


def clear() -> tuple[int, int]:
    """Removes everything that is not being built: (number of images, their bytes)."""
    count = size = 0
    for file in _files(place().folder):
        if file.suffix == SUFFIX:
            if _remove(file):
                count, size = count + 1, size + file.size
        elif _is_abandoned(file, 0.0):
            _remove(file)
    return count, size


def shrink(limit: int, kept: Container[Path]) -> None:
    """Removes the images that were not used for longest until the rest is within ``limit`` bytes, what
    killed builders left, and files that are too long to be images, instead of which all images would have to
    go. ``kept`` ones stay whatever their size."""
    images = []
    for file in _files(place().folder):
        if file.suffix == SUFFIX and file.size <= private_files.LARGEST:
            images.append(file)
        elif file.suffix == SUFFIX or _is_abandoned(file, _ABANDONED_SECONDS):
            _remove(file)
    excess = sum(file.size for file in images) - limit
    for file in sorted(images, key=lambda file: file.used):
        if excess <= 0:
            return
        if file.path not in kept and _remove(file):
            excess -= file.size


def _files(folder: str) -> Iterator[CacheFile]:
    try:
        listed = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:  # no folder yet
        pass_interruption(error)
        return
    for entry in listed:
        match = _NAME.fullmatch(entry.name)
        if match is None:
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as error:  # removed meanwhile
            pass_interruption(error)
            continue
        yield CacheFile(Path(entry.path), match["name"], match["suffix"], status.st_size, status.st_mtime)


def _is_abandoned(file: CacheFile, seconds: float) -> bool:
    """Whether no process works with a file that is no image: no builder holds its lock, and it is older than
    ``seconds``."""
    if time.time() - file.used < seconds:
        return False
    try:
        with open(file.path.with_suffix(cache.LOCK_SUFFIX), "rb", opener=_no_link) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError as error:
        pass_interruption(error)
        return False
    return True


def _no_link(path: str, access: int) -> int:
    return os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _remove(file: CacheFile) -> bool:
    try:
        file.path.unlink()
    except OSError as error:  # another process was faster, or it is not ours
        pass_interruption(error)
        return False
    return True
