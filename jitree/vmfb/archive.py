"""The file around a module: where its FlatBuffer and its external data lie.

Two layouts (a FlatBuffer, or the same after the header of a stored ZIP member) differ only in where the
32-bit size prefix is. The ZIP directory at the end is for other tools; it is never read here.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias, TypeGuard

import numpy as np

from jitree.base.memory import address_of, private_file
from jitree.base.platform import PAGE_SIZE, mapped_file, open_at_once
from jitree.base.records import NamedTuple
from jitree.errors import (
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
    attribute_of,
    error_context,
    has_attribute,
    ignored,
    own_error,
    pass_interruption,
)

if TYPE_CHECKING:
    from mmap import mmap

IDENTIFIER: Final = b"IREE"

_ZIP_HEADER: Final = struct.Struct("<4s22xHH")
"""Local file header of a ZIP member: signature, length of the name, length of the extra fields."""
_ZIP_SIGNATURE: Final = b"PK\x03\x04"
_PREFIX_SIZE: Final = 4
_MINIMUM_FLATBUFFER: Final = 16
_RODATA_ALIGNMENT: Final = 64

_MAPPED_SIZE: Final = 1 << 20
"""Files from this size on are mapped. Smaller ones are read: that takes under a millisecond, and a file that
is overwritten while its module is in use (compile, run, compile again) does no harm."""

_STREAM_SIZE: Final = 4 << 30
"""The most bytes that are read of a stream, such as a pipe: one that never ends takes no more memory."""
_STREAM_PART: Final = 1 << 20


class OwnMemory(NamedTuple):
    """Bytes that a module alone has: its kernels may store to its constants."""

    data: memoryview


Source: TypeAlias = "bytes | bytearray | memoryview | mmap | OwnMemory | str | os.PathLike[str] | BinaryIO"


class Archive(NamedTuple):
    """An opened file. Views of ``data`` keep the memory (or mapping) alive by themselves."""

    name: str
    """Path, or what the caller called the bytes; for messages."""
    data: memoryview
    """All bytes, read-only."""
    flatbuffer: memoryview
    """The FlatBuffer without its size prefix."""
    flatbuffer_offset: int
    rodata_base: int
    """Byte offset that the offsets of external segments are relative to."""
    polyglot: bool
    """The FlatBuffer is a stored member of a ZIP file."""
    is_private: bool
    """No caller has the bytes: they have been read of a file, or a change of them makes copies of pages."""
    state: tuple[int, ...] | None
    """Of the file at the path before it was opened (:func:`file_state`)."""

    @property
    def is_of_caller(self) -> bool:
        """Whether the bytes are memory of the caller."""
        return not self.is_private and self.state is None

    @staticmethod
    def open(source: Source, name: str | None = None) -> Archive:
        """Opens a path, bytes (aliased) or a binary file. The file is read from its position on.

        NOT_FOUND if there is no such file, PERMISSION_DENIED or UNAVAILABLE if it cannot be read,
        INVALID_ARGUMENT if it is not a module, RESOURCE_EXHAUSTED for a stream of more than 4 GiB.
        """
        shown = name_of(source) if name is None else name
        with loading(shown):
            state = file_state(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else None
            data = _opened(source)
            return _locate(data.toreadonly(), shown, not data.readonly, state)


def file_state(path: str | bytes) -> tuple[int, ...] | None:
    """Numbers that change when the file at a path does; None where reading it says why."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        pass_interruption(error)
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def loading(name: str) -> AbstractContextManager[None]:
    """Adds the context that every failure to load a module carries."""
    return error_context(f"loading bytecode module at '{name}'")


def name_of(source: Source) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    file_name = attribute_of(source, "name")
    return file_name if isinstance(file_name, str) else f"<{type(source).__name__}>"


def standard_input() -> BinaryIO:
    """The stream of bytes. UNAVAILABLE where the process was started without it."""
    if sys.stdin is None:
        raise UnavailableError("standard input cannot be read: it is closed")
    return sys.stdin.buffer


def content(source: Source, most: int = -1) -> memoryview:
    """The bytes of a source, read-only; of what has no size by itself (a pipe) at most so many."""
    return _opened(source, most).toreadonly()


