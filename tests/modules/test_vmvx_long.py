"""Products of matrices that take long end with deadlines, and in parts give what they give at once."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.base import cancel_scopes
from jitree.codegen import image
from jitree.errors import CancelledError, DeadlineExceededError, ResourceExhaustedError, StatusError
from jitree.modules.vmvx import elementwise, kernels, long_products, tiled
from jitree.modules.vmvx.kernels import NAMES, in_python
from jitree.modules.vmvx.operands import call
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import ENTRY
from jitree.regs.memory import Bytes, zeroed
from tests.assembler import Assembler

CCONV = "0rIIrIIrIIIIIiiii_v"
SHAPES = [(3, 4, 5, 8, 8, 1, 1), (2, 3, 7, 8, 8, 2, 2), (3, 2, 4, 5, 3, 2, 1), (1, 1, 40, 2, 2, 1, 0x102)]
"""m, n, k, those of a tile, flags."""


def operands(m: int, n: int, k: int, tile_m: int, tile_n: int, tile_k: int, flags: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(m + n + k)
    is_float = flags & 0xFF == 1
    kind: Any = np.float32 if is_float else np.int8
    left, right = m * k * tile_m * tile_k, n * k * tile_n * tile_k
    sides = [(100 * rng.standard_normal(size + 3)).astype(kind) for size in (left, right)]
    out = np.arange(m * n * tile_m * tile_n + 3).astype(np.float32 if is_float else np.int32)
    lhs, rhs, result = (VmBuffer.alias(bytearray(side.tobytes())) for side in (*sides, out))
    strides = k * tile_m * tile_k, k * tile_n * tile_k, n * tile_m * tile_n
    places = lhs, 3, strides[0], rhs, 1, strides[1], result, 2, strides[2]
    return *places, m, n, k, tile_m, tile_n, tile_k, flags


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("most", [128, 300, 1 << 20])
def test_parts_give_the_same_bits(shape: tuple[int, ...], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    image.wait(kernels.RECIPE)
    kernel = in_python()["mmt4d", CCONV]
    for limit in ("MOST_COMPILED", "MOST_IN_PYTHON"):
        whole, parted = operands(*shape), operands(*shape)
        if limit == "MOST_COMPILED":
            long_products._by_machine_code(kernels.address("mmt4d", CCONV)(), CCONV)(whole)  # type: ignore[misc]
            monkeypatch.setattr(long_products, "MOST_COMPILED", most)
        else:
            assert kernel(*whole) == 0
            monkeypatch.setattr(long_products, "MOST_COMPILED", 1 << 60)
            monkeypatch.setattr(long_products, "MOST_IN_PYTHON", most)
        if limit == "MOST_COMPILED" and np.prod(shape[:6]) <= most:
            continue
        long_products.compute("mmt4d", kernel, CCONV, parted)
        assert bytes(parted[6]) == bytes(whole[6])


@pytest.mark.parametrize("shape", [(30, 40, 0, 8, 8, 1), (30, 40, 3, 8, 8, 0), (30, 40, 0, 3, 5, 2)])
@pytest.mark.parametrize("flags", [1, 2, 0x101])
@pytest.mark.parametrize("compiled", [True, False])
def test_products_of_nothing_are_zeros_in_parts(
    shape: tuple[int, int, int, int, int, int], flags: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took as long as the memory that they cleared, at once."""
    looks = list[None]()
    monkeypatch.setattr(long_products, "require_going_on", lambda: looks.append(None))
    most = "MOST_COMPILED" if compiled else "MOST_IN_PYTHON"
    monkeypatch.setattr(long_products, most, 1 << 12)
    if not compiled:
        monkeypatch.setattr(kernels, "address", lambda name, cconv: None)
    image.wait(kernels.RECIPE)
    given = operands(*shape, flags)
    before = bytes(given[6])
    kernel = in_python()["mmt4d", CCONV]
    assert not call("mmt4d", kernel, CCONV, given), "it is long"
    long_products.compute("mmt4d", kernel, CCONV, given)
    zeros = before if flags & 0x100 else bytes(8) + bytes(len(before) - 12) + before[-4:]
    assert bytes(given[6])[8:] == zeros[8:] and len(looks) << 12 >= (len(before) - 12) // 4


