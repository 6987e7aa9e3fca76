"""Operations in words, for reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from jitree.hal import command_layout
from jitree.hal.command_list import KIND_COLLECTIVE, BoundCommands, CommandList
from jitree.hal.local.failure import dispatched_function

_NAMES: Final = {
    command_layout.KIND_FILL: "fill",
    command_layout.KIND_COPY: "copy",
    command_layout.KIND_UPDATE: "update",
    KIND_COLLECTIVE: "collective",
}
_MOST_COMMANDS: Final = 4
_FIELDS: Final = tuple(command_layout.COMMAND.offsets)
_X: Final = _FIELDS.index("count_x")


def describe_work(name: str, work: Callable[[], None]) -> str:
    """An operation by its name and, where it runs command lists, by what they do."""
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
