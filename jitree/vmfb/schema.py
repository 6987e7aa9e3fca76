"""What a module file contains, as plain immutable records.

:func:`jitree.vmfb.module.read_module` builds them; all that follows (verifier, decoder, linker, dump) works
on these and never on the FlatBuffer. They are NamedTuples, since a frozen dataclass takes five times as long
to define and every process pays for it. :class:`DecodedModule` is what
:func:`jitree.vmfb.decode.decode_module` makes of them, and every tier runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from jitree.base.records import NamedTuple, rows_of
from jitree.vmfb.cconv import CallingConvention, RegisterSlot, parse

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable
    from typing import overload

    import numpy.typing as npt

    from jitree.vmfb.archive import Archive
    from jitree.vmfb.debug import DebugDatabase


T = TypeVar("T")

FEATURE_EXT_F32: Final = 1
FEATURE_EXT_F64: Final = 2
FEATURE_YIELD: Final = 4
FEATURE_UNWIND: Final = 8
FEATURES: Final[dict[int, str]] = {
    FEATURE_EXT_F32: "EXT_F32",
    FEATURE_EXT_F64: "EXT_F64",
    FEATURE_YIELD: "YIELD",
    FEATURE_UNWIND: "UNWIND",
}
"""Bits of module and function requirements."""

FIRST_MOVING_VERSION: Final = 16
"""First bytecode version in which single ref operands and remaps honour the move flag, and those that cannot
be moved must not have it. Compilers of earlier ones set it at the last use, whatever that is."""
MAXIMUM_VALUE_SLOTS: Final = 0x7FFF
MAXIMUM_REFS: Final = 0x3FFF


if TYPE_CHECKING:
    Rows = Sequence
else:

    class Rows:
        """What rows have beside a length and items: see :class:`collections.abc.Sequence`, from which
        inheriting takes several times as long."""

        __slots__ = ()

        def __class_getitem__(cls, item: Any) -> type:
            return cls

        def __iter__(self) -> Iterator[Any]:
            return map(self.__getitem__, range(len(self)))

        def __contains__(self, value: object) -> bool:
            return any(row == value for row in self)

    Sequence.register(Rows)


class MadeRows(Rows[T]):
    """Rows that are made when they are first asked for."""

    __slots__ = ("_made", "_make")

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._make = make
        self._made: list[T | None] = [None] * count

    def __len__(self) -> int:
        return len(self._made)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, index: int) -> T: ...

        @overload
        def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        row = self._made[index]
        if row is None:
            row = self._made[index] = self._make(index % len(self))
        return row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as for lists


class Attr(NamedTuple):
    """One entry of a module's reflection."""

    key: str
    value: str


class Dependency(NamedTuple):
    """A module that must (or may) be registered before this one."""

    name: str
    minimum_version: int
    required: bool


_MODULES_WITH_SIZES: Final = ("hal", "hal_inline", "hal_loader", "io_parameters")


class Import(NamedTuple):
    """A function expected from another module; its index is the import ordinal."""

    full_name: str
    """``module.function``."""
    cconv: str | None
    """None when the file states no signature: resolution then skips the comparison."""
    attrs: dict[str, str]
    optional: bool

    @property
    def may_take_sizes(self) -> bool:
        """Whether it is of a module whose functions are given sizes of memory."""
        return self.full_name.partition(".")[0] in _MODULES_WITH_SIZES


class Export(NamedTuple):
    """A public name of an internal function."""

    name: str
    ordinal: int


class FunctionRow(NamedTuple):
    """An internal function. Counts are as recorded in the file (the verifier judges them)."""

    ordinal: int
    offset: int
    """Byte offset of the body in the module's bytecode."""
    length: int
    """Bytes of the body, without padding after it."""
    requirements: int
    block_count: int
    value_count: int
    """32-bit slots of the value bank."""
    ref_count: int
    cconv: str
    attrs: dict[str, str]
    """Reflection, such as ``iree.abi.declaration``."""


class FunctionRows(MadeRows[FunctionRow]):
    """All functions, and what is asked of all of them."""

    __slots__ = ("columns", "conventions")

    def __init__(
        self,
        columns: dict[str, npt.NDArray[np.int64]],
        conventions: Sequence[str],
        make: Callable[[int], FunctionRow],
    ) -> None:
        super().__init__(len(conventions), make)
        self.columns = columns
        """The fields that are numbers, but for ``ordinal``."""
        self.conventions = conventions


class RodataSegment(NamedTuple):
    """Constant data. ``data`` aliases the archive (read-only) and keeps it alive; any alignment."""

    data: memoryview
    external: bool
    """Stored after the FlatBuffer instead of inside it."""
    file_offset: int
    """Bytes from the start of the archive."""