@pytest.mark.parametrize("shape", [(30, 40, 0, 8, 8, 1 << 13), (30, 40, 1 << 31, 8, 8, 0)])
@pytest.mark.parametrize("compiled", [True, False])
def test_products_of_nothing_do_not_depend_on_its_size(
    shape: tuple[int, ...], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were refused, or cut into parts of nothing that took hours."""
    monkeypatch.setattr(long_products, "MOST_COMPILED" if compiled else "MOST_IN_PYTHON", 1 << 12)
    if not compiled:
        monkeypatch.setattr(kernels, "address", lambda name, cconv: None)
    image.wait(kernels.RECIPE)
    m, n, k, tile_m, tile_n, tile_k = shape
    given = (*operands(m, n, 0, tile_m, tile_n, tile_k, 1)[:11], k, tile_m, tile_n, tile_k, 1)
    before, kernel = bytes(given[6]), in_python()["mmt4d", CCONV]
    assert sum(1 for _ in islice(long_products.parts(given, 1 << 12), m * n + 1)) <= m * n
    long_products.compute("mmt4d", kernel, CCONV, given)
    assert bytes(given[6]) == before[:8] + bytes(len(before) - 12) + before[-4:]


def test_machine_code_gets_whole_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight bytes for each were written beyond."""
    sizes: list[int] = []

    def noted(size: int) -> Bytes:
        sizes.append(size)
        return zeroed(size)

    image.wait(kernels.RECIPE)
    monkeypatch.setattr(long_products, "zeroed", noted)
    long_products._by_machine_code(kernels.address("mmt4d", CCONV)(), CCONV)(operands(*SHAPES[0]))  # type: ignore[misc]
    assert sizes == 3 * [ENTRY.size]


def test_it_ends_between_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def why_to_end() -> StatusError | None:
        nonlocal looks
        looks += 1
        return CancelledError("as a deadline does") if looks == 3 else None

    monkeypatch.setattr(cancel_scopes, "why_to_end", why_to_end)
    with pytest.raises(CancelledError):
        list(long_products.parts(operands(*SHAPES[0]), 64))
    with pytest.raises(ResourceExhaustedError, match="8 x 8 x 1"):
        list(long_products.parts(operands(*SHAPES[0]), 63))


@pytest.mark.parametrize("tier", ["plain", "fast", "native"])
def test_rows_that_all_are_the_same_end_in_time(tier: str) -> None:
    """Strides of 0 let a product of a few megabytes take minutes."""
    numbers = [0, 0, 0, 0, 0, 1024, 1024, 1024, 1 << 20, 1, 1, 1, 1]
    lines, registers, given = ["%i0 = const.i64 4194304", "%i2 = const.i32 16"], list[str](), iter(numbers)
    for index, kind in enumerate(CCONV[1:-2]):
        register = 4 + 2 * index
        if kind == "r":
            lines.append(f"%r{index} = buffer.alloc %i0, %i2")
        else:
            lines.append(f"%i{register} = const.{'i64' if kind == 'I' else 'i32'} {next(given)}")
        place = f"%r{index}" if kind == "r" else f"%i{register}" + f":{register + 1}" * (kind == "I")
        registers.append(place)
    body = "\n".join([*lines, f"call @vmvx.mmt4d [{', '.join(registers)}]", "return"])
    module = Assembler("m").import_function("vmvx.mmt4d", CCONV).function("f", "0v_v", body)
    with jitree.Session("local-sync", sandbox=True, tier=tier, limits=jitree.Limits(time=0.2)) as session:
        function = session.load(module.build()).f
        for _ in range(2):
            with pytest.raises(DeadlineExceededError, match="the limit on time"):
                function()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", ["add.2d.f32", "exp.2d.f32", "copy.2d.x8", "fill.2d.x32", "divs.2d.i32"])
@pytest.mark.parametrize("sizes", [(7, 90), (700, 1), (1, 650)])
def test_pieces_of_elements_give_the_same_bits(
    name: str, sizes: tuple[int, int], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    image.wait(kernels.RECIPE)
    if not compiled:
        monkeypatch.setattr(kernels, "address", lambda name, cconv: None)
    cconv = next(cconv for known, cconv in NAMES if known == name)
    stride = sizes[1] + 2
    length = 4 * (sizes[0] * stride + 5)
    rng = np.random.default_rng(3)
    inputs = [rng.integers(1, 120, length, np.uint8).tobytes() for _ in range(3)]
    found = []
    for most in (1 << 20, 64):
        buffers = iter([VmBuffer.alias(bytearray(data)) for data in inputs])
        kernel = in_python()[name, cconv]
        given: list[Any] = [17] if name.startswith("fill") else []
        for _ in range(cconv.partition("_")[0].count("r")):
            given += [last := next(buffers), 3, stride, *([] if name.startswith("fill") else [1])]
        for module in (elementwise, long_products):
            monkeypatch.setattr(module, "MOST_ELEMENTS", most)
        pieces = list(long_products.pieces((*given, *sizes)))
        assert (len(pieces) > 3) is (most == 64)
        monkeypatch.setitem(kernel.__globals__, "MOST_ELEMENTS", most)
        if not call("f", kernel, cconv, (*given, *sizes)):
            long_products.compute(name, kernel, cconv, (*given, *sizes))
        found.append(bytes(last))
    assert found[0] == found[1] != inputs[len(inputs) - 1]


TILED = kernels.TILED[:-1]


def tiles(name: str, cconv: str, shape: tuple[int, int, int, int], flags: int) -> tuple[Any, ...]:
    """Arguments of a matrix (rows, columns) and tiles (rows, columns) with a row and a column of tiles to
    spare."""
    size0, size1, tile0, tile1 = shape
    inner, outer = bool(flags & 0x100), bool(flags & 0x200)
    lines = (size1, size0) if inner else (size0, size1)
    counts = [-(-size // tile) + 1 for size, tile in zip(lines, (tile0, tile1), strict=True)]
    if inner != outer:
        counts.reverse()
    rng = np.random.default_rng(5)
    tile = tile0 * tile1
    plain, packed = (size1 + 3) * size0 + 2, (counts[1] * tile + 5) * counts[0] + 1
    made = [
        VmBuffer.alias(bytearray(rng.integers(0, 255, 4 * n, np.uint8).tobytes())) for n in (plain, packed)
    ]
    places = [[made[0], 2, size1 + 3, 1], [made[1], 1, counts[1] * tile + 5, tile]]
    if cconv.startswith("0rIIr"):
        places = [place[:3] for place in places]
    sizes = [[size0, size1], [*counts, tile0, tile1]]
    if name == "unpack":
        places, sizes = places[::-1], sizes[::-1]
    padding = [7] if name == "pack" else []
    return (*places[0], *places[1], *sizes[0], *sizes[1], *padding, flags)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "shape", [(21, 30, 4, 8), (100, 3, 8, 1), (9, 17, 16, 16), (5, 170, 3, 100), (1, 200, 1, 1)]
)
@pytest.mark.parametrize(("name", "cconv"), TILED)
def test_pieces_of_tiles_give_the_same_bits(
    name: str, cconv: str, shape: tuple[int, int, int, int], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    image.wait(kernels.RECIPE)
    if not compiled:
        monkeypatch.setattr(kernels, "address", lambda name, cconv: None)
    kernel = in_python()[name, cconv]
    for flags in (0x1, 0x103, 0x203, 0x303, 0x2 if name == "pack" else 0x3):
        found = []
        for most in (1 << 20, 64):
            given = tiles(name, cconv, shape, flags)
            before = [bytes(item) for item in given if isinstance(item, VmBuffer)]
            for names in (vars(tiled), vars(long_products), kernel.__globals__):
                monkeypatch.setitem(names, "MOST_ELEMENTS", most)
            assert call("f", kernel, cconv, given) is (most > 64)
            if most == 64:
                for piece in long_products.tile_pieces(name, given):
                    assert np.prod(piece[10:14] if name == "pack" else piece[12:14]) <= 64
                long_products.compute(name, kernel, cconv, given)
            found.append([bytes(item) for item in given if isinstance(item, VmBuffer)])
        assert found[0] == found[1] != before


def test_tiles_without_elements_take_no_time() -> None:
    """Billions of lines of no columns took seconds."""
    cconv = "0rIIIrIIIIIIIIIi_v"
    empty = VmBuffer.alias(bytearray(8))
    lines = (1 << 32) - 1
    assert call(
        "f",
        in_python()["unpack", cconv],
        cconv,
        (empty, 0, 0, 0, empty, 0, 0, 0, lines, 1, 1, 1, lines, 0, 1),
    )


def test_strides_of_a_matrix_do_not_count_in_padding() -> None:
    """Of one row they may be any number: places of far tiles did not fit 64 bits."""
    rows, height = 1 << 20, 1 << 12
    given = (None, 0, 2**32 - 1, 1, None, 0, height, height, 1, 1, rows, 1, height, 1, 0, tiled.I8)
    pieces = [*long_products.tile_pieces("pack", given)]
    assert {piece[1] for piece in pieces} == {0}
    assert pieces[-1][5] == rows * height - pieces[-1][10] * pieces[-1][12]
