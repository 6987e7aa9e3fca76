"""The machine code of module ``vmvx`` against its functions in Python."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitree.codegen import image
from jitree.codegen.numbers import i32
from jitree.dispatch.context import Context
from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule
from jitree.errors import StatusError
from jitree.modules.vmvx import VmvxModule, kernels
from jitree.modules.vmvx.kernels import BINARY_CCONV, COMPILED, UNARY_CCONV
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import ENTRY, KIND_BUFFER, STATE, STATE_WORDS
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.words import TAG_REF_COPY, TAG_REF_MOVE, TAG_VALUE32, TAG_VALUE64
from tests import exact_functions
from tests.assembler import Assembler
from tests.dispatch.vector_math_cases import HARD

MODULE = VmvxModule()
BINARY = sorted(name for name, cconv in COMPILED if cconv == BINARY_CCONV)
UNARY = sorted(name for name, cconv in COMPILED if cconv == UNARY_CCONV)
FILL, PACK, PACK_DENSE, UNPACK, UNPACK_DENSE, MMT4D = (cconv for _, cconv in COMPILED[-6:])
RANDOM = np.random.default_rng(7)


class Frame:
    """The registers of a bytecode function that calls."""

    def __init__(self, cconv: str, arguments: tuple[Any, ...], ref_tag: int, references: int = 2) -> None:
        self.values = np.zeros(64, np.int32)
        self.refs = np.zeros(8, np.int64)
        self.entries = np.zeros((8, ENTRY.size), np.uint8)
        self.state = np.zeros(STATE.size, np.uint8)
        words: list[int] = []
        value = ref = 0
        for kind, argument in zip(cconv[1:], arguments, strict=False):
            if kind == "r":
                if argument is not None:
                    self._fill(ref, argument, references)
                words += [ref_tag, ref]
                ref += 1
            elif kind == "i":
                self.values[value] = np.array(argument, np.int64).astype(np.int32)
                words += [TAG_VALUE32, value]
                value += 2
            else:
                self.values.view(np.int64)[value // 2] = argument
                words += [TAG_VALUE64, value]
                value += 2
        self.words = np.array(words, np.int32)

    def _fill(self, ref: int, buffer: VmBuffer, references: int) -> None:
        entry = self.entries[ref]
        for name, size, number in (
            ("kind", 4, KIND_BUFFER), ("count", 4, references), ("address", 8, buffer.address),
            ("length", 8, buffer.length), ("access", 4, buffer.access),
        ):  # fmt: skip
            at = ENTRY[name]
            entry[at : at + size] = np.frombuffer(int(number).to_bytes(size, "little"), np.uint8)
        self.refs[ref] = entry.ctypes.data

    def count(self, ref: int) -> int:
        return int(self.entries[ref].view(np.int32)[ENTRY["count"] // 4])

    def call(self, name: str, cconv: str) -> int:
        function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(
            image.wait(kernels.RECIPE).addresses[kernels.symbol_of(name, cconv)]
        )
        blocks = (self.state, self.values, self.refs, self.words)
        status: int = function(*(part.ctypes.data for part in blocks))
        return status


def compiled(name: str, cconv: str, *arguments: Any, ref_tag: int = TAG_REF_COPY) -> int:
    return Frame(cconv, arguments, ref_tag).call(name, cconv)


def buffer(data: np.ndarray) -> VmBuffer:
    return VmBuffer.alias(bytearray(data.tobytes()))


def both(
    name: str, cconv: str, sources: list[np.ndarray], target: np.ndarray, *rest: Any
) -> tuple[bytes, bytes]:
    """What the two forms leave in the target; ``rest`` has an ellipsis in place of each buffer."""
    results = []
    for form in ("compiled", "python"):
        buffers = [*map(buffer, sources), buffer(target)]
        waiting = iter(buffers)
        arguments = tuple(next(waiting) if item is ... else item for item in rest)
        if form == "compiled":
            assert compiled(name, cconv, *arguments) == 0
        else:
            MODULE.find(name)[cconv].function(None, *arguments)
        results.append(bytes(buffers[-1]))
    return results[0], results[1]


def numbers(name: str, count: int) -> np.ndarray:
    bits = RANDOM.integers(0, 256, 8 * count, np.uint8)
    if name.endswith(".f32"):
        return np.abs(RANDOM.standard_normal(count)).astype(np.float32) * np.float32(100) - np.float32(50)
    return bits[: count * (int(name.rpartition("x")[2]) // 8 if ".x" in name else 4)]


STRIDES = st.sampled_from([(0, 1), (1, 1), (7, 1), (1, 7), (20, 2), (40, 0), (0, 0)])
SIZES = st.tuples(st.integers(1, 6), st.integers(1, 20))


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=20, deadline=None)
@given(lhs=STRIDES, rhs=STRIDES, sizes=SIZES, offset=st.integers(0, 9))
def test_binary(
    name: str, lhs: tuple[int, int], rhs: tuple[int, int], sizes: tuple[int, int], offset: int
) -> None:
    sources, target = [numbers(name, 300), numbers(name, 300)], numbers(name, 300)
    got, expected = both(
        name, BINARY_CCONV, sources, target,
        ..., offset, *lhs, ..., 0, *rhs, ..., 3, 40, 1, *sizes,
    )  # fmt: skip
    assert got == expected


@pytest.mark.parametrize("name", UNARY)
@settings(max_examples=20, deadline=None)
@given(strides=STRIDES, sizes=SIZES, transposed=st.booleans())
def test_unary(name: str, strides: tuple[int, int], sizes: tuple[int, int], transposed: bool) -> None:
    source = np.abs(numbers(name, 300)) if name == "rsqrt.2d.f32" else numbers(name, 300)
    result = (1, 7) if transposed else (40, 1)
    got, expected = both(
        name, UNARY_CCONV, [source], numbers(name, 300),
        ..., 1, *strides, ..., 3, *result, *sizes,
    )  # fmt: skip
    assert got == expected


@pytest.mark.parametrize("name", ["exp", "log"])
def test_functions_are_correctly_rounded(name: str) -> None:
    source = np.array(HARD[f"{name}.f32"], np.uint32).view(np.float32)
    exact = getattr(exact_functions, name)
    expected = np.array([exact_functions.rounded(exact(Fraction(x))) for x in source.tolist()], np.float32)
    places = (..., 0, 0, 1, ..., 0, 0, 1, 1, len(source))
    for result in both(f"{name}.2d.f32", UNARY_CCONV, [source], source, *places):
        assert result == expected.tobytes()


def test_fill() -> None:
    target = np.zeros(60, np.int32)
    got, expected = both("fill.2d.x32", FILL, [], target, -5, ..., 2, 20, 3, 11)
    assert got == expected and got.count(b"\xfb") == 33


@pytest.mark.parametrize("cconv", [PACK, PACK_DENSE, UNPACK, UNPACK_DENSE])
@settings(max_examples=60, deadline=None)
@given(
    outer=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    tile=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    cut=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    flags=st.sampled_from([0, 0x100, 0x200, 0x300]),
    kind=st.integers(1, 3),
)
def test_packing(
    cconv: str, outer: tuple[int, int], tile: tuple[int, int], cut: tuple[int, int], flags: int, kind: int
) -> None:
    packs = cconv in (PACK, PACK_DENSE)
    if kind == 2 and not packs:
        kind = 3
    rows, columns = outer[::-1] if flags & 0x200 else outer
    height, width = tile[::-1] if flags & 0x100 else tile
    sizes = (max(1, rows * height - cut[0]), max(1, columns * width - cut[1]))
    dtype = np.uint8 if kind == 2 else np.uint32
    plain = RANDOM.integers(0, 255, sizes[0] * (sizes[1] + 2) + 5).astype(dtype)
    packed = RANDOM.integers(0, 255, rows * columns * height * width + 3).astype(dtype)
    tile_size = tile[0] * tile[1]
    dense = cconv in (PACK_DENSE, UNPACK_DENSE)
    side = (..., 5, sizes[1] + 2) if dense else (..., 5, sizes[1] + 2, 1)
    tiles = (..., 3, outer[1] * tile_size) if dense else (..., 3, outer[1] * tile_size, tile_size)
    if packs:
        arguments = (*side, *tiles, *sizes, *outer, *tile, -3, flags | kind)
        got, expected = both("pack", cconv, [plain], packed, *arguments)
    else:
        arguments = (*tiles, *side, *outer, *tile, *sizes, flags | kind)
        got, expected = both("unpack", cconv, [packed], plain, *arguments)
    assert got == expected


@pytest.mark.parametrize("flags", [0x601, 0x701, 0x002, 0x102])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 3, 5), (3, 1, 33)])
def test_products_of_tiles(flags: int, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    depth, element, result = (1, np.float32, np.float32) if flags & 1 else (2, np.int8, np.int32)
    tile = 8 * depth

    def random(count: int, dtype: Any) -> np.ndarray:
        return RANDOM.integers(-128, 127, count).astype(dtype)

    got, expected = both(
        "mmt4d", MMT4D, [random(4 + m * k * tile, element), random(n * k * tile, element)],
        random(m * (n * 64 + 3), result),
        ..., 4, k * tile, ..., 0, k * tile, ..., 0, n * 64 + 3, m, n, k, 8, 8, depth, flags,
    )  # fmt: skip
    assert got == expected, "whole numbers, which add up exactly in any order"


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, None),
        (1, -1),
        (1, 1 << 62),
        (2, -1),
        (2, 1 << 31),
        (9, 85),
        (12, 1 << 40),
        (12, -1),
        (13, 1 << 33),
    ],
)
def test_other_cases_are_left_to_python(position: int, value: Any) -> None:
    """And nothing is written: what fails there is what fails everywhere."""
    buffers = [buffer(np.ones(100, np.float32)) for _ in range(3)]
    arguments = [buffers[0], 0, 10, 1, buffers[1], 0, 10, 1, buffers[2], 0, 10, 1, 2, 10]
    arguments[position] = value
    assert compiled("add.2d.f32", BINARY_CCONV, *arguments) != 0
    assert bytes(buffers[2]) == np.ones(100, np.float32).tobytes()


EDGES = st.sampled_from([1, 2, 1, 3, 4, 0, 8, -1, 1 << 32, 1 << 61, (1 << 63) - 1, -(1 << 31), -(1 << 63)])
"""None is a size that takes long where a stride is 0."""
SHAPES = {
    ("add.2d.f32", BINARY_CCONV): 14,
    ("mmt4d", MMT4D): 15,
    ("pack", PACK): 14,
    ("pack", PACK_DENSE): 12,
    ("unpack", UNPACK): 14,
    ("unpack", UNPACK_DENSE): 12,
}
"""How many arguments are numbers that programs compute, references among them."""


@pytest.mark.parametrize("row", SHAPES, ids=str)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_what_is_refused_is_refused_by_both(row: tuple[str, str], data: st.DataObject) -> None:
    """Nothing is written outside of the buffer, and nothing where something is wrong."""
    name, cconv = row
    count = SHAPES[row]
    numbers = data.draw(st.lists(EDGES, min_size=count, max_size=count))
    rest = {"mmt4d": (1,), "pack": (0, 1), "unpack": (1,)}.get(name, ())
    kinds = cconv[1:].partition("_")[0]
    whole = np.ones(128, np.float32).tobytes()
    ends = []
    for form in ("compiled", "python"):
        places = [bytearray(whole) for kind in kinds if kind == "r"]
        waiting = iter([VmBuffer.alias(memoryview(place)[128:384]) for place in places])
        arguments = [
            next(waiting) if kind == "r" else number if kind == "I" else i32(number)
            for kind, number in zip(kinds, (*numbers, *rest), strict=True)
        ]
        if form == "compiled":
            ends.append(compiled(name, cconv, *arguments) == 0)
        else:
            try:
                MODULE.find(name)[cconv].function(None, *arguments)
                ends.append(True)
            except StatusError:
                ends.append(False)
        for place in places:
            assert place[:128] + place[384:] == whole[:256]
            assert ends[-1] or place == whole
    assert ends[0] == ends[1]


def test_read_only_results_are_left_to_python() -> None:
    source, target = buffer(np.ones(4, np.uint8)), VmBuffer.alias(bytes(4))
    arguments = (source, 0, 4, 1, target, 0, 4, 1, 1, 4)
    assert compiled("copy.2d.x8", UNARY_CCONV, *arguments) != 0
    assert bytes(target) == bytes(4)


@pytest.mark.parametrize("flags", [0x001, 0x101, 0x002, 0x102])
@pytest.mark.parametrize("tile", [(4, 8, 1), (8, 8, 3), (1, 1, 2), (3, 0, 2), (2, 3, 0)])
def test_products_of_other_tiles(flags: int, tile: tuple[int, int, int]) -> None:
    (tile_m, tile_n, tile_k), (m, n, k) = tile, (2, 3, 4)
    element, result = (np.float32, np.float32) if flags & 1 else (np.int8, np.int32)
    left, right, whole = k * tile_m * tile_k, k * tile_n * tile_k, n * tile_m * tile_n
    sides = (RANDOM.integers(-128, 127, count).astype(element) for count in (m * left, n * right))
    got, expected = both(
        "mmt4d", MMT4D, list(sides), RANDOM.integers(-128, 127, m * whole + 1).astype(result),
        ..., 0, left, ..., 0, right, ..., 1, whole, m, n, k, *tile, flags,
    )  # fmt: skip
    assert got == expected


def test_unknown_products_are_left_to_python() -> None:
    buffers = [buffer(np.ones(64, np.float32)) for _ in range(3)]
    sides = [item for part in buffers for item in (part, 0, 16)]
    assert compiled("mmt4d", MMT4D, *sides, 1, 1, 1, 8, 8, 1, 3) != 0


@pytest.mark.parametrize("references", [2, 1])
def test_references_that_the_call_gives_up(references: int) -> None:
    source, target = buffer(np.ones(4, np.uint8)), buffer(np.zeros(4, np.uint8))
    cconv = UNARY_CCONV
    frame = Frame(cconv, (source, 0, 4, 1, target, 0, 4, 1, 1, 4), TAG_REF_MOVE, references)
    assert frame.call("copy.2d.x8", cconv) == 0
    assert [frame.count(ref) for ref in (0, 1)] == [references - 1] * 2
    assert not frame.refs[:2].any()
    released = frame.state.view(np.int64)[STATE_WORDS.released]
    assert (released != 0) == (references == 1), "Python frees what nothing refers to"
    assert bytes(target) == b"\1" * 4


COPY = "0rr_v"
FOUR_COPIES = """
    %i0 = const.i32 4
    br ^again
    ^again:
    [] = call @copier.copy [%r0, %r1]
    %i1 = const.i32 1
    %i0 = sub.i32 %i0, %i1
    cond_br %i0, ^again, ^done
    ^done:
    return []
