"""Describes parameters, and maps the files that they lie in."""

from __future__ import annotations

import abc
import enum
import json
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from jitree import errors
from jitree.base.platform import open_at_once
from jitree.errors import InvalidArgumentError, pass_interruption
from jitree.types import BY_NAME, ElementType, element_type_of, format_shaped_type

PATTERN_LENGTHS: Final = (1, 2, 4, 8, 16)
"""Bytes that a repeated pattern may have: up to one complex number of two f64."""

CHUNK_LENGTH: Final = 1 << 20
"""Bytes of a repeated pattern that are made at one time; a multiple of every pattern length."""

_PREFIXES: Final = ("TENSORv0", "PYTORCH")
_LONGEST_NAME: Final = 64
"""Characters of an element type's name. numpy reads names as Python, in 500 times their bytes of memory."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """What an archive says about the elements.

    To programs a parameter is bytes: it is only compared with what is known of them.
    """

    shape: tuple[int, ...]
    element: ElementType | str
    """A name where it is no element type of programs, such as the block formats of gguf."""

    def __str__(self) -> str:
        if isinstance(self.element, ElementType):
            return format_shaped_type(self.shape, self.element)
        return "".join(f"{dimension}x" for dimension in self.shape) + self.element


class Storage(abc.ABC):
    """Where the bytes of a parameter are."""

    __slots__ = ()
    writable = False
    """Whether programs may change the bytes."""

    @abc.abstractmethod
    def contents(self) -> memoryview:
        """All bytes, flat; nothing is read before they are touched where the storage can do that."""

    @property
    def file_offset(self) -> int | None:
        """Where the bytes begin in their file; None when they are not in a file as they are."""
        return None


@dataclass(frozen=True, slots=True)
class Splat:
    """A pattern that is repeated for the whole length; it takes no room anywhere."""

    pattern: bytes


@dataclass(frozen=True, slots=True)
class ParameterEntry:
    key: str
    length: int
    """Bytes."""
    storage: Storage | Splat
    metadata: bytes = b""
    """Whatever the archive's author stored beside the parameter."""
    tensor: TensorType | None = None

    @property
    def pattern(self) -> bytes | None:
        """What is repeated, None for a parameter that has its bytes somewhere."""
        return self.storage.pattern if isinstance(self.storage, Splat) else None

    @property
    def writable(self) -> bool:
        return not isinstance(self.storage, Splat) and self.storage.writable

    @property
    def file_offset(self) -> int | None:
        return None if isinstance(self.storage, Splat) else self.storage.file_offset

    def contents(self) -> memoryview:
        """All bytes of a parameter that is no splat."""
        assert not isinstance(self.storage, Splat)
        return self.storage.contents()

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The bytes in order, splats expanded."""
        pattern = self.pattern
        if pattern is None:
            yield self.contents()
            return
        chunk = repeat(pattern, 0, min(CHUNK_LENGTH, self.length))
        for start in range(0, self.length, CHUNK_LENGTH):
            yield chunk[: self.length - start]


def splat_entry(
    key: str, pattern: bytes, length: int, metadata: bytes = b"", tensor: TensorType | None = None
) -> ParameterEntry:
    """A parameter of ``length`` bytes that repeats a pattern.

    INVALID_ARGUMENT for a pattern that has not 1, 2, 4, 8 or 16 bytes or fits no whole number of times.
    """
    if not isinstance(pattern, bytes) or not isinstance(length, int):
        raise InvalidArgumentError(
            f"parameter '{key}': expected a pattern of bytes and a length but got a "
            f"{type(pattern).__name__} and a {type(length).__name__}"
        )
    if len(pattern) not in PATTERN_LENGTHS:
        raise InvalidArgumentError(
            f"parameter '{key}': a repeated pattern of {len(pattern)} bytes; it must have 1, 2, 4, 8 or 16"
        )
    if length < 0 or length % len(pattern):
        raise InvalidArgumentError(
            f"parameter '{key}': a pattern of {len(pattern)} bytes cannot fill {length} bytes"
        )
    return ParameterEntry(key, length, Splat(pattern), metadata, tensor)


def repeat(pattern: bytes, phase: int, length: int) -> bytes:
    """``length`` bytes of a pattern repeated, from byte ``phase`` of the first one."""
    start = phase % len(pattern)
    return (pattern * ((start + length) // len(pattern) + 1))[start : start + length]


def tensor_type(metadata: bytes) -> TensorType | None:
    """What metadata says about the elements; None when it says nothing that can be read."""
    if not metadata:
        return None
    prefix, separator, text = metadata.decode("utf-8", "backslashreplace").partition(":")
    if not separator or prefix not in _PREFIXES:
        return None
    try:
        fields = json.loads(text)
        if fields["type"] != "Tensor":
            return None
        shape = tuple(int(dimension) for dimension in fields["shape"])
        return TensorType(shape, element_called(str(fields["dtype"])))
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        pass_interruption(error)
        return None  # a text for people; nothing depends on it


def element_called(name: str) -> ElementType | str:
    """The element type of a numpy name or of IREE's own; the name itself when there is none."""
    if name in BY_NAME:
        return BY_NAME[name]
    if len(name) > _LONGEST_NAME:
        return name
    try:
        return element_type_of(np.dtype(name)) or name
    except (TypeError, ValueError, SyntaxError) as error:  # numpy evaluates parts of it as Python literals
        pass_interruption(error)
        return name


