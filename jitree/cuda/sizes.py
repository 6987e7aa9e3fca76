"""How much memory the dispatches of a command list are bound to."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from jitree.hal.command_list import DIRECT
from jitree.hal.enums import WHOLE_BUFFER

if TYPE_CHECKING:
    from jitree.cuda.commands import CudaCommandList


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