def _opened(source: Source, most: int = -1) -> memoryview:
    """As :func:`content`, but writable where no caller has the bytes."""
    if isinstance(source, OwnMemory):
        return source.data
    if isinstance(source, (str, os.PathLike)):
        return _read_path(os.fspath(source), most, _read_file)
    try:
        if _is_file(source):
            return memoryview(_read_stream(source, most))
        return memoryview(source).toreadonly().cast("B")  # type: ignore[arg-type]
    except InvalidArgumentError:
        raise
    except TypeError as error:  # neither bytes nor a file of bytes
        pass_interruption(error)
        raise InvalidArgumentError(
            f"a module is read from a path, bytes or an open binary file, not from {_kind_of(source)}"
        ) from own_error(error)
    except ValueError as error:  # a file that is closed
        pass_interruption(error)
        raise InvalidArgumentError(f"the file cannot be read: {error}") from own_error(error)


def _kind_of(source: object) -> str:
    if isinstance(source, io.TextIOBase):
        return "a file of text: open it by open(path, 'rb')"
    if isinstance(source, (list, tuple)):
        return "a list: pass several one by one, load(*paths)"
    return type(source).__name__


def _is_file(source: object) -> TypeGuard[BinaryIO]:
    """Whether it has to be read. A ``mmap`` can be, too, but is memory."""
    try:
        memoryview(source)  # type: ignore[arg-type]
    except TypeError as error:
        pass_interruption(error)
        return has_attribute(source, "read")
    return False


def separate_content(source: Source, most: int) -> memoryview:
    """Copies content that others can neither change nor take away. Of files too, as :func:`content`, at most
    so many bytes. a mapping shows what becomes of its file."""
    if isinstance(source, (str, os.PathLike)):
        return _read_path(os.fspath(source), most, _read_part).toreadonly()
    return content(source, most)


def _read_path(path: str, most: int, read: Callable[[io.FileIO, int], memoryview]) -> memoryview:
    try:
        opener = None if stat.S_ISREG(os.stat(path).st_mode) else open_at_once
        with open(path, "rb", buffering=0, opener=opener) as file:
            return read(file, most)
    except FileNotFoundError:
        from jitree.base.near_names import near_path  # only failures pay for it

        raise NotFoundError(f"no such file: '{path}'{near_path(path)}") from None
    except PermissionError as error:
        raise PermissionDeniedError(f"the file cannot be read: {error.strerror}: '{path}'") from None
    except IsADirectoryError:
        raise InvalidArgumentError(f"'{path}' is a directory, not a module file") from None
    except (InvalidArgumentError, UnavailableError):
        raise
    except (OSError, ValueError, MemoryError) as error:  # ValueError: a null character in the path
        pass_interruption(error)
        if isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM:
            raise ResourceExhaustedError(f"there is no memory for the file '{path}'") from None
        raise UnavailableError(f"the file cannot be read: {error}") from None


def _read_file(file: io.FileIO, most: int) -> memoryview:
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size >= _MAPPED_SIZE:
        with ignored(OSError):  # pages that may be written count as memory where the system overcommits none
            return private_file(file.fileno(), status.st_size)
        return mapped_file(file.fileno(), status.st_size)
    return _read_part(file, most if not stat.S_ISREG(status.st_mode) else -1)


