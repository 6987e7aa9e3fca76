"""Checks operations that move bytes, and hands them to drivers as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.hal import checks
from jitree.hal.buffer import Buffer
from jitree.hal.enums import BufferUsage, MemoryAccess

if TYPE_CHECKING:
    from jitree.hal.objects import File

_READ: Final = int(MemoryAccess.READ)
_WRITE: Final = int(MemoryAccess.WRITE)
_SOURCE: Final = int(BufferUsage.TRANSFER_SOURCE)
_TARGET: Final = int(BufferUsage.TRANSFER_TARGET)


class Fill(NamedTuple):
    """Repeats the low ``pattern_length`` (1, 2 or 4) bytes of ``pattern``, little endian."""

    target: Buffer
    offset: int
    length: int
    pattern: int
    pattern_length: int

    @property
    def name(self) -> str:
        return "fill"

    def check(self) -> None:
        checks.check_buffer(self.target, "queue.fill", _TARGET, _WRITE)
        checks.check_fill(self.offset, self.length, self.pattern_length)


class Update(NamedTuple):
    """Writes bytes that have been captured."""

    target: Buffer
    offset: int
    contents: bytes

    @classmethod
    def of(cls, source: memoryview, source_offset: int, target: Buffer, offset: int, length: int) -> Update:
        """Captures the bytes."""
        return cls(target, offset, bytes(checks.update_contents(source, source_offset, length)))

    @property
    def name(self) -> str:
        return "update"

    @property
    def length(self) -> int:
        return len(self.contents)

    def check(self) -> None:
        checks.check_buffer(self.target, "queue.update", _TARGET, _WRITE)


class Copy(NamedTuple):
    """Copies between ranges that do not overlap, or are the same."""

    source: Buffer
    source_offset: int
    target: Buffer
    target_offset: int
    length: int

    @property
    def name(self) -> str:
        return "copy"

    def check(self) -> None:
        source, source_offset, target, target_offset, length = self
        checks.check_buffer(source, "queue.copy", _SOURCE, _READ)
        checks.check_buffer(target, "queue.copy", _TARGET, _WRITE)
        checks.check_overlap(source, source_offset, target, target_offset, length)


class Read(NamedTuple):
    """Copies from a file to a buffer."""

    file: File
    file_offset: int
    target: Buffer
    offset: int
    length: int

    @property
    def name(self) -> str:
        return "read"

    def check(self) -> None:
        checks.check_buffer(self.target, "queue.read", _TARGET, _WRITE)
        self.file.check(MemoryAccess.READ, self.file_offset, self.length)


class Write(NamedTuple):
    """Copies from a buffer to a file, which grows if it can."""

    source: Buffer
    offset: int
    file: File
    file_offset: int
    length: int

    @property
    def name(self) -> str:
        return "write"

    def check(self) -> None:
        checks.check_buffer(self.source, "queue.write", _SOURCE, _READ)
        self.file.check(MemoryAccess.WRITE, self.file_offset, 0)


Transfer = Fill | Update | Copy | Read | Write
