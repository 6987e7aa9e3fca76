"""Answer ``hal.command_buffer.*``: record dispatches and collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.errors import InvalidArgumentError
from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import CommandBuffer, DispatchFlags, Reference
from jitree.hal.executable import Executable
from jitree.hal.objects import Channel
from jitree.modules.hal.module import HalState

Binding = tuple[int, int, Buffer | None, int, int]
"""(reserved, slot, buffer, offset, length)"""

WORKGROUP_COUNTS_LENGTH: Final = 12
"""Bytes: three u32."""
_DYNAMIC_PARAMETERS: Final = int(DispatchFlags.DYNAMIC_INDIRECT_PARAMETERS)
_STATIC_PARAMETERS: Final = int(DispatchFlags.STATIC_INDIRECT_PARAMETERS)

_SEND: Final = 6
_RECEIVE: Final = 7
_LAST_KIND: Final = 8
_REDUCING_KINDS: Final = (1, 4, 5)
"""Kinds of collectives: all_gather, all_reduce, all_to_all, broadcast, reduce, reduce_scatter, send, recv,
send_recv. all_reduce, reduce and reduce_scatter reduce."""


def collective(
    commands: CommandBuffer,
    channel: Channel,
    operation: int,
    parameter: int,
    send: Reference,
    receive: Reference,
    element_count: int,
) -> None:
    """Raises INVALID_ARGUMENT for reductions and buffers that do not fit. The kind of operation decides."""
    kind, reduction = operation & 0xFF, operation >> 8 & 0xFF
    if kind > _LAST_KIND or (reduction != 0) != (kind in _REDUCING_KINDS):
        raise InvalidArgumentError(f"collective of kind {kind} with reduction {reduction}")
    sends, receives = kind != _RECEIVE, kind != _SEND
    if (send[1] is not None and not sends) or (receive[1] is not None and not receives):
        raise InvalidArgumentError(f"collective of kind {kind} with a buffer that it does not use")
    given = send if sends else None, receive if receives else None
    commands.collective(channel, operation, parameter, *given, element_count)


def dispatch(
    state: HalState,
    commands: CommandBuffer,
    executable: Executable,
    function: int,
    x: int,
    y: int,
    z: int,
    flags: int,
    constants: Sequence[int],
    bindings: Sequence[Binding],
) -> None:
    commands.dispatch(
        executable,
        function,
        (x & 0xFFFFFFFF, y & 0xFFFFFFFF, z & 0xFFFFFFFF),
        constants,
        _references(bindings),
        flags,
    )


def dispatch_indirect(
    state: HalState,
    commands: CommandBuffer,
    executable: Executable,
    function: int,
    workgroups_slot: int,
    workgroups: Buffer | None,
    workgroups_offset: int,
    flags: int,
    constants: Sequence[int],
    bindings: Sequence[Binding],
) -> None:
    commands.dispatch_indirect(
        executable,
        function,
        (workgroups_slot, workgroups, workgroups_offset, WORKGROUP_COUNTS_LENGTH),
        constants,
        _references(bindings),
        indirect_flags(flags),
    )


def indirect_flags(flags: int) -> int:
    """Says when counts are read: on execution unless told otherwise. The program may say that they are there
    before."""
    return flags if flags & _STATIC_PARAMETERS else flags | _DYNAMIC_PARAMETERS


def _references(bindings: Sequence[Binding]) -> list[Reference]:
    return [(slot, buffer, offset, length) for _, slot, buffer, offset, length in bindings]
