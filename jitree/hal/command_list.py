"""Records command lists (``command_layout.py``), and binds their slots for one submission.

Command buffers of drivers that execute lists record into one, whatever executes it.
"""

from __future__ import annotations

import abc
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from jitree.base.records import NamedTuple, rows_of
from jitree.codegen.record import layout_of, size_of, words_of
from jitree.errors import FailedPreconditionError, pass_interruption
from jitree.hal import checks
from jitree.hal.allocator import Charge, HostMemory
from jitree.hal.command_buffer import CommandBuffer, Dispatch, Reference
from jitree.hal.command_layout import (
    BINDING_ALIGNMENT,
    KIND_BARRIER,
    KIND_COPY,
    KIND_DISPATCH,
    KIND_DISPATCH_INDIRECT,
    KIND_FILL,
    KIND_UPDATE,
    BindingSlot,
    Command,
    Commands,
    List,
    Patch,
)
from jitree.hal.executable import Executable

if TYPE_CHECKING:
    from jitree.hal.command_buffer import Collective
    from jitree.regs.handles import HandleTable

_LIST: Final = words_of(List)
_COMMANDS: Final = words_of(Commands)
COMMAND_ROW: Final = layout_of(Command).packer()
KIND_FIELD: Final = tuple(layout_of(Command).offsets).index("kind")
ENTRY_FIELD: Final = tuple(layout_of(Command).offsets).index("entry")

KIND_COLLECTIVE: Final = KIND_DISPATCH_INDIRECT + 1
"""Operands: what is sent, what is received; empty ranges for what the operation does not have. ``data`` is
the operation's number among the list's. Only Python executes it."""
DIRECT: Final = -1
"""The slot of a range that is known."""

Range = tuple[int, int, int, int]
"""A buffer range in bytes, and the MemoryAccess that its buffer allows: ``(DIRECT, address, length, access)``
or ``(slot, offset, length or WHOLE_BUFFER, 0)``."""
Slot = tuple[int, int, int]
"""Address, length and MemoryAccess of what a submission has in a slot; see NO_SLOT."""

NO_SLOT: Final[Slot] = (0, -1, 0)
"""… that has no buffer."""
_NO_RANGE: Final[Range] = (DIRECT, 0, 0, 0)
_ZEROS: Final = (0,) * 13
_REPEAT: Final = {1: 0x01010101, 2: 0x00010001, 4: 1}


class Dispatchable(Protocol):
    """Has what command lists need of executables: a native entry point per function."""

    @property
    def name(self) -> str: ...

    def function_name(self, ordinal: int) -> str:
        """``""`` when the executable has no names."""

    def entry_point(self, ordinal: int) -> int:
        """Address of the function's KernelEntry record."""

    def local_memory(self, ordinal: int) -> int:
        """Bytes of local memory that each workgroup in flight needs."""


class BoundCommands(NamedTuple):
    """Binds a list for one submission, with the ranges of its operands."""

    commands: CommandList
    addresses: array[int]
    lengths: array[int]
    accesses: array[int]
    kept: object = None
    """What has to live until it is done."""


