"""LLVM IR of the element-wise functions, ``pack`` and ``unpack``."""

from __future__ import annotations

from typing import Final

from jitree.modules.vmvx.native_code import VECTORISED, Thunk
from jitree.modules.vmvx.packing import TRANSPOSE_INNER, TRANSPOSE_OUTER

BINARY_CCONV: Final = "0rIIIrIIIrIIIII_v"
UNARY_CCONV: Final = "0rIIIrIIIII_v"

FUNCTIONS: Final = ("exp", "log")
"""One value at a time."""
BINARY: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    **{
        f"{name}.2d.f32": ("float", (f"{{r}} = f{name} float {{a}}, {{b}}",))
        for name in ("add", "sub", "mul", "div")
    },
    **{
        f"{name}.2d.i32": ("i32", (f"{{r}} = {name} i32 {{a}}, {{b}}",))
        for name in ("add", "sub", "mul", "and", "or", "xor")
    },
    **{
        f"{name}.2d.i32": ("i32", ("{m} = and i32 {b}, 31", f"{{r}} = {operation} i32 {{a}}, {{m}}"))
        for name, operation in (("shl", "shl"), ("shrs", "ashr"), ("shru", "lshr"))
    },
}
"""Element type and instructions. Divisions of integers, which can fail midway, are left to Python."""
UNARY: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "abs.2d.f32": ("float", ("{r} = call float @llvm.fabs.f32(float {a})",)),
    "ceil.2d.f32": ("float", ("{r} = call float @llvm.ceil.f32(float {a})",)),
    "floor.2d.f32": ("float", ("{r} = call float @llvm.floor.f32(float {a})",)),
    "neg.2d.f32": ("float", ("{r} = fneg float {a}",)),
    "rsqrt.2d.f32": ("float", ("{m} = call float @llvm.sqrt.f32(float {a})", "{r} = fdiv float 1.0, {m}")),
    **{
        f"{name}.2d.f32": ("float", (f'{{r}} = call float @"math.{name}.f32"(float {{a}})',))
        for name in FUNCTIONS
    },
    "ctlz.2d.i32": ("i32", ("{r} = call i32 @llvm.ctlz.i32(i32 {a}, i1 false)",)),
    **{f"copy.2d.x{bits}": (f"i{bits}", ()) for bits in (8, 16, 32, 64)},
}
"""As above."""


def elementwise(name: str, symbol: str) -> str:
    kind, instructions = BINARY.get(name) or UNARY[name]
    thunk = Thunk(symbol, BINARY_CCONV if name in BINARY else UNARY_CCONV)
    *operands, sizes = [thunk.arguments[at : at + 4] for at in range(0, len(thunk.arguments), 4)]
    thunk.small(*sizes)
    thunk.positive(*sizes)
    thunk.writable(operands[-1][0])
    places = []
    for buffer, offset, *strides in operands:
        thunk.small(*strides)
        places.append(thunk.elements(buffer, kind, offset, list(zip(strides, sizes, strict=True))))
    with thunk.loop(sizes[0]) as i:
        rows = [
            thunk.place(place, kind, thunk.multiply(operand[2], i))
            for place, operand in zip(places, operands, strict=True)
        ]
        with thunk.loop(sizes[1], "" if name.partition(".")[0] in FUNCTIONS else VECTORISED) as j:
            cells = [
                thunk.place(row, kind, thunk.multiply(operand[3], j))
                for row, operand in zip(rows, operands, strict=True)
            ]
            result = _compute(thunk, instructions, [thunk.load(kind, cell) for cell in cells[:-1]])
            thunk.do(f"store {kind} {result}, ptr {cells[-1]}, align 1")
    return thunk.text()


def _compute(thunk: Thunk, instructions: tuple[str, ...], values: list[str]) -> str:
    if not instructions:
        return values[0]
    names = {"a": values[0], "b": values[-1], "m": thunk.fresh("%m"), "r": thunk.fresh("%r")}
    for instruction in instructions:
        thunk.do(instruction.format(**names))
    return names["r"]


def fill(symbol: str, cconv: str) -> str:
    thunk = Thunk(symbol, cconv)
    value, out, offset, stride, *sizes = thunk.arguments
    thunk.small(stride, *sizes)
    thunk.positive(*sizes)
    thunk.writable(out)
    place = thunk.elements(out, "i32", offset, [(stride, sizes[0]), (1, sizes[1])])
    word = thunk.let(f"trunc i64 {value} to i32")
    with thunk.loop(sizes[0]) as i:
        row = thunk.place(place, "i32", thunk.multiply(stride, i))
        with thunk.loop(sizes[1], VECTORISED) as j:
            thunk.do(f"store i32 {word}, ptr {thunk.place(row, 'i32', j)}, align 1")
    return thunk.text()


