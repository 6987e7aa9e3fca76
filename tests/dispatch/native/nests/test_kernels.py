"""Nests of the shapes that compilers write, with extents that leave remainders: memory afterwards is what the
instructions leave, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from jitree.dispatch.native.nests import planner
from tests.dispatch.native.nests.checking import ELEMENTS, check, some_memory
from tests.dispatch.native.nests.programs import (
    Bound,
    Level,
    Text,
    argument,
    digits,
    merged,
    only_nest,
    program,
)

COUNTS = [1, 3, 16, 17, 64, 100]


@pytest.mark.parametrize("count", COUNTS)
def test_elementwise(count: int) -> None:
    def body(text: Text, at: list[str]) -> None:
        index = text.op("add.i64", at[0], argument(0))
        left, right = text.load("f32", 1, index), text.load("f32", 2, index)
        text.store("f32", 0, index, text.op("fma.f32", left, right, right))

    check(program([Level(count)], body), (5,))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("compare", ["cmp.lt.i64.s", "cmp.lt.i64.u"])
def test_dynamic_bound(count: int, compare: str) -> None:
    def body(text: Text, at: list[str]) -> None:
        value = text.op("tanh.f32", text.load("f32", 1, at[0]))
        text.store("f32", 0, at[0], value)

    check(program([Level(argument(0), compare=compare)], body), (count,))


@pytest.mark.parametrize("compare", ["cmp.lt.i64.s", "cmp.lt.i64.u"])
def test_no_iterations(compare: str) -> None:
    def body(text: Text, at: list[str]) -> None:
        text.store("f32", 0, at[0], text.load("f32", 1, at[0]))

    check(program([Level(argument(0), compare=compare)], body), (0,))
    check(program([Level(0, compare=compare)], body))


@pytest.mark.parametrize("sizes", [(0, 5, 7), (20, 0, 7), (20, 5, 0), (0, 0, 0)])
@pytest.mark.parametrize("factors", [(5, 1), (1, 1)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_product_without_elements(
    sizes: tuple[int, int, int], factors: tuple[int, int], dynamic: bool
) -> None:
    """A matrix of no rows or columns, also where elements of several iterations are one."""

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(7, (row, factors[0]), (column, factors[1]))
        left = text.load("f32", 1, text.index(0, (row, 7), (k, 1)))
        right = text.load("f32", 2, text.index(3, (k, 5), (column, 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    bounds: list[Bound] = [argument(number) if dynamic else size for number, size in enumerate(sizes)]
    check(program([Level(bound) for bound in bounds], body), sizes)


@pytest.mark.parametrize("count", [3, 16, 33])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, 8, 9, -1])
def test_strides_and_starts(count: int, stride: int) -> None:
    """Gathered loads, scattered stores, a loop that does not start at 0 and steps by 3."""

    def body(text: Text, at: list[str]) -> None:
        loaded = text.load("f32", 1, text.index(900, (at[0], stride)))
        text.store("f32", 0, text.index(2, (at[0], 4)), loaded)

    check(program([Level(3 * count, start=6, step=3)], body))


@pytest.mark.parametrize("element", ["i8.s", "i8.u", "i16.s", "i16.u", "i32", "i64", "f32", "f64"])
@pytest.mark.parametrize("count", [7, 40])
def test_element_types(element: str, count: int) -> None:
    kind = element.split(".")[0]

    def body(text: Text, at: list[str]) -> None:
        loaded = text.load(element, 1, at[0])
        wide = kind if kind in ("i32", "i64", "f32", "f64") else "i32"
        text.store(kind, 0, at[0], text.op(f"add.{wide}", loaded, loaded))

    check(program([Level(count)], body))


@pytest.mark.parametrize("rows,columns,depth", [(4, 16, 8), (9, 20, 5), (5, 70, 3), (1, 64, 4), (3, 2, 7)])
def test_matmul(rows: int, columns: int, depth: int) -> None:
    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(7, (row, columns), (column, 1))
        left = text.load("f32", 1, text.index(0, (row, depth), (k, 1)))
        right = text.load("f32", 2, text.index(3, (k, columns), (column, 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    check(program([Level(rows), Level(columns), Level(depth)], body))


@pytest.mark.parametrize("rows,columns,depth", [(4, 16, 32), (9, 20, 21), (2, 33, 16)])
def test_matmul_of_a_transposed_matrix(rows: int, columns: int, depth: int) -> None:
    """Squares of the right matrix are transposed in registers; what is left of them is gathered."""

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(7, (row, columns), (column, 1))
        left = text.load("f32", 1, text.index(0, (row, depth), (k, 1)))
        right = text.load("f32", 2, text.index(3, (column, depth), (k, 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    check(program([Level(rows), Level(columns), Level(depth)], body))


@pytest.mark.parametrize("depth", [1, 15, 16, 40])
def test_dynamic_matmul(depth: int) -> None:
    """Strides, rows and depth are arguments."""

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, 50), (column, 1))
        left = text.load("f32", 1, text.index(0, (row, argument(1)), (k, 1)))
        right = text.load("f32", 2, text.index(0, (column, argument(1)), (k, 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    levels = [Level(argument(0)), Level(argument(2)), Level(argument(1))]
    check(program(levels, body), (3, depth, 18))


@pytest.mark.parametrize("rows,columns", [(16, 16), (20, 40), (3, 50), (37, 18)])
def test_transpose(rows: int, columns: int) -> None:
    def body(text: Text, at: list[str]) -> None:
        loaded = text.load("f32", 1, text.index(0, (at[1], rows), (at[0], 1)))
        text.store("f32", 0, text.index(0, (at[0], columns), (at[1], 1)), loaded)

    check(program([Level(rows), Level(columns)], body))


@pytest.mark.parametrize("element", ["i8", "i16", "f64"])
def test_transpose_of_other_types(element: str) -> None:
    def body(text: Text, at: list[str]) -> None:
        load = element if element == "f64" else f"{element}.s"
        loaded = text.load(load, 1, text.index(0, (at[1], 20), (at[0], 1)))
        text.store(element, 0, text.index(0, (at[0], 35), (at[1], 1)), loaded)

    check(program([Level(20), Level(35)], body))


@pytest.mark.parametrize("rows,columns", [(16, 32), (18, 33), (1, 40), (50, 3)])
@pytest.mark.parametrize("function", ["none", "exp"])
def test_row_sum(rows: int, columns: int, function: str) -> None:
    def body(text: Text, at: list[str]) -> None:
        value = text.load("f32", 1, text.index(0, (at[0], columns), (at[1], 1)))
        value = value if function == "none" else text.op("exp.f32", value)
        text.store("f32", 0, at[0], text.op("add.f32", value, text.load("f32", 0, at[0])))

    check(program([Level(rows), Level(columns)], body))


@pytest.mark.parametrize("count", [9, 16, 50])
@pytest.mark.parametrize("function", ["none", "exp", "sin"])
def test_sum_to_one_element(count: int, function: str) -> None:
    """Functions are computed for several elements at once, and added one after the other."""

    def body(text: Text, at: list[str]) -> None:
        out = text.constant(3)
        value = text.load("f32", 1, text.index(0, (at[0], count), (at[1], 1)))
        value = value if function == "none" else text.op(f"{function}.f32", value)
        text.store("f32", 0, out, text.op("add.f32", text.load("f32", 0, out), value))

    check(program([Level(7), Level(count)], body))
    check(program([Level(7), Level(argument(0))], body), (count,))


def test_softmax_of_one_row() -> None:
    """A parallel loop of one iteration has no lanes to offer."""

    def body(text: Text, at: list[str]) -> None:
        value = text.load("f32", 1, text.index(0, (at[0], 40), (at[1], 1)))
        power = text.op("exp.f32", text.op("sub.f32", value, text.load("f32", 2, at[0])))
        text.store("f32", 0, at[0], text.op("add.f32", power, text.load("f32", 0, at[0])))

    check(program([Level(1), Level(40)], body))


def test_store_under_a_condition() -> None:
    def body(text: Text, at: list[str]) -> None:
        value = text.load("f32", 1, at[0])
        keep, end = text.label(), text.label()
        threshold = text.op("cast.si32.f32", text.op("trunc.i64.i32", argument(0)))
        text.lines.append(f"cond_br {text.op('cmp.lt.f32.o', threshold, value)}, {keep}, {end}")
        text.lines.append(f"{keep}:")
        text.store("f32", 0, at[0], text.op("neg.f32", value))
        text.lines.append(f"br {end}")
        text.lines.append(f"{end}:")

    check(program([Level(37)], body))


@pytest.mark.parametrize("element", ["i8", "i16"])
def test_narrow_sum_wraps_in_each_step(element: str) -> None:
    def body(text: Text, at: list[str]) -> None:
        value = text.load(f"{element}.u", 1, text.index(0, (at[0], 9), (at[1], 1)))
        total = text.op("fma.i32", value, value, text.load(f"{element}.s", 0, at[0]))
        text.store(element, 0, at[0], text.op("abs.i32", total))

    check(program([Level(20), Level(9)], body))


def test_convolution() -> None:
    """Six loops, three of them reductions."""

    def body(text: Text, at: list[str]) -> None:
        y, x, channel, ky, kx, k = at
        out = text.index(0, (y, 5 * 24), (x, 24), (channel, 1))
        source = text.index(0, (y, 7 * 3), (x, 3), (ky, 7 * 3), (kx, 3), (k, 1))
        weight = text.index(0, (ky, 3 * 3 * 24), (kx, 3 * 24), (k, 24), (channel, 1))
        product = text.op(
            "fma.f32", text.load("f32", 1, source), text.load("f32", 2, weight), text.load("f32", 0, out)
        )
        text.store("f32", 0, out, product)

    check(program([Level(2), Level(5), Level(24), Level(3), Level(3), Level(3)], body))


def test_variable_as_data() -> None:
    """A causal mask."""

    def body(text: Text, at: list[str]) -> None:
        index = text.index(0, (at[0], 20), (at[1], 1))
        ahead = text.op("cmp.lt.i64.s", at[0], at[1])
        number = text.op("cast.si32.f32", text.op("trunc.i64.i32", at[1]))
        text.store("f32", 0, index, text.op("select.f32", ahead, number, text.load("f32", 1, index)))

    check(program([Level(19, start=2), Level(20)], body))


@pytest.mark.parametrize("compare", ["cmp.lt.i64.s", "cmp.lt.i64.u"])
@pytest.mark.parametrize("count", [12, 40])
def test_padding(compare: str, count: int) -> None:
    """An element is loaded only inside the edge."""

    def body(text: Text, at: list[str]) -> None:
        position = text.op("add.i64", at[1], text.constant(0))
        inside = text.op(compare, position, text.constant(count - 3))

        def load() -> str:
            return text.load("f32", 1, text.index(ELEMENTS - 3 * (count - 3), (at[0], count - 3), (at[1], 1)))

        value = text.when(inside, load, text.constant(0.5, "f32"))
        text.store("f32", 0, text.index(0, (at[0], count), (at[1], 1)), value)

    check(program([Level(3), Level(count)], body))


@pytest.mark.parametrize("count", [5, 16, 21])
def test_several_stores(count: int) -> None:
    def body(text: Text, at: list[str]) -> None:
        value = text.load("f32", 3, at[0])
        text.store("f32", 0, at[0], text.op("neg.f32", value))
        text.store("f32", 1, at[0], text.op("mul.f32", value, value))

    check(program([Level(count)], body))


def test_two_accumulators() -> None:
    """The largest element of each row, and where it is."""

    def body(text: Text, at: list[str]) -> None:
        value = text.load("f32", 2, text.index(0, (at[0], 17), (at[1], 1)))
        best, place = text.load("f32", 0, at[0]), text.load("i32", 1, at[0])
        better = text.op("cmp.lt.f32.o", best, value)
        text.store("f32", 0, at[0], text.op("select.f32", better, value, best))
        number = text.op("trunc.i64.i32", at[1])
        text.store("i32", 1, at[0], text.op("select.i32", better, number, place))

    check(program([Level(19), Level(17)], body))


def test_stores_that_interleave() -> None:
    """Real and imaginary parts in one buffer: in order, one at a time."""

    def body(text: Text, at: list[str]) -> None:
        value = text.load("f32", 1, at[0])
        text.store("f32", 0, text.index(0, (at[0], 2)), value)
        text.store("f32", 0, text.index(1, (at[0], 2)), text.op("neg.f32", value))

    check(program([Level(37)], body))


def test_each_element_depends_on_the_one_before() -> None:
    def body(text: Text, at: list[str]) -> None:
        before = text.load("f32", 0, at[0])
        value = text.op("add.f32", before, text.load("f32", 1, at[0]))
        text.store("f32", 0, text.op("add.i64", at[0], text.constant(1)), value)

    check(program([Level(40)], body))


@pytest.mark.parametrize("inner", ["constant", "argument"])
def test_merged_loops(inner: str) -> None:
    """One loop over rows and columns, told apart by division."""

    def body(text: Text, at: list[str]) -> None:
        divisor = text.constant(20) if inner == "constant" else argument(0)
        row, column = text.op("div.i64.s", at[0], divisor), text.op("rem.i64.s", at[0], divisor)
        loaded = text.load("f32", 1, text.index(0, (row, 30), (column, 1)))
        text.store("f32", 0, text.index(0, (row, 25), (column, 1)), loaded)

    bound = 60 if inner == "constant" else (argument(0), argument(1))
    check(program([Level(bound)], body), (20, 3))


@pytest.mark.parametrize("columns", [5, 16, 40])
def test_merged_loops_around_a_reduction(columns: int) -> None:
    """Channels, rows and columns of a convolution are one loop; how many columns there are the workgroup
    says."""
    bounds: list[Bound] = [8, 6, argument(0)]

    def body(text: Text, at: list[str]) -> None:
        channel, row, column = digits(text, at[0], bounds)
        image = text.load("f32", 1, text.index(0, (at[1], 240), (row, 40), (column, 1)))
        weight = text.load("f32", 2, text.index(0, (channel, 3), (at[1], 1)))
        out = text.index(0, (channel, 384), (row, 64), (column, 1))
        text.store("f32", 0, out, text.op("fma.f32", image, weight, text.load("f32", 0, out)))

    check(program([Level(merged(bounds)), Level(3)], body), (columns,))


@pytest.mark.parametrize("mnemonic", ["sin.f32", "atan2.f32", "rem.f32", "log.f64"])
def test_library_functions(mnemonic: str) -> None:
    """The C function is called for each lane."""
    kind = mnemonic.split(".")[1]

    def body(text: Text, at: list[str]) -> None:
        left, right = text.load(kind, 1, at[0]), text.load(kind, 2, at[0])
        operands = (left, right) if mnemonic in ("atan2.f32", "rem.f32") else (left,)
        text.store(kind, 0, at[0], text.op(mnemonic, *operands))

    check(program([Level(21)], body))


@pytest.mark.parametrize("count", [12, 30, 8, 5])
@pytest.mark.parametrize("bound", ["constant", "argument"])
def test_elements_of_tiles(count: int, bound: str) -> None:
    """A layout of tiles of 8, the last one not full."""

    def body(text: Text, at: list[str]) -> None:
        zero, width = text.constant(0), text.constant(8)
        negative = text.op("cmp.lt.i64.s", at[1], zero)
        mirrored = text.op("sub.i64", text.constant(-1), at[1])
        positive = text.op("select.i64", negative, mirrored, at[1])
        quotient = text.op("div.i64.s", positive, width)
        tile = text.op("select.i64", negative, text.op("sub.i64", text.constant(-1), quotient), quotient)
        rest = text.op("rem.i64.s", at[1], width)
        loaded = text.load("f32", 1, text.index(0, (tile, 24), (at[0], 8), (rest, 1)))
        text.store("f32", 0, text.index(0, (at[0], 30), (at[1], 1)), loaded)

    check(program([Level(3), Level(count if bound == "constant" else argument(0))], body), (count,))


@pytest.mark.parametrize("registers,copies", [(6, 6), (16, 4)])
@pytest.mark.parametrize("rows", [2, 7, 16])
def test_tiles_of_processors(registers: int, copies: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and vectors that are no divisors of the extents, fewer than a tile has, and a rest of several."""
    monkeypatch.setattr(planner, "accumulators", lambda: registers)
    monkeypatch.setattr(planner, "copies", lambda: copies)

    def body(text: Text, at: list[str]) -> None:
        out = text.index(0, (at[0], 70), (at[1], 1))
        left = text.load("f32", 1, text.index(0, (at[0], 5), (at[2], 1)))
        right = text.load("f32", 2, text.index(0, (at[2], 70), (at[1], 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    function = program([Level(rows), Level(70), Level(5)], body)
    tile = only_nest(function).plan
    assert tile.copies == min(rows, copies)
    assert tile.vectors == min(registers // tile.copies, 4)
    check(function)


@pytest.mark.parametrize("stride", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("element", ["f32", "i8", "f64"])
@pytest.mark.parametrize("count", [1, 3, 13, 32, 41])
def test_strided_rows_end_with_the_last_lane(count: int, stride: int, element: str) -> None:
    """Memory ends with the last element that is needed, also where the lanes do not fill a vector."""

    def body(text: Text, at: list[str]) -> None:
        load = f"{element}.s" if element == "i8" else element
        text.store(element, 0, at[0], text.load(load, 1, text.index(0, (at[0], stride))))

    function = program([Level(count)], body)
    size = {"f32": 4, "i8": 1, "f64": 8}[element]
    check(function, ends={1: size * (stride * (count - 1) + 1)})


@pytest.mark.parametrize("count", [5, 16, 50])
def test_row_of_a_table(count: int) -> None:
    """Its number comes from memory."""

    def body(text: Text, at: list[str]) -> None:
        row = text.op("ext.i32.i64.s", text.load("i32", 2, argument(0)))
        loaded = text.load("f32", 1, text.index(0, (row, 30), (at[0], 1)))
        text.store("f32", 0, at[0], text.op("mul.f32", loaded, loaded))

    function = program([Level(count)], body)
    memory = some_memory(function)
    memory[2].view(np.int32)[:4] = [3, 7, 0, 9]
    check(function, (1,), memory)