class CommandList:
    """Commands in recording order.

    The append methods take ranges that the caller has checked against its buffers (usage, access, bounds);
    they check what protects the command executor: alignment and workgroup counts. Executables are kept alive
    by the list, buffers when handed to :meth:`keep`.
    """

    __slots__ = (
        "_list", "_memory", "accesses", "addresses", "collectives", "constants", "data",
        "first_row", "kept", "lengths", "most_local_memory", "patches", "rows",
    )  # fmt: skip

    def __init__(self, charge: Charge | None = None) -> None:
        """``charge``: counts bytes that the list has."""
        self._memory = None if charge is None else HostMemory(charge)
        self.rows = array("q")
        self.addresses = array("q")
        self.lengths = array("q")
        self.accesses = array("q")
        self.constants = array("i")
        self.data = bytearray()
        self.patches = array("q")
        self.collectives: list[Collective] = []
        self.kept: list[object] = []
        self.most_local_memory = 0
        self.first_row = 0
        """Where the list of which this is a :meth:`part` has its first row."""
        self._list: array[int] | None = None

    @property
    def row_count(self) -> int:
        return len(self.rows) * 8 // size_of(Command)

    def decoded_rows(self) -> Iterator[tuple[int, ...]]:
        """The fields of every row in the order of COMMAND."""
        return rows_of(COMMAND_ROW, self.rows)

    @property
    def dispatch_count(self) -> int:
        return sum(row[0] in (KIND_DISPATCH, KIND_DISPATCH_INDIRECT) for row in self.decoded_rows())

    def keep(self, owner: object) -> None:
        """Keeps an object alive as long as the list."""
        self.kept.append(owner)

    def barrier(self) -> None:
        self._append(COMMAND_ROW.pack(KIND_BARRIER, *_ZEROS))

    def fill(self, target: Range, pattern: int, pattern_length: int) -> None:
        """Repeats the low ``pattern_length`` (1, 2 or 4) bytes of ``pattern`` over the target."""
        operand = self._operand(target, pattern_length)
        word = _signed((pattern & (1 << 8 * pattern_length) - 1) * _REPEAT[pattern_length])
        self._append(COMMAND_ROW.pack(KIND_FILL, operand, 1, 0, 0, 0, 0, 0, 0, word, pattern_length, 0, 0, 0))

    def copy(self, source: Range, target: Range) -> None:
        """Copies between ranges of one length that do not overlap."""
        operand = self._operand(source, 1)
        self._operand(target, 1)
        self._append(COMMAND_ROW.pack(KIND_COPY, operand, 2, *_ZEROS[2:]))

    def update(self, source: bytes | bytearray | memoryview, target: Range) -> None:
        """Writes bytes, at most MAXIMUM_UPDATE, that are captured now."""
        offset = len(self.data)
        self.data += source
        length = len(self.data) - offset
        operand = self._operand(target, 1)
        self._append(COMMAND_ROW.pack(KIND_UPDATE, operand, 1, 0, 0, 0, 0, 0, 0, 0, 0, offset, length, 0))

    def dispatch(
        self,
        executable: Dispatchable,
        function: int,
        workgroups: tuple[int, int, int],
        constants: Sequence[int],
        bindings: Sequence[Range],
    ) -> None:
        """Runs a grid of (x, y, z) workgroups. ``constants`` are 32-bit words, signed or unsigned."""
        check_workgroups(*workgroups)
        operand = self._bindings(bindings)
        self._dispatch(KIND_DISPATCH, executable, function, workgroups, constants, operand, len(bindings))

    def dispatch_indirect(
        self,
        executable: Dispatchable,
        function: int,
        counts: Range,
        constants: Sequence[int],
        bindings: Sequence[Range],
    ) -> None:
        """As :meth:`dispatch`; the three u32 counts are read from ``counts`` (12 bytes) at execution."""
        operand = self._bindings(bindings)
        self._operand(counts, 4)
        self._dispatch(
            KIND_DISPATCH_INDIRECT, executable, function, (0, 0, 0), constants, operand, len(bindings)
        )

    def collective(self, collective: Collective, send: Range | None, receive: Range | None) -> None:
        """A collective operation; whether its ranges have the elements is found when it runs."""
        operand = self._operand(send or _NO_RANGE, 1)
        self._operand(receive or _NO_RANGE, 1)
        number = len(self.collectives)
        self.collectives.append(collective)
        self._append(COMMAND_ROW.pack(KIND_COLLECTIVE, operand, 2, 0, 0, 0, 0, 0, 0, 0, 0, number, 0, 0))

    def address(self) -> int:
        """Ends recording and gives the List record's address, valid while this lives."""
        record = self._list
        if record is None:
            data = array("B", self.data)
            record = array("q", (
                self.rows.buffer_info()[0], self.row_count,
                self.addresses.buffer_info()[0], self.lengths.buffer_info()[0],
                self.accesses.buffer_info()[0], len(self.addresses),
                self.constants.buffer_info()[0], data.buffer_info()[0],
                self.patches.buffer_info()[0], len(self.patches) * 8 // size_of(Patch),
                self.most_local_memory,
            ))  # fmt: skip
            self.kept += data, record  # also where another thread has made them at the same time
            self._list = record
        return record.buffer_info()[0]

    def part(self, numbers: Sequence[int]) -> Self:
        """Rows as a separate list, which is executed with the operands of this list. This list has ended."""
        self.address()
        assert self._list is not None
        part, words = type(self)(), size_of(Command) // 8
        part.addresses, part.lengths, part.accesses = self.addresses, self.lengths, self.accesses
        part.constants, part.patches, part.collectives = self.constants, self.patches, self.collectives
        part.first_row, part.kept, part.most_local_memory = numbers[0], self.kept, self.most_local_memory
        for number in numbers:
            part.rows += self.rows[number * words : (number + 1) * words]
        part._list = self._list[:]
        part._list[_LIST.rows], part._list[_LIST.row_count] = part.rows.buffer_info()[0], len(numbers)
        return part

    def bind(self, table: Sequence[Slot]) -> tuple[array[int], array[int], array[int]]:
        """Addresses and lengths of the operands of one submission, and what they allow.

        Without slots in the list these are its own arrays. INVALID_ARGUMENT for a slot without a buffer or a
        misaligned range, OUT_OF_RANGE for a range outside the table entry.
        """
        if not self.patches:
            return self.addresses, self.lengths, self.accesses
        addresses, lengths, accesses = self.addresses[:], self.lengths[:], self.accesses[:]
        fields = iter(self.patches)
        for operand, slot, offset, length, mask in zip(fields, fields, fields, fields, fields, strict=True):
            addresses[operand], lengths[operand], accesses[operand] = _resolve(
                table, slot, offset, length, mask
            )
        return addresses, lengths, accesses

    def _append(self, row: bytes) -> None:
        if self._list is not None:
            raise FailedPreconditionError("a command was recorded after recording had ended")
        self.rows.frombytes(row)
        if self._memory is not None:
            self._memory.reach(self._size)

    @property
    def _size(self) -> int:
        """Bytes that it has."""
        words = len(self.rows) + 3 * len(self.addresses) + len(self.patches) + len(self.kept)
        return 8 * words + 4 * len(self.constants) + len(self.data)

    def _dispatch(
        self,
        kind: int,
        executable: Dispatchable,
        function: int,
        workgroups: tuple[int, int, int],
        constants: Sequence[int],
        operand: int,
        operand_count: int,
    ) -> None:
        entry = executable.entry_point(function)
        constant = len(self.constants)
        try:
            self.constants.extend(constants)
        except OverflowError as error:  # words given as unsigned
            pass_interruption(error)
            del self.constants[constant:]
            self.constants.extend(_signed(word) for word in constants)
        x, y, z = workgroups
        self._append(COMMAND_ROW.pack(
            kind, operand, operand_count, constant, len(self.constants) - constant,
            _signed(x), _signed(y), z, entry, 0, 0, 0, 0, len(self.kept),
        ))  # fmt: skip
        self.kept.append(executable)
        self.most_local_memory = max(self.most_local_memory, executable.local_memory(function))

    def _bindings(self, bindings: Sequence[Range]) -> int:
        first = len(self.addresses)
        for binding in bindings:
            self._operand(binding, BINDING_ALIGNMENT)
        return first

    def _operand(self, reference: Range, alignment: int) -> int:
        index = len(self.addresses)
        slot, position, length, access = reference
        if slot < 0:
            if not checks.is_aligned(position, length, alignment):
                raise checks.refused(checks.MISALIGNED, address=position, alignment=alignment)
            self.addresses.append(position)
            self.lengths.append(length)
            self.accesses.append(access)
        else:
            self.addresses.append(0)
            self.lengths.append(0)
            self.accesses.append(0)
            self.patches.extend((index, slot, position, length, alignment - 1))
        return index


