"""Lists and empties the cache folder, and keeps it below a size. It also writes and reads packs.

Only files named as the cache names them are looked at. Removing one is always safe: a process that uses an
image has copied it into its memory, and one that wants it builds it again.
A pack is images in one file that travels with a program, for one kind of processors or several: magic, digest
and size of the index; the index; images, each as a file of the cache. The index is text, a line a fact: the
digest of the package's build stamp and its version, programs, and for each kind of processors the digest of
where its images were made, with their keys and places. Whoever names a pack says that it is to be run, as of
a shared library. Digests, version and processor find mistakes; nothing here tells a pack that someone has
made to do harm.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import Final

from jitree.base import private_files
from jitree.base.finalizers import OwnedDescriptor
from jitree.base.platform import UNAME, processor
from jitree.base.private_files import LARGEST
from jitree.base.records import NamedTuple
from jitree.codegen.image import cache
from jitree.codegen.image.cache import place
from jitree.codegen.image.flat import DIGEST_SIZE, SUFFIX, FlatImage, decode, hashed, title_of
from jitree.codegen.image.keys import environment, key_for, processor_key
from jitree.codegen.image.shipped import build_stamp, levels_here
from jitree.errors import InvalidArgumentError, pass_interruption, printable

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
    """Removes images not used for longest, down to ``limit`` bytes. What killed builders left goes too, and
    files that are too long to be images, instead of which all images would have to go. ``kept`` ones stay
    whatever their size."""
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


_MAGIC: Final = b"jitree\x00P"
_FORMAT: Final = b"1"
_HEADER: Final = Struct(f"<8s{DIGEST_SIZE}sI")
_LARGEST_INDEX: Final = 4 << 20
"""Bytes; 40,000 images."""


class Mismatch(Exception):
    """Why a pack is of no use here."""


class PackedImages(NamedTuple):
    """The images for one kind of processors."""

    processor: str
    """One of :data:`.LEVELS`; else what a certain processor is called."""
    requirement: str
    """The digest that tells that processor; empty for a level."""
    environment: bytes
    """What :func:`.environment` was where they were made."""
    images: dict[bytes, tuple[int, int]]
    """By key, offset and size in the file."""


def text(version: str, programs: Iterable[bytes], sections: Iterable[PackedImages]) -> bytes:
    """The index; places count from its end."""
    lines = [f"stamp {hashed((build_stamp(),)).hex()} {version}"]
    lines += [f"program {digest.hex()}" for digest in programs]
    for section in sections:
        requirement = section.requirement or "-"
        lines.append(f"processor {requirement} {section.environment.hex()} {section.processor}")
        lines += [f"image {key.hex()} {at} {size}" for key, (at, size) in section.images.items()]
    return "\n".join(lines).encode()


def packed(version: str, programs: Iterable[bytes], made: Mapping[str, Mapping[bytes, bytes]]) -> bytes:
    """The file of some images, by level (empty: this processor) and key."""
    parts: list[bytes] = []
    sections = []
    place = 0
    for level, files in made.items():
        images = {}
        for key, data in files.items():
            images[key] = place, len(data)
            parts.append(data)
            place += len(data)
        requirement = "" if level else processor_key().hex()
        sections.append(PackedImages(level or this_processor(), requirement, environment(level), images))
    index = text(version, programs, sections)
    return b"".join((_HEADER.pack(_MAGIC, hashed((_FORMAT, index)), len(index)), index, *parts))


def this_processor() -> str:
    """What this processor is called, for messages."""
    for line in processor.description().decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return UNAME


class Pack:
    """An open pack. ``load`` gives its images for this processor; any thread may call it."""

    def __init__(self, path: str) -> None:
        """Opens a pack; raises OSError or :class:`Mismatch`. The latter is for any file that is no pack for
        this package and processor."""
        self._path = path
        access = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not wait
        self._opened = OwnedDescriptor(os.open, path, access)
        self._file = self._opened.number
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise Mismatch("it is not a file")
        if status.st_size > LARGEST:
            raise Mismatch(f"it has {status.st_size} bytes, and packs have {LARGEST} at most")
        try:
            index, start = self._index()
        except OSError as error:
            pass_interruption(error)
            raise Mismatch(f"it cannot be read ({error.strerror})") from None
        self.programs: set[bytes] = set()
        self._images: dict[bytes, tuple[int, int]] = {}
        self._environment = b""
        self._has_warned = False
        try:
            self._choose(self._sections(index.decode()), start, status.st_size)
        except (ValueError, IndexError):
            raise Mismatch("it is damaged: its list of contents makes no sense") from None

    def _index(self) -> tuple[bytes, int]:
        head = os.pread(self._file, _HEADER.size, 0)
        if head[: len(_MAGIC)] != _MAGIC:
            raise Mismatch("it is no machine code that `jitree cache pack` has made")
        if len(head) < _HEADER.size:
            raise Mismatch("it is cut off")
        _, digest, size = _HEADER.unpack(head)
        index = os.pread(self._file, size, _HEADER.size) if size <= _LARGEST_INDEX else b""
        if hashed((_FORMAT, index)) != digest:
            raise Mismatch("it is damaged, cut off, or of another version of jitree")
        return index, _HEADER.size + size

    def _sections(self, index: str) -> list[PackedImages]:
        sections: list[PackedImages] = []
        for line in index.splitlines():
            kind, value, *others = line.split(" ", 3)
            if kind == "stamp":
                if value != hashed((build_stamp(),)).hex():
                    raise Mismatch(f"jitree {others[0]} has made it, and this one makes other machine code")
            elif kind == "program":
                self.programs.add(bytes.fromhex(value))
            elif kind == "processor":
                requirement = "" if value == "-" else value
                sections.append(PackedImages(others[1], requirement, bytes.fromhex(others[0]), {}))
            elif kind == "image":
                sections[-1].images[bytes.fromhex(value)] = int(others[0]), int(others[1])
        return sections

    def _choose(self, sections: list[PackedImages], start: int, length: int) -> None:
        """Takes images of this processor, or of its best level."""
        order = [processor_key().hex(), *levels_here()]
        suiting = [item for item in sections if (item.requirement or item.processor) in order]
        if not suiting:
            kinds, here = [section.processor for section in sections], this_processor()
            this = "another of that name" if here in kinds else here
            raise Mismatch(
                f"it is for processors {', '.join(kinds)}, and this one is {this} (with `--processor=` it is"
                " for levels, which many have)"
            )
        best = min(suiting, key=lambda item: order.index(item.requirement or item.processor))
        self._environment = best.environment
        for key, (at, size) in best.images.items():
            if at < 0 or size < 0 or start + at + size > length:
                raise Mismatch("it is cut off")
            self._images[key] = start + at, size

    def load(self, source: bytes) -> FlatImage | None:
        """The image of what has a :func:`.source_key`; None for others, and damaged ones, with a warning."""
        key = key_for(source, self._environment)
        place = self._images.get(key)
        if place is None:
            return None
        at, size = place
        try:
            image = decode(os.pread(self._file, size, at), key)
        except OSError as error:
            pass_interruption(error)
            image = None
        if image is None and self._images.pop(key, None) is not None and not self._has_warned:
            self._has_warned = True
            warn(self._path, "a part of it is damaged")
        return image


def warn(path: str, reason: str) -> None:
    """Says why a pack is not used, and what follows."""
    text = printable(
        f"jitree: machine code of '{path}' is not used: {reason}; it is looked for in the cache, and made"
        " there, as without the file: `jitree cache pack` makes that anew"
    )
    from jitree.base.folding import warn as warn_user

    warn_user(text)
