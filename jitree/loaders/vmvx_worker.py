"""One thread's part in VMVX dispatches: a VM context of its own, where kernels run workgroup by workgroup."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jitree.dispatch.bytecode_module import BytecodeModule
from jitree.dispatch.context import Context
from jitree.dispatch.engine import Engine, EngineEntry
from jitree.dispatch.function import BytecodeFunction
from jitree.dispatch.grid_call import Cell, GridCall
from jitree.dispatch.host_module import HostModule
from jitree.errors import error_context
from jitree.hal.command_layout import DISPATCH, WORKGROUP
from jitree.hal.local import interrupts
from jitree.hal.watchdog import watcher_of_calls
from jitree.loaders.vmvx_promotion import Promotion
from jitree.regs.layout import ACCESS_READ, KIND_BUFFER
from jitree.regs.machine import Machine
from jitree.regs.objects import VmBuffer, VmList
from jitree.regs.ref_types import RefTypes

SET_CONSTANTS: Final = "__set_constants"
_DISPATCH: Final = DISPATCH.packer()
_WORKGROUP: Final = WORKGROUP.packer()
_WORKGROUP_ID: Final = (3, 4, 5)
_COUNTS: Final = (9, 10)
"""Arguments of an entry: local memory, constants, bindings; then x, y, z of workgroup id, size and count."""
_SIGN: Final = 1 << 31

GridState = tuple[bytes, bytes, bytes, int, int]
"""Addresses and sizes from which a grid is made: the dispatch state, the addresses and lengths of the
bindings, address and size of local memory."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What the workgroups of a dispatch all get."""

    size: tuple[int, int, int]
    count: tuple[int, int, int]
    constants: VmBuffer
    bindings: tuple[VmBuffer, ...]
    local_memory: VmBuffer

    def cell(self, number: int) -> Cell:
        """x, y and z of a workgroup; numbers go through the grid, x fastest."""
        line, x = divmod(number, self.count[0])
        z, y = divmod(line, self.count[1])
        return x, y, z

    def number(self, cell: Cell) -> int:
        """Of a workgroup."""
        x, y, z = cell
        return x + self.count[0] * (y + self.count[1] * z)


def read_span(dispatch: int, workgroup: int) -> tuple[GridState, int, int]:
    """The span at the addresses of a dispatch state and a workgroup state (``ENTRY_SPAN``): its grid, the
    first workgroup and the one after the last."""
    state = ctypes.string_at(dispatch, _DISPATCH.size)
    *_, binding_count, _, addresses, lengths, _ = _DISPATCH.unpack(state)
    *_, local_memory, local_size, _, first, last = _WORKGROUP.unpack(
        ctypes.string_at(workgroup, _WORKGROUP.size)
    )
    size = 8 * binding_count
    tables = ctypes.string_at(addresses, size), ctypes.string_at(lengths, size)
    return (state, *tables, local_memory, local_size), first, last


def read_grid(state: GridState) -> Grid:
    """What is at the addresses."""
    dispatch, addresses, lengths, local_memory, local_size = state
    (size_x, size_y, size_z, constant_count, count_x, count_y, count_z, _, binding_count,
     constants, *_) = _DISPATCH.unpack(dispatch)  # fmt: skip
    words = _buffer(constants, 4 * constant_count)
    words.access = ACCESS_READ
    table = struct.Struct(f"<{binding_count}Q")
    bindings = map(_buffer, table.unpack(addresses), table.unpack(lengths))
    return Grid(
        (size_x, size_y, size_z), (count_x, count_y, count_z), words, tuple(bindings),
        _buffer(local_memory, local_size),
    )  # fmt: skip


def _buffer(address: int, length: int) -> VmBuffer:
    return VmBuffer.alias((ctypes.c_uint8 * length).from_address(address))


class MeasuredEngine:
    """An engine that knows the time of a processor that it has used. Waiting for other threads, which calls
    into Python are full of, does not count."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self._engine = engine
        self.nanoseconds = 0

    @property
    def entry(self) -> EngineEntry | None:
        return self._engine.entry

    def run(self, machine: Machine) -> None:
        begun = time.thread_time_ns()
        try:
            self._engine.run(machine)
        finally:
            self.nanoseconds += time.thread_time_ns() - begun


class Worker:
    """Used by one thread at a time."""

    def __init__(
        self,
        executable: BytecodeModule,
        modules: Sequence[HostModule],
        entries: Sequence[str],
        constants: Sequence[int],
        tier: str | None,
    ) -> None:
        """Links the executable's module to ``modules`` and runs its initialiser; statuses as of
        :meth:`Context.register`."""
        self.promotion = Promotion()
        self.context = Context(RefTypes(), tier=self.promotion.engine() if tier == "auto" else tier)
        self.engine = self.context.invoker.engine = MeasuredEngine(self.context.invoker.engine)
        self.context.invoker.watch_call = watcher_of_calls()
        self._functions = [f"{executable.name}.{name}" for name in entries]
        self._calls: dict[int, GridCall] = {}
        self._state: GridState | None = None
        """What the arguments were made from. They stay for later spans: making them takes 0.1 ms."""
        self._arguments: tuple[object, ...] = ()
        self._handles: list[int] = []
        try:
            self.context.register([*modules, executable])
            if constants:
                words = VmBuffer.alias(struct.pack(f"<{len(constants)}I", *constants))
                self.context.invoke(self.context.lookup(f"{executable.name}.{SET_CONSTANTS}"), (words,))
        except BaseException:
            self.context.close()
            raise

    def close(self) -> None:
        self.context.close()

    def heed(self, failure: ctypes.c_int64) -> None:
        """What runs next on this thread is to end when the job with this failure fails, or is interrupted."""
        self.context.table.is_halted = interrupts.watch(failure)

    def call(self, ordinal: int) -> GridCall:
        """Of a kernel: its position in ``entries``."""
        call = self._calls.get(ordinal)
        if call is None:
            function = self.context.lookup(self._functions[ordinal])
            assert isinstance(function, BytecodeFunction)
            call = self._calls[ordinal] = GridCall(function, _WORKGROUP_ID, _COUNTS)
        return call

    def run(self, ordinal: int, dispatch: int, workgroup: int) -> int:
        """Runs the workgroups of a span in order until one fails, or compiled kernels can take over; raises
        what the VM does. How many have run."""
        state, first, last = read_span(dispatch, workgroup)
        if first >= last:
            return 0
        if state != self._state:
            self._hold(state)
        with error_context(f"running workgroups {first} to {last} of a dispatch"):
            call, cell = self.call(ordinal), self._grid.cell(first)
            self.promotion.begin(ordinal, call, cell)
            self.context.invoker.repeat(call, self._arguments, cell, last - first)
            return self._grid.number(call.reached) + 1 - first

    def _hold(self, state: GridState) -> None:
        """Makes the arguments of workgroups."""
        grid, table, handles = read_grid(state), self.context.table, self._handles
        bindings = VmList(KIND_BUFFER, len(grid.bindings))
        for binding in grid.bindings:
            bindings.append(binding)
        items = grid.local_memory, grid.constants, bindings
        self._state = None
        self._handles = [table.wrap(item) for item in items]
        table.release_all(handles)
        self._grid = grid
        self._arguments = (*items, 0, 0, 0, *map(_signed, grid.size), *map(_signed, grid.count))
        self._state = state


def _signed(word: int) -> int:
    return (word ^ _SIGN) - _SIGN
