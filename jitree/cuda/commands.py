"""Command lists of the CUDA device: the rows of the local drivers, with device addresses."""

from __future__ import annotations

from array import array
from typing import Final, cast

from jitree.cuda.executable import CudaFunctionTable, CudaKernel
from jitree.errors import OutOfRangeError
from jitree.hal.command_layout import COMMAND
from jitree.hal.command_list import CommandList

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
