"""Workgroups that are cut into parts: the same bytes as of the VM, whatever shapes and number of parts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitree.codegen.record import atomic_store
from jitree.errors import OutOfRangeError
from jitree.hal.command_layout import KernelEntry
from jitree.hal.command_list import CommandList
from jitree.hal.local.thread_team import Team
from jitree.hal.local.topology import unpinned
from jitree.loaders.vmvx.context import WorkerContext
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from tests.dispatch.native.nests.test_along_rows import further
from tests.emulation import examples
from tests.hal.native_kernels import aligned, whole
from tests.loaders.vmvx.cut_programs import KernelText, compiled, most_parts, run_parts, run_whole
from tests.loaders.vmvx.programs import load

LEFT, RIGHT, OUT = 3, 4, 5
PARTS = (1, 2, 3, 7)


@dataclass(frozen=True)
class Product:
    """out[g, i, j] = op(sum over k of left[g, i, k] * right[k, j]) for a tile of each workgroup g."""

    rows: int
    columns: int
    depth: int
    dynamic: tuple[bool, bool]
    """Whether rows and columns are constants of the dispatch."""
    scratch: bool
    """Sums are in memory of the workgroup; else in the result."""
    filled_at_once: bool
    """One loop clears the sums."""
    transposed: bool
    in_place: bool
    """What is there is added at the end."""

    def text(self) -> KernelText:
        text = KernelText(3)
        sizes = (self.rows, self.columns)
        rows, columns = (
            text.push_constant(number) if self.dynamic[number] else size for number, size in enumerate(sizes)
        )
        pitch = self.columns + 3
        sums = text.scratch(self.rows * pitch) if self.scratch else OUT
        zero = text.pair()
        text.lines.append(f"{zero} = const.f32.zero")
        group = text.workgroup()
        base = text.op("mul.i64", group, text.constant(self.rows * self.columns))
        start = 0 if self.scratch else base

        def place(i: str, j: str) -> str:
            return text.index(start, (i, pitch if self.scratch else self.columns), (j, 1))

        if self.filled_at_once and not any(self.dynamic):
            filled = self.rows * (pitch if self.scratch else self.columns)
            text.loops([filled], lambda at: text.store("f32", sums, text.index(start, (at[0], 1)), zero))
        else:
            text.loops([rows, columns], lambda at: text.store("f32", sums, place(*at), zero))

        def add(at: list[str]) -> None:
            i, j, k = at
            left = text.load("f32", LEFT, text.index(base, (i, self.depth), (k, 1)))
            right = text.load("f32", RIGHT, text.index(0, (k, self.columns), (j, 1)))
            text.store(
                "f32", sums, place(i, j), text.op("fma.f32", left, right, text.load("f32", sums, place(i, j)))
            )

        text.loops([rows, columns, self.depth], add)

        def finish(at: list[str]) -> None:
            i, j = at
            factors = (1, self.rows) if self.transposed else (self.columns, 1)
            out = text.index(base, (i, factors[0]), (j, factors[1]))
            value = text.load("f32", sums, place(i, j))
            if self.in_place:
                value = text.op("add.f32", value, text.load("f32", OUT, out))
            text.store("f32", OUT, out, text.op("max.f32", value, zero))

        if self.scratch:
            text.loops([rows, columns], finish)
        return text

    def blocks(self, count: int) -> list[np.ndarray]:
        random = np.random.default_rng(5)
        sizes = (
            count * self.rows * max(self.columns, self.depth), self.depth * self.columns,
            count * self.rows * self.columns,
        )  # fmt: skip
        return [aligned(random.normal(0, 1, size).astype(np.float32)) for size in sizes]


def same(text: KernelText, count: int, constants: Sequence[int], blocks: Sequence[np.ndarray]) -> int:
    """Checks that parts leave the bytes that the VM leaves; how many parts there can be."""
    expected = [aligned(block) for block in blocks]
    run_whole(load(text.module(), "fast"), count, constants, expected)
    executable = compiled(text)
    most = most_parts(executable)
    for parts in (*PARTS, most + 1) if most > 1 else (1,):
        found = [aligned(block) for block in blocks]
        run_parts(executable, count, constants, found, parts, parts)
        assert [block.tobytes() for block in found] == [block.tobytes() for block in expected], parts
    return most


SIZES = st.one_of(st.integers(1, 6), st.sampled_from([15, 16, 17, 33, 48, 70]))


@given(
    st.builds(
        Product, SIZES, SIZES, st.sampled_from([1, 3, 17]), st.tuples(st.booleans(), st.booleans()),
        st.booleans(), st.booleans(), st.booleans(), st.booleans(),
    ),
    st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
def test_products(case: Product, count: int) -> None:
    same(case.text(), count, (case.rows, case.columns), case.blocks(count))


@pytest.mark.parametrize("dynamic", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("scratch", [False, True])
@pytest.mark.parametrize("filled_at_once", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_cut(
    dynamic: tuple[bool, bool], scratch: bool, filled_at_once: bool, transposed: bool
) -> None:
    case = Product(48, 33, 17, dynamic, scratch, filled_at_once, transposed, scratch)
    assert same(case.text(), 2, (48, 33), case.blocks(2)) > 1


def test_fewer_rows_than_the_kernel_has_room_for() -> None:
    case = Product(48, 33, 17, (True, True), True, False, False, False)
    for rows, columns in ((0, 33), (48, 0), (1, 1), (47, 33), (5, 32)):
        same(case.text(), 1, (rows, columns), case.blocks(1))


def test_rows_that_run_into_each_other_stay_whole() -> None:
    """More columns than the rows of the scratch memory have."""
    case = Product(16, 20, 3, (True, True), True, False, False, False)
    left, right, out = case.blocks(2)
    right = aligned(np.arange(90, dtype=np.float32))
    assert same(case.text(), 1, (5, 30), [left, right, out]) > 1


@pytest.mark.parametrize(("features", "rows"), [(6, 9), (40, 2), (5, 5)])
def test_lanes_that_run_over_rows(features: int, rows: int) -> None:
    """A convolution whose vectors are in two rows, in parts of rows or of features."""
    columns, channels = 20, 8
    text = KernelText(3)
    zero = text.pair()
    text.lines.append(f"{zero} = const.f32.zero")

    def place(at: Sequence[str]) -> str:
        return text.index(0, (at[0], rows * columns), (at[1], columns), (at[2], 1))

    def add(at: list[str]) -> None:
        feature, row, column, channel, high, wide = at
        pitch = columns + 2
        image = ((channel, (rows + 2) * pitch), (row, pitch), (high, pitch), (column, 1), (wide, 1))
        filters = text.index(0, (feature, 9 * channels), (channel, 9), (high, 3), (wide, 1))
        left, right = text.load("f32", LEFT, filters), text.load("f32", RIGHT, text.index(0, *image))
        text.store("f32", OUT, place(at), text.op("fma.f32", left, right, text.load("f32", OUT, place(at))))

    text.loops([features, rows, columns], lambda at: text.store("f32", OUT, place(at), zero))
    text.loops([features, rows, columns, channels, 3, 3], add)
    random = np.random.default_rng(3)
    sizes = features * channels * 9, channels * (rows + 2) * (columns + 2), features * rows * columns
    blocks = [aligned(random.normal(0, 1, size).astype(np.float32)) for size in sizes]
    assert same(text, 1, (), blocks) > 1


def _tile(rows: int, columns: int, clears: bool) -> KernelText:
    """An image of three channels plus what scratch memory holds: one if it ``clears`` that, else zero. It has
    room for so many rows and columns; the dispatch says how many there are."""
    text = KernelText(2)
    tile = text.scratch(3 * rows * columns + 500)
    counts: list[int | str] = [3, text.push_constant(0), text.push_constant(1)]
    value = text.pair()
    text.lines.append(f"{value} = const.f32 1.0")

    def place(at: list[str]) -> str:
        return text.index(0, (at[0], rows * columns), (at[1], columns), (at[2], 1))

    if clears:
        text.loops(counts, lambda at: text.store("f32", tile, place(at), value))

    def add(at: list[str]) -> None:
        sum_ = text.op("add.f32", text.load("f32", tile, place(at)), text.load("f32", 3, place(at)))
        text.store("f32", tile, place(at), sum_)

    text.loops(counts, add)
    text.loops(counts, lambda at: text.store("f32", 4, place(at), text.load("f32", tile, place(at))))
    return text


@pytest.mark.parametrize("clears", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (9, 16), (16, 9), (1, 1), (20, 16), (16, 20)])
def test_tiles_with_room_left(rows: int, columns: int, clears: bool) -> None:
    """Scratch memory that is not cleared is zero; of too many rows or columns, one writes over another."""
    blocks = [aligned(np.arange(1000, dtype=np.float32)), aligned(np.zeros(1000, np.float32))]
    assert same(_tile(16, 16, clears), 1, (rows, columns), blocks) > 4


@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_bfloat16_numbers(transposed: bool) -> None:
    """Each part looks at its own numbers: some rows are so small that their part runs without the instruction
    for pairs."""
    rows, columns, depth = 44, 50, 24
    text = KernelText(3)

    def number(buffer: int, index: str) -> str:
        bits = text.op("ext.i16.i32.u", text.load("i16.u", buffer, index))
        return text.op("bitcast.i32.f32", text.op("shl.i32", bits, text.constant(16, "i32")))

    def add(at: list[str]) -> None:
        i, j, k = at
        right = ((j, depth), (k, 1)) if transposed else ((k, columns), (j, 1))
        factors = number(LEFT, text.index(0, (i, depth), (k, 1))), number(RIGHT, text.index(0, *right))
        out = text.index(0, (i, columns), (j, 1))
        text.store("f32", OUT, out, text.op("fma.f32", *factors, text.load("f32", OUT, out)))

    text.loops([rows, columns, depth], add)
    random = np.random.default_rng(8)
    left, right = (random.normal(0, 1, (size, depth)).astype(np.float32) for size in (rows, columns))
    left[17:20] *= np.float32(2.0**-100)
    blocks = [aligned((block.view(np.uint32) >> 16).astype(np.uint16).ravel()) for block in (left, right)]
    assert same(text, 1, (), [*blocks, aligned(np.zeros(rows * columns, np.float32))]) > 4


def test_scratch_memory_is_zero_after_other_kernels() -> None:
    """What a kernel leaves unread of a buffer that it fills is not what the next one finds."""
    first, second = _tile(16, 16, True), _tile(16, 16, False)
    blocks = [aligned(np.arange(1000, dtype=np.float32)) for _ in range(2)]
    module = first.module()
    module.function("g", ENTRY_CONVENTION, "\n".join([*second.lines, "return []"]))
    executable = load(module, "native")
    for ordinal in (0, 1, 0, 1):
        run_whole(executable, 1, (16, 16), blocks, ordinal)
        assert np.array_equal(blocks[1][:768], blocks[0][:768] + (1 - ordinal))


def _normalised(rows: int, columns: int) -> KernelText:
    """Each row over its sum: scratch memory of one dimension, filled at the beginning of the kernel."""
    text = KernelText(2)
    sums = text.scratch(rows)
    zero = text.pair()
    text.lines.append(f"{zero} = const.f32.zero")
    text.loops([rows], lambda at: text.store("f32", sums, text.index(0, (at[0], 1)), zero))

    def add(at: list[str]) -> None:
        place = text.index(0, (at[0], 1))
        value = text.load("f32", 3, text.index(0, (at[0], columns), (at[1], 1)))
        text.store("f32", sums, place, text.op("add.f32", text.load("f32", sums, place), value))

    def divide(at: list[str]) -> None:
        place = text.index(0, (at[0], columns), (at[1], 1))
        total = text.load("f32", sums, text.index(0, (at[0], 1)))
        text.store("f32", 4, place, text.op("div.f32", text.load("f32", 3, place), total))

    text.loops([rows, columns], add)
    text.loops([rows, columns], divide)
    return text


@pytest.mark.parametrize("apart", [True, False])
def test_normalised_rows(apart: bool) -> None:
    """Where the result replaces the rows, a part would divide by sums of what others have divided."""
    block = aligned(np.random.default_rng(3).normal(4, 1, 80 * 21).astype(np.float32))
    blocks = [block, aligned(np.zeros(80 * 21, np.float32))]
    text = _normalised(80, 21)
    if apart:
        assert same(text, 1, (), blocks) > 1
        return
    expected = aligned(block)
    run_whole(load(text.module(), "fast"), 1, (), [expected, expected])
    for parts in PARTS:
        found = aligned(block)
        run_parts(compiled(text), 1, (), [found, found], parts)
        assert found.tobytes() == expected.tobytes(), parts


def _softmax(rows: int, columns: int) -> KernelText:
    """As the compiler writes it, without the division."""
    text = KernelText(2)
    greatest, sums = text.scratch(rows), text.scratch(rows)
    zero, none = text.pair(), text.pair()
    text.lines += [f"{zero} = const.f32.zero", f"{none} = const.f32 nan"]

    def of_row(at: list[str]) -> str:
        return text.load("f32", 3, text.index(0, (at[0], columns), (at[1], 1)))

    def find(at: list[str]) -> None:
        found = further(text, text.load("f32", greatest, at[0]), of_row(at), True)
        text.store("f32", greatest, at[0], found)

    def power(at: list[str]) -> str:
        return text.op("exp.f32", text.op("sub.f32", of_row(at), text.load("f32", greatest, at[0])))

    def add(at: list[str]) -> None:
        text.store("f32", sums, at[0], text.op("add.f32", power(at), text.load("f32", sums, at[0])))

    def finish(at: list[str]) -> None:
        value = text.op("div.f32", power(at), text.load("f32", sums, at[0]))
        text.store("f32", 4, text.index(0, (at[0], columns), (at[1], 1)), value)

    text.loops([rows], lambda at: text.store("f32", greatest, at[0], none))
    text.loops([rows, columns], find)
    text.loops([rows], lambda at: text.store("f32", sums, at[0], zero))
    text.loops([rows, columns], add)
    text.loops([rows, columns], finish)
    return text


@pytest.mark.parametrize(("rows", "columns", "parts"), [(20, 1000, 10), (11, 500, 6), (32, 300, 2)])
def test_rows_of_a_softmax(rows: int, columns: int, parts: int) -> None:
    """Two rows are a part, or as many as there are lanes."""
    block = np.random.default_rng(3).normal(0, 4, (rows, columns)).astype(np.float32)
    block[1] = np.random.default_rng(4).choice(np.array([0, -0.0], np.float32), columns)
    block[2, 5:] = np.nan
    blocks = [aligned(block.ravel()), aligned(np.zeros(rows * columns, np.float32))]
    assert same(_softmax(rows, columns), 1, (), blocks) == parts


@pytest.mark.parametrize("is_greatest", [True, False])
def test_the_first_of_what_equals_zero_stays(is_greatest: bool) -> None:
    """Kernels take denormals for zeros where they compare, and leave them what they are."""
    rows, columns = 40, 130
    text = KernelText(2)
    none = text.pair()
    text.lines.append(f"{none} = const.f32 nan")
    text.loops([rows], lambda at: text.store("f32", 4, at[0], none))

    def find(at: list[str]) -> None:
        value = text.load("f32", 3, text.index(0, (at[0], columns), (at[1], 1)))
        text.store("f32", 4, at[0], further(text, text.load("f32", 4, at[0]), value, is_greatest))

    text.loops([rows, columns], find)
    kinds = np.array([0, -0.0, 1e-40, -1e-40, *[-1.0 if is_greatest else 1.0] * 30], np.float32)
    block = np.random.default_rng(6).choice(kinds, rows * columns)
    expected, found = ([aligned(block), aligned(np.ones(rows, np.float32))] for _ in range(2))
    run_whole(load(text.module(), "fast"), 1, (), expected)
    run_whole(compiled(text), 1, (), found)
    assert found[1].tobytes() == expected[1].tobytes()


def _neighbours(step: int) -> KernelText:
    """Scratch memory that another row reads."""
    text = KernelText(2)
    copy = text.scratch(40 * 32)

    def fill(at: list[str]) -> None:
        place = text.index(0, (at[0], 32), (at[1], 1))
        text.store("f32", copy, place, text.load("f32", 3, place))

    def add(at: list[str]) -> None:
        place = text.index(0, (at[0], 32), (at[1], 1))
        other = text.index(32 * step, (at[0], 32), (at[1], 1))
        both = text.op("add.f32", text.load("f32", copy, place), text.load("f32", copy, other))
        text.store("f32", 4, place, both)

    text.loops([40, 32], fill)
    text.loops([39, 32], add)
    return text


@pytest.mark.parametrize("step", [0, 1])
def test_what_other_rows_read_is_there(step: int) -> None:
    blocks = [aligned(np.arange(40 * 32, dtype=np.float32)), aligned(np.zeros(40 * 32, np.float32))]
    same(_neighbours(step), 1, (), blocks)


def test_a_guard_that_fails_leaves_the_workgroup_to_its_first_part(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = []
    finish = WorkerContext.finish

    def counted(context: WorkerContext, *arguments: object) -> None:
        finished.append(context.reached)
        finish(context, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(WorkerContext, "finish", counted)
    case = Product(48, 33, 17, (False, False), True, False, False, False)
    executable, expected = compiled(case.text()), case.blocks(2)
    assert most_parts(executable) > 4
    found = [expected[0], expected[1], aligned(expected[2])[: 48 * 33 + 5]]
    with pytest.raises(OutOfRangeError, match="in workgroup \\(1, 0, 0\\)"):
        run_parts(executable, 2, (48, 33), found, 5)
    assert finished == [5]
    run_whole(load(case.text().module(), "fast"), 1, (48, 33), expected)
    assert found[2][: 48 * 33].tobytes() == expected[2][: 48 * 33].tobytes() or not found[2].any()


def test_a_part_without_scratch_memory_does_nothing() -> None:
    """The first one does everything on the VM."""
    text = KernelText(2)
    text.scratch(5_000_000)
    text.loops([40, 32], lambda at: text.store("f32", 4, (place := text.index(0, (at[0], 32), (at[1], 1))),
                                               text.load("f32", 3, place)))  # fmt: skip
    block = aligned(np.arange(40 * 32, dtype=np.float32))
    found = aligned(np.zeros(40 * 32, np.float32))
    executable = compiled(text)
    assert most_parts(executable) > 4
    for _ in range(3):
        found[:] = 0
        run_parts(executable, 1, (), [block, found], 7)
        assert found.tobytes() == block.tobytes()


def _long(depth: int) -> KernelText:
    """The elements of a tile as sums of so many equal numbers."""
    text = KernelText(2)
    sums = text.scratch(64 * 64)

    def place(at: list[str]) -> str:
        return text.index(0, (at[0], 64), (at[1], 1))

    def add(at: list[str]) -> None:
        value = text.op("add.f32", text.load("f32", sums, place(at)), text.load("f32", 3, place(at)))
        text.store("f32", sums, place(at), value)

    text.loops([64, 64, depth], add)
    text.loops([64, 64], lambda at: text.store("f32", 4, place(at), text.load("f32", sums, place(at))))
    return text


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_end_with_their_job(parts: int) -> None:
    """The first one and others, or the whole workgroup, which leave nothing in the worker context."""
    executable = compiled(_long(1 << 26))
    assert most_parts(executable) > 4
    blocks = [aligned(np.ones(64 * 64, np.float32)), aligned(np.zeros(64 * 64, np.float32))]
    (context,) = executable._compiled._contexts.values()  # type: ignore[union-attr]
    objects = context._table.live_count
    for seed in range(3):
        begun = time.thread_time()
        assert not run_parts(executable, 1, (), blocks, parts, seed, failure=1)
        assert time.thread_time() - begun < 2, "a part takes longer"
        assert context.is_idle and context._table.live_count == objects
    assert not blocks[1].any()


def test_a_team_leaves_what_one_thread_leaves() -> None:
    case = Product(48, 33, 17, (False, False), True, False, False, False)
    executable, blocks = compiled(case.text()), case.blocks(1)
    expected = [aligned(block) for block in blocks]
    run_whole(executable, 1, (48, 33), expected)
    commands = CommandList()
    commands.dispatch(executable, 0, (1, 1, 1), [48, 33], [whole(block) for block in blocks])
    team = Team("test", unpinned(3), 20)
    try:
        for _ in range(50):
            blocks[2][:] = 0
            atomic_store(KernelEntry(executable.entry_point(0)).cost, 1 << 40)
            team.execute(commands, *commands.bind(()))
            assert blocks[2].tobytes() == expected[2].tobytes()
    finally:
        team.close()
