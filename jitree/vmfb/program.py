"""Decoded bytecode: what :func:`jitree.vmfb.decode.decode_module` makes of a module and every tier runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.vmfb.cconv import CallingConvention, RegisterSlot

if TYPE_CHECKING:
    from array import array

    import numpy as np
    import numpy.typing as npt


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


class CallSite(NamedTuple):
    """A call of an import. Arguments of spans are flattened; ``segments`` tells the tuples apart."""

    index: int  # type: ignore[assignment]  # instead of the method of tuples
    word: int
    """Index of the call's opcode word."""
    import_ordinal: int
    cconv: CallingConvention
    segments: tuple[int, ...] | None
    """For a variadic call one count per argument of the convention (of no meaning where it is not a span)."""
    arguments: tuple[RegisterSlot, ...]
    results: tuple[RegisterSlot, ...]


class Program:
    """A verified module in decoded form (see :mod:`jitree.vmfb.words` for the words)."""

    __slots__ = (
        "__weakref__", "function_starts", "functions", "instruction_offsets", "instruction_words", "sites",
        "strings", "words",
    )  # fmt: skip

    def __init__(
        self,
        words: npt.NDArray[np.int32],
        functions: tuple[DecodedFunction, ...],
        sites: tuple[CallSite, ...],
        strings: tuple[str, ...],
        instruction_words: array[int],
        instruction_offsets: array[int],
    ) -> None:
        self.words: Final = words
        self.functions: Final = functions
        self.sites: Final = sites
        self.strings: Final = strings
        """Messages of ``fail``, ``trace`` and ``print``."""
        self.instruction_words: Final = instruction_words
        """Word index of every instruction, ascending."""
        self.instruction_offsets: Final = instruction_offsets
        """Byte offset in its function of the instruction at the same position of ``instruction_words``."""
        self.function_starts: Final = [function.start for function in functions]

    def location(self, word: int) -> tuple[int, int]:
        """(function ordinal, byte offset in the function) of the instruction that the word belongs to. A
        branch stub has the location of its branch."""
        from bisect import bisect_right  # only failures ask for places

        ordinal = bisect_right(self.function_starts, word) - 1
        position = bisect_right(self.instruction_words, word) - 1
        return ordinal, self.instruction_offsets[position]
