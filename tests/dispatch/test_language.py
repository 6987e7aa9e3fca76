"""The language of answers: what machine code does is what Python does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.dispatch.image.compile import Target, compile_object, host_target
from jitree.dispatch.image.link import link
from jitree.dispatch.image.mapping import Image, map_image
from jitree.dispatch.language.lowering import lower
from jitree.dispatch.language.primitives import (
    Fields,
    below,
    bit_length,
    call,
    load,
    load8,
    load32,
    load64,
    stack,
    store,
    store8,
    store32,
    store64,
)
from jitree.errors import InternalError
from jitree.modules.hal.native.image import RECIPE
from jitree.modules.hal.native.texts import texts
from jitree.regs.layout import Record

PAIR = Fields(Record("pair", "i32 narrow\ni32 other\ni64 wide"))
SCALE = 3


def arithmetic(a: int, b: int) -> int:
    return ((a + b * SCALE) ^ (a & b) | (a - b)) + (a >> 3) + ((b & 0xFF) << 5) + ~a - -b


def comparisons(a: int, b: int) -> int:
    result = 0
    if a < b <= 100 or (not (a & 1) and a > 0):
        result += 1
    if below(a, b) and (a >= -5 or b != 7):
        result += 2
    result += 4 if a <= b else 8
    result += (a < 0) + (a == b or b == 0)
    return result


def loops(a: int, b: int) -> int:
    total = 0
    for index in range(a & 15):
        if index == 9:
            break
        if index & 1:
            continue
        total += index * b
    for index in range(2, 30, 7):
        total += index
    count = b & 31
    while count > 0:
        count -= 3
        if count == 10:
            return total - 1000
        total += helper(count, total)
    return total


def helper(a: int, b: int) -> int:
    if a < 0:
        return helper(a + 5, b)
    return (a ^ b) & 1023


def memory(a: int, b: int) -> int:
    place = stack(64)
    store(place, PAIR.narrow, a)
    store(place, PAIR.other, b)
    store(place, PAIR.wide, a ^ b)
    store8(place + 16, a)
    store32(place + 20, b)
    store64(place + 24, a)
    return (
        load(place, PAIR.narrow) + load(place, PAIR.other) + load(place, PAIR.wide) + load8(place + 16)
        + load32(place + 20) + load64(place + 24) + load64(place) + bit_length(a & 0xFFFFFF)
    )  # fmt: skip


def without_result(a: int, b: int) -> None:
    """Gives 0."""
    a += b


FUNCTIONS: list[Callable[..., object]] = [arithmetic, comparisons, loops, memory, without_result]
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-40, 120)


@cache
def image() -> Image:
    names = [function.__name__ for function in FUNCTIONS]
    return map_image(link([compile_object([lower(FUNCTIONS)], names, host_target())], names))


def signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


@pytest.mark.parametrize("function", FUNCTIONS)
@given(a=NUMBERS, b=NUMBERS)
def test_machine_code_does_what_python_does(function: Callable[..., object], a: int, b: int) -> None:
    kinds = [ctypes.c_int64] * 3
    code = ctypes.CFUNCTYPE(*kinds)(image().addresses[function.__name__])
    expected = function(a, b) or 0
    assert isinstance(expected, int)
    assert code(a, b) == signed(expected)


def test_calls_of_addresses() -> None:
    library = ctypes.CDLL(None)
    address = ctypes.cast(library.llabs, ctypes.c_void_p).value
    assert address is not None
    assert call(address, -5) == 5


def with_floats(a: int) -> float:
    return a * 0.5


def with_lists(a: int) -> int:
    return [a][0]


def with_unknown(a: int) -> int:
    return len(str(a))


def before_it_is_set(a: int) -> int:
    later = a
    del later
    return a


@pytest.mark.parametrize("function", [with_floats, with_lists, with_unknown, before_it_is_set])
def test_everything_else_is_refused(function: Callable[..., object]) -> None:
    with pytest.raises(InternalError, match=rf"^INTERNAL; {function.__name__}, line \d"):
        lower([function])


@pytest.mark.parametrize("triple", ["x86_64-linux-gnu", "aarch64-linux-gnu"])
def test_all_answers_build_for(triple: str) -> None:
    cpu = "x86-64" if triple.startswith("x86") else "generic"
    code = compile_object(texts(), RECIPE.entries, Target(triple, cpu, ""))
    assert set(RECIPE.entries) <= set(link([code], RECIPE.entries).entries)