"""


class Copier(HostModule):
    """Its machine code is there when asked for the third time, first by the linker; it does nothing."""

    name = "copier"

    def __init__(self) -> None:
        self.asked = self.called = 0
        self._done = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(lambda *_: 0)

    def exports(self) -> list[HostExport]:
        return [HostExport("copy", COPY, self._copy, compiled=self._address)]

    def _copy(self, state: object, source: VmBuffer, target: VmBuffer) -> None:
        self.called += 1

    def _address(self) -> int:
        self.asked += 1
        return (ctypes.cast(self._done, ctypes.c_void_p).value or 0) if self.asked == 3 else 0


@pytest.mark.parametrize(("tier", "asked", "called"), [("fast", 3, 2), ("plain", 3, 2)])
def test_machine_code_is_asked_for_until_it_is_there(tier: str, asked: int, called: int) -> None:
    module = Assembler("m").import_function("copier.copy", COPY).function("f", COPY, FOUR_COPIES).build()
    copier, context = Copier(), Context(RefTypes(), tier=tier)
    context.register([copier, BytecodeModule.load(module)])
    context.invoke(context.lookup("m.f"), [VmBuffer.alias(bytearray(4)), VmBuffer.alias(bytearray(4))])
    assert (copier.asked, copier.called) == (asked, called)
    context.close()
