"""Runs long kernels in parts.

Between these the thread looks whether it is to end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from jitree.base.cancel_scopes import require_going_on
from jitree.errors import ResourceExhaustedError
from jitree.modules.vmvx import kernels
from jitree.modules.vmvx.operands import MOST_ELEMENTS, OK
from jitree.modules.vmvx.tiled import (
    ACCUMULATE,
    MOST_COMPILED,
    MOST_IN_PYTHON,
    TRANSPOSE_INNER,
    TYPE_MASK,
    are_crossed,
)
from jitree.regs.layout import ENTRY, KIND_BUFFER, Entry
from jitree.regs.memory import address_of, zeroed

_OPERAND: Final = 4
"""Arguments for one: the buffer, where it begins, its strides."""
_TILED: Final = {"pack": "0rIIIrIIIIIIIIIIi_v", "unpack": "0rIIIrIIIIIIIIIi_v"}
"""The form of each that states all strides."""


def compute(name: str, kernel: Callable[..., int], cconv: str, arguments: Sequence[Any]) -> None:
    """Does what ``kernel`` has found to be right but long."""
    if name == "mmt4d":
        _multiply(kernel, cconv, arguments)
        return
    cut: Callable[[Sequence[Any]], Iterator[tuple[Any, ...]]] = pieces
    if name in _TILED:
        cconv, cut = _TILED[name], partial(tile_pieces, name)
        kernel = kernels.in_python()[name, cconv]
    find = kernels.address(name, cconv)
    address = 0 if find is None else find()
    call = _by_machine_code(address, cconv) if address else partial(_in_python, kernel)
    for part in cut(arguments):
        require_going_on()
        call(part)


def _in_python(kernel: Callable[..., int], arguments: Sequence[Any]) -> None:
    kernel(*arguments)


def pieces(arguments: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Arguments of functions of elements, of at most MOST_ELEMENTS each and in their order."""
    *operands, size0, size1 = arguments
    value = operands[:-3] if len(operands) == _OPERAND else []  # of a fill, whose columns have no stride
    places = [*operands[len(value) :], *(1 for _ in value)]
    columns = min(size1, MOST_ELEMENTS)
    rows = max(1, MOST_ELEMENTS // size1)
    for i in range(0, size0, rows):
        for j in range(0, size1, columns):
            shifted: list[Any] = []
            for at in range(0, len(places), _OPERAND):
                buffer, offset, stride0, stride1 = places[at : at + _OPERAND]
                shifted += (buffer, offset + i * stride0 + j * stride1, stride0, stride1)
            used = shifted[: len(shifted) - len(value)]
            yield *value, *used, min(rows, size0 - i), min(columns, size1 - j)


def tile_pieces(name: str, arguments: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Arguments of ``pack`` or ``unpack``, of at most MOST_ELEMENTS each and in their order."""
    is_pack = name == "pack"
    states_all = len(arguments) == len(_TILED[name].strip("0_v"))
    strides = _OPERAND if states_all else _OPERAND - 1
    plain, packed, numbers = arguments[:strides], arguments[strides : 2 * strides], arguments[2 * strides :]
    if is_pack:
        size0, size1, outer0, outer1, tile0, tile1, *padding, flags = numbers
    else:
        plain, packed = packed, plain
        outer0, outer1, tile0, tile1, size0, size1, *padding, flags = numbers
    matrix, offset, step0, step1 = plain if states_all else (*plain, 1)
    tiles, start, far0, far1 = packed if states_all else (*packed, tile0 * tile1)
    if flags & TRANSPOSE_INNER:
        size0, size1, step0, step1 = size1, size0, step1, step0
    if are_crossed(flags):
        outer0, outer1, far0, far1 = outer1, outer0, far1, far0
    ends = (outer0 * tile0, outer1 * tile1) if is_pack else (size0, size1)
    for p, q, a, b, *shape in _tile_blocks(*ends, tile0, tile1):
        row, column = p * tile0 + a, q * tile1 + b
        rows, columns = (outer * tile for outer, tile in zip(shape[:2], shape[2:], strict=True))
        inside = min(max(size0 - row, 0), rows), min(max(size1 - column, 0), columns)
        place = row * step0 + column * step1 if all(inside) else 0  # of padding it may be any number
        own = matrix, offset + place, step0, step1
        block = tiles, start + p * far0 + q * far1 + a * tile1 + b, far0, far1
        if is_pack:
            yield *own, *block, *inside, *shape, *padding, flags & TYPE_MASK
        else:
            yield *block, *own, *shape, *inside, flags & TYPE_MASK


def _tile_blocks(end0: int, end1: int, tile0: int, tile1: int) -> Iterator[tuple[int, ...]]:
    """Blocks of tiles up to an end: the first one's row and column, a line and a place in it; how many rows
    and columns of tiles it has, and of elements each tile. Large tiles are several blocks."""
    outer0, outer1, tile = -(-end0 // tile0), -(-end1 // tile1), tile0 * tile1
    rows, columns = max(MOST_ELEMENTS // (tile * outer1), 1), max(min(MOST_ELEMENTS // tile, outer1), 1)
    lines, width = max(min(MOST_ELEMENTS // tile1, tile0), 1), min(tile1, MOST_ELEMENTS)
    for p in range(0, outer0, rows):
        for q in range(0, outer1, columns):
            for a in range(0, min(tile0, end0 - p * tile0), lines):
                for b in range(0, min(tile1, end1 - q * tile1), width):
                    outer = min(rows, outer0 - p), min(columns, outer1 - q)
                    yield p, q, a, b, *outer, min(lines, tile0 - a), min(width, tile1 - b)


def _multiply(kernel: Callable[..., int], cconv: str, arguments: Sequence[Any]) -> None:
    """By machine code if it is too long for Python, too."""
    *_, m, n, k, tile_m, tile_n, tile_k, _ = arguments
    find = kernels.address("mmt4d", cconv)
    work = m * n * max(k, 1) * tile_m * tile_n * max(tile_k, 1)
    address = find() if find is not None and work > MOST_COMPILED else 0
    if address:
        call = _by_machine_code(address, cconv)
        for part in parts(arguments, MOST_COMPILED):
            call(part)
    else:
        for part in parts(arguments, MOST_IN_PYTHON):
            kernel(*part)


def parts(arguments: Sequence[Any], most: int) -> Iterator[tuple[Any, ...]]:
    """Cuts products into parts of so many numbers, with the same bits in order."""
    lhs, lhs_offset, lhs_stride, rhs, rhs_offset, rhs_stride, out, out_offset, out_stride, *sizes = arguments
    m, n, k, tile_m, tile_n, tile_k, flags = sizes
    if not k * tile_k:
        k = tile_k = 0  # zeros are stored, once
    tile = tile_m * tile_n * max(tile_k, 1)
    if tile > most:
        raise ResourceExhaustedError(
            f"vmvx.mmt4d: tiles of {tile_m} x {tile_n} x {tile_k} are larger than are computed at once"
        )
    depth = max(min(k, most // tile), 1)
    columns = min(n, most // (tile * depth))
    rows = min(m, most // (tile * depth * columns))
    for i in range(0, m, rows):
        for j in range(0, n, columns):
            for at in range(0, max(k, 1), depth):
                require_going_on()
                yield (
                    lhs, lhs_offset + i * lhs_stride + at * tile_m * tile_k, lhs_stride,
                    rhs, rhs_offset + j * rhs_stride + at * tile_n * tile_k, rhs_stride,
                    out, out_offset + i * out_stride + j * tile_m * tile_n, out_stride,
                    min(rows, m - i), min(columns, n - j), min(depth, k - at), tile_m, tile_n, tile_k,
                    flags | ACCUMULATE if at else flags,
                )  # fmt: skip


def _by_machine_code(address: int, cconv: str) -> Callable[[Sequence[Any]], None]:
    """The function of the image, which takes registers; those of its own frame here."""
    kinds = cconv[1:].partition("_")[0]
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(address)
    words = np.array([word for index in range(len(kinds)) for word in (0, 2 * index)], np.int32)
    values = np.zeros(2 * len(kinds), np.int32)
    refs = np.zeros(2 * len(kinds), np.int64)

    def call(arguments: Sequence[Any]) -> None:
        kept = []
        for index, (kind, argument) in enumerate(zip(kinds, arguments, strict=True)):
            if kind == "r":
                memory = zeroed(ENTRY.size)
                kept.append(memory)
                entry = Entry(address_of(memory))
                entry.kind, entry.address = KIND_BUFFER, argument.address
                entry.length, entry.access = argument.length, argument.access
                refs[2 * index] = address_of(memory)
            elif kind == "I":
                values[2 * index : 2 * index + 2].view(np.int64)[0] = argument
            else:
                values[2 * index] = argument
        status = function(0, values.ctypes.data, refs.ctypes.data, words.ctypes.data)
        assert status == OK, status

    return call
