"""Records command lists with device addresses, and sizes of what dispatches bind.

Their rows are those of the local drivers.
"""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import Final, cast

from jitree.cuda.executable import CudaFunctionTable, CudaKernel
from jitree.errors import OutOfRangeError
from jitree.hal.command_layout import COMMAND
from jitree.hal.command_list import DIRECT, CommandList
from jitree.hal.enums import WHOLE_BUFFER

_MAXIMUM_COUNT_Y: Final = 65535
_MAXIMUM_COUNT_X: Final = 2**31 - 1
"""Blocks of a grid on every architecture; z is the same as y, as the list checks."""
_ROW_WORDS: Final = COMMAND.size // 8
_OBJECT_WORD: Final = COMMAND["data_length"] // 8
"""Holds, beside the length of an update, the position of the executable among the kept objects, which
depends on what was recorded before."""


class CudaCommandList(CommandList):
    """Commands in recording order; addresses are the device's."""

    __slots__ = ()

    def kernel(self, row: tuple[int, ...]) -> CudaKernel:
        """What a dispatch row launches."""
        return cast(CudaFunctionTable, self.kept[row[13]]).kernel_at(row[8])

    @property
    def tables(self) -> set[CudaFunctionTable]:
        """The tables of the executables in use."""
        return {kept for kept in self.kept if isinstance(kept, CudaFunctionTable)}

    def shape(self) -> bytes:
        """Equal for lists that have a plan in common."""
        words = self.rows[:]
        words[_OBJECT_WORD::_ROW_WORDS] = array("q", bytes(8 * (len(words) // _ROW_WORDS)))
        return words.tobytes()


def check_grid(counts: tuple[int, int, int]) -> None:
    """OUT_OF_RANGE for workgroup counts that no device can launch."""
    x, y, z = counts
    if x > _MAXIMUM_COUNT_X or max(y, z) > _MAXIMUM_COUNT_Y:
        raise OutOfRangeError(
            f"a dispatch of {x} x {y} x {z} workgroups: a GPU runs at most {_MAXIMUM_COUNT_X} x "
            f"{_MAXIMUM_COUNT_Y} x "
            f"{_MAXIMUM_COUNT_Y}"
        )


class BoundSizes:
    """The sizes that the dispatches of one command list are bound to."""

    def __init__(self, commands: CudaCommandList) -> None:
        self._operands = list(zip(repeat(DIRECT), commands.addresses, commands.lengths, strict=False))
        fields = iter(commands.patches)
        for operand, slot, offset, length, _ in zip(fields, fields, fields, fields, fields, strict=True):
            self._operands[operand] = slot, offset, length

    def of(self, row: tuple[int, ...]) -> int:
        """Bytes of the ranges of a row; of those that overlap the largest. 0 if the list does not say it."""
        _, first, count = row[:3]
        total, ranges = 0, self._operands[first : first + count]
        if any(length == WHOLE_BUFFER for *_, length in ranges):
            return 0
        for number, (slot, begin, length) in enumerate(ranges):
            overlaps = (
                min(size, length)
                for other, start, size in ranges[:number]
                if other == slot and start < begin + length and begin < start + size
            )
            total += length - next(overlaps, 0)
        return total


class FixedSizes(BoundSizes):
    """… that shares its plan with others, in which dispatches with constants may have other lengths."""

    def of(self, row: tuple[int, ...]) -> int:
        """As :meth:`BoundSizes.of`."""
        return 0 if row[4] else super().of(row)
