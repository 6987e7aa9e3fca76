"""Scratch memory that a kernel fills is not cleared first: by none of the parts of a workgroup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jitree.base.platform import processor
from jitree.codegen import image
from jitree.codegen.image import shipped
from jitree.codegen.image.build import level_target
from jitree.dispatch.native import lower_function
from jitree.dispatch.native.nests.cutting import Cut, best_cut
from jitree.dispatch.native.nests.passes import Nest
from jitree.dispatch.native.ssa import Value
from jitree.loaders.vmvx import context
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION, SPANS
from jitree.regs.memory import MemoryBlock
from tests.assembler import Assembler
from tests.emulation import examples
from tests.hal.native_kernels import aligned
from tests.loaders.vmvx import cut_programs
from tests.loaders.vmvx.cut_programs import KernelText, compiled, most_parts, run_parts, run_whole
from tests.loaders.vmvx.programs import load
from tests.loaders.vmvx.test_parts import same


def _rest_of_rows(columns: int, constant: str = "const.f32.zero") -> KernelText:
    """Sums of what 16 of 40 rows of an image hold; the last workgroup has 8. One loop is rows and columns, as
    compilers write windows of single channels. They begin with a constant."""
    text = KernelText(2)
    sums, zero = text.scratch(16 * columns), text.pair()
    text.lines.append(f"{zero} = {constant}")
    first = text.op("mul.i64", text.workgroup(), text.constant(16))
    rest = text.op("sub.i64", text.constant(40), first)
    rows = text.op("min.i64.s", rest, text.constant(16))
    text.loops(
        [rows, columns],
        lambda at: text.store("f32", sums, text.index(0, (at[0], columns), (at[1], 1)), zero),
    )

    def add(at: list[str]) -> None:
        row = text.op("div.i64.u", at[0], text.constant(columns))
        column = text.op("rem.i64.u", at[0], text.constant(columns))
        image = text.index(0, (text.op("add.i64", first, row), columns + 2), (column, 1), (at[1], 1))
        place = text.index(0, (row, columns), (column, 1))
        value = text.op("add.f32", text.load("f32", sums, place), text.load("f32", 3, image))
        text.store("f32", sums, place, value)

    text.loops([text.op("mul.i64", rows, text.constant(columns)), 3], add)

    def put(at: list[str]) -> None:
        place = text.index(0, (text.op("add.i64", first, at[0]), columns), (at[1], 1))
        text.store("f32", 4, place, text.load("f32", sums, text.index(0, (at[0], columns), (at[1], 1))))

    text.loops([rows, columns], put)
    return text


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[Cut]:
    """How kernels are cut from now on, one after the other."""
    found: list[Cut] = []

    def noted(nests: Sequence[Nest], scratch: set[Value]) -> Cut | None:
        cut = best_cut(nests, scratch)
        found.extend([cut] if cut is not None else [])
        return cut

    monkeypatch.setattr(lower_function, "best_cut", noted)
    return found


def test_parts_clear_no_scratch_memory_that_is_filled(cuts: list[Cut]) -> None:
    """Each part would clear all of it, which takes longer than a small part; here the rows of the last
    workgroup decide how much is filled."""
    image = np.random.default_rng(5).normal(0, 1, 40 * 22).astype(np.float32)
    assert same(_rest_of_rows(20), 3, (), [aligned(image), aligned(np.zeros(800, np.float32))]) > 1
    assert [len(cut.filled) for cut in cuts] == [1]


@pytest.mark.parametrize("constant", ["const.f32.zero", "const.f32 -0.0", "const.f32 1.5"])
@pytest.mark.parametrize("columns", [3, 20, 64])
def test_sums_begin_with_what_no_loop_stores(constant: str, columns: int, cuts: list[Cut]) -> None:
    """Sums of zeros have the sign that the first addition gives them."""
    image = np.random.default_rng(5).choice([0.0, -0.0, 1.0], 40 * (columns + 2))
    blocks = [aligned(image.astype(np.float32)), aligned(np.zeros(40 * columns, np.float32))]
    with patch.object(context, "MemoryBlock", _garbage):
        assert same(_rest_of_rows(columns, constant), 3, (), blocks) > 1
    assert [(start.storing, start.summing) for cut in cuts for start in cut.starts] == [(0, 1)]


def test_constants_that_sums_elsewhere_read_are_stored(cuts: list[Cut]) -> None:
    """Scratch memory with one number, by which a sum in the program's buffer multiplies."""
    text = KernelText(2)
    factors, factor = text.scratch(16 * 64), text.constant(1.5, "f32")

    def add(at: list[str]) -> None:
        place = text.index(0, (at[0], 64), (at[1], 1))
        element = text.load("f32", 3, text.index(0, (at[2], 64), (at[1], 1)))
        product = text.op("mul.f32", text.load("f32", factors, place), element)
        text.store("f32", 4, place, text.op("add.f32", text.load("f32", 4, place), product))

    text.loops([1024], lambda at: text.store("f32", factors, at[0], factor))
    text.loops([16, 64, 100], add)
    numbers = np.random.default_rng(5).normal(0, 1, 6400).astype(np.float32)
    with patch.object(context, "MemoryBlock", _garbage):
        assert same(text, 1, (), [aligned(numbers), aligned(np.zeros(1024, np.float32))]) > 1
    assert [(len(cut.filled), cut.starts) for cut in cuts] == [(1, ())]


