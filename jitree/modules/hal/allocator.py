"""Answer ``hal.allocator.*``: allocate and import memory, choose where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.errors import InvalidArgumentError, PermissionDeniedError, ResourceExhaustedError
from jitree.hal.allocator import Allocator
from jitree.hal.buffer import Buffer
from jitree.hal.device import Device
from jitree.hal.enums import BufferUsage, names
from jitree.modules.hal.module import HalState
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import ACCESS_PRIVATE

_IMMUTABLE: Final = int(BufferUsage.SHARING_IMMUTABLE)
_MAXIMUM_CANDIDATES: Final = 64
"""Devices that a placement policy is asked about at once."""


def import_(
    state: HalState,
    allocator: Allocator,
    try_import: int,
    queue_affinity: int,
    memory_types: int,
    usage: int,
    source: VmBuffer,
    offset: int,
    length: int,
) -> Buffer | None:
    """Makes a buffer over a host buffer's bytes, kept alive by it.

    Memory that the device cannot use in place gives null when ``try_import`` is set, else PERMISSION_DENIED.
    So do constants that the host has where the program may store to any: it makes a copy.
    """
    if length == -1:
        length = source.length - offset
    if not 0 <= offset <= offset + length <= source.length:
        raise InvalidArgumentError(
            f"bytes {offset} to {offset + length} to import are outside the source of {source.length} bytes"
        )
    immutable = bool(usage & _IMMUTABLE)
    if not source.writable and not immutable:
        raise PermissionDeniedError(
            "constant memory can only be imported with usage SHARING_IMMUTABLE; got "
            f"{names(BufferUsage(usage))}"
        )
    if try_import and not (source.writable or source.access & ACCESS_PRIVATE) and state.stores_to_constants:
        return None
    view = source.view[offset : offset + length]
    buffer = allocator.import_host(view.toreadonly() if immutable else view, memory_types, usage)
    if buffer is not None and immutable:
        access = buffer.allowed_access | source.access & ACCESS_PRIVATE
        buffer.allowed_access = buffer.allocation.allowed_access = access
    if buffer is None and not try_import:
        raise PermissionDeniedError(
            f"the device cannot use {length} bytes of host memory at offset {offset} in place"
        )
    return buffer


def select(
    state: HalState, memory_types: int, usage: int, flags: int, candidates: Sequence[tuple[Device, int]]
) -> tuple[Device, int]:
    """Chooses where memory is that several devices share: with the first unless the host has a policy."""
    if flags:
        raise InvalidArgumentError(f"allocator.select: unknown flags {flags:#x}")
    if not candidates:
        raise InvalidArgumentError("allocator.select needs at least one device")
    if state.placement is None:
        return candidates[0]
    if len(candidates) > _MAXIMUM_CANDIDATES:
        raise ResourceExhaustedError(
            f"allocator.select among {len(candidates)} devices; at most {_MAXIMUM_CANDIDATES}"
        )
    return state.placement(candidates, memory_types, usage)
