"""Gives compiled kernels a machine whose handles machine code aims at memory.

Compiled kernels run in a worker context without Python, one thread at a time. Its handles (local memory,
constants, the list of bindings and its elements, scratch buffers) are made once; for each span machine code
writes addresses and lengths into their entries. When a workgroup leaves machine code, the Python objects of
the handles are made to show the same memory, and the VM goes on from the frame that was written.

Where a limit counts memory, a context holds bytes of it (a lease), takes some for each buffer
(:func:`jitree.dispatch.native.side_exits.is_paid`) and gets them back when a workgroup is over. What it lacks
Python adds. An allocation elsewhere takes back what no buffer uses.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from weakref import ref

from jitree.base.callbacks import Callback
from jitree.base.finalizers import object_at
from jitree.codegen import image
from jitree.codegen.record import words_of
from jitree.dispatch.fast.engine import raise_failure
from jitree.dispatch.native.engine import attach
from jitree.errors import ResourceExhaustedError, error_context
from jitree.hal.command_layout import KernelDispatch
from jitree.hal.local import interrupts
from jitree.loaders.vmvx.arguments import Grid, KernelArguments, read_grid, read_span
from jitree.loaders.vmvx.kernels import SCRATCH_MARK, SPANS, WorkerContextRecord
from jitree.loaders.vmvx.packed import PackedConstants
from jitree.loaders.vmvx.worker import Worker, job_failure
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import (
    COUNT_UNLIMITED,
    FRAME,
    SCRATCH,
    SLOW_DONE,
    SLOW_LOOK,
    STATE_WORDS,
    Entry,
    FrameRecord,
    Scratch,
)
from jitree.regs.machine import Machine
from jitree.regs.memory import MemoryBlock

if TYPE_CHECKING:
    from jitree.regs.memory import Lender

_FRAME: Final = words_of(FrameRecord)

_WITHDRAW: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # no thread extends a lease meanwhile
_SCRATCH: Final = words_of(Scratch)

SCRATCH_SIZE: Final = 16 << 20
"""Bytes; only pages that are written take room."""
_SCRATCH_BUFFERS: Final = 16
"""Buffers that one workgroup may use at once; the VM makes more."""
_NO_MEMORY: Final = (ctypes.c_uint8 * 1)()
"""Memory for nothing, not empty: numpy takes ten times as long to tell the address of an empty array."""
_UNCOUNTED: Final = COUNT_UNLIMITED + (COUNT_UNLIMITED >> 1)
"""References to its handles: far from the limit whatever one workgroup on the VM retains and drops."""
_ENTRY: Final = words_of(Entry)
_LET_GO: Final = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class Lease:
    """Holds bytes of a limit for a worker context, in its SCRATCH record."""

    def __init__(self, lender: Lender | None) -> None:
        self._lender = lender
        self._record = array("q", bytes(SCRATCH.size))
        self._refusal: BaseException | None = None
        if lender is not None:
            self._record[_SCRATCH.owner] = id(self)
            self._record[_SCRATCH.lend] = _LEND.address

    @property
    def address(self) -> int:
        """The address of the record."""
        return self._record.buffer_info()[0]

    @property
    def free(self) -> int:
        """The first handle that no buffer uses, 0 = none."""
        return self._record[_SCRATCH.free]

    def begin(self, free: int, memory: int, size: int, packed: int) -> None:
        """Resets the record: handles from ``free`` on, memory, a PACKED record or 0.

        No buffer is in use.
        """
        self._record[:4] = array("q", (free, memory, memory + size, 0))
        self._record[_SCRATCH.packed] = packed

    @property
    def held(self) -> int:
        """See :class:`~jitree.regs.memory.Lessee`."""
        return self._record[_SCRATCH.held]

    @held.setter
    def held(self, size: int) -> None:
        self._record[_SCRATCH.held] = size

    def withdraw(self) -> None:
        """See :class:`~jitree.regs.memory.Lessee`."""
        spans = image.get(SPANS)
        if spans is not None:
            _WITHDRAW(spans.addresses["withdraw"])(self.address)

    def lend(self, size: int) -> int:
        """Has the limit count so many bytes more, for a buffer: 1."""
        assert self._lender is not None
        self._lender.extend(self, size)
        return 1

    def refuse(self, error: BaseException) -> int:
        """There are none: 0."""
        self._refusal = error
        return 0

    def end(self) -> None:
        """Nothing is held any more."""
        self._record[_SCRATCH.room] = self.held = 0

    def convert(self, kept: Sequence[int]) -> list[object]:
        """Nothing is counted here any more of what buffers use.

        Those that are ``kept``, with so many bytes each, count until what this gives for each dies.
        """
        if self._lender is None:
            return [None] * len(kept)
        size, self._record[_SCRATCH.paid] = self._record[_SCRATCH.paid], 0
        return self._lender.convert(self, size, kept)

    def require_whole(self, parts: int) -> None:
        """Raises why a workgroup of several parts that left machine code lacks memory.

        It cannot be done over, as parts of it may be done. Where no other thread runs a part, the VM raises
        that.
        """
        refused, self._record[_SCRATCH.refused] = self._record[_SCRATCH.refused], 0
        error, self._refusal = self._refusal, None
        if not refused or (parts <= 1 and isinstance(error, ResourceExhaustedError)):
            return
        raise error or ResourceExhaustedError("no stack or memory was left for the code that counts memory")


def _lend(owner: int, size: int) -> int:
    lease: Lease = object_at(owner)
    return lease.lend(size)


def _refuse(error: BaseException, owner: int, size: int) -> int:
    lease: Lease = object_at(owner)
    return lease.refuse(error)


_LEND: Final = Callback(_lend, 2, _refuse, 0)


class WorkerContext:
    """Runs compiled kernels for the thread that sets ``busy`` in its record.

    In :meth:`finish` Python has it from machine code.
    """

    def __init__(self, worker: Worker, binding_count: int, packed: PackedConstants | None = None) -> None:
        """``worker`` becomes the context's own; its module has kernels, of which none has more bindings.
        ``packed``: where they keep copies of constants."""
        self.worker = worker
        self._packed = packed
        self._reads_copies = packed is not None
        table = self._table = worker.context.table
        place = words_of(WorkerContextRecord).dispatch
        table.is_halted = lambda: interrupts.is_to_end(job_failure(record[place]))
        self._machine = Machine(table, worker.context.invoker.functions)
        if worker.context.table.readers:
            self._machine.seen = ()  # a workgroup that takes long goes on where the watchdog sees it
        self._arguments = KernelArguments(table, binding_count)
        self._memory = MemoryBlock(SCRATCH_SIZE)
        self._lease = Lease(table.bounds.lender)
        self._pool: list[tuple[int, ref[VmBuffer]]] = []
        record = self._record = array("q", (
            0, *self._places(), *self._arguments.own, self._memory.address, 0, 0, *self._arguments.elements,
        ))  # fmt: skip
        self._reset()
        self._refill()
        self.runs_parts = len(self._pool) == _SCRATCH_BUFFERS and self._machine.seen is None
        """Whether it can run parts of workgroups, which never leave machine code half done: where objects are
        few, or a session watches calls, they do."""

    @property
    def address(self) -> int:
        """The address of its record."""
        return self._record.buffer_info()[0]

    @property
    def is_idle(self) -> bool:
        return not self._record[words_of(WorkerContextRecord).busy]

    @property
    def reached(self) -> int:
        """The number of the first part of a workgroup that is not complete."""
        return self._record[words_of(WorkerContextRecord).reached]

    def let_go(self) -> bool:
        """See :class:`~jitree.loaders.vmvx.packed.Reader`. A thread that has the context may read copies
        until its span is over."""
        self._reads_copies = False
        spans = image.get(SPANS)
        if self._packed is not None and (
            spans is None or not _LET_GO(spans.addresses["let_go"])(self.address)
        ):
            return False
        self._packed = None
        return True

    def close(self) -> None:
        """Closes the worker's context too; no thread may be in it."""
        self._machine.release_frames()
        self._drop_pool()
        self._lease.end()
        self.worker.close()  # whose program may have kept what the handles are of: as long as all count
        for count, handles in enumerate((self._arguments.own, self._arguments.elements), 1):
            for handle in handles:
                self._table.set_word(handle, "count", count)
        self._arguments.drop()

    def finish(self, ordinal: int, dispatch: int, workgroup: int) -> None:
        """Runs the rest of a workgroup that left machine code.

        Raises what the VM does, or why the workgroup is to end.
        """
        state, first, last = read_span(dispatch, workgroup)
        self._show(read_grid(state))
        self._settle()
        try:
            self._require_going_on(ordinal, KernelDispatch(dispatch).parts)
            with error_context(f"running workgroups {first} to {last} of a dispatch"):
                self.worker.context.invoker.finish(self.worker.call(ordinal), self._machine)
        finally:
            self._reset()
            self._refill()

    def abandon(self, ordinal: int) -> None:
        """Drops the frame of a workgroup's part that left machine code.

        It has stored nothing, and the first part does all of it. Raises why the workgroup is to end, if it
        is.
        """
        try:
            self._require_going_on(ordinal, 1)
            self._drop_frames(ordinal)
        finally:
            self._reset()
            self._refill()

    def _require_going_on(self, ordinal: int, parts: int) -> None:
        """Raises why a workgroup that left machine code must end. It is cut into so many parts."""
        try:
            if self._machine.state[STATE_WORDS.outcome] == SLOW_LOOK:
                raise_failure(self._machine)
            self._lease.require_whole(parts)
        except BaseException:
            self._drop_frames(ordinal)
            raise

    def _drop_frames(self, ordinal: int) -> None:
        """Nothing of the workgroup goes on: what its frames refer to is dropped."""
        self.worker.call(ordinal).resume(self._machine)
        self._machine.release_frames()

    def _reset(self) -> None:
        """Makes state and handles what compiled kernels want after an engine has used them."""
        self._machine.fill_fuel()
        self._machine.state[STATE_WORDS.outcome] = SLOW_DONE
        self._machine.state[STATE_WORDS.resume] = 0
        for handle in (*self._arguments.own, *self._arguments.elements):
            self._table.set_word(handle, "count", _UNCOUNTED)

    def _places(self) -> tuple[int, int, int, int]:
        """The state, and where the frame of a kernel is: after the host's, one like another."""
        machine = self._machine
        attach(machine)
        machine.begin(self.worker.call(0).host)
        machine.publish(0)
        machine.state[STATE_WORDS.scratch] = self._lease.address
        return (
            machine.state_address,
            machine.frames_address + FRAME.size,
            machine.frames[_FRAME.values_end],
            machine.frames[_FRAME.refs_end],
        )

    def _show(self, grid: Grid) -> None:
        """Lets Python's objects show what machine code has aimed their handles at."""
        self._arguments.show(grid)
        self._arguments.bindings.size = len(grid.bindings)
        for handle, buffer in self._present():
            word = (handle - self._table.base) >> 3
            start = self._table.i64[word + _ENTRY.address] - self._memory.address
            if self._table.count(handle):
                buffer.show(self._memory.array[start : start + self._table.i64[word + _ENTRY.length]])

    def _settle(self) -> None:
        """Turns scratch buffers in use into the VM's, drops others."""
        table, unused = self._table, self._lease.free
        self._lease.begin(0, 0, 0, 0)
        while unused:
            following = table.i64[((unused - table.base) >> 3) + _ENTRY.link]
            self._drop(unused)
            unused = following
        used = [buffer for handle, buffer in self._present() if table.count(handle)]
        charges = self._lease.convert([buffer.length for buffer in used])
        for buffer, charge in zip(used, charges, strict=True):
            buffer.charge = charge

    def _refill(self) -> None:
        """Makes the pool of scratch buffers anew."""
        self._drop_pool()
        table, head = self._table, 0
        for _ in range(min(_SCRATCH_BUFFERS, table.room)):
            buffer = VmBuffer.alias(_NO_MEMORY)
            handle = table.wrap(buffer)
            self._pool.append((handle, ref(buffer)))
            table.set_word(handle, "count", 0)
            table.set_word(handle, "usage", SCRATCH_MARK)
            table.set_word(handle, "link", head)
            head = handle
        packed = self._packed.address if self._reads_copies and self._packed is not None else 0
        self._lease.begin(head, self._memory.address, SCRATCH_SIZE, packed)

    def _drop_pool(self) -> None:
        """Frees the handles of scratch buffers.

        Those that the program has kept are its own from now on, and so is all scratch memory.
        """
        kept = False
        for handle, _ in self._present():
            if self._table.count(handle):
                self._table.set_word(handle, "usage", 0)
                kept = True
            else:
                self._drop(handle)
        self._pool.clear()
        if kept:
            self._memory = MemoryBlock(SCRATCH_SIZE)
            self._record[words_of(WorkerContextRecord).scratch] = self._memory.address

    def _present(self) -> list[tuple[int, VmBuffer]]:
        """Scratch buffers that have not been freed, and their handles."""
        found = ((handle, buffer()) for handle, buffer in self._pool)
        return [
            (handle, buffer)
            for handle, buffer in found
            if buffer is not None and self._table.object(handle) is buffer
        ]

    def _drop(self, handle: int) -> None:
        """Frees a handle that nothing refers to."""
        self._table.set_word(handle, "count", 1)
        self._table.release(handle)
