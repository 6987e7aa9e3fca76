"""Performs submissions step by step, telling readers of each: for all drivers.

A driver says how a part of a list is executed and how memory is looked at, nothing else: parts of one row
each are lists like any other.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.events import DISPATCH, EventReader, ObservedEvent, perform
from jitree.codegen.record import layout_of
from jitree.hal.command_layout import (
    KIND_BARRIER,
    KIND_COPY,
    KIND_DISPATCH,
    KIND_DISPATCH_INDIRECT,
    KIND_FILL,
    Command,
)
from jitree.hal.command_list import KIND_COLLECTIVE
from jitree.hal.local.failure import dispatched_function
from jitree.hal.transfers import Copy, Read, Transfer, Write

if TYPE_CHECKING:
    from jitree.base.elements import Bytes
    from jitree.hal.buffer import Buffer
    from jitree.hal.command_list import BoundCommands, CommandList
    from jitree.hal.executable import Executable

Extent = tuple[int, int]
"""Address and bytes of a range of memory."""
Look = Callable[[Extent], "Bytes"]
"""Gives the bytes of a range: as they are now, or over the memory itself."""

_FIELDS: Final = tuple(layout_of(Command).offsets)
_KIND, _OPERAND, _COUNT, _CONSTANT, _CONSTANTS, _X = (
    _FIELDS.index(field)
    for field in ("kind", "operand", "operand_count", "constant", "constant_count", "count_x")
)
_TRANSFERS: Final = {KIND_FILL: "fill", KIND_COPY: "copy", KIND_COLLECTIVE: "collective"}


def memory(extent: Extent, owner: object = None) -> Bytes:
    """Views a range that the host sees, now and later. The bytes keep the owner, if given."""
    address, length = extent
    if not length:
        return np.empty(0, np.uint8)
    array: Any = (ctypes.c_uint8 * length).from_address(address)
    array.owner = owner
    return np.ctypeslib.as_array(array)


def looked_at(extent: Extent) -> Bytes:
    """As :func:`memory`, for observers, which only read: constants must not change."""
    found = memory(extent)
    found.flags.writeable = False
    return found


class DeviceStep(ObservedEvent):
    """Describes one command, or one transfer of a queue."""

    def __init__(
        self,
        kind: str,
        operands: Sequence[Extent],
        *,
        executable: Executable | None = None,
        function: int = 0,
        name: str = "",
        workgroups: tuple[int, int, int] = (0, 0, 0),
        constants: Sequence[int] = (),
        index: int = 0,
        look: Look = looked_at,
    ) -> None:
        """``name``: the full name of a dispatch's function."""
        super().__init__(kind, name or kind)
        self.operands = tuple(operands)
        """Bindings of a dispatch; source, target of a copy or a collective; else the one range of memory."""
        self.executable = executable
        self.function = function
        """Its ordinal in the executable."""
        self.workgroups = workgroups
        self.constants = tuple(constants)
        self.index = index
        """Number among the dispatches of the submission."""
        self.look = look
        """Looks at the memory of its operands, while it is observed."""

    @property
    def written(self) -> tuple[int, ...] | None:
        """Numbers of the operands that it writes to; None where only the kernel knows."""
        known = {DISPATCH: None, "copy": (1,), "collective": (1,), "write": ()}
        return known.get(self.kind, (0,))


def execute_stepwise(
    execute: Callable[[BoundCommands], object],
    readers: Sequence[EventReader],
    bound: BoundCommands,
    look: Look = looked_at,
) -> None:
    """Executes a list row by row: ``execute`` does a part of it, and returns when it is done.

    Collectives between two barriers are one part, since members may do them in any order: each alone could
    wait for one that another member does later. All readers are told before the first and after the last.
    """
    commands = bound.commands
    dispatches, ranges = 0, list(zip(bound.addresses, bound.lengths, strict=True))
    together: list[tuple[int, DeviceStep]] = []

    def do(steps: Sequence[tuple[int, DeviceStep]]) -> None:
        part = commands.part([number for number, _ in steps])
        work: Callable[[], object] = partial(execute, bound._replace(commands=part))
        for _, step in steps:
            work = partial(perform, step, readers, work)
        work()

    for number, row in enumerate(commands.decoded_rows()):
        if row[_KIND] == KIND_BARRIER:
            if together:
                do(together)
                together = []
            continue
        step = _step_of(commands, number, row, ranges, dispatches, look)
        dispatches += step.kind == DISPATCH
        if row[_KIND] == KIND_COLLECTIVE:
            together.append((number, step))
        else:
            do([(number, step)])
    if together:
        do(together)


def _step_of(
    commands: CommandList, number: int, row: tuple[Any, ...], ranges: list[Extent], index: int, look: Look
) -> DeviceStep:
    """A row of a list as a step; ``index``: among the dispatches."""
    kind, first, count = row[_KIND], row[_OPERAND], row[_COUNT]
    operands = ranges[first : first + count]
    if kind not in (KIND_DISPATCH, KIND_DISPATCH_INDIRECT):
        return DeviceStep(_TRANSFERS.get(kind, "update"), operands, look=look)
    functions, name, function = dispatched_function(commands, number)
    x, y, z = (value & 0xFFFFFFFF for value in row[_X : _X + 3])
    if kind == KIND_DISPATCH_INDIRECT:
        x, y, z = array("I", look((ranges[first + count][0], 12)).tobytes())
    start = row[_CONSTANT]
    return DeviceStep(
        DISPATCH,
        operands,
        executable=functions.owner(),
        function=function,
        name=name,
        workgroups=(x, y, z),
        constants=commands.constants[start : start + row[_CONSTANTS]],
        index=index,
        look=look,
    )


def transfer_step(transfer: Transfer, look: Look = looked_at) -> DeviceStep:
    """A transfer of a queue as a step."""
    match transfer:
        case Copy(source, source_offset, target, target_offset, length):
            ranges = [_extent(source, source_offset, length), _extent(target, target_offset, length)]
        case Write(source, offset, _, _, length):
            ranges = [_extent(source, offset, length)]
        case Read(_, _, target, offset, length):
            ranges = [_extent(target, offset, length)]
        case _:
            ranges = [_extent(transfer.target, transfer.offset, transfer.length)]
    return DeviceStep(transfer.name, ranges, look=look)


def _extent(buffer: Buffer, offset: int, length: int) -> Extent:
    return buffer.address + offset, length
