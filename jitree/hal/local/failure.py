"""Names a failed function of an executable, and operations in reports."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from jitree.base.callbacks import take_kept
from jitree.base.records import NamedTuple
from jitree.codegen.record import layout_of, size_of, words_of
from jitree.errors import CancelledError, InternalError, StatusError, locations
from jitree.hal import command_layout
from jitree.hal.command_layout import FAILED_FUNCTION, FAILED_INTERRUPTED, Command, KernelEntry
from jitree.hal.command_list import KIND_COLLECTIVE, BoundCommands, CommandList, check_workgroups

_COMMAND: Final = words_of(Command)
_ENTRY: Final = layout_of(Command).offsets["entry"] // 8

_NAMES: Final = {
    command_layout.KIND_FILL: "fill",
    command_layout.KIND_COPY: "copy",
    command_layout.KIND_UPDATE: "update",
    KIND_COLLECTIVE: "collective",
}
_MOST_COMMANDS: Final = 4
_FIELDS: Final = tuple(layout_of(Command).offsets)
_X: Final = _FIELDS.index("count_x")


def dispatched_function(commands: CommandList, row: int) -> tuple[Any, str, int]:
    """The executable that a dispatch uses, and the function's name and ordinal there."""
    words = memoryview(commands.rows).cast("B").cast("i")
    executable: Any = commands.kept[words[row * size_of(Command) // 4 + _COMMAND.object]]
    entry = commands.rows[row * size_of(Command) // 8 + _ENTRY]
    ordinal = ctypes.c_int32.from_address(entry + layout_of(KernelEntry)["ordinal"]).value
    return executable, executable.function_name(ordinal) or f"function {ordinal}", ordinal


def function_failure(
    commands: CommandList, row: int, result: int, workgroup: tuple[int, int, int]
) -> BaseException:
    """Makes the error of a failed function: INTERNAL, or what was kept. It names executable, function,
    workgroup and what the function returned; the executable or this thread may have kept another one."""
    interrupt = take_kept()
    if interrupt is not None:
        return interrupt
    executable, name, ordinal = dispatched_function(commands, row)
    places = executable.places(ordinal)
    kept: BaseException | None = executable.take_failure(result)
    if kept is not None:
        if isinstance(kept, StatusError) and places:
            kept.with_context(f"compiled from {locations(places)}")
        return kept
    return InternalError(
        f"{name} of executable '{executable.name}' returned {result} in workgroup {workgroup} of command "
        f"{commands.first_row + row}",
        *([f"compiled from {locations(places)}"] if places else ()),
    )


class Failure(NamedTuple):
    """Reads what machine code tells of an execution that failed."""

    kind: int
    """FAILED_*"""
    row: int
    result: int
    x: int
    y: int
    z: int

    def raise_error(self, commands: CommandList) -> None:
        """Raises a job's failure. INTERNAL when a function failed, OUT_OF_RANGE for impossible counts of an
        indirect dispatch, or what interrupted the thread while it waited for others."""
        if self.kind == FAILED_INTERRUPTED:
            raise take_kept() or CancelledError("the work was interrupted")
        if self.kind == FAILED_FUNCTION:
            raise function_failure(commands, self.row, self.result, (self.x, self.y, self.z))
        check_workgroups(self.x, self.y, self.z)


def describe_work(name: str, work: Callable[[], None]) -> str:
    """Describes an operation by its name and what its command lists do."""
    given = work.args if isinstance(work, partial) else ()
    parts = [describe_commands(item.commands) for item in given if isinstance(item, BoundCommands)]
    return ": ".join([name, *parts])


def describe_commands(commands: CommandList) -> str:
    """``mlp_dispatch_0 (8 x 4 x 1 workgroups), copy, …``"""
    words = [
        _describe_row(commands, number, row)
        for number, row in enumerate(commands.decoded_rows())
        if row[0] != command_layout.KIND_BARRIER
    ]
    more = len(words) - _MOST_COMMANDS
    return ", ".join(words[:_MOST_COMMANDS]) + (f" and {more} more commands" if more > 0 else "")


def _describe_row(commands: CommandList, number: int, row: tuple[Any, ...]) -> str:
    kind = row[0]
    if kind == command_layout.KIND_DISPATCH_INDIRECT:
        return f"{dispatched_function(commands, number)[1]} (workgroups counted by the device)"
    if kind == command_layout.KIND_DISPATCH:
        counts = " x ".join(str(count & 0xFFFFFFFF) for count in row[_X : _X + 3])
        return f"{dispatched_function(commands, number)[1]} ({counts} workgroups)"
    return _NAMES[kind]
