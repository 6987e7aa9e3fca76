"""The import tables of all ABI generations, newest first; each has what the one before it replaced.

A pair of name and calling convention means the same in all releases that have it, so one set of rows serves
them all.
"""

from __future__ import annotations

from typing import Final

from jitree.modules.hal import abi_0_2, abi_0_4, abi_0_5, abi_0_6, table

OLDER: Final = (abi_0_6.ROWS, abi_0_5.ROWS, abi_0_4.ROWS, abi_0_2.ROWS)
GENERATIONS: Final = (table.ROWS, *OLDER)
