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
from jitree.hal.local.executor.records import Workgroup
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


@dataclass(frozen=True, slots=True)
class WorkgroupSpan:
    """Workgroups to run and what they all get, as the command executor passes it in memory."""

    size: tuple[int, int, int]
    count: tuple[int, int, int]
    constants: VmBuffer
    bindings: tuple[VmBuffer, ...]
    local_memory: VmBuffer
    first: int
    last: int
    """Numbers in the grid, x fastest; the last is the one behind."""

    def cell(self, number: int) -> Cell:
        """x, y and z of a workgroup."""
        line, x = divmod(number, self.count[0])
        z, y = divmod(line, self.count[1])
        return x, y, z

    def number(self, cell: Cell) -> int:
        """Of a workgroup."""
        x, y, z = cell
        return x + self.count[0] * (y + self.count[1] * z)


def read_span(dispatch: int, workgroup: int) -> WorkgroupSpan:
    """The span at the addresses of a dispatch state and a workgroup state (``ENTRY_SPAN``)."""
    (size_x, size_y, size_z, constant_count, count_x, count_y, count_z, _, binding_count,
     constants, addresses, lengths, _) = _DISPATCH.unpack(
        ctypes.string_at(dispatch, _DISPATCH.size)
    )  # fmt: skip
    *_, local_memory, local_size, _, first, last = _WORKGROUP.unpack(
        ctypes.string_at(workgroup, _WORKGROUP.size)
    )
    table = struct.Struct(f"<{binding_count}Q")
    pairs = zip(
        table.unpack(ctypes.string_at(addresses, table.size)),
        table.unpack(ctypes.string_at(lengths, table.size)),
        strict=True,
    )
    words = _buffer(constants, 4 * constant_count)
    words.access = ACCESS_READ
    return WorkgroupSpan(
        (size_x, size_y, size_z), (count_x, count_y, count_z), words,
        tuple(_buffer(address, length) for address, length in pairs),
        _buffer(local_memory, local_size), first, last,
    )  # fmt: skip


def write_first(workgroup: int, first: int) -> None:
    """Has the span at the address of a workgroup state begin later."""
    Workgroup(workgroup).first = first


def is_left(workgroup: int) -> bool:
    """Whether such a span has workgroups that did not run."""
    group = Workgroup(workgroup)
    return group.first < group.last


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
        try:
            self.context.register([*modules, executable])
            if constants:
                words = VmBuffer.alias(struct.pack(f"<{len(constants)}I", *constants))
                self.context.invoke(self._function(executable, SET_CONSTANTS), (words,))
            self.calls = [
                GridCall(self._function(executable, name), _WORKGROUP_ID, _COUNTS) for name in entries
            ]
            """Of the kernels in the order of ``entries``."""
        except BaseException:
            self.context.close()
            raise

    def close(self) -> None:
        self.context.close()

    def heed(self, failure: ctypes.c_int64) -> None:
        """What runs next on this thread is to end when the job with this failure fails, or is interrupted."""
        self.context.table.is_halted = interrupts.watch(failure)

    def run(self, ordinal: int, span: WorkgroupSpan) -> int:
        """Runs the workgroups in order until one fails, or compiled kernels can take over; raises what the VM
        does. The number of the first workgroup that did not run."""
        if span.first >= span.last:
            return span.last
        bindings = VmList(KIND_BUFFER, len(span.bindings))
        for binding in span.bindings:
            bindings.append(binding)
        arguments = (
            span.local_memory, span.constants, bindings, 0, 0, 0, *map(_signed, span.size),
            *map(_signed, span.count),
        )  # fmt: skip
        with error_context(f"running workgroups {span.first} to {span.last} of a dispatch"):
            call, first = self.calls[ordinal], span.cell(span.first)
            self.promotion.begin(ordinal, call, first)
            self.context.invoker.repeat(call, arguments, first, span.last - span.first)
            return span.number(call.reached) + 1

    def _function(self, executable: BytecodeModule, name: str) -> BytecodeFunction:
        function = self.context.lookup(f"{executable.name}.{name}")
        assert isinstance(function, BytecodeFunction)
        return function


def _signed(word: int) -> int:
    return (word ^ _SIGN) - _SIGN