def _read_part(file: io.FileIO, most: int) -> memoryview:
    """Reads at most so many bytes."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        return memoryview(_read_stream(file, most, _first_part(file, status.st_mode)))
    size = status.st_size if most < 0 else min(status.st_size, most)
    if size == 0:
        return memoryview(bytearray())
    # As in a mapping, it begins with a page: constants keep the alignment that they have in the file. Of the
    # heap, since new pages cost a hundred times as much as reading what the system has anyway.
    memory = np.empty(size + PAGE_SIZE, np.uint8)
    start = -address_of(memory) % PAGE_SIZE
    whole, length = memory[start : start + size].data, 0
    while length < size and (count := file.readinto(whole[length:])):
        length += count
    return whole[:length]


def _first_part(file: io.FileIO, mode: int) -> bytes:
    if not stat.S_ISFIFO(mode):
        return b""
    from jitree.base.pipes import first_part  # few modules come from one

    return first_part(file.fileno())


def _read_stream(file: BinaryIO | io.FileIO, most: int, begun: bytes = b"") -> bytearray:
    """Reads to the end, at most so many bytes. Those that it has ``begun`` with are read.

    RESOURCE_EXHAUSTED for more than a stream may have.
    """
    limit = _longest(file)
    wanted = limit + 1 if most < 0 else min(most, limit + 1)
    data = bytearray(begun)
    while (
        len(data) < wanted and (part := memoryview(file.read(min(_STREAM_PART, wanted - len(data))))).nbytes
    ):
        data += part
    if len(data) > limit:
        raise ResourceExhaustedError(
            f"the stream has more than {limit} bytes, the most that are read of one; copy it to a file and "
            "pass the path"
        )
    del data[wanted:]  # some give more than they are asked for
    return data


def _longest(file: BinaryIO | io.FileIO) -> int:
    """The most bytes that are read of a file.

    INVALID_ARGUMENT for a device, which may never end.
    """
    try:
        mode = os.fstat(file.fileno()).st_mode
    except (AttributeError, OSError, ValueError) as error:  # it is no file of the system
        pass_interruption(error)
        return _STREAM_SIZE
    if stat.S_ISCHR(mode):
        raise InvalidArgumentError(
            "it is a character device (a terminal, or one like /dev/zero), not a module file; pass the path "
            "of a file, a pipe, or bytes"
        )
    return sys.maxsize - 1 if stat.S_ISREG(mode) else _STREAM_SIZE


def _locate(data: memoryview, name: str, is_private: bool, state: tuple[int, ...] | None) -> Archive:
    prefix = _prefix_offset(data)
    available = len(data) - prefix - _PREFIX_SIZE
    if available + _PREFIX_SIZE < _MINIMUM_FLATBUFFER:
        raise _foreign(
            data, f"FlatBuffer data is not present or less than 16 bytes ({available + _PREFIX_SIZE} total)"
        )
    size = int.from_bytes(data[prefix : prefix + _PREFIX_SIZE], "little")
    start = prefix + _PREFIX_SIZE
    if size > available:
        what = f"FlatBuffer length prefix out of bounds (prefix is {size} but only {available} available)"
        is_module = bytes(data[start + 4 : start + 8]) == IDENTIFIER
        raise (
            InvalidArgumentError(f"{what}; {truncated(start + size, data)}")
            if is_module
            else _foreign(data, what)
        )
    flatbuffer = data[start : start + size]
    if bytes(flatbuffer[4:8]) != IDENTIFIER:
        raise _foreign(
            data, f"FlatBuffer identifier mismatch: expected 'IREE', found {bytes(flatbuffer[4:8])!r}"
        )
    end = start + size
    return Archive(
        name=name,
        data=data,
        flatbuffer=flatbuffer,
        flatbuffer_offset=start,
        rodata_base=(end + _RODATA_ALIGNMENT - 1) // _RODATA_ALIGNMENT * _RODATA_ALIGNMENT,
        polyglot=prefix != 0,
        is_private=is_private,
        state=state,
    )


def truncated(length: int, data: memoryview) -> str:
    """What is wrong with the bytes of a file that should be longer."""
    return f"truncated: the header says {length:,} bytes, the file has {len(data):,}"


def looks_like_module(data: memoryview) -> bool:
    """Whether bytes begin as a module does."""
    return bytes(data[8:12]) == IDENTIFIER or bytes(data[:4]) == _ZIP_SIGNATURE


def _prefix_offset(data: memoryview) -> int:
    """Where the size prefix is: after the ZIP member's header if there is one, else at 0."""
    if len(data) < _ZIP_HEADER.size:
        return 0
    signature, name_length, extra_length = _ZIP_HEADER.unpack_from(data)
    if signature != _ZIP_SIGNATURE:
        return 0
    offset: int = _ZIP_HEADER.size + name_length + extra_length
    if offset + _PREFIX_SIZE > len(data):
        raise _foreign(data, f"ZIP header of {offset} bytes exceeds the file ({len(data)} bytes)")
    return offset


def _foreign(data: memoryview, what: str) -> InvalidArgumentError:
    from jitree.vmfb.recognise import describe_foreign  # only errors ask

    description = describe_foreign(data)
    return InvalidArgumentError(f"{what}: {description}" if description else what)
