"""What is raised when a function of an executable fails."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from jitree.base.callbacks import take_kept
from jitree.base.records import NamedTuple
from jitree.errors import CancelledError, InternalError, StatusError, locations
from jitree.hal.command_layout import COMMAND, ENTRY_POINT, FAILED_FUNCTION, FAILED_INTERRUPTED
from jitree.hal.command_list import CommandList, check_workgroups

_OBJECT: Final = COMMAND.word("object")
_ENTRY: Final = COMMAND.offsets["entry"] // 8


def dispatched_function(commands: CommandList, row: int) -> tuple[Any, str, int]:
    """The executable that a dispatch uses, and the function's name and ordinal there."""
    words = memoryview(commands.rows).cast("B").cast("i")
    executable: Any = commands.kept[words[row * COMMAND.size // 4 + _OBJECT]]
    entry = commands.rows[row * COMMAND.size // 8 + _ENTRY]
    ordinal = ctypes.c_int32.from_address(entry + ENTRY_POINT["ordinal"]).value
    return executable, executable.function_name(ordinal) or f"function {ordinal}", ordinal


def function_failure(
    commands: CommandList, row: int, result: int, workgroup: tuple[int, int, int]
) -> BaseException:
    """INTERNAL naming executable, function, workgroup and what the function returned; or what the executable
    or this thread kept."""
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
    """What machine code tells of an execution that failed."""

    kind: int
    """FAILED_*"""
    row: int
    result: int
    x: int
    y: int
    z: int

    def raise_error(self, commands: CommandList) -> None:
        """INTERNAL when a function failed, OUT_OF_RANGE for impossible counts of an indirect dispatch, or
        what interrupted the thread while it waited for others."""
        if self.kind == FAILED_INTERRUPTED:
            raise take_kept() or CancelledError("the work was interrupted")
        if self.kind == FAILED_FUNCTION:
            raise function_failure(commands, self.row, self.result, (self.x, self.y, self.z))
        check_workgroups(self.x, self.y, self.z)
