"""Calls a function for each cell of a grid, by a program.

So going from one call to the next costs some instructions of whichever tier runs, and none of Python's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from jitree.codegen.record import words_of
from jitree.dispatch.function import (
    BytecodeFunction,
    host_call,
    host_record,
    host_registers,
)
from jitree.regs.layout import FrameRecord
from jitree.regs.machine import FIRST_TIME, FRAME_WORDS, Machine
from jitree.vmfb.cconv import TAGS
from jitree.vmfb.words import OPCODE, TAG_REF_COPY, signed

Cell = tuple[int, int, int]

_FRAME: Final = words_of(FrameRecord)
_WORD: Final = 1 << 32
_CONDITION_SIZE: Final = 4


class GridCall:
    """Calls a function whose calls differ in the cell's x, y, z only. All are references and i32.

    The references in the host's frame are copied to the function, not moved, and stay from call to call.
    """

    __slots__ = (
        "_counts", "_ids", "_left", "_one", "_one_wide", "_results", "_sources", "function", "host",
        "reached",
    )  # fmt: skip

    def __init__(self, function: BytecodeFunction, ids: Sequence[int], counts: Sequence[int]) -> None:
        """Takes positions of x, y, z among arguments and counts of cells. ``ids`` are the positions,
        ``counts`` those of the numbers of cells along x and y."""
        self.function = function
        self._sources = sources = function.argument_slots
        self._ids = tuple(sources[position][1] for position in ids)
        self._counts = tuple(sources[position][1] for position in counts)
        slots = sources, function.result_slots
        values, references = host_registers(slots)
        self._left, self._one_wide, self._one = values, values + 2, values + 4
        call = host_call(function.record, slots, TAG_REF_COPY)
        self._results = len(call)
        """Where the destinations of results would begin in the host's program."""
        self.host = host_record(function.record, self._program(call), (values + 6, references))
        self.reached: Cell = (0, 0, 0)
        """The last cell that a call was made for."""

    def _program(self, call: Sequence[int]) -> list[int]:
        """Call; count down; go to the next cell, x fastest."""
        flag, (x, y, z), (count_x, count_y) = self._one + 1, self._ids, self._counts
        words = [
            *call,
            OPCODE["sub.i64"], self._left, self._one_wide, self._left,
            OPCODE["cmp.nz.i64"], self._left, flag,
        ]  # fmt: skip
        last = len(words)
        words += [OPCODE["cond_br"], flag, _CONDITION_SIZE, 0]
        for place, count in ((x, count_x), (y, count_y)):
            words += [OPCODE["add.i32"], place, self._one, place, OPCODE["cmp.eq.i32"], place, count, flag]
            words += [OPCODE["cond_br"], flag, _CONDITION_SIZE, -len(words)]
            words += [OPCODE["const.i32.zero"], place]
        words += [OPCODE["add.i32"], z, self._one, z]
        words += [OPCODE["br.bare"], -len(words)]
        words[last + _CONDITION_SIZE - 1] = len(words) - last
        return [*words, OPCODE["host.exit"]]

    def start(self, machine: Machine, arguments: Sequence[Any], first: Cell, count: int) -> None:
        """Makes the machine ready for ``count`` calls from a cell on; for x, y and z ``arguments`` may have
        anything."""
        machine.begin(self.host)
        for (tag, slot), argument in zip(self._sources, arguments, strict=True):
            if tag == TAGS["r"]:
                machine.refs[slot] = machine.table.wrap(argument)
            else:
                machine.i32[slot] = argument
        for register, value in zip(self._ids, first, strict=True):
            machine.i32[register] = signed(value, 32)
        self._limit(machine, count)
        machine.limit_time(FIRST_TIME)  # one call may take long, and many share a machine
        machine.pc = 0

    def resume(self, machine: Machine) -> None:
        """Makes the machine ready to go on with a left call. It writes what the host's frame must hold for
        the call to end."""
        machine.begin(self.host)
        self._limit(machine, 1)
        frames, code = machine.frames, self.host.code_address
        frames[_FRAME.pc] = code + 4 * self.host.code[1]
        frames[FRAME_WORDS + _FRAME.results] = code + 4 * self._results
        machine.pc = machine.adopt()

    def results(self, machine: Machine) -> list[object]:
        return []

    # -- while it runs, and after it --------------------------------------------------------------------

    def cell(self, machine: Machine) -> Cell:
        """The cell of the call in progress, else of the last one."""
        x, y, z = (machine.host_values[register] % _WORD for register in self._ids)
        return x, y, z

    def end_here(self, machine: Machine) -> None:
        """Makes the call in progress the last one."""
        self._limit(machine, 1)

    def _limit(self, machine: Machine, count: int) -> None:
        values = machine.host_values
        values[self._left], values[self._left + 1] = signed(count, 32), count >> 32
        values[self._one_wide], values[self._one_wide + 1], values[self._one] = 1, 0, 1
