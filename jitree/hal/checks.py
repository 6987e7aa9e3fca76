"""Checks ranges and flags for recorded commands and queue operations."""

from __future__ import annotations

from jitree.base.arguments import contents, integer, object_of
from jitree.errors import InvalidArgumentError, OutOfRangeError, PermissionDeniedError
from jitree.hal.buffer import Buffer
from jitree.hal.enums import MAXIMUM_UPDATE, WHOLE_BUFFER, BufferUsage, MemoryAccess, names
from jitree.hal.fence import Fence


def check_flags(command: str, flags: int) -> None:
    """INVALID_ARGUMENT for any flags: the operation has none."""
    if integer("flags", flags):
        raise InvalidArgumentError(f"{command}: unknown flags {flags:#x}")


def check_fences(wait: Fence | None, signal: Fence | None) -> None:
    """INVALID_ARGUMENT for what is no fence."""
    if wait is not None:
        object_of("wait", wait, Fence)
    if signal is not None:
        object_of("signal", signal, Fence)


def check_buffer(buffer: Buffer, command: str, usage: int, access: int) -> None:
    """PERMISSION_DENIED when the buffer may not be used or accessed like that."""
    missing = usage & ~buffer.allowed_usage
    if missing:
        raise PermissionDeniedError(
            f"{command}: the buffer was not allocated with usage {names(BufferUsage(missing))}"
        )
    missing = access & ~buffer.allowed_access
    if missing:
        access_names = names(MemoryAccess(missing))
        raise PermissionDeniedError(f"{command}: the buffer does not allow access {access_names}")


def check_fill(offset: int, length: int, pattern_length: int) -> None:
    """Checks a fill's pattern and its range. INVALID_ARGUMENT for pattern lengths other than 1, 2 and 4 and
    for ranges that are no multiples of them.

    A length that is not known yet (the rest of a binding table slot) passes.
    """
    if pattern_length not in (1, 2, 4):
        raise InvalidArgumentError(f"a fill pattern of {pattern_length} bytes; must be 1, 2 or 4")
    if offset % pattern_length or (length != WHOLE_BUFFER and length % pattern_length):
        raise InvalidArgumentError(
            f"a fill at offset {offset} of {length} bytes; both must be multiples of the "
            f"{pattern_length} bytes of the pattern"
        )


def check_overlap(
    source: Buffer, source_offset: int, target: Buffer, target_offset: int, length: int
) -> bool:
    """Whether a copy changes anything; INVALID_ARGUMENT when it would overlap itself. A range onto itself
    changes nothing, and a program that puts a result where its caller wants it makes such copies."""
    if not source.overlaps(source_offset, target, target_offset, length):
        return True
    if source.address + source_offset == target.address + target_offset:
        return False
    raise InvalidArgumentError(
        f"a copy of {length} bytes from offset {source_offset} to {target_offset} of the same memory "
        "overlaps itself"
    )


def update_contents(source: memoryview, source_offset: int, length: int) -> memoryview:
    """The bytes of an update as a view of ``source``; WHOLE_BUFFER = the rest.

    INVALID_ARGUMENT for more than 65536, OUT_OF_RANGE outside the source.
    """
    view = contents("source", source)
    if length == WHOLE_BUFFER:
        length = view.nbytes - source_offset
    if length > MAXIMUM_UPDATE:
        raise InvalidArgumentError(f"an update of {length} bytes; at most {MAXIMUM_UPDATE}")
    if source_offset < 0 or length < 0 or source_offset + length > view.nbytes:
        raise OutOfRangeError(
            f"bytes {source_offset} to {source_offset + length} are outside the update's source of "
            f"{view.nbytes} bytes"
        )
    return view[source_offset : source_offset + length]
