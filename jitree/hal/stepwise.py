"""Performs submissions step by step, telling readers of each: for all drivers.

A driver says how a part of a list is executed and how memory is looked at, nothing else: parts of one row
each are lists like any other.

What machine code does for a local device it tells by itself (:class:`Teller`). It calls a C function when it
has got memory for a program, before it executes a list, and before and after each row of a list whose steps
somebody reads.
"""

from __future__ import annotations

import ctypes
import operator
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import numpy as np

from jitree.base.callbacks import Callback, keep
from jitree.base.events import (
    DISPATCH,
    Allocated,
    EventReader,
    ObservedEvent,
    Place,
    is_reading,
    perform,
    tell,
)
from jitree.base.records import rows_of
from jitree.codegen.record import layout_of, size_of, words_of
from jitree.errors import InternalError
from jitree.hal.command_layout import (
    FAILED_INTERRUPTED,
    KIND_BARRIER,
    KIND_COPY,
    KIND_DISPATCH,
    KIND_DISPATCH_INDIRECT,
    KIND_FILL,
    TOLD_ALLOCATED,
    TOLD_BEGINS,
    TOLD_ENDS,
    TOLD_FAILED,
    TOLD_SUBMITTED,
    Command,
    Job,
    List,
)
from jitree.hal.command_list import COMMAND_ROW, KIND_COLLECTIVE, entries_of
from jitree.hal.executable import LocalExecutable, prepared_executables
from jitree.hal.local.failure import dispatched_function
from jitree.hal.transfers import Copy, Read, Transfer, Write
from jitree.regs.layout import Entry

if TYPE_CHECKING:
    from jitree.base.elements import Bytes
    from jitree.hal.buffer import Buffer
    from jitree.hal.command_list import BoundCommands
    from jitree.hal.device import Device
    from jitree.hal.executable import Executable

Extent = tuple[int, int]
"""Address and bytes of a range of memory."""
Look = Callable[[Extent], "Bytes"]
"""Gives the bytes of a range: as they are now, or over the memory itself."""

_FIELDS: Final = tuple(layout_of(Command).offsets)
_KIND, _OPERAND, _COUNT, _CONSTANT, _CONSTANTS, _X, _KERNEL = (
    _FIELDS.index(field)
    for field in ("kind", "operand", "operand_count", "constant", "constant_count", "count_x", "entry")
)
_DISPATCHES: Final = (KIND_DISPATCH, KIND_DISPATCH_INDIRECT)
_JOB: Final = words_of(Job)
_LIST: Final = words_of(List)
_ENTRY: Final = words_of(Entry)
_ROW_SIZE: Final = size_of(Command)
_WRITTEN: Final = {DISPATCH: None, "copy": (1,), "collective": (1,), "write": ()}
_TRANSFERS: Final = {KIND_FILL: "fill", KIND_COPY: "copy", KIND_COLLECTIVE: "collective"}