class RodataRows(MadeRows[RodataSegment]):
    """All constants, and where they lie."""

    __slots__ = ("lengths", "offsets")

    def __init__(
        self,
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        make: Callable[[int], RodataSegment],
    ) -> None:
        super().__init__(len(offsets), make)
        self.offsets = offsets
        """Bytes from the start of the archive."""
        self.lengths = lengths


_LIBRARIES: Final = (b"\x7fELF", b"\xfa\x70\x0e\x1f")
"""How ELF and FatELF files begin."""


class ModuleTables(NamedTuple):
    """A parsed module file. Function bodies are raw bytes, not yet verified."""

    name: str
    version: int
    requirements: int
    attrs: tuple[Attr, ...]
    types: tuple[str, ...]
    """Type names as written (``i32``, ``!vm.buffer``, ``!vm.list<i8>``); the index is the type ordinal."""
    dependencies: tuple[Dependency, ...]
    imports: tuple[Import, ...]
    exports: tuple[Export, ...]
    functions: FunctionRows
    rodata: RodataRows
    globals_size: int
    """Bytes of value globals."""
    ref_global_count: int
    bytecode_version: tuple[int, int]
    """(major, minor)."""
    bytecode: memoryview
    debug: DebugDatabase | None
    """Source locations, None when stripped or not usable."""
    archive: Archive

    @property
    def has_machine_code(self) -> bool:
        """Whether executables of it are libraries that others have compiled."""
        data, starts = self.archive.data, self.rodata.offsets.tolist()
        return any(bytes(data[start : start + 4]) in _LIBRARIES for start in starts)

    def body(self, function: FunctionRow) -> memoryview:
        """The raw bytes of a function."""
        return self.bytecode[function.offset : function.offset + function.length]

    def export(self, name: str) -> Export | None:
        """The export of that name, None if there is none."""
        return next((export for export in self.exports if export.name == name), None)

    def function_name(self, ordinal: int) -> str:
        """A name for messages: the exported one, else the one in the debug database, else ``@N``."""
        for export in self.exports:
            if export.ordinal == ordinal:
                return export.name
        recorded = self.debug.function_name(ordinal) if self.debug else None
        return recorded or f"@{ordinal}"


_ENTRY: Final = Struct("<H")


class FunctionSignature(NamedTuple):
    """How an internal function is called, and the registers it may use."""

    cconv: CallingConvention
    argument_tags: tuple[int, ...]
    argument_slots: tuple[RegisterSlot, ...]
    value_count: int
    """Value slots that instructions may name: as recorded."""
    ref_count: int


class Signatures(Rows[FunctionSignature]):
    """The signatures of all functions, of which many are alike."""

    __slots__ = ("distinct", "kinds")

    def __init__(self, distinct: Sequence[FunctionSignature], kinds: npt.NDArray[np.int64]) -> None:
        self.distinct = distinct
        self.kinds = kinds
        """Of each function the place of its signature in ``distinct``."""

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, ordinal: int) -> FunctionSignature:  # type: ignore[override]  # no slices
        return self.distinct[int(self.kinds[ordinal])]

    def column(self, values: Sequence[int]) -> npt.NDArray[np.int64]:
        """For each function what ``values`` has for its signature in ``distinct``."""
        column: npt.NDArray[np.int64] = np.array(values, np.int64)[self.kinds]
        return column


class DecodedFunction(NamedTuple):
    """Where a function lies in the words of its program, and what its frame holds."""

    ordinal: int
    start: int
    """Word index of the first instruction."""
    end: int
    """Word index after the last one, branch stubs included."""
    value_count: int
    """32-bit slots of the frame, an even number; no instruction names a slot beyond."""
    ref_count: int
    """Ref registers of the frame; no instruction names one beyond."""
    cconv: CallingConvention
    argument_slots: tuple[RegisterSlot, ...]
    """(tag, register) of each argument at entry; refs have TAG_REF_COPY."""
    result_tags: tuple[int, ...]


class DecodedFunctions(MadeRows[DecodedFunction]):
    """The functions of a module, whose words have been found."""

    __slots__ = ("ends", "ref_counts", "signatures", "starts", "value_counts")

    def __init__(self, signatures: Signatures, starts: npt.ArrayLike, ends: npt.ArrayLike) -> None:
        distinct = signatures.distinct
        self.starts: npt.NDArray[np.int64] = np.array(starts, np.int64)
        self.ends: npt.NDArray[np.int64] = np.array(ends, np.int64)
        self.value_counts = signatures.column([max(item.value_count, 1) + 1 & ~1 for item in distinct])
        self.ref_counts = signatures.column([max(item.ref_count, 1) for item in distinct])
        self.signatures = signatures
        columns = (self.starts, self.ends, self.value_counts, self.ref_counts)
        super().__init__(len(signatures), partial(_decoded, signatures, columns))


