"""Module ``vmvx``: every function against its definition written out, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.errors import InvalidArgumentError, OutOfRangeError, PermissionDeniedError
from jitree.modules.vmvx import VmvxModule
from jitree.regs.buffer import VmBuffer

MODULE = VmvxModule()
F32_EDGES = [0.0, -0.0, 1.0, -1.5, 2.5, -2.5, 1e-40, 3.4e38, math.inf, -math.inf, math.nan, 88.0, -104.0, 0.1]
I32_EDGES = [0, 1, -1, 2, 31, 32, 255, -128, 2**31 - 1, -(2**31), 0x12345678, -7]


def call(name: str, *arguments: Any, cconv: str | None = None) -> Any:
    exports = MODULE.find(name)
    export = exports[cconv] if cconv else next(iter(exports.values()))
    return export.function(None, *arguments)


def buffer(values: Any, dtype: Any) -> VmBuffer:
    return VmBuffer.alias(bytearray(np.asarray(values, dtype).tobytes()))


def read_only(values: Any, dtype: Any) -> VmBuffer:
    return VmBuffer.alias(np.asarray(values, dtype).tobytes())


def contents(source: VmBuffer, dtype: Any) -> np.ndarray:
    return np.frombuffer(bytes(source), dtype)


def test_table() -> None:
    """Every function and form of every release."""
    listed = Path(__file__).parents[1] / "data" / "vmvx_imports.txt"
    wanted = {tuple(line.split()) for line in listed.read_text().splitlines() if not line.startswith("#")}
    exports = [(export.name, export.cconv) for export in MODULE.exports()]
    assert set(exports) == wanted
    assert len(exports) == 34


# -- element-wise ----------------------------------------------------------------------------------------


def _divide(a: float, b: float) -> float:
    return float(np.float32(a) / np.float32(b))


BINARY_F32: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
}
BINARY_I32: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "divs": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "divu": lambda a, b: (a % 2**32) // (b % 2**32),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shrs": lambda a, b: a >> b,
    "shru": lambda a, b: (a % 2**32) >> b,
}


@pytest.mark.parametrize("name", BINARY_F32)
@np.errstate(all="ignore")
def test_binary_f32(name: str) -> None:
    lhs = np.repeat(np.array(F32_EDGES, np.float32), len(F32_EDGES))
    rhs = np.tile(np.array(F32_EDGES, np.float32), len(F32_EDGES))
    size = len(F32_EDGES)
    out = buffer(np.zeros(size * size), np.float32)
    operands = (read_only(lhs, np.float32), 0, size, 1, read_only(rhs, np.float32), 0, size, 1)
    call(f"{name}.2d.f32", *operands, out, 0, size, 1, size, size)
    expected = np.array([BINARY_F32[name](a, b) for a, b in zip(lhs, rhs, strict=True)], np.float32)
    np.testing.assert_array_equal(contents(out, np.float32), expected)


@pytest.mark.parametrize("name", BINARY_I32)
def test_binary_i32(name: str) -> None:
    pairs = [(a, b) for a in I32_EDGES for b in I32_EDGES]
    if name.startswith("div"):
        pairs = [(a, b) for a, b in pairs if b and (name == "divu" or (a, b) != (-(2**31), -1))]
    if name.startswith("sh"):
        pairs = [(a, b) for a, b in pairs if 0 <= b < 32]
    lhs, rhs = zip(*pairs, strict=True)
    count = len(pairs)
    out = buffer(np.zeros(count), np.int32)
    operands = (read_only(lhs, np.int32), 0, 0, 1, read_only(rhs, np.int32), 0, 0, 1)
    call(f"{name}.2d.i32", *operands, out, 0, 0, 1, 1, count)
    expected = [(BINARY_I32[name](a, b) + 2**31) % 2**32 - 2**31 for a, b in pairs]
    assert contents(out, np.int32).tolist() == expected


@pytest.mark.parametrize("name", ["divs.2d.i32", "divu.2d.i32"])
def test_division_by_zero_is_refused(name: str) -> None:
    lhs, rhs, out = (buffer([1, 2], np.int32), buffer([1, 0], np.int32), buffer([0, 0], np.int32))
    with pytest.raises(InvalidArgumentError, match="division by zero"):
        call(name, lhs, 0, 0, 1, rhs, 0, 0, 1, out, 0, 0, 1, 1, 2)


UNARY_F32: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "neg": lambda x: -x,
    "ceil": lambda x: float(np.ceil(x)),
    "floor": lambda x: float(np.floor(x)),
    "exp": lambda x: float(np.exp(np.float64(x))),
    "log": lambda x: float(np.log(np.float64(x))),
    "rsqrt": lambda x: float(np.float32(1) / np.sqrt(np.float32(x))),
}


@pytest.mark.parametrize("name", UNARY_F32)
@np.errstate(all="ignore")
def test_unary_f32(name: str) -> None:
    values = np.array(F32_EDGES, np.float32)
    out = buffer(np.zeros(len(values)), np.float32)
    call(f"{name}.2d.f32", read_only(values, np.float32), 0, 0, 1, out, 0, 0, 1, 1, len(values))
    expected = np.array([UNARY_F32[name](float(x)) for x in values], np.float64).astype(np.float32)
    np.testing.assert_array_equal(contents(out, np.float32), expected)


def test_leading_zeros() -> None:
    values = [0, *(1 << n for n in range(31)), -1, -(2**31), 2**31 - 1, 0x00FFFFFF]
    out = buffer(np.zeros(len(values)), np.int32)
    call("ctlz.2d.i32", read_only(values, np.int32), 0, 0, 1, out, 0, 0, 1, 1, len(values))
    assert contents(out, np.int32).tolist() == [32 - (value % 2**32).bit_length() for value in values]


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@given(
    sizes=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    strides=st.tuples(st.integers(0, 9), st.integers(0, 3)),
    offset=st.integers(0, 4),
    data=st.data(),
)
def test_copies_of_any_stride(
    bits: int, sizes: tuple[int, int], strides: tuple[int, int], offset: int, data: st.DataObject
) -> None:
    """Elements are where offset and strides say; the rest stays; anything outside is refused."""
    length = data.draw(st.integers(0, 60))
    dtype = np.dtype(f"u{bits // 8}")
    source = np.arange(1, length + 1).astype(dtype)
    out = buffer(np.zeros(200), dtype)
    arguments = (read_only(source, dtype), offset, *strides, out, 3, 10, 2, *sizes)
    cells = [(i, j) for i in range(sizes[0]) for j in range(sizes[1])]
    places = [offset + i * strides[0] + j * strides[1] for i, j in cells]
    if max(places, default=0) >= length and places:
        with pytest.raises(OutOfRangeError):
            call(f"copy.2d.x{bits}", *arguments)
        return
    call(f"copy.2d.x{bits}", *arguments)
    expected = np.zeros(200, dtype)
    for (i, j), place in zip(cells, places, strict=True):
        expected[3 + i * 10 + j * 2] = source[place]
    np.testing.assert_array_equal(contents(out, dtype), expected)


def test_negative_strides_stay_inside() -> None:
    source, out = read_only([1, 2, 3, 4], np.int32), buffer([0] * 4, np.int32)
    call("copy.2d.x32", source, 3, 0, -1, out, 0, 0, 1, 1, 4)
    assert contents(out, np.int32).tolist() == [4, 3, 2, 1]
    with pytest.raises(OutOfRangeError):
        call("copy.2d.x32", source, 2, 0, -1, out, 0, 0, 1, 1, 4)


def test_result_in_place_of_an_operand() -> None:
    values = buffer([1, 2, 3, 4], np.float32)
    operand = (values, 0, 2, 1)
    call("mul.2d.f32", *operand, *operand, *operand, 2, 2)
    assert contents(values, np.float32).tolist() == [1, 4, 9, 16]


def test_fill() -> None:
    out = buffer(np.zeros(12), np.int32)
    call("fill.2d.x32", -5, out, 1, 4, 3, 2)
    assert contents(out, np.int32).tolist() == [0, -5, -5, 0] * 3
    with pytest.raises(OutOfRangeError):
        call("fill.2d.x32", 0, out, 1, 4, 3, 4)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({8: 1 << 32}, InvalidArgumentError),
        ({9: -1}, InvalidArgumentError),
        ({2: 1 << 32}, InvalidArgumentError),
        ({7: -(1 << 31) - 1}, InvalidArgumentError),
        ({1: -1}, OutOfRangeError),
        ({5: 13}, OutOfRangeError),
        ({1: 2**63 - 1}, OutOfRangeError),
        ({2: 0, 6: 0, 8: 2**32 - 1, 9: 2**32 - 1, 3: 0, 7: 0}, InvalidArgumentError),
        ({2: 0, 6: 0, 8: 5}, InvalidArgumentError),
        ({0: None}, InvalidArgumentError),
        ({4: None}, InvalidArgumentError),
        ({4: VmBuffer.alias(bytes(64))}, PermissionDeniedError),
    ],
    ids=str,
)
def test_bad_operands(changes: dict[int, Any], error: type[Exception]) -> None:
    arguments = [buffer(np.zeros(16), np.float32), 0, 4, 1, buffer(np.zeros(16), np.float32), 0, 4, 1, 2, 4]
    call("neg.2d.f32", *arguments)
    for position, value in changes.items():
        arguments[position] = value
    with pytest.raises(error):
        call("neg.2d.f32", *arguments)


# -- tiles -----------------------------------------------------------------------------------------------


def matrix_product(lhs: np.ndarray, rhs: np.ndarray, out: np.ndarray, accumulate: bool) -> np.ndarray:
    result = out.copy() if accumulate else np.zeros_like(out)
    m, k, m0, k0 = lhs.shape
    n, _, n0, _ = rhs.shape
    for index in np.ndindex(m, n, m0, n0):
        i, j, a, b = index
        total = sum(
            int(lhs[i, c, a, d]) * int(rhs[j, c, b, d]) if lhs.dtype == np.int8
            else float(lhs[i, c, a, d]) * float(rhs[j, c, b, d])
            for c in range(k) for d in range(k0)
        )  # fmt: skip
        result[index] = (
            (int(result[index]) + total + 2**31) % 2**32 - 2**31
            if lhs.dtype == np.int8
            else (result[index] + total)
        )
    return result


@pytest.mark.parametrize("kind", [1, 2], ids=["f32", "i8"])
@given(
    outer=st.tuples(*[st.integers(0, 3)] * 3),
    tiles=st.tuples(*[st.integers(1, 4)] * 3),
    padding=st.tuples(*[st.integers(0, 5)] * 3),
    extra=st.sampled_from([0, 0x100, 0x200, 0x700]),
    seed=st.integers(0, 99),
)
def test_mmt4d(
    kind: int,
    outer: tuple[int, int, int],
    tiles: tuple[int, int, int],
    padding: tuple[int, int, int],
    extra: int,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    (m, n, k), (m0, n0, k0) = outer, tiles
    element, result = (np.float32, np.float32) if kind == 1 else (np.int8, np.int32)

    def operand(rows: int, row_size: int, pad: int, dtype: Any) -> tuple[VmBuffer, int, int]:
        stride, offset = row_size + pad, pad
        values = generator.integers(-128, 128, offset + rows * stride + 1).astype(dtype)
        return buffer(values, dtype), offset, stride

    def tile_view(
        source: VmBuffer, offset: int, stride: int, shape: tuple[int, ...], dtype: Any
    ) -> np.ndarray:
        values = contents(source, dtype)
        rows = [
            values[offset + i * stride :][: math.prod(shape[1:])].reshape(shape[1:]) for i in range(shape[0])
        ]
        return np.array(rows, dtype).reshape(shape)

    lhs = operand(m, k * m0 * k0, padding[0], element)
    rhs = operand(n, k * n0 * k0, padding[1], element)
    out = operand(m, n * m0 * n0, padding[2], result)
    before = contents(out[0], result).copy()
    call("mmt4d", *lhs, *rhs, *out, m, n, k, m0, n0, k0, kind | extra)
    wanted = matrix_product(
        tile_view(*lhs, (m, k, m0, k0), element),
        tile_view(*rhs, (n, k, n0, k0), element),
        tile_view(VmBuffer.alias(before.tobytes()), *out[1:], (m, n, m0, n0), result),
        bool(extra & 0x100),
    )
    expected = before.copy()
    for i in range(m):
        expected[out[1] + i * out[2] :][: n * m0 * n0] = wanted[i].ravel()
    np.testing.assert_array_equal(contents(out[0], result), expected)


def test_i8_products_wrap_around() -> None:
    """2**17 products of 2**14 are 2**31."""
    count = 1 << 17
    lhs, out = buffer(np.full(count, -128), np.int8), buffer([5], np.int32)
    call("mmt4d", lhs, 0, count, lhs, 0, count, out, 0, 1, 1, 1, count, 1, 1, 1, 2)
    assert contents(out, np.int32).tolist() == [-(2**31)]


@pytest.mark.parametrize("flags", [0, 3, 0x801, -1])
def test_unknown_products(flags: int) -> None:
    block = buffer(np.zeros(16), np.float32)
    with pytest.raises(InvalidArgumentError, match="unknown flags"):
        call("mmt4d", block, 0, 1, block, 0, 1, block, 0, 1, 1, 1, 1, 1, 1, 1, flags)


@pytest.mark.parametrize("position", [0, 3, 6])
def test_products_stay_inside(position: int) -> None:
    operands: list[Any] = [buffer(np.zeros(16), np.float32), 0, 8] * 3
    operands[position] = buffer(np.zeros(15), np.float32)
    with pytest.raises(OutOfRangeError):
        call("mmt4d", *operands, 2, 2, 1, 2, 4, 4, 1)


def storage_place(flags: int, shape: tuple[int, ...], p: int, q: int, a: int, b: int) -> int:
    """Element of tile (p, q), row a, column b in storage of this shape, tiles next to each other."""
    outer = (q, p) if flags & 0x200 else (p, q)
    inner = (b, a) if flags & 0x100 else (a, b)
    return int(np.ravel_multi_index((*outer, *inner), shape))


@pytest.mark.parametrize("flags", [0, 0x100, 0x200, 0x300], ids=hex)
@pytest.mark.parametrize(("kind", "dtype"), [(1, np.float32), (2, np.int8), (3, np.int32)])
@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
@given(
    tiles=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    size=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    more=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_pack_and_unpack(
    flags: int,
    kind: int,
    dtype: Any,
    old: bool,
    tiles: tuple[int, int],
    size: tuple[int, int],
    more: tuple[int, int],
) -> None:
    (height, width), (rows, columns) = tiles, size
    blocks = [-(-rows // height) + more[0], -(-columns // width) + more[1]]
    matrix = np.arange(1, rows * columns + 1).reshape(rows, columns).astype(dtype)
    padding = int(np.array([-3], dtype).view(f"u{np.dtype(dtype).itemsize}")[0])
    outer = blocks[::-1] if flags & 0x200 else blocks
    inner = (width, height) if flags & 0x100 else (height, width)
    shape = (*outer, *inner)
    row = outer[1] * height * width
    packed = buffer(np.zeros(math.prod(shape) + 2), dtype)
    plain, flags = read_only(matrix, dtype), flags | kind
    if old:
        cconv = "0rIIrIIIIIIIIIi_v"
        call("pack", plain, 0, columns, packed, 2, row, rows, columns, *shape, padding, flags, cconv=cconv)
    else:
        strides = (row, height * width)
        call("pack", plain, 0, columns, 1, packed, 2, *strides, rows, columns, *shape, padding, flags)
    expected = np.full(math.prod(shape), -3, dtype)
    for i, j in np.ndindex(rows, columns):
        place = storage_place(flags, shape, i // height, j // width, i % height, j % width)
        expected[place] = matrix[i, j]
    np.testing.assert_array_equal(contents(packed, dtype)[2:], expected)
    if kind == 2:
        return
    out = buffer(np.zeros(rows * columns), dtype)
    if old:
        cconv = "0rIIrIIIIIIIIi_v"
        call("unpack", packed, 2, row, out, 0, columns, *shape, rows, columns, flags, cconv=cconv)
    else:
        call("unpack", packed, 2, row, height * width, out, 0, columns, 1, *shape, rows, columns, flags)
    np.testing.assert_array_equal(contents(out, dtype), matrix.ravel())


@pytest.mark.parametrize("name", ["pack", "unpack"])
def test_tiles_that_are_refused(name: str) -> None:
    def attempt(flags: int, size: int = 4, tile: int = 2) -> None:
        block = (buffer(np.zeros(16), np.float32), 0, 4, 1)
        tiled = (buffer(np.zeros(16), np.float32), 0, 8, 4)
        if name == "pack":
            call("pack", *block, *tiled, size, size, 2, 2, tile, tile, 0, flags)
        else:
            call("unpack", *tiled, *block, 2, 2, tile, tile, size, size, flags)

    attempt(1)
    for flags in (0, 4, 0x401, -1):
        with pytest.raises(InvalidArgumentError, match="unknown flags"):
            attempt(flags)
    with pytest.raises(InvalidArgumentError, match="the matrix does not fit into the tiles"):
        attempt(1, tile=1)
    with pytest.raises(OutOfRangeError):
        attempt(1, tile=3)


def test_work_is_not_more_than_the_result_has_room_for() -> None:
    """A stride of zero makes any number of tiles or elements of one; each of these once took years."""
    one, many = (buffer(np.full(4, 7), np.int32), 0, 0, 0), 2**32 - 1
    with pytest.raises(InvalidArgumentError, match="operand 0 would be written more than once"):
        call("fill.2d.x32", 0, *one[:3], many, 4)
    with pytest.raises(InvalidArgumentError, match="operand 1 would be written more than once"):
        call("pack", *one, *one, 0, 0, many, many, 2, 2, 0, 3)
    tiles, tile = (buffer(np.zeros(4), np.float32), 0, 0), (many, 4, 1, 1, 1, 1, 1)
    with pytest.raises(InvalidArgumentError, match="operand 2 would be written more than once"):
        call("mmt4d", *tiles, *tiles, *tiles, *tile)
    out = buffer(np.zeros(6), np.int32)
    call("unpack", *one, out, 0, 3, 1, many, many, 2, 2, 2, 3, 3)
    assert contents(out, np.int32).tolist() == [7] * 6


@pytest.mark.parametrize("product", [0x100, 0x200])
def test_tile_sizes(product: int) -> None:
    sizes = {role: call("query_tile_sizes.2d", 64, 64, role | product) for role in (1, 2, 3)}
    assert sizes[3] == (sizes[1][0], sizes[2][0])
    assert sizes[1][1] == sizes[2][1]
    assert all(16 % size == 0 for pair in sizes.values() for size in pair)


@pytest.mark.parametrize("flags", [0, 1, 0x104, 0x301, -1])
def test_unknown_tile_sizes(flags: int) -> None:
    with pytest.raises(InvalidArgumentError, match="unknown flags"):
        call("query_tile_sizes.2d", 64, 64, flags)
