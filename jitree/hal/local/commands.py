"""Recorded commands as flat tables: one layout for the Python walker, the native walker and native recording.

A command list is a table of rows (COMMAND). What a row works on lies in side tables that it indexes: operands
(buffer ranges, as two arrays of addresses and lengths, the form in which kernels want their bindings), 32-bit
constants, bytes of updates. Rows never change after recording, so one list can be submitted many times and at
the same time: only the operand tables are copied and patched from the binding table of a submission.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from jitree.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from jitree.regs.layout import Record

ENTRY_POINT: Final = Record(
    "entry point",
    """
    i64 code              # address of the function: i32 (environment, dispatch state, workgroup state)
    i64 environment       # address of the executable's environment
    i64 cost              # moving average of ticks per 1024 workgroups, 0 = not run yet; racy by design
    i32 local_memory      # bytes of local memory that each workgroup in flight needs
    i32 flags             # ENTRY_*
    i32 constant_count    # 32-bit words, -1 = not stated by the executable
    i32 binding_count     # -1 = not stated by the executable
    i32 ordinal           # position among the executable's functions
    i32 reserved
    """,
)
"""A function of a loaded executable. Records belong to the executable and live as long as it does."""

ENTRY_SEQUENTIAL: Final = 1
"""Workgroups of one dispatch must not run at the same time."""
ENTRY_SPAN: Final = 2
"""One call runs a span of the grid: for functions that pay for every call.

``code`` finds the span behind the workgroup state: numbers of the first workgroup and of the one behind the
last, x fastest. When it fails it leaves the id of the workgroup in the state; its executable is asked for the
error (``hal.executable.KeepsFailures``).
"""
SPAN_FIRST: Final = 32
SPAN_LAST: Final = 40
"""Byte offsets of the i64 numbers from the start of the workgroup state."""

COMMAND: Final = Record(
    "command",
    """
    i32 kind              # KIND_*
    i32 operand           # index of the first operand
    i32 operand_count     # of a dispatch: bindings; the counts of an indirect one are one more operand
    i32 constant          # index of the first constant
    i32 constant_count
    i32 count_x           # workgroups, unsigned
    i32 count_y
    i32 count_z
    i64 entry             # address of the entry point record of a dispatch
    i32 pattern           # of a fill, repeated to four bytes
    i32 pattern_length    # 1, 2 or 4
    i64 data              # offset of the bytes of an update
    i32 data_length       # of an update
    i32 object            # position of a dispatch's executable in the list's kept objects, for messages
    """,
)
assert COMMAND.size == 64 and ENTRY_POINT.size == 48

KIND_BARRIER: Final = 0
"""Everything before it is finished before anything behind it starts."""
KIND_FILL: Final = 1
"""Operand: target."""
KIND_COPY: Final = 2
"""Operands: source, target; equal lengths."""
KIND_UPDATE: Final = 3
"""Operand: target. Source: bytes of the list."""
KIND_DISPATCH: Final = 4
KIND_DISPATCH_INDIRECT: Final = 5
"""Three u32 workgroup counts are read from the last operand when the command executes."""

PATCH: Final = Record(
    "patch",
    """
    i64 operand           # index of the operand to set
    i64 slot              # of the binding table
    i64 offset            # added to the table entry's
    i64 length            # WHOLE = the rest of the table entry
    i64 alignment         # required of the address, minus 1
    """,
)

LIST: Final = Record(
    "list",
    """
    i64 rows              # address of the COMMAND rows
    i64 row_count
    i64 addresses         # of i64 operand addresses; those that a patch sets are 0
    i64 lengths           # of i64 operand lengths
    i64 operand_count
    i64 constants         # of the 32-bit constants
    i64 data              # of the update bytes
    i64 patches           # of the PATCH rows
    i64 patch_count
    i64 local_memory      # the most that any dispatch of the list needs for a workgroup
    """,
)
"""What the walkers are given. Whoever records, Python or native code, ends by filling one in."""

COMMANDS: Final = Record(
    "commands",
    """
    i64 next              # in a list of idle ones
    i64 ready             # 1 = recording has ended and machine code may execute it
    i64 modes             # of the command buffer
    i64 copies            # 1 = ranges of copies have to be compared when slots are known
    i64 list              # address of the LIST record
    i64 slot_count
    i64 slots             # address of SLOT rows
    """,
)
"""What machine code must know of a command buffer before it executes it."""

SLOT: Final = Record(
    "slot",
    """
    i32 used              # 1 = a submission must have a buffer there
    i32 usage             # that the buffer must have been allocated for
    i32 access            # that it must allow
    i32 reserved
    """,
)

WHOLE: Final = -1
"""As a length: up to the end of the table entry."""
BINDING_ALIGNMENT: Final = 64
"""Compiled kernels load and store whole vectors: 16-byte aligned in generic code, 64 for AVX-512."""
MAXIMUM_UPDATE: Final = 65536
"""Bytes of one update command."""
MAXIMUM_WORKGROUPS: Final = 1 << 48
"""Of one dispatch: products of counts stay far from overflow."""
MAXIMUM_COUNT_Z: Final = 65535
"""The third count is a u16 in the kernels' dispatch state."""