def _decoded(
    signatures: Signatures, columns: Iterable[npt.NDArray[np.int64]], ordinal: int
) -> DecodedFunction:
    signature = signatures[ordinal]
    start, end, value_count, ref_count = (int(column[ordinal]) for column in columns)
    cconv, slots = signature.cconv, signature.argument_slots
    return DecodedFunction(ordinal, start, end, value_count, ref_count, cconv, slots, cconv.result_tags)


class CallSite(NamedTuple):
    """A call of an import.

    Arguments of spans are flattened; ``segments`` tells the tuples apart.
    """

    index: int  # type: ignore[assignment]  # instead of the method of tuples
    word: int
    """Index of the call's opcode word."""
    import_ordinal: int
    cconv: CallingConvention
    segments: tuple[int, ...] | None
    """For a variadic call one count per argument of the convention (of no meaning where it is not a span)."""
    arguments: tuple[RegisterSlot, ...]
    results: tuple[RegisterSlot, ...]


class DecodedModule:
    """A verified module in decoded form (see :mod:`jitree.vmfb.words` for the words)."""

    __slots__ = (
        "__weakref__", "_module", "_site_segments", "_site_words", "functions", "instruction_offsets",
        "instruction_words", "words",
    )  # fmt: skip

    def __init__(
        self,
        module: ModuleTables,
        words: npt.NDArray[np.int32],
        functions: DecodedFunctions,
        site_words: Sequence[int],
        site_segments: Sequence[int],
        instruction_words: array[int],
        instruction_offsets: array[int],
    ) -> None:
        """``site_words`` and ``site_segments`` say of each call of an import where it is, and where in the
        bytecode its segment counts are (-1 without)."""
        self._module: Final = module
        self._site_words: Final = site_words
        self._site_segments: Final = site_segments
        self.words: Final = words
        self.functions: Final = functions
        self.instruction_words: Final = instruction_words
        """Word index of every instruction, ascending."""
        self.instruction_offsets: Final = instruction_offsets
        """Byte offset in its function of the instruction at the same position of ``instruction_words``."""

    def with_words(self, words: npt.NDArray[np.int32]) -> DecodedModule:
        """The same functions with other words in the same places."""
        return DecodedModule(
            self._module, words, self.functions, self._site_words, self._site_segments,
            self.instruction_words, self.instruction_offsets,
        )  # fmt: skip

    @property
    def site_count(self) -> int:
        return len(self._site_words)

    def site_import(self, index: int) -> tuple[int, tuple[int, ...] | None]:
        """The ordinal of the import that a call site calls, and the counts of its segments."""
        return int(self.words[self._site_words[index] + 3]), self._segments(index)

    def _segments(self, index: int) -> tuple[int, ...] | None:
        place = self._site_segments[index]
        return None if place < 0 else self._entries(place)

    def site(self, index: int) -> CallSite:
        """The call site of that number."""
        word = self._site_words[index]
        ordinal, argument_count, result_count = self.words[word + 3 : word + 6].tolist()
        first, end = word + 6, word + 6 + 2 * argument_count + 2 * result_count
        numbers = self.words[first:end].tolist()
        registers = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        return CallSite(
            index,
            word,
            ordinal,
            parse(self._module.imports[ordinal].cconv or ""),
            self._segments(index),
            registers[:argument_count],
            registers[argument_count:],
        )

    def string(self, place: int) -> str:
        """A message of ``fail``, ``trace`` or ``print``."""
        bytecode = self._module.bytecode
        (length,) = _ENTRY.unpack_from(bytecode, place)
        return str(bytecode[place + 2 : place + 2 + length], "utf-8", "backslashreplace")

    def _entries(self, place: int) -> tuple[int, ...]:
        bytecode = self._module.bytecode
        (count,) = _ENTRY.unpack_from(bytecode, place)
        return tuple(entry for (entry,) in rows_of(_ENTRY, bytecode[place + 2 : place + 2 + 2 * count]))

    def location(self, word: int) -> tuple[int, int]:
        """(function ordinal, byte offset in the function) of the instruction that the word belongs to. A
        branch stub has the location of its branch."""
        from bisect import bisect_right  # only failures ask for places

        ordinal = bisect_right(self.functions, word, key=lambda function: function.start) - 1
        position = bisect_right(self.instruction_words, word) - 1
        return ordinal, self.instruction_offsets[position]
