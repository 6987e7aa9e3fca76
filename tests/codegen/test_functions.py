"""Functions over integers: what machine code does is what Python does."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.codegen import frontend, functions
from jitree.codegen.image.compile import compile_object, host_target
from jitree.codegen.image.flat import Image, map_image
from jitree.codegen.image.link import link
from jitree.codegen.image.worklist import spread
from jitree.codegen.numbers import divide
from jitree.codegen.primitives import (
    below,
    bit_length,
    call,
    load8,
    load32,
    load64,
    stack,
    store8,
    store32,
    store64,
)
from jitree.errors import InternalError, NotFoundError

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
    store32(place, a)
    store32(place + 4, b)
    store64(place + 8, a ^ b)
    store8(place + 16, a)
    store32(place + 20, b)
    store64(place + 24, a)
    return (
        load32(place) + load32(place + 4) + load64(place + 8) + load8(place + 16)
        + load32(place + 20) + load64(place + 24) + load64(place) + bit_length(a & 0xFFFFFF)
    )  # fmt: skip


def doubled_at(place: int, a: int) -> None:
    store64(place, 2 * a)


def wrapping(a: int, b: int) -> int:
    """Nothing assumes that sums, products and negations fit."""
    return (a + 1 < a) + 2 * (a + b - b == a) + 4 * (-a > 0) + 8 * (a * 2 < a)


FUNCTIONS: list[Callable[..., object]] = [arithmetic, comparisons, loops, memory]
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-40, 120)


@cache
def image() -> Image:
    known = [*FUNCTIONS, doubled_at, wrapping]
    names = [function.__name__ for function in known]
    return map_image(link([compile_object(functions.texts(known), names, host_target())], names))


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


@pytest.mark.parametrize("a", [0, 5, -7, (1 << 63) - 1, -(1 << 63)])
def test_numbers_wrap(a: int) -> None:
    code = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 3)(image().addresses["wrapping"])
    expected = (signed(a + 1) < a) + 2 + 4 * (signed(-a) > 0) + 8 * (signed(a * 2) < a)
    assert code(a, 1 << 62) == expected


def test_functions_without_result() -> None:
    place = ctypes.c_int64()
    code = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(image().addresses["doubled_at"])
    code(ctypes.addressof(place), 21)
    assert place.value == 42


def test_calls_of_addresses() -> None:
    library = ctypes.CDLL(None)
    address = ctypes.cast(library.llabs, ctypes.c_void_p).value
    assert address is not None
    assert call(address, -5) == 5


def with_floats(a: int) -> int:
    half = a * 0.5
    return 1 if half > 2.0 else 0


def with_a_float(a: float) -> int:
    return int(a)


def with_mixed_signs(a: int) -> int:
    return 1 if a + 0xFFFFFFFFFFFFFFFF > 5 else 0


def with_lists(a: int) -> int:
    return [a][0]


def with_raise(a: int, b: int) -> int:
    if a < b:
        raise ValueError("refused")
    return a


def with_unknown(a: int) -> int:
    return len(str(a))


@pytest.mark.parametrize(
    "function", [with_floats, with_a_float, with_mixed_signs, with_lists, with_unknown, with_raise]
)
def test_everything_else_is_refused(function: Callable[..., object]) -> None:
    with pytest.raises(InternalError, match=rf"^INTERNAL; {function.__name__}: "):
        functions.texts([function])


def steps(a: int, b: int) -> int:
    count = 0
    for _ in range(0, a, b):
        count += 1
    return count


def test_what_can_raise_is_refused_by_name() -> None:
    code = compile_object(functions.texts([steps]), ["steps"], host_target())
    with pytest.raises(NotFoundError, match=r"raises\.ValueError\.steps"):
        link([code], ["steps"])


def squared(number: int) -> int:
    if number == 7:
        raise InternalError("seven")
    return number * number


def test_work_is_spread_over_copies_in_order() -> None:
    assert spread(squared, range(6)) == [0, 1, 4, 9, 16, 25]
    for numbers in ([7, 1, 2], [1, 7, 2]):
        with pytest.raises(InternalError, match="seven"):
            spread(squared, numbers)


def test_copies_take_what_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two processes has an item that ends when the other one has done all others."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    source, drain = os.pipe()

    def work(number: int) -> int:
        if number == 0:
            os.read(source, 1)
        elif number == 5:
            os.write(drain, b"x")
        return os.getpid()

    processes = spread(work, range(6))
    os.close(source)
    os.close(drain)
    assert processes[0] == os.getpid() and len({*processes[1:]} - {os.getpid()}) == 1
    assert processes[0] not in processes[1:]


def failing_here(process: int) -> bytes:
    if os.getpid() == process:
        raise ValueError("no")
    return bytes(1 << 20)


def test_copies_end_when_other_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    copies, fork = list[int](), os.fork

    def counted() -> int:
        copies.append(fork())
        return copies[-1]

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(os, "fork", counted)
    with pytest.raises(ValueError, match="no"):
        spread(failing_here, [os.getpid()] * 2)
    (copy,) = copies
    with pytest.raises(ChildProcessError):
        os.waitpid(copy, os.WNOHANG)


def third(x: float, scale: int) -> float:
    return divide(x, 3.0) if scale == 0 else x


def narrow_third(x: float) -> float:
    return third(x, 0)


@pytest.mark.parametrize(
    ("kind", "width", "expected"),
    [("float32", "float", "3f2aaaab"), ("float64", "double", "3fe5555555555555")],
)
def test_functions_on_floats_are_compiled_for_the_width_of_their_arguments(
    kind: str, width: str, expected: str
) -> None:
    import jitree.dispatch.semantics_code  # noqa: F401  (makes the primitives known)

    number = getattr(frontend.types, kind)
    texts = frontend.inlined(narrow_third, "narrow", frontend.signature(number, number))
    assert set(texts) == {"narrow", f"third.{kind}.int64"}
    image = map_image(link([compile_object(list(texts.values()), ["narrow"], host_target())], ["narrow"]))
    c_kind = ctypes.c_float if width == "float" else ctypes.c_double
    result = ctypes.CFUNCTYPE(c_kind, c_kind)(image.addresses["narrow"])(2.0)
    assert struct.pack(">f" if width == "float" else ">d", result).hex() == expected


def late_memory(a: int, b: int) -> int:
    if a < 0:
        return b
    place = stack(16)
    store64(place, a)
    return load64(place) + b


def test_memory_of_a_known_size_is_part_of_the_frame() -> None:
    """At the beginning of a function, where LLVM finds it."""
    number = frontend.types.int64
    texts = frontend.inlined(late_memory, "late", frontend.signature(number, number, number))
    beginning = "".join(texts.values()).partition("define")[2].partition("br ")[0]
    assert "alloca i8, i64 16, align 64" in beginning
