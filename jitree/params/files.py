"""Maps or reads parameter files; nothing is read before it is used."""

from __future__ import annotations

import enum
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from jitree import errors
from jitree.params.entry import Storage

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
        """NOT_FOUND, PERMISSION_DENIED or UNAVAILABLE as the system says, INVALID_ARGUMENT for what is no
        file, all naming the path."""
        try:
            self.name = os.fspath(path)
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
            with open(self.name, "r+b" if self.writable else "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.view = (
                    self._map(file.fileno(), size) if mode is Mode.FILE else _read(file.fileno(), size)
                )
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
