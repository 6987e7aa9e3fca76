"""Numbers of the command line: what C's functions take, and what they make of it."""

from __future__ import annotations

import ctypes
import math
import random
import struct
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from jitree.errors import InvalidArgumentError, OutOfRangeError
from jitree.tools.benchmark_report import parse_duration
from jitree.tools.element_parsing import (
    find_element_type,
    parse_elements,
    parse_float,
    parse_floats,
    parse_integer,
)
from jitree.tools.parameters import parse_declaration
from jitree.tools.values import parse_shaped_type
from tests.tools.command import run_echo

_C = ctypes.CDLL(None)
_C.strtof.restype, _C.strtof.argtypes = ctypes.c_float, [ctypes.c_char_p, ctypes.c_void_p]
_C.strtod.restype, _C.strtod.argtypes = ctypes.c_double, [ctypes.c_char_p, ctypes.c_void_p]

TAKEN = [
    "0", "-0", "+0.", "1", "-1.5e3", ".5", "5.", "1E5", "1e+5", "1e-45", "1e400", "-1e400", "3.4028236e38",
    "inf", "-INF", "+Inf", "infinity", "-Infinity", "nan", "NaN", "0x1.8p3", "0X1P-3", "0x.8", "0x8.",
    "-0x1.8", "0x10", "0x1p-149", "0x1.8p-150", "0x1p2000", "-0x1p2000", "0x0p-9999", "0e-999", "0.0e9999",
    "nan(0x123)", "nan()", "NAN(abc_1)", "nan(7)", "nan(017)", "nan(08)", "nan(0xffffffffff)", "nan(9999999)",
]  # fmt: skip
REFUSED = [
    "", ".", "e5", "1e", "1e+", "1_0", "0x", "0x.", "0x1p", "1.5f", "1d", "nan(", "nan(a-b)", "nan(1",
    "infinit", "\u0663", "1\u0663", "x", "--1", "+-1", "1 2", "0x1.8p3_", "1\n", "nan\u00b2",
]  # fmt: skip


@pytest.mark.parametrize("text", TAKEN)
def test_what_c_takes(text: str) -> None:
    """The same bits, too."""
    single, double = _C.strtof(text.encode(), None), _C.strtod(text.encode(), None)
    assert parse_floats([text, "1"], 32)[:1].tobytes() == struct.pack("<f", single) or math.isnan(single)
    assert parse_floats([text, "1"], 64)[:1].tobytes() == struct.pack("<d", double) or math.isnan(double)
    assert str(parse_float(text)) == str(double)


@pytest.mark.parametrize(
    ("text", "single", "double"),
    [
        ("nan", 0x7FC00000, 0x7FF8000000000000),
        ("-nan", 0xFFC00000, 0xFFF8000000000000),
        ("nan(0x123)", 0x7FC00123, 0x7FF8000000000123),
        ("-NaN(17)", 0xFFC00011, 0xFFF8000000000011),
        ("nan(017)", 0x7FC0000F, 0x7FF800000000000F),
        ("nan(abc)", 0x7FC00000, 0x7FF8000000000000),
        ("nan(08)", 0x7FC00000, 0x7FF8000000000000),
    ],
)
def test_bits_of_a_nan(text: str, single: int, double: int) -> None:
    assert parse_floats(["1", text], 32).view(np.uint32)[1] == single
    assert parse_floats(["1", text], 64).view(np.uint64)[1] == double


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_number(text: str) -> None:
    for parse in (parse_float, lambda text: parse_floats([text], 32), lambda text: parse_floats([text], 64)):
        with pytest.raises(InvalidArgumentError, match="is not a number"):
            parse(text)


@pytest.mark.parametrize("text", ["-1e-400", "1e-400", "0x1p-2000", "0.00001e-999"])
def test_what_would_become_zero(text: str) -> None:
    for bits in (32, 64):
        with pytest.raises(InvalidArgumentError, match=f"'{text}' is too small for f{bits}"):
            parse_floats(["0", text], bits)
    assert parse_float(text) == 0, "a flag has no type"


@pytest.mark.parametrize("text", ["1e-46", "7e-46", "0x1p-150", "-1e-50"])
def test_what_would_become_zero_in_fewer_bits(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="too small for f32"):
        parse_floats([text], 32)
    for name in ("f16", "bf16"):
        with pytest.raises(InvalidArgumentError, match="too small for f32"):
            parse_elements([text], find_element_type(name))
    assert parse_floats([text], 64)[0] == float.fromhex(text) if "x" in text else float(text)


def test_small_numbers_of_small_types() -> None:
    """They are made of floats of 32 bits, which have them, as in the reference tools."""
    assert parse_elements(["1e-30"], find_element_type("f16"))[0] == 0


def test_numbers_are_rounded_once() -> None:
    """Next to the middle between two floats of 32 bits, nearer than floats of 64 bits tell."""
    draw = random.Random(7)
    largest = "34028235677973366163753939545814256844"
    texts = [f"{largest}7", f"{largest}8", "-0x1.ffffffp127", "0x1.fffffefp127"]
    for _ in range(3000):
        bits = draw.getrandbits(31) % 0x7F800000
        low, high = (struct.unpack("<f", struct.pack("<I", bits + more))[0] for more in (0, 1))
        middle = (low + high) / 2 if not math.isinf(high) else low
        digits = format(middle, ".1100e").partition("e")
        mantissa, sign = digits[0], draw.choice(["", "-"])
        texts += [
            f"{sign}{mantissa}e{digits[2]}", f"{sign}{mantissa}1e{digits[2]}", f"{sign}{middle!r}",
            f"{sign}{float.hex(middle).replace('p', '00000000000000001p')}",
        ]  # fmt: skip
    texts = [text for text in texts if _C.strtof(text.encode(), None) != 0]
    found = parse_floats(texts, 32)
    assert [float(value) for value in found] == [_C.strtof(text.encode(), None) for text in texts]
    with np.errstate(over="ignore"):
        twice = np.array([parse_float(text) for text in texts]).astype(np.float32)
    assert (twice != found).sum() > 100, "rounding twice gives others"


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (partial(parse_integer, low=0, high=9), "{}"),
        (partial(parse_integer, low=0, high=9), "-{}"),
        (find_element_type, "*{}"),
        (parse_shaped_type, "{}xf32"),
        (parse_declaration, "key={}xf32"),
    ],
)
def test_thousands_of_digits(read: Callable[[str], object], text: str) -> None:
    """Python reads no more than 4300."""
    with pytest.raises((InvalidArgumentError, OutOfRangeError)):
        read(text.format("9" * 5000))
    assert (parse_duration(f"{'9' * 5000}x").iterations or 0) > 1 << 100


def test_values_of_the_command_line() -> None:
    outcome = run_echo("--function=e1_f32", "--input=4xf32=nan(0x123) infinity 0x1.8p3 -0x.8")
    assert outcome.code == 0 and "4xf32=NAN INF 12 -0.5" in outcome.stdout
    outcome = run_echo("--function=e1_f32", "--input=4xf32=1 2 3 -1e-400")
    assert outcome.code == 1 and "'-1e-400' is too small for f32" in outcome.stderr
