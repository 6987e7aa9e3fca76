"""Holds decoded bytecode: what :func:`jitree.vmfb.decode.decode_module` makes of a module and tiers run.

This is no part of the schema, as it takes numpy, which builders of kernels do without.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base.records import NamedTuple, rows_of
from jitree.vmfb.cconv import CallingConvention, RegisterSlot, parse
from jitree.vmfb.schema import MadeRows, Rows
from jitree.vmfb.words import TAG_VALUE64

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable

    import numpy.typing as npt

    from jitree.vmfb.schema import ModuleTables

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
    """Says where a function's words lie and what its frame holds."""

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
        """Takes the import call sites and their segment counts. ``site_words`` says where each call is,
        ``site_segments`` where in the bytecode its counts are (-1 without)."""
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
        """Returns the import's ordinal of a call site, and segment counts."""
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
        cconv = parse(self._module.imports[ordinal].cconv or "")
        arguments, results = registers[:argument_count], registers[argument_count:]
        return CallSite._make((index, word, ordinal, cconv, self._segments(index), arguments, results))

    def registers(self, index: int, *numbers: int) -> list[int]:
        """Locates arguments of a call site in views of registers of their kinds."""
        first = self._site_words[index] + 6
        words = [self.words[first + 2 * number :][:2].tolist() for number in numbers]
        return [register >> (tag == TAG_VALUE64) for tag, register in words]

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
        """Returns (function ordinal, byte offset) of a word's instruction. A branch stub has the location of
        its branch."""
        from bisect import bisect_right  # only failures ask for places

        ordinal = bisect_right(self.functions, word, key=lambda function: function.start) - 1
        position = bisect_right(self.instruction_words, word) - 1
        return ordinal, self.instruction_offsets[position]