class Tiles:
    """Both sides of a packing: the matrix, and tiles in the order in which they are stored."""

    def __init__(
        self, thunk: Thunk, kind: str, matrix: list[str], storage: list[str], rest: list[str]
    ) -> None:
        """``matrix`` and ``storage`` are buffer, offset and the strides of rows; ``rest`` is outer0, outer1,
        tile0, tile1, size0, size1, flags."""
        *extents, size0, size1, flags = rest
        outer0, outer1, self._tile0, self._tile1 = extents
        thunk.small(*extents, size0, size1, *matrix[2:], *storage[2:])
        thunk.positive(*extents, size0, size1)
        self._thunk, self._kind = thunk, kind
        self._outer, self._strides, self._sizes = (outer0, outer1), (matrix[2], matrix[3]), (size0, size1)
        self._packed_strides = (storage[2], storage[3])
        self._is_outer, self._is_inner = (
            thunk.compare("ne", thunk.arithmetic("and", flags, bit), 0)
            for bit in (TRANSPOSE_OUTER, TRANSPOSE_INNER)
        )
        rows, columns = self._ordered(self._is_outer, outer0, outer1)
        self._height, self._width = self._ordered(self._is_inner, self._tile0, self._tile1)
        thunk.require(thunk.compare("ule", size0, thunk.multiply(rows, self._height)))
        thunk.require(thunk.compare("ule", size1, thunk.multiply(columns, self._width)))
        self._matrix = thunk.elements(matrix[0], kind, matrix[1], [(matrix[2], size0), (matrix[3], size1)])
        self._storage = thunk.elements(
            storage[0], kind, storage[1],
            [(storage[2], outer0), (storage[3], outer1), (self._tile1, self._tile0), (1, self._tile1)],
        )  # fmt: skip

    def _ordered(self, swapped: str, first: str, second: str) -> tuple[str, str]:
        """Storage order to matrix order and back."""
        let = self._thunk.let
        return (
            let(f"select i1 {swapped}, i64 {second}, i64 {first}"),
            let(f"select i1 {swapped}, i64 {first}, i64 {second}"),
        )

    def copy(self, *, into_storage: bool, padding: str = "") -> None:
        """Line by line of the tiles: what is in the matrix is copied, what is not gets the padding."""
        thunk = self._thunk
        step, _ = self._ordered(self._is_inner, self._strides[1], self._strides[0])
        with thunk.loop(self._outer[0]) as p, thunk.loop(self._outer[1]) as q:
            block = self._ordered(self._is_outer, p, q)
            top, left = thunk.multiply(block[0], self._height), thunk.multiply(block[1], self._width)
            outer = thunk.add(
                thunk.multiply(p, self._packed_strides[0]), thunk.multiply(q, self._packed_strides[1])
            )
            with thunk.loop(self._tile0) as a:
                along, across = self._ordered(self._is_inner, a, "0")
                row, column = thunk.add(top, along), thunk.add(left, across)
                count = self._inside(row, column)
                line = thunk.place(
                    self._storage, self._kind, thunk.add(outer, thunk.multiply(a, self._tile1))
                )
                start = thunk.add(
                    thunk.multiply(row, self._strides[0]), thunk.multiply(column, self._strides[1])
                )
                cells = thunk.place(self._matrix, self._kind, start)
                with thunk.loop(count) as b:
                    stored = thunk.place(line, self._kind, b)
                    cell = thunk.place(cells, self._kind, thunk.multiply(step, b))
                    source, target = (cell, stored) if into_storage else (stored, cell)
                    thunk.do(f"store {self._kind} {thunk.load(self._kind, source)}, ptr {target}, align 1")
                if padding:
                    rest = thunk.place(line, self._kind, count)
                    with thunk.loop(thunk.arithmetic("sub", self._tile1, count)) as b:
                        place = thunk.place(rest, self._kind, b)
                        thunk.do(f"store {self._kind} {padding}, ptr {place}, align 1")

    def _inside(self, row: str, column: str) -> str:
        """How many elements of the line that begins at a place of the matrix are in the matrix."""
        thunk = self._thunk
        rows, columns = (
            thunk.arithmetic("sub", size, at) for size, at in zip(self._sizes, (row, column), strict=True)
        )
        along, across = self._ordered(self._is_inner, columns, rows)
        some = thunk.compare("sgt", across, 0)
        count = thunk.let(f"call i64 @llvm.smin.i64(i64 {along}, i64 {self._tile1})")
        count = thunk.let(f"call i64 @llvm.smax.i64(i64 {count}, i64 0)")
        return thunk.let(f"select i1 {some}, i64 {count}, i64 0")