DIRECT: Final = -1
"""As a slot: the range is known."""

Range = tuple[int, int, int]
"""A buffer range: ``(DIRECT, address, length)`` or ``(slot, offset, length or WHOLE)``; bytes."""

_ROW: Final = struct.Struct("<8iqiiqii")
assert _ROW.size == COMMAND.size
_ZEROS: Final = (0,) * 13
_REPEAT: Final = {1: 0x01010101, 2: 0x00010001, 4: 1}


class Dispatchable(Protocol):
    """What a command list needs to know of an executable: a native entry point per function."""

    @property
    def name(self) -> str: ...

    def function_name(self, ordinal: int) -> str:
        """``""`` when the executable has no names."""

    def entry_point(self, ordinal: int) -> int:
        """Address of the function's ENTRY_POINT record."""

    def local_memory(self, ordinal: int) -> int:
        """Bytes of local memory that each workgroup in flight needs."""


class CommandList:
    """Commands in recording order.

    The append methods take ranges that the caller has checked against its buffers (usage, access, bounds);
    they check what protects the walkers: alignment and workgroup counts. Executables are kept alive by the
    list, buffers when handed to :meth:`keep`.
    """

    __slots__ = (
        "_list", "addresses", "constants", "data", "kept", "lengths", "most_local_memory", "patches", "rows",
    )  # fmt: skip

    def __init__(self) -> None:
        self.rows = array("q")
        self.addresses = array("q")
        self.lengths = array("q")
        self.constants = array("i")
        self.data = bytearray()
        self.patches = array("q")
        self.kept: list[object] = []
        self.most_local_memory = 0
        self._list: array[int] | None = None

    @property
    def row_count(self) -> int:
        return len(self.rows) * 8 // COMMAND.size

    def decoded_rows(self) -> Iterator[tuple[int, ...]]:
        """The fields of every row in the order of COMMAND."""
        return _ROW.iter_unpack(self.rows)

    def keep(self, owner: object) -> None:
        """Keeps an object alive as long as the list."""
        self.kept.append(owner)

    def barrier(self) -> None:
        self._append(_ROW.pack(KIND_BARRIER, *_ZEROS))

    def fill(self, target: Range, pattern: int, pattern_length: int) -> None:
        """Repeats the low ``pattern_length`` (1, 2 or 4) bytes of ``pattern`` over the target."""
        operand = self._operand(target, pattern_length)
        word = _signed((pattern & (1 << 8 * pattern_length) - 1) * _REPEAT[pattern_length])
        self._append(_ROW.pack(KIND_FILL, operand, 1, 0, 0, 0, 0, 0, 0, word, pattern_length, 0, 0, 0))

    def copy(self, source: Range, target: Range) -> None:
        """Copies between ranges of one length that do not overlap."""
        operand = self._operand(source, 1)
        self._operand(target, 1)
        self._append(_ROW.pack(KIND_COPY, operand, 2, *_ZEROS[2:]))

    def update(self, source: bytes | bytearray | memoryview, target: Range) -> None:
        """Writes bytes, at most MAXIMUM_UPDATE, that are captured now."""
        offset = len(self.data)
        self.data += source
        length = len(self.data) - offset
        operand = self._operand(target, 1)
        self._append(_ROW.pack(KIND_UPDATE, operand, 1, 0, 0, 0, 0, 0, 0, 0, 0, offset, length, 0))

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

    def address(self) -> int:
        """Ends recording and gives the address of the LIST record, valid as long as this object."""
        if self._list is None:
            data = array("B", self.data)
            self.kept.append(data)
            self._list = array("q", (
                self.rows.buffer_info()[0], self.row_count,
                self.addresses.buffer_info()[0], self.lengths.buffer_info()[0], len(self.addresses),
                self.constants.buffer_info()[0], data.buffer_info()[0],
                self.patches.buffer_info()[0], len(self.patches) * 8 // PATCH.size,
                self.most_local_memory,
            ))  # fmt: skip
        return self._list.buffer_info()[0]

    def bind(self, table: Sequence[tuple[int, int]]) -> tuple[array[int], array[int]]:
        """Operand addresses and lengths of one submission.

        ``table`` has an (address, length) per slot, (0, -1) for a slot without a buffer. Without slots in
        the list these are its own arrays. INVALID_ARGUMENT for a slot without a buffer or a misaligned
        range, OUT_OF_RANGE for a range outside the table entry.
        """
        if not self.patches:
            return self.addresses, self.lengths
        addresses, lengths = self.addresses[:], self.lengths[:]
        fields = iter(self.patches)
        for operand, slot, offset, length, mask in zip(fields, fields, fields, fields, fields, strict=True):
            addresses[operand], lengths[operand] = _resolve(table, slot, offset, length, mask)
        return addresses, lengths

    def _append(self, row: bytes) -> None:
        if self._list is not None:
            raise FailedPreconditionError("a command was recorded after recording had ended")
        self.rows.frombytes(row)

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
        except OverflowError:  # words given as unsigned
            del self.constants[constant:]
            self.constants.extend(_signed(word) for word in constants)
        x, y, z = workgroups
        self._append(_ROW.pack(
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
        slot, position, length = reference
        if slot < 0:
            if position & alignment - 1 and length:
                raise _misaligned(position, alignment)
            self.addresses.append(position)
            self.lengths.append(length)
        else:
            self.addresses.append(0)
            self.lengths.append(0)
            self.patches.extend((index, slot, position, length, alignment - 1))
        return index


def check_workgroups(x: int, y: int, z: int) -> None:
    """OUT_OF_RANGE for workgroup counts that no dispatch can have."""
    if z > MAXIMUM_COUNT_Z or x * y * z > MAXIMUM_WORKGROUPS:
        raise OutOfRangeError(
            f"a dispatch of {x} x {y} x {z} workgroups: at most {MAXIMUM_COUNT_Z} in z and "
            f"{MAXIMUM_WORKGROUPS} in all can be run"
        )


def _signed(word: int) -> int:
    return (word & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def _misaligned(address: int, alignment: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"a buffer range starts at address {address:#x}, which is not a multiple of {alignment} bytes as the "
        "command needs; use offsets that are multiples of it"
    )


def _resolve(
    table: Sequence[tuple[int, int]], slot: int, offset: int, length: int, mask: int
) -> tuple[int, int]:
    base, available = table[slot] if slot < len(table) else (0, -1)
    if available < 0:
        raise InvalidArgumentError(
            f"the command buffer uses slot {slot} of the binding table, but the table of {len(table)} "
            "entries has no buffer there"
        )
    if length == WHOLE:
        length = available - offset
    if offset < 0 or length < 0 or offset + length > available:
        raise OutOfRangeError(
            f"bytes {offset} to {offset + length} of slot {slot} of the binding table are outside its "
            f"{available} bytes"
        )
    if (base + offset) & mask and length:
        raise _misaligned(base + offset, mask + 1)
    return base + offset, length
