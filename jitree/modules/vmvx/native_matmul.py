"""LLVM IR of ``mmt4d``: tiles of 8 x 8 results that stay in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.base.records import NamedTuple
from jitree.modules.vmvx.native_code import Thunk

TILE: Final = 8
_TYPE_MASK: Final = 0xFF
_ACCUMULATE: Final = 0x100
_KNOWN_FLAGS: Final = 0x7FF
_LANES: Final = "<8 x i32> zeroinitializer"

Step = Callable[[Thunk, str, str, list[str]], list[str]]
"""Adds the products of one tile of each side, at two addresses, to eight vectors of results."""


def _floats(thunk: Thunk, lhs: str, rhs: str, sums: list[str]) -> list[str]:
    """8 x 1 by 8 x 1."""
    right = thunk.load("<8 x float>", rhs)
    following = []
    for row, total in enumerate(sums):
        value = thunk.load("float", thunk.place(lhs, "float", row))
        left = _spread(thunk, "float", value, 8)
        following.append(
            thunk.let(
                "call <8 x float> @llvm.fmuladd.v8f32("
                f"<8 x float> {left}, <8 x float> {right}, <8 x float> {total})"
            )
        )
    return following


def _bytes(thunk: Thunk, lhs: str, rhs: str, sums: list[str]) -> list[str]:
    """8 x 2 by 8 x 2: products of pairs of i8 in i32, added, which processors have an instruction for."""
    right = _widened(thunk, thunk.load("<16 x i8>", rhs))
    even, odd = (", ".join(f"i32 {lane}" for lane in range(first, 16, 2)) for first in (0, 1))
    following = []
    for row, total in enumerate(sums):
        pair = thunk.load("i16", thunk.place(lhs, "i16", row))
        left = _widened(thunk, thunk.let(f"bitcast <8 x i16> {_spread(thunk, 'i16', pair, 8)} to <16 x i8>"))
        product = thunk.let(f"mul nsw <16 x i32> {left}, {right}")
        halves = [
            thunk.let(f"shufflevector <16 x i32> {product}, <16 x i32> poison, <8 x i32> <{lanes}>")
            for lanes in (even, odd)
        ]
        both = thunk.let(f"add nsw <8 x i32> {halves[0]}, {halves[1]}")
        following.append(thunk.let(f"add <8 x i32> {total}, {both}"))
    return following


def _widened(thunk: Thunk, vector: str) -> str:
    return thunk.let(f"sext <16 x i8> {vector} to <16 x i32>")


def _spread(thunk: Thunk, kind: str, value: str, lanes: int) -> str:
    one = thunk.let(f"insertelement <{lanes} x {kind}> poison, {kind} {value}, i64 0")
    return thunk.let(f"shufflevector <{lanes} x {kind}> {one}, <{lanes} x {kind}> poison, {_LANES}")


class Variant(NamedTuple):
    """A kind of product."""

    name: str
    number: int
    """In the flags."""
    element: str
    result: str
    depth: int
    """K of a tile."""
    step: Step


VARIANTS: Final = (
    Variant("f32", 1, "float", "float", 1, _floats),
    Variant("i8", 2, "i8", "i32", 2, _bytes),
)


def mmt4d(symbol: str, cconv: str, variant: Variant) -> str:
    _, number, element, result, depth, step = variant
    thunk = Thunk(symbol, cconv)
    (lhs, lhs_offset, lhs_stride, rhs, rhs_offset, rhs_stride, out, out_offset, out_stride,
     m, n, k, tile_m, tile_n, tile_k, flags) = thunk.arguments  # fmt: skip
    thunk.small(lhs_stride, rhs_stride, out_stride, m, n, k)
    thunk.positive(m, n, k)
    thunk.require(thunk.compare("eq", thunk.arithmetic("and", flags, _TYPE_MASK), number))
    thunk.require(thunk.compare("ule", flags, _KNOWN_FLAGS))
    for size, expected in ((tile_m, TILE), (tile_n, TILE), (tile_k, depth)):
        thunk.require(thunk.compare("eq", size, expected))
    thunk.writable(out)
    side = TILE * depth
    left = thunk.elements(lhs, element, lhs_offset, [(lhs_stride, m), (side, k), (1, str(side))])
    right = thunk.elements(rhs, element, rhs_offset, [(rhs_stride, n), (side, k), (1, str(side))])
    whole = str(TILE * TILE)
    results = thunk.elements(out, result, out_offset, [(out_stride, m), (whole, n), (1, whole)])
    accumulate = thunk.compare("ne", thunk.arithmetic("and", flags, _ACCUMULATE), 0)
    vector = f"<{TILE} x {result}>"
    with thunk.loop(m) as i, thunk.loop(n) as j:
        tile = thunk.place(
            results, result, thunk.add(thunk.multiply(out_stride, i), thunk.multiply(whole, j))
        )
        rows = [thunk.place(tile, vector, row) for row in range(TILE)]
        first = [
            thunk.let(f"select i1 {accumulate}, {vector} {thunk.load(vector, row)}, {vector} zeroinitializer")
            for row in rows
        ]
        lhs_row = thunk.place(left, element, thunk.multiply(lhs_stride, i))
        rhs_row = thunk.place(right, element, thunk.multiply(rhs_stride, j))

        def turn(index: str, sums: list[str], lhs_row: str = lhs_row, rhs_row: str = rhs_row) -> list[str]:
            at = thunk.multiply(index, side)
            return step(thunk, thunk.place(lhs_row, element, at), thunk.place(rhs_row, element, at), sums)

        for row, total in zip(rows, thunk.fold(k, vector, first, turn), strict=True):
            thunk.do(f"store {vector} {total}, ptr {row}, align 1")
    return thunk.text()