def check_overlaps(entries: Iterable[ParameterEntry]) -> None:
    """INVALID_ARGUMENT when two parameters of a format that forbids it share bytes."""
    ranges = sorted(
        (offset, offset + entry.length, entry.key)
        for entry in entries
        if entry.length and (offset := entry.file_offset) is not None
    )
    for (_, end, first), (begin, _, second) in pairwise(ranges):
        if begin < end:
            raise InvalidArgumentError(
                f"parameters '{first}' and '{second}' overlap at byte {begin} of the file"
            )


ALIGNMENT: Final = 64
"""Bytes; memory at such addresses is used by devices in place."""


class Mode(enum.Enum):
    """How files are read; programs get the same from both."""

    FILE = "file"
    """Mapped: pages are read when they are touched, and shared with other processes."""
    PRELOAD = "preload"
    """Read into memory at once: later changes of the file do not matter."""


class Access(enum.Enum):
    READ = enum.auto()
    READ_WRITE = enum.auto()
    """What programs write into parameters goes to the file. Mapped files only."""


class ParameterFile:
    """The bytes of a file; a view of them keeps them."""

    __slots__ = ("name", "view", "writable")

    def __init__(self, path: str | os.PathLike[str], mode: Mode = Mode.FILE, access: Access = Access.READ):
        """Maps a file. NOT_FOUND, PERMISSION_DENIED or UNAVAILABLE as the system says, INVALID_ARGUMENT for
        what is no file, all naming the path."""
        try:
            self.name = os.fsdecode(path)
        except TypeError as error:
            errors.pass_interruption(error)
            raise errors.InvalidArgumentError(f"expected a path but got a {type(path).__name__}") from None
        self.writable = access is Access.READ_WRITE
        if self.writable and mode is Mode.PRELOAD:
            raise errors.InvalidArgumentError(
                f"'{self.name}' must be mapped, not preloaded, to be written to"
            )
        try:
            if not stat.S_ISREG(os.stat(self.name).st_mode):
                raise errors.InvalidArgumentError(f"'{self.name}' is no file")
            with open(self.name, "r+b" if self.writable else "rb", opener=open_at_once) as file:
                size = os.fstat(file.fileno()).st_size
                self.view = (
                    self._map(file.fileno(), size) if mode is Mode.FILE else _read(file.fileno(), size)
                )
        except errors.StatusError:
            raise
        except ValueError as error:  # a name with a zero in it
            errors.pass_interruption(error)
            raise errors.InvalidArgumentError(f"{self.name!r} is no file name: {error}") from None
        except FileNotFoundError:
            raise errors.NotFoundError(f"no file '{self.name}'") from None
        except PermissionError as error:
            raise errors.PermissionDeniedError(
                f"file '{self.name}' cannot be opened: {error.strerror}"
            ) from None
        except OSError as error:
            errors.pass_interruption(error)
            raise errors.UnavailableError(f"file '{self.name}' cannot be opened: {error.strerror}") from None

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix.lower()

    def storage(self, offset: int, length: int) -> FileRange:
        """OUT_OF_RANGE for bytes that the file does not have."""
        check_range("parameter", offset, length, len(self.view))
        return FileRange(self, offset, length)

    def _map(self, descriptor: int, size: int) -> memoryview:
        if not size:
            return memoryview(b"")
        access = mmap.ACCESS_WRITE if self.writable else mmap.ACCESS_READ
        return memoryview(mmap.mmap(descriptor, size, access=access))


def _read(descriptor: int, size: int) -> memoryview:
    try:
        memory = np.empty(size + ALIGNMENT, np.uint8)
    except MemoryError as error:
        errors.pass_interruption(error)
        raise errors.ResourceExhaustedError(f"no memory for the {size} bytes of the file") from None
    start = -memory.ctypes.data % ALIGNMENT
    view = memory.data[start : start + size]
    done = 0
    while done < size:
        count = os.preadv(descriptor, [view[done:]], done)
        if count == 0:
            raise errors.OutOfRangeError(f"the file ended at {done} of {size} bytes while it was read")
        done += count
    return view.toreadonly()


@dataclass(frozen=True, slots=True)
class FileRange(Storage):
    """A part of a file."""

    file: ParameterFile
    offset: int
    length: int

    @property
    def writable(self) -> bool:  # type: ignore[override]
        return self.file.writable

    @property
    def file_offset(self) -> int:
        return self.offset

    def contents(self) -> memoryview:
        return self.file.view[self.offset : self.offset + self.length]


def check_range(what: str, offset: int, length: int, available: int) -> None:
    """OUT_OF_RANGE when bytes are outside of what there is: a file cut short, or numbers that lie."""
    if offset < 0 or length < 0 or offset + length > available:
        raise errors.OutOfRangeError(
            f"{what} is out of range: bytes {offset} to {offset + length} of {available}; "
            "the file was cut short or is damaged"
        )