_array: Final = cache(operator.mul)
"""The type of arrays of so many elements of a type."""
_bytes: Final = lru_cache(256)(operator.mul)
"""… of bytes, of which there are more lengths."""
_job_at, _list_at, _entry_at = (
    _array(ctypes.c_int64, size_of(record) // 8).from_address for record in (Job, List, Entry)
)


def memory(extent: Extent, owner: object = None) -> Bytes:
    """Views a range that the host sees, now and later. The bytes keep the owner, if given."""
    address, length = extent
    if not length:
        return np.empty(0, np.uint8)
    array: Any = _bytes(ctypes.c_uint8, length).from_address(address)
    array.owner = owner
    return np.frombuffer(array, np.uint8)


def merged(extents: Iterable[Extent]) -> list[Extent]:
    """Ranges that share no byte. Those that only touch stay apart: they may be of several allocations."""
    found: list[Extent] = []
    for address, length in sorted(extents):
        if found and address < sum(found[-1]):
            start = found[-1][0]
            found[-1] = start, max(sum(found[-1]), address + length) - start
        else:
            found.append((address, length))
    return found


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
        self.kind = kind
        self.name = name or kind
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
        self.left_to = ""
        """The dispatch with which a kernel of the user does its work: it does nothing itself."""

    @property
    def written(self) -> tuple[int, ...] | None:
        """Numbers of the operands that it writes to; None where only the kernel knows."""
        return _WRITTEN.get(self.kind, (0,))


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
        is_dispatch, first = row[_KIND] in _DISPATCHES, row[_OPERAND]
        operands = ranges[first : first + row[_COUNT] + (row[_KIND] == KIND_DISPATCH_INDIRECT)]
        kernel = dispatched_function(commands, number) if is_dispatch else None
        constants = commands.constants[row[_CONSTANT] :][: row[_CONSTANTS]]
        step = step_of(row, operands, constants, kernel, dispatches, look)
        dispatches += step.kind == DISPATCH
        if row[_KIND] == KIND_COLLECTIVE:
            together.append((number, step))
        else:
            do([(number, step)])
    if together:
        do(together)


def step_of(
    row: tuple[Any, ...],
    operands: Sequence[Extent],
    constants: Sequence[int],
    kernel: tuple[Any, str, int] | None,
    index: int,
    look: Look = looked_at,
) -> DeviceStep:
    """A row of a list as a step. The counts of an indirect dispatch are its last operand; ``kernel``: of a
    dispatch, the executable, the function's name and ordinal; ``index``: among the dispatches."""
    kind = row[_KIND]
    if kernel is None:
        return DeviceStep(_TRANSFERS.get(kind, "update"), operands, look=look)
    executable, name, function = kernel
    x, y, z = row[_X] & 0xFFFFFFFF, row[_X + 1] & 0xFFFFFFFF, row[_X + 2] & 0xFFFFFFFF
    if kind == KIND_DISPATCH_INDIRECT:
        *operands, counts = operands
        x, y, z = array("I", look((counts[0], 12)).tobytes())
    return DeviceStep(
        DISPATCH,
        operands,
        executable=executable.owner(),
        function=function,
        name=name,
        workgroups=(x, y, z),
        constants=constants,
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


@lru_cache(32)
def _decoded(data: bytes) -> tuple[list[tuple[Any, ...]], int, int]:
    """Rows of a list, how many dispatches, how many others than barriers."""
    rows = list(rows_of(COMMAND_ROW, data))
    dispatches = sum(row[_KIND] in _DISPATCHES for row in rows)
    return rows, dispatches, sum(row[_KIND] != KIND_BARRIER for row in rows)


class ToldList:
    """A list that machine code executes, while readers are told."""

    def __init__(self, job: int, place: Place) -> None:
        self.told_at = place
        self._job = _job_at(job)
        self._list = _list_at(self._job[_JOB.list])
        self._begin = self._list[_LIST.rows]
        data = ctypes.string_at(self._begin, self._list[_LIST.row_count] * _ROW_SIZE)
        self._rows, self.dispatch_count, self._left = _decoded(data)
        self._index = -1
        self.readers: Sequence[EventReader] = ()
        """Those of its steps."""

    @property
    def copied_bytes(self) -> int:
        """As ``CommandBuffer.copied_bytes``."""
        lengths = self._job[_JOB.lengths]
        copies = [lengths + 8 * row[_OPERAND] for row in self._rows if row[_KIND] == KIND_COPY]
        return sum(ctypes.c_int64.from_address(length).value for length in copies)

    def begin(self, address: int, kernel_of: Callable[[int], tuple[Any, str, int]]) -> None:
        """A row is about to be executed; ``kernel_of`` finds the function of an entry point."""
        number = (address - self._begin) // _ROW_SIZE
        row = self._rows[number]
        count = row[_COUNT] + (row[_KIND] == KIND_DISPATCH_INDIRECT)
        numbers, place = _array(ctypes.c_int64, count).from_address, 8 * row[_OPERAND]
        addresses, lengths = self._job[_JOB.addresses] + place, self._job[_JOB.lengths] + place
        operands = zip(numbers(addresses), numbers(lengths), strict=True)
        constants, kernel = (), None
        if row[_KIND] in _DISPATCHES:
            self._index += 1
            kernel = kernel_of(row[_KERNEL])
            if row[_CONSTANTS]:
                first = self._list[_LIST.constants] + 4 * row[_CONSTANT]
                constants = _array(ctypes.c_uint32, row[_CONSTANTS]).from_address(first)
        self._step = step = step_of(row, tuple(operands), constants, kernel, self._index)
        replacing = None if kernel is None else kernel[0].replacing(kernel[2])
        if replacing is not None and len(replacing.run) > 1:
            step.left_to = self._left_to(number, replacing.run, kernel_of)
        tell(self._step, [reader.begins for reader in self.readers])

    def _left_to(
        self, number: int, run: Sequence[int], kernel_of: Callable[[int], tuple[Any, str, int]]
    ) -> str:
        """The dispatch with which the run of a row is done.

        Empty of the last one, and of a row that is in none."""
        found, place = entries_of(self._rows), len(entries_of(self._rows[:number]))
        firsts = [place - index for index, entry in enumerate(run[:-1]) if entry == found[place]]
        is_there = any(first >= 0 and found[first : first + len(run)] == [*run] for first in firsts)
        return kernel_of(run[-1])[1] if is_there else ""

    def end(self) -> bool:
        """The row has been executed; whether it was the last one."""
        self._left -= 1
        tell(self._step, [reader.ends for reader in self.readers])
        return not self._left


class Teller:
    """Tells the readers of a device of what machine code does."""

    def __init__(self, device: ref[Device]) -> None:
        self._device = device
        self._running: dict[int, ToldList] = {}
        """Lists whose steps are read, by the address of the job."""
        self._kernels: dict[int, tuple[ref[LocalExecutable], str, int]] = {}
        """Executables, names and ordinals of functions by the addresses of their entry points."""

    def callback(self) -> Callback:
        """``i64 (TOLD_*, …)``: not 0 if a reader has failed. The error is kept."""
        return Callback(self._tell, 4, self._fail, 1)

    def _tell(self, what: int, first: int, second: int, third: int) -> int:
        device: Any = self._device()
        if what == TOLD_BEGINS:
            self._running[first].begin(second, self._kernel)
        elif what == TOLD_ENDS:
            if self._running[first].end():
                del self._running[first]
        elif what == TOLD_FAILED:
            self._running.pop(first, None)
        elif not is_reading() and device is not None:
            place = first, third
            if what == TOLD_ALLOCATED:
                words = _entry_at(second)
                event = Allocated(device, (words[_ENTRY.address], words[_ENTRY.length]), None, place)
                for reader in device.readers:
                    reader.ends(event)
            else:
                commands = ToldList(second, place)
                found = [reader.submitted(commands) for reader in device.readers]
                commands.readers = [reader for reader in found if reader is not None]
                if commands.readers:
                    self._running[second] = commands
                    _job_at(second)[_JOB.tell] = device.told_address
        return 0

    def _fail(self, error: BaseException, what: int, first: int, second: int, third: int) -> int:
        keep(error)
        if what != TOLD_ALLOCATED:
            job = second if what == TOLD_SUBMITTED else first
            self._running.pop(job, None)
            _job_at(job)[_JOB.failure] = FAILED_INTERRUPTED
        return 1

    def _kernel(self, entry: int) -> tuple[Any, str, int]:
        """The executable whose function an entry point is, with its name and ordinal."""
        known = self._kernels.get(entry)
        executable = None if known is None else known[0]()
        if known is None or executable is None:
            self._kernels = {
                each.entry_point(number): (
                    ref(each),
                    each.function_name(number) or f"function {number}",
                    number,
                )
                for each in prepared_executables()
                if isinstance(each, LocalExecutable)
                for number in range(each.function_count)
            }
            if entry not in self._kernels:
                raise InternalError("readers of a dispatch: no executable that is in use has its function")
            return self._kernel(entry)
        return executable, known[1], known[2]
