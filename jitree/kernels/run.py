"""Finds dispatches that follow each other in a running list.

A kernel that replaces a run of dispatches does the work of all when the last one comes. These functions run
in Python, and compiled by Numba (``compiled.py``): they use integers, ``load32`` and ``load64`` alone.
"""

from __future__ import annotations

from typing import Final

from jitree.codegen.primitives import load32, load64
from jitree.codegen.record import layout_of, size_of
from jitree.hal.command_layout import KIND_BARRIER, KIND_DISPATCH, Command, Job, KernelDispatch, List

_DISPATCH: Final = layout_of(KernelDispatch)
_JOB: Final = layout_of(Job)
_LIST: Final = layout_of(List)
_ROW: Final = layout_of(Command)
ROW: Final = size_of(Command)
FAILURE: Final = _DISPATCH["failure"]
ADDRESSES: Final = _DISPATCH["addresses"]
JOB_FAILURE: Final = _JOB["failure"]
JOB_LIST: Final = _JOB["list"]
JOB_ADDRESSES: Final = _JOB["addresses"]
LIST_ROWS: Final = _LIST["rows"]
LIST_COUNT: Final = _LIST["row_count"]
ROW_KIND: Final = _ROW["kind"]
ROW_OPERAND: Final = _ROW["operand"]
ROW_ENTRY: Final = _ROW["entry"]
BARRIER: Final = KIND_BARRIER
DISPATCH: Final = KIND_DISPATCH


def job_of(dispatch: int) -> int:
    """The address of the job that a dispatch is of."""
    return load64(dispatch + FAILURE) - JOB_FAILURE


def neighbour(row: int, step: int, first: int, end: int) -> int:
    """The next row that is no barrier, 0 if there is none."""
    row += step
    while first <= row < end and load32(row + ROW_KIND) == BARRIER:
        row += step
    return row if first <= row < end else 0


def first_of_run(dispatch: int, entries: int, count: int, index: int) -> int:
    """The row of a run's first dispatch; ``dispatch`` is one of it, of number ``index``. 0 if the dispatches
    around it are not those of the run, ``count`` addresses of KernelEntry records from ``entries`` on."""
    job = job_of(dispatch)
    commands = load64(job + JOB_LIST)
    first = load64(commands + LIST_ROWS)
    end = first + load64(commands + LIST_COUNT) * ROW
    operand = (load64(dispatch + ADDRESSES) - load64(job + JOB_ADDRESSES)) // 8
    row = first
    while load64(row + ROW_ENTRY) != load64(entries + 8 * index) or load32(row + ROW_OPERAND) != operand:
        row += ROW
    for _ in range(index):
        if row != 0:
            row = neighbour(row, -ROW, first, end)
    start = row
    for number in range(count):
        if row == 0 or load32(row + ROW_KIND) != DISPATCH:
            return 0
        if load64(row + ROW_ENTRY) != load64(entries + 8 * number):
            return 0
        if number + 1 < count:
            row = neighbour(row, ROW, first, end)
    return start


def operand_of(row: int, number: int) -> int:
    """The position of the first operand of a run's dispatch of that number; ``row`` is the run's first."""
    for _ in range(number):
        row += ROW
        while load32(row + ROW_KIND) == BARRIER:
            row += ROW
    return load32(row + ROW_OPERAND)