def check_workgroups(x: int, y: int, z: int) -> None:
    """OUT_OF_RANGE for workgroup counts that no dispatch can have."""
    checks.require(checks.workgroups_refusal(x, y, z), x=x, y=y, z=z)


def _signed(word: int) -> int:
    return (word & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def _resolve(table: Sequence[Slot], slot: int, offset: int, length: int, mask: int) -> Slot:
    base, available, access = table[slot] if slot < len(table) else NO_SLOT
    if available < 0:
        raise checks.refused(checks.NO_ENTRY, slot=slot, count=len(table))
    length = checks.require_inside(checks.OUTSIDE_ENTRY, available, offset, length, slot=slot)
    if not checks.is_aligned(base + offset, length, mask + 1):
        raise checks.refused(checks.MISALIGNED, address=base + offset, alignment=mask + 1)
    return base + offset, length, access


class ListCommandBuffer(CommandBuffer):
    """Records a :class:`CommandList`. Drivers say what a buffer's range and an executable's functions are."""

    commands: CommandList

    def __init__(self, modes: int, categories: int, queue_affinity: int, binding_capacity: int) -> None:
        super().__init__(modes, categories, queue_affinity, binding_capacity)
        self._published = array("q", bytes(size_of(Commands)))
        """A Commands record."""
        self._slot_rows = array("i")

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """Shows machine code the Commands record."""
        table.set_extent(address, self._published.buffer_info()[0], 0)

    def finalize(self) -> None:
        """See :meth:`CommandBuffer.finalize`. Machine code may execute the list from then on."""
        super().finalize()
        count = max(self._slots, default=-1) + 1
        self._slot_rows = array("i", bytes(count * size_of(BindingSlot)))
        for slot, (usage, access) in self._slots.items():
            first = slot * size_of(BindingSlot) // 4
            self._slot_rows[first : first + 3] = array("i", (1, usage, access))
        record = self._published
        record[_COMMANDS.modes] = self.modes
        record[_COMMANDS.copies] = int(bool(self._copies))
        record[_COMMANDS.list] = self.commands.address()
        record[_COMMANDS.slot_count] = count
        record[_COMMANDS.slots] = self._slot_rows.buffer_info()[0]
        record[_COMMANDS.place] = self.place
        record[_COMMANDS.ready] = int(self.is_published)

    @property
    def place(self) -> int:
        """Whose memory its commands work on, as in ENTRY.access."""
        return 0

    @property
    def is_published(self) -> bool:
        """Whether machine code may execute it once it is finished."""
        return True

    @property
    def copied_bytes(self) -> int:
        commands = self.commands
        copies = [row[1] for row in commands.decoded_rows() if row[0] == KIND_COPY]
        return sum(max(0, commands.lengths[operand]) for operand in copies)

    @abc.abstractmethod
    def _range(self, reference: Reference) -> Range:
        """The range as its commands get it; the list keeps its memory."""

    @abc.abstractmethod
    def _functions(self, executable: Executable) -> Dispatchable:
        """INVALID_ARGUMENT for an executable that the device cannot run."""

    def keep_recorded(self, owner: object) -> None:
        """Keeps what commands use that machine code has recorded: an executable, or memory."""
        self.commands.keep(owner)

    def _record_barrier(self, source_stages: int, target_stages: int, flags: int) -> None:
        self.commands.barrier()

    def _record_fill(self, target: Reference, pattern: int, pattern_length: int) -> None:
        self.commands.fill(self._range(target), pattern, pattern_length)

    def _record_update(self, contents: memoryview, target: Reference) -> None:
        self.commands.update(contents, self._range(target))

    def _record_copy(self, source: Reference, target: Reference) -> None:
        self.commands.copy(self._range(source), self._range(target))

    def _record_dispatch(self, workgroups: tuple[int, int, int], dispatch: Dispatch) -> None:
        executable, function, constants, bindings, _ = dispatch
        ranges = [self._range(binding) for binding in bindings]
        self.commands.dispatch(self._functions(executable), function, workgroups, constants, ranges)

    def _record_dispatch_indirect(self, workgroups: Reference, dispatch: Dispatch) -> None:
        executable, function, constants, bindings, _ = dispatch
        ranges = [self._range(binding) for binding in bindings]
        counts = self._range(workgroups)
        self.commands.dispatch_indirect(self._functions(executable), function, counts, constants, ranges)


def entries_of(rows: Iterable[tuple[Any, ...]]) -> list[int]:
    """The entry points of the dispatches of a list, without barriers; 0 for other commands."""
    return [
        row[ENTRY_FIELD] if row[KIND_FIELD] == KIND_DISPATCH else 0
        for row in rows
        if row[KIND_FIELD] != KIND_BARRIER
    ]


def warn_of_order(
    run: Sequence[int], rows: Iterable[tuple[Any, ...]], name_of: Callable[[tuple[Any, ...]], str]
) -> None:
    """Warns if a list has the dispatches of a run in another order.

    ``run``: the entry points of dispatches that a kernel of the user is for."""
    rows, count = list(rows), len(run)
    found = entries_of(rows)
    is_there = any(found[first : first + count] == [*run] for first in range(len(found)))
    if is_there or not set(run) <= set(found):
        return
    own = (row for row in rows if row[KIND_FIELD] == KIND_DISPATCH and row[ENTRY_FIELD] in run)
    names = ", ".join(dict.fromkeys([name_of(row) for row in own]))
    from jitree.base.folding import warn

    warn(
        "replace: the dispatches of a run do not follow each other as they were named, so they run as "
        f"compiled; here they come in the order {names}, perhaps with others between them"
    )
