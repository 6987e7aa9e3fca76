"""Defines small objects of a device: events, channels and files."""

from __future__ import annotations

import abc
import os
import stat
from _thread import allocate_lock
from collections.abc import Callable, Hashable
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from jitree.base.arguments import contents, integer, object_of
from jitree.base.cancel_scopes import require_going_on
from jitree.base.finalizers import OwnedDescriptor, Unique
from jitree.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    system_refusals,
)
from jitree.hal.enums import MemoryAccess

_LOOK_SECONDS: Final = 0.02
T = TypeVar("T")


class Event(Unique):
    """Orders commands inside a command buffer more finely than a barrier. The local drivers need nothing of
    it."""

    VM_TYPE: Final = "hal.event"
    __slots__ = ("__weakref__", "flags", "queue_affinity")

    def __init__(self, queue_affinity: int, flags: int = 0) -> None:
        self.queue_affinity = queue_affinity
        self.flags = flags


class Channel(Protocol):
    """Groups devices that take part in collective operations."""

    VM_TYPE: ClassVar[str] = "hal.channel"

    @property
    def rank(self) -> int: ...

    @property
    def count(self) -> int: ...

    def split(self, color: int, key: int, flags: int = 0) -> Channel | None:
        """Splits off the members of one color, ranked by key. None for a negative color."""


class ChannelProvider(Protocol):
    """Tells a device rank, count and id when a program does not state them."""

    def query_default_rank_and_count(self) -> tuple[int, int]: ...

    def exchange_default_id(self, identifier: bytes) -> bytes: ...


class File(Unique, abc.ABC):
    """Bytes that queues read from and write to; offsets and lengths in bytes."""

    VM_TYPE: Final = "hal.file"
    __slots__ = ("__weakref__", "access", "name")

    def __init__(self, access: int, name: str) -> None:
        self.access = access
        self.name = name

    @property
    @abc.abstractmethod
    def length(self) -> int: ...

    @abc.abstractmethod
    def read_into(self, offset: int, target: memoryview) -> None:
        """Fills ``target``. OUT_OF_RANGE when the file ends before."""

    @abc.abstractmethod
    def write_from(self, source: memoryview, offset: int) -> None: ...

    def check(self, access: MemoryAccess, offset: int, length: int) -> None:
        """PERMISSION_DENIED for access that was not asked for at opening, OUT_OF_RANGE outside the file."""
        if not self.access & access:
            verb = "written" if access & MemoryAccess.WRITE else "read"
            raise PermissionDeniedError(f"file {self.name} was not opened to be {verb}")
        if offset < 0 or length < 0 or offset + length > self.length:
            raise OutOfRangeError(
                f"bytes {offset} to {offset + length} are outside file {self.name} of {self.length} bytes"
            )


class MemoryFile(File):
    """Presents host bytes as a file; they are kept, not copied."""

    __slots__ = ("contents",)

    def __init__(self, contents: memoryview, access: int, name: str = "in memory") -> None:
        super().__init__(access, name)
        self.contents = contents.cast("B") if contents.nbytes else memoryview(b"")
        if access & MemoryAccess.WRITE and self.contents.readonly and contents.nbytes:
            raise PermissionDeniedError(f"file {name} cannot be opened for writing: its memory is read-only")

    @property
    def length(self) -> int:
        return self.contents.nbytes

    def read_into(self, offset: int, target: memoryview) -> None:
        self.check(MemoryAccess.READ, offset, target.nbytes)
        target[:] = self.contents[offset : offset + target.nbytes]

    def write_from(self, source: memoryview, offset: int) -> None:
        self.check(MemoryAccess.WRITE, offset, source.nbytes)
        self.contents[offset : offset + source.nbytes] = source


class DescriptorFile(File):
    """Reads and writes an open file by position (``pread``, ``pwrite``). Positions of other users do not
    matter. The GIL is released meanwhile."""

    __slots__ = ("_descriptor", "_opened")

    def __init__(self, opened: OwnedDescriptor, access: int, name: str) -> None:
        super().__init__(access, name)
        self._opened = opened
        self._descriptor = opened.number

    @classmethod
    def open(cls, path: str | os.PathLike[str], access: int) -> DescriptorFile:
        """NOT_FOUND, PERMISSION_DENIED or UNAVAILABLE as the system says, naming the path; INVALID_ARGUMENT
        for a pipe or device, of which no range can be read."""
        mode = os.O_RDWR if access & MemoryAccess.WRITE else os.O_RDONLY
        name = os.fspath(path)
        with system_refusals(f"file '{name}' cannot be opened"):
            try:
                opened = OwnedDescriptor(os.open, name, mode | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise NotFoundError(f"no file '{name}'") from error
            except PermissionError as error:
                raise PermissionDeniedError(f"file '{name}' cannot be opened: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(opened.number).st_mode):
            raise InvalidArgumentError(f"'{name}' is no file; copy what a pipe or device has to one")
        return cls(opened, access, f"'{name}'")

    @property
    def length(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_into(self, offset: int, target: memoryview) -> None:
        self.check(MemoryAccess.READ, offset, target.nbytes)
        done = 0
        while done < target.nbytes:
            count = os.preadv(self._descriptor, [target[done:]], offset + done)
            if count == 0:
                raise OutOfRangeError(f"file {self.name} ended at {offset + done} bytes while it was read")
            done += count

    def write_from(self, source: memoryview, offset: int) -> None:
        self.check(MemoryAccess.WRITE, offset, 0)
        done = 0
        while done < source.nbytes:
            count = os.pwrite(self._descriptor, source[done:], offset + done)
            if count == 0:
                raise InternalError(f"file {self.name} took no more bytes at {offset + done}")
            done += count


FileSource = memoryview | bytes | bytearray | str | os.PathLike[str]
"""What files are imported from: memory, or a path."""


def open_file(source: FileSource, access: int, offset: int = 0, length: int = -1) -> File:
    """Opens a file over ``source``: a part of memory, or a whole path. Of memory, length -1 is the rest.

    INVALID_ARGUMENT without any access; for errors of opening see :meth:`DescriptorFile.open`.
    """
    if not integer("access", access) & MemoryAccess.ALL:
        raise InvalidArgumentError("a file must be imported for reading, writing or both")
    object_of("source", source, memoryview, bytes, bytearray, str, os.PathLike)
    offset, length = integer("offset", offset), integer("length", length)
    if not isinstance(source, memoryview | bytes | bytearray):
        return DescriptorFile.open(source, access)
    view = contents("source", source)
    end = view.nbytes if length == -1 else offset + length
    if not 0 <= offset <= end <= view.nbytes:
        raise OutOfRangeError(f"bytes {offset} to {end} are outside the file's {view.nbytes} bytes of memory")
    return MemoryFile(view[offset:end], access)


class KnownChannels(Generic[T]):
    """Keeps channels by what they were asked for with. One is made at a time: all members make theirs in one
    order."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._channels: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        found = self._channels.get(key)
        if found is not None:
            return found
        taken: list[bool] = []  # by functions in C: no interrupt comes before it is known
        try:
            while True not in taken:
                if taken:
                    require_going_on()
                next(map(taken.append, map(self._lock.acquire, (True,), (_LOOK_SECONDS,))))
            found = self._channels.get(key)
            if found is None:
                found = self._channels[key] = make()
        finally:
            if True in taken:
                self._lock.release()
        return found

    def clear(self) -> None:
        self._channels.clear()