ASSUMED: Final = ("a sign", "no product wraps", "a quotient")


def _filled_where_assumed(assumed: str, value: int) -> KernelText:
    text = KernelText(1)
    _fill_and_give(text, text.scratch(64), assumed, value)
    return text


def _fill_and_give(text: KernelText, scratch: int, assumed: str, value: int) -> None:
    """Scratch memory is filled whole if what the guard checks holds, and is given back then."""
    size, zero = text.push_constant(0), text.constant(0)

    def place(counter: str) -> str:
        if assumed == "a sign":
            return text.op("select.i64", text.op("cmp.lt.i64.s", size, zero), zero, counter)
        if assumed == "no product wraps":
            large = text.op("mul.i64", counter, text.constant(2**58))
            return text.op("select.i64", text.op("cmp.lt.i64.s", text.constant(-1), large), counter, zero)
        moved = text.op("mul.i64", text.op("add.i64", counter, size), text.constant(4))
        quarter = text.op("div.i64.s", text.op("add.i64", moved, text.constant(1)), text.constant(4))
        return text.op("sub.i64", quarter, size)

    count = size if assumed == "no product wraps" else 64
    stored = text.constant(value, "i32")
    text.loops([count], lambda at: text.store("i32", scratch, place(at[0]), stored))
    text.loops([count], lambda at: text.store("i32", 3, at[0], text.load("i32", scratch, at[0])))


def _stored_first() -> KernelText:
    """One element is stored in front of the loops, and remains if the guard fails."""
    text = KernelText(1)
    scratch, stored = text.scratch(64), text.constant(55, "i32")
    text.store("i32", scratch, text.constant(3), stored)
    _fill_and_give(text, scratch, "a sign", 7)
    return text


def _without_room() -> KernelText:
    """Of two buffers the second has no room in a worker's memory."""
    text = KernelText(1)
    scratch = text.scratch(64)
    text.scratch(5_000_000)
    _fill_and_give(text, scratch, "a sign", 7)
    return text


class _TwoKernels:
    """A module of two."""

    def __init__(self, *texts: KernelText) -> None:
        self._texts = texts

    def module(self) -> Assembler:
        made = Assembler("kernels")
        for name, text in zip("fg", self._texts, strict=True):
            made = made.function(name, ENTRY_CONVENTION, "\n".join([*text.lines, "return []"]))
        return made


@pytest.mark.parametrize(("assumed", "fails"), [*zip(ASSUMED, (-1, 64, -5), strict=True)])
def test_what_a_failed_guard_leaves_is_cleared(assumed: str, fails: int, cuts: list[Cut]) -> None:
    """Indices may have been concluded from what the guard checks: the interpreter would read what another
    kernel has left. Where it passes, nothing is cleared."""
    _same_after_another(_filled_where_assumed(assumed, 7), fails)
    assert [len(cut.filled) for cut in cuts] == [1, 1]


def test_what_is_stored_in_front_of_loops_stays() -> None:
    """That buffer is cleared when it is made, not when a guard has failed."""
    _same_after_another(_stored_first(), -1)


@pytest.mark.parametrize("size", [1, -1])
def test_what_was_allocated_is_cleared_where_the_next_buffer_has_no_room(size: int) -> None:
    _same_after_another(_without_room(), size)


def _same_after_another(text: KernelText, size: int) -> None:
    """Checks what a kernel gives in memory that another one has left."""
    kernels: Any = _TwoKernels(text, _filled_where_assumed("a sign", 1234))
    found = []
    for executable in (load(kernels.module(), "plain"), compiled(kernels)):
        out = aligned(np.zeros(64, np.int32))
        run_whole(executable, 1, [1], [out], 1)
        assert set(out.tolist()) == {1234}
        out = aligned(np.zeros(64, np.int32))
        run_whole(executable, 1, [size], [out], 0)
        found.append(out.tolist())
    assert found[0] == found[1]


