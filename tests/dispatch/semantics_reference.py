"""What arithmetic instructions compute, written once more with numpy, and the values worth trying."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable
from ctypes.util import find_library
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jitree.dispatch.semantics import SEMANTICS
from jitree.vmfb.instructions import BY_MNEMONIC

Array = npt.NDArray[Any]
DTYPES: dict[str, Any] = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64}
_UNSIGNED = {np.dtype(np.int32): np.uint32, np.dtype(np.int64): np.uint64}
_FLOATS = {np.dtype(np.int32): np.float32, np.dtype(np.int64): np.float64}

_I32 = [0, 1, 2, 3, 7, 24, 31, 32, 33, 63, 64, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**24 + 1]
_I32 += [2**31 - 1, 0x55555555, 0x12345678]
_I64 = [*_I32, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**53 + 1, 2**54 + 3, 2**62, 2**63 - 1, 2**63 - 512]
_I64 += [0x7FFFFFBFFFFFFFFF, 0x7FFFFFC000000000, 0x7FFFFFC000000001, 0x4000004000000001]
_HALVES = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.5, 3.14159, 100.25, 1e10]
_HALVES += [2.0**exponent for exponent in (22, 23, 24, 31, 32, 52, 53, 62, 63, 64, 100)]


def edge_values(kind: str) -> Array:
    """All values of a kind that instructions are tried on."""
    if kind == "i32":
        return np.array([*_I32, *(-x for x in _I32), -(2**31)], np.int32)
    if kind == "i64":
        return np.array([*_I64, *(-x for x in _I64), -(2**63)], np.int64)
    dtype = DTYPES[kind]
    limits = np.finfo(dtype)
    values = np.array(_HALVES, dtype)
    near = [np.nextafter(values, dtype(direction)) for direction in (-np.inf, np.inf)]
    special = np.array([limits.max, limits.tiny, limits.smallest_subnormal, np.inf, np.nan], dtype)
    positive = np.concatenate([values, *near, special])
    return np.concatenate([positive, -positive])


def kinds_of(mnemonic: str) -> list[str]:
    """Register kinds of the operands and of the result, by the instruction table: a float even where only
    its bits are looked at."""
    return [operand.kind.removeprefix("r.") for operand in BY_MNEMONIC[mnemonic].operands]


def edge_columns(mnemonic: str) -> list[Array]:
    """All combinations for one and two operands, a sample of them for three."""
    edges = [edge_values(kind) for kind in kinds_of(mnemonic)[:-1]]
    if len(edges) < 3:
        rows = np.array(list(itertools.product(*(range(len(values)) for values in edges))))
    else:
        rng = np.random.default_rng(1)
        rows = np.stack([rng.integers(0, len(values), 4000) for values in edges], axis=1)
    types = SEMANTICS[mnemonic].argument_types
    return [values[rows[:, n]].view(DTYPES[types[n]]) for n, values in enumerate(edges)]


def by_plain(mnemonic: str, arguments: list[Array]) -> Array:
    """The results of the semantics function; checks that they are in the range of their type."""
    semantic = SEMANTICS[mnemonic]
    rows = zip(*(array.tolist() for array in arguments), strict=True)
    values = [semantic.function(*row) for row in rows]
    results = np.array(values, DTYPES[semantic.result_type])
    if semantic.result_type == "f32":
        is_rounded = all(a == b or a != a for a, b in zip(values, results.tolist(), strict=True))
        assert is_rounded, f"each operation of {mnemonic} has to round, by numbers.f32"
    return results


def assert_same_bits(mnemonic: str, arguments: list[Array], actual: Array, expected: Array) -> None:
    assert actual.dtype == expected.dtype
    width = f"i{actual.itemsize}"
    same = actual.view(width) == expected.view(width)
    if actual.dtype.kind == "f":
        same |= np.isnan(actual) & np.isnan(expected)
    wrong = np.flatnonzero(~same)
    if len(wrong):
        first = int(wrong[0])
        values = [array[first] for array in arguments]
        pytest.fail(f"{mnemonic}{values!r}: {actual[first]!r}, not {expected[first]!r} ({len(wrong)} differ)")


def _u(x: Array) -> Array:
    return x.view(_UNSIGNED[x.dtype])


def _f(x: Array) -> Array:
    return x.view(_FLOATS[x.dtype])


def _each(function: Callable[..., Any], result: str) -> Callable[..., Array]:
    """A reference given as a function of Python numbers."""

    def apply(*arrays: Array) -> Array:
        rows = zip(*(array.tolist() for array in arrays), strict=True)
        return np.array([function(*row) for row in rows], DTYPES[result])

    return apply


def _remainder(x: float, y: float) -> float:
    if math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0.0:
        return math.nan
    return math.remainder(x, y)


def _wrap(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _half_away(x: float) -> int:
    """Exact, of finite values."""
    magnitude = math.floor(abs(Fraction(x)) + Fraction(1, 2))
    return -magnitude if x < 0 else magnitude


def _to_signed(bits: int) -> Callable[[float], int]:
    def convert(x: float) -> int:
        value = _half_away(x) if math.isfinite(x) else 2**63
        return _wrap(value if -(2**63) <= value < 2**63 else -(2**63), bits)

    return convert


def _to_unsigned_64(x: float) -> int:
    value = _half_away(x) if math.isfinite(x) else 2**63
    return _wrap(value if -(2**63) <= value < 2**64 else 2**63, 64)


def _round(x: Array) -> Array:
    whole = np.trunc(x)
    away = np.where(np.abs(x - whole) >= 0.5, np.copysign(x.dtype.type(1), x), x.dtype.type(0))
    rounded: Array = np.copysign(whole + away, x)
    return rounded


def _round_even(x: Array) -> Array:
    return np.where(x == -0.5, x.dtype.type(0), np.rint(x))


def _power(base: Array, exponent: Array) -> Array:
    """Of integer exponents in 32 bits; each product is rounded."""
    signed = exponent.astype(np.int32).astype(np.int64)
    steps, power = np.abs(signed), np.ones_like(base)
    for _ in range(32):
        power = np.where(steps & 1 == 1, power * base, power)
        steps, base = steps >> 1, base * base
    return np.where(signed < 0, base.dtype.type(1) / power, power)


def _boolean(function: Callable[..., Any]) -> Callable[..., Array]:
    return lambda *arrays: np.asarray(function(*arrays)).astype(np.int32)


def _where(condition: Array, yes: Array, no: Array) -> Array:
    return np.where(condition, yes, no)


def _integer(width: str) -> dict[str, Callable[..., Array]]:
    bits = int(width[1:])
    mask = bits - 1
    return {
        f"add.{width}": np.add,
        f"sub.{width}": np.subtract,
        f"mul.{width}": np.multiply,
        f"div.{width}.s": lambda a, b: (a - np.fmod(a, b)) // b,
        f"div.{width}.u": lambda a, b: (_u(a) // _u(b)).view(a.dtype),
        f"rem.{width}.s": np.fmod,
        f"rem.{width}.u": lambda a, b: (_u(a) % _u(b)).view(a.dtype),
        f"fma.{width}": lambda a, b, c: a * b + c,
        f"not.{width}": np.invert,
        f"and.{width}": np.bitwise_and,
        f"or.{width}": np.bitwise_or,
        f"xor.{width}": np.bitwise_xor,
        f"shl.{width}": lambda a, n: a << (n & mask).astype(a.dtype),
        f"shr.{width}.s": lambda a, n: a >> (n & mask).astype(a.dtype),
        f"shr.{width}.u": lambda a, n: (_u(a) >> (n & mask).astype(_u(a).dtype)).view(a.dtype),
        f"ctlz.{width}": _each(lambda x: bits - (x % 2**bits).bit_length(), width),
        f"abs.{width}": np.abs,
        f"min.{width}.s": np.minimum,
        f"min.{width}.u": lambda a, b: np.minimum(_u(a), _u(b)).view(a.dtype),
        f"max.{width}.s": np.maximum,
        f"max.{width}.u": lambda a, b: np.maximum(_u(a), _u(b)).view(a.dtype),
        f"cmp.eq.{width}": _boolean(np.equal),
        f"cmp.ne.{width}": _boolean(np.not_equal),
        f"cmp.lt.{width}.s": _boolean(np.less),
        f"cmp.lt.{width}.u": _boolean(lambda a, b: _u(a) < _u(b)),
        f"cmp.nz.{width}": _boolean(lambda a: a != 0),
        f"select.{width}": lambda c, a, b: _where(c != 0, a, b),
    }


def _float(width: str) -> dict[str, Callable[..., Array]]:
    def unordered(a: Array, b: Array) -> Array:
        return np.isnan(a) | np.isnan(b)

    return {
        f"add.{width}": np.add,
        f"sub.{width}": np.subtract,
        f"mul.{width}": np.multiply,
        f"div.{width}": np.divide,
        f"rem.{width}": _each(_remainder, width),
        f"fma.{width}": lambda a, b, c: a * b + c,
        f"fpowi.{width}": _power,
        f"abs.{width}": lambda a: np.abs(_f(a)).view(a.dtype),
        f"neg.{width}": lambda a: np.negative(_f(a)).view(a.dtype),
        f"ceil.{width}": np.ceil,
        f"floor.{width}": np.floor,
        f"round.{width}": _round,
        f"round.{width}.even": _round_even,
        f"sqrt.{width}": np.sqrt,
        f"rsqrt.{width}": lambda a: a.dtype.type(1) / np.sqrt(a),
        f"min.{width}": lambda a, b: _where(b < a, b, a),
        f"max.{width}": lambda a, b: _where(a < b, b, a),
        f"select.{width}": lambda c, a, b: _where(c != 0, a, b),
        f"cmp.eq.{width}.o": _boolean(np.equal),
        f"cmp.eq.{width}.u": _boolean(lambda a, b: (a == b) | unordered(a, b)),
        f"cmp.ne.{width}.o": _boolean(np.not_equal),
        f"cmp.ne.{width}.u": _boolean(np.not_equal),
        f"cmp.lt.{width}.o": _boolean(np.less),
        f"cmp.lt.{width}.u": _boolean(lambda a, b: (a < b) | unordered(a, b)),
        f"cmp.lte.{width}.o": _boolean(np.less_equal),
        f"cmp.lte.{width}.u": _boolean(lambda a, b: (a <= b) | unordered(a, b)),
        f"cmp.nan.{width}": _boolean(np.isnan),
        f"cast.{width}.si32": _each(_to_signed(32), "i32"),
        f"cast.{width}.ui32": _each(_to_signed(32), "i32"),
        f"cast.{width}.si64": _each(_to_signed(64), "i64"),
        f"cast.si64.{width}": lambda a: a.astype(DTYPES[width]),
        f"cast.ui64.{width}": lambda a: _u(a).astype(DTYPES[width]),
    }


_CONVERSIONS: dict[str, Callable[..., Array]] = {
    "trunc.i32.i8": lambda a: a.astype(np.uint8).astype(np.int32),
    "trunc.i32.i16": lambda a: a.astype(np.uint16).astype(np.int32),
    "trunc.i64.i32": lambda a: a.astype(np.int32),
    "ext.i8.i32.s": lambda a: a.astype(np.int8).astype(np.int32),
    "ext.i8.i32.u": lambda a: a.astype(np.uint8).astype(np.int32),
    "ext.i16.i32.s": lambda a: a.astype(np.int16).astype(np.int32),
    "ext.i16.i32.u": lambda a: a.astype(np.uint16).astype(np.int32),
    "ext.i32.i64.s": lambda a: a.astype(np.int64),
    "ext.i32.i64.u": lambda a: _u(a).astype(np.int64),
    "cast.si32.f32": lambda a: a.astype(np.float32),
    "cast.ui32.f32": lambda a: _u(a).astype(np.float32),
    "cast.f32.ui64": _each(_to_unsigned_64, "i64"),
    "cast.f64.ui64": _each(_to_signed(64), "i64"),
    "trunc.f64.f32": lambda a: a.astype(np.float32),
    "ext.f32.f64": lambda a: a.astype(np.float64),
    "bitcast.i32.f32": lambda a: a,
    "bitcast.f32.i32": lambda a: a,
    "bitcast.i64.f64": lambda a: a,
    "bitcast.f64.i64": lambda a: a,
    # The reference runtime takes these through binary32.
    "cast.si32.f64": lambda a: a.astype(np.float32).astype(np.float64),
    "cast.ui32.f64": lambda a: _u(a).astype(np.float32).astype(np.float64),
    "cast.f64.si32": lambda a: _each(_to_signed(32), "i32")(a.astype(np.float32)),
    "cast.f64.ui32": lambda a: _each(_to_signed(32), "i32")(a.astype(np.float32)),
}

_fused = ctypes.CDLL(find_library("m")).fmaf
_fused.restype = ctypes.c_float
_fused.argtypes = [ctypes.c_float] * 3

EXACT = (
    _integer("i32")
    | _integer("i64")
    | _float("f32")
    | _float("f64")
    | _CONVERSIONS
    | {"fma.f32.fused": _each(_fused, "f32")}
)
"""Mnemonic → function of arrays; results agree bit for bit, but for which NaN they are."""

_MATH: dict[str, Callable[..., Array]] = {
    "atan": np.arctan, "atan2": np.arctan2, "cos": np.cos, "sin": np.sin, "exp": np.exp, "exp2": np.exp2,
    "expm1": np.expm1, "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "pow": np.power,
    "tanh": np.tanh,
}  # fmt: skip
CLOSE = {f"{name}.{width}": function for name, function in _MATH.items() for width in ("f32", "f64")} | {
    f"erf.{width}": _each(math.erf, width) for width in ("f32", "f64")
}
"""C library functions; other implementations differ in the last bits."""
