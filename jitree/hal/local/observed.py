"""Executes command lists one row after the other, with observers of each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

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
from jitree.hal.observing import DISPATCH, DeviceStep, Extent, Look, Observer, looked_at, perform
from jitree.hal.transfers import Copy, Read, Transfer, Write

if TYPE_CHECKING:
    from jitree.hal.buffer import Buffer
    from jitree.hal.command_list import BoundCommands, CommandList

_FIELDS: Final = tuple(layout_of(Command).offsets)
_KIND, _OPERAND, _COUNT, _CONSTANT, _CONSTANTS, _X, _ENTRY = (
    _FIELDS.index(field)
    for field in ("kind", "operand", "operand_count", "constant", "constant_count", "count_x", "entry")
)
_TRANSFERS: Final = {KIND_FILL: "fill", KIND_COPY: "copy", KIND_COLLECTIVE: "collective"}


def execute_observed(
    execute: Callable[[int, BoundCommands], None],
    observers: Sequence[Observer],
    queue_affinity: int,
    bound: BoundCommands,
) -> None:
    """As :meth:`LocalDevice._execute`, which is ``execute``, row by row."""
    commands = bound.commands
    dispatches, ranges = 0, list(zip(bound.addresses, bound.lengths, strict=True))
    together: list[tuple[DeviceStep, tuple[int, ...]]] = []
    for number, row in enumerate(commands.decoded_rows()):
        if row[_KIND] == KIND_BARRIER:
            _perform_together(together, observers, bound)
            continue
        step = step_of(commands, number, row, ranges, dispatches)
        if row[_KIND] == KIND_COLLECTIVE:
            together.append((step, row))
            continue
        dispatches += step.kind == DISPATCH
        work = partial(execute, queue_affinity, bound._replace(commands=commands.part(number)))
        perform(step, observers, work)
    _perform_together(together, observers, bound)


def _perform_together(
    rows: list[tuple[DeviceStep, tuple[int, ...]]], observers: Sequence[Observer], bound: BoundCommands
) -> None:
    """Collectives between two barriers, which members may do in any order: each alone could wait for one that
    another member does later. All observers are told before the first and after the last."""
    if not rows:
        return
    from jitree.hal.groups.collectives import call_of, perform_together

    work = partial(perform_together, [call_of(bound, row) for _, row in rows])
    for step, _ in rows:
        work = partial(perform, step, observers, work)
    rows.clear()
    work()


def step_of(
    commands: CommandList,
    number: int,
    row: tuple[Any, ...],
    ranges: list[Extent],
    index: int,
    look: Look = looked_at,
) -> DeviceStep:
    """A row of a list as a step; ``index``: among the dispatches."""
    kind, first, count = row[_KIND], row[_OPERAND], row[_COUNT]
    operands = ranges[first : first + count]
    if kind not in (KIND_DISPATCH, KIND_DISPATCH_INDIRECT):
        return DeviceStep(_TRANSFERS.get(kind, "update"), operands, look=look)
    executable, name, function = dispatched_function(commands, number)
    x, y, z = (value & 0xFFFFFFFF for value in row[_X : _X + 3])
    if kind == KIND_DISPATCH_INDIRECT:
        x, y, z = array("I", look((ranges[first + count][0], 12)).tobytes())
    start = row[_CONSTANT]
    return DeviceStep(
        DISPATCH,
        operands,
        executable=executable,
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