class Tile(NamedTuple):
    """Sums of products in scratch memory; the last workgroups have few columns or none."""

    rows: int
    columns: int
    depth: int
    """Constants of the dispatch."""
    in_place: bool
    """What is there is added at the end."""
    is_known: bool = False
    """The depth is a constant of the kernel, so sums can begin with a constant that no loop stores."""
    stores_between: bool = False
    """An element has another number when sums begin."""
    is_twice: bool = False
    """Products are added once more."""

    def constants(self) -> tuple[int, ...]:
        return self.rows, self.columns, self.depth

    def text(self) -> KernelText:
        """Rows and columns are one loop where sums are made, as compilers write it."""
        text = KernelText(2)
        rows, columns, depth = map(text.push_constant, range(3))
        if self.is_known:
            depth = text.constant(max(self.depth, 1))
        sums, start = text.scratch(8 * 24), text.op("mul.i64", text.workgroup(), text.constant(24))
        own = text.op("min.i64.s", text.op("sub.i64", columns, start), text.constant(24))
        one = text.constant(1, "i32")

        def place(row: str, column: str) -> str:
            return text.index(0, (row, 24), (column, 1))

        def add(at: list[str]) -> None:
            row, column = text.op("div.i64.s", at[0], own), text.op("rem.i64.s", at[0], own)
            left, right = (text.load("i32", 3, place(*pair)) for pair in ((row, at[1]), (at[1], column)))
            total = text.load("i32", sums, place(row, column))
            text.store("i32", sums, place(row, column), text.op("fma.i32", left, right, total))

        def give(at: list[str]) -> None:
            out = text.index(start, (at[0], 96), (at[1], 1))
            value = text.load("i32", sums, place(at[0], at[1]))
            if self.in_place:
                value = text.op("add.i32", value, text.load("i32", 4, out))
            text.store("i32", 4, out, value)

        text.loops([rows, own], lambda at: text.store("i32", sums, place(*at), one))
        if self.stores_between:
            text.store("i32", sums, text.constant(3), text.constant(1000, "i32"))
        for _ in range(1 + self.is_twice):
            text.loops([text.op("mul.i64", rows, own), depth], add)
        text.loops([rows, own], give)
        return text


class Assumed(NamedTuple):
    """Loops that fill less on the interpreter where a guard fails."""

    assumed: str
    size: int

    def constants(self) -> tuple[int, ...]:
        return (self.size,)

    def text(self) -> KernelText:
        return _filled_where_assumed(self.assumed, 7)


def _garbage(size: int) -> MemoryBlock:
    """Memory of a worker as others may have left it."""
    block = MemoryBlock(size)
    block.array[:] = 0xA5
    return block


@contextmanager
def _processor(level: str) -> Iterator[None]:
    """Has kernels compiled for a kind of processors."""
    image.wait(SPANS)
    processor.assume(level, processor.described(*shipped.LEVELS[level]))
    try:
        with patch.object(cut_programs, "host_target", lambda: level_target(level)):
            yield
    finally:
        processor.assume("", b"")


def test_tiles_of_any_size_are_not_cleared(cuts: list[Cut]) -> None:
    """As compilers write convolutions and products: the number of rows in the last workgroup may be
    negative, as far as loops know."""
    compiled(Tile(8, 60, 5, False).text())
    assert [len(cut.filled) for cut in cuts] == [1]


@pytest.mark.parametrize("level", shipped.levels_here())
@given(
    st.one_of(
        st.builds(Tile, st.integers(-1, 8), st.integers(-2, 96), st.integers(-1, 8), *[st.booleans()] * 4),
        st.builds(Assumed, st.sampled_from(ASSUMED), st.integers(-9, 64)),
    ),
    st.integers(1, 4),
)
@settings(max_examples=examples(16), deadline=None, suppress_health_check=list(HealthCheck))
@example(Tile(8, 60, 5, True), 4)
@example(Tile(8, 60, 0, False), 3)
@example(Tile(8, -(2**31), 4, False), 1)
@example(Tile(8, 60, 5, True, True), 4)
@example(Tile(8, 60, 5, False, True, True), 4)
@example(Tile(8, 60, 5, False, True, False, True), 4)
@example(Assumed("a sign", -1), 1)
def test_garbage_is_never_seen(level: str, case: Tile | Assumed, workgroups: int) -> None:
    """Whatever the numbers from outside are, by no part."""
    numbers, constants = np.random.default_rng(1), case.constants()
    blocks = [aligned(numbers.integers(0, 99, 8 * 96).astype(np.int32)) for _ in range(2)]
    expected = [aligned(block) for block in blocks]
    run_whole(load(case.text().module(), "plain"), workgroups, constants, expected)
    with _processor(level), patch.object(context, "MemoryBlock", _garbage):
        executable = compiled(case.text())
    assert most_parts(executable) > 1
    for parts in (1, 2, 3, 8):
        found = [aligned(block) for block in blocks]
        with patch.object(context, "MemoryBlock", _garbage):
            run_parts(executable, workgroups, constants, found, parts, parts)
        assert [block.tolist() for block in found] == [block.tolist() for block in expected], parts
