"""What every way of calling a function has to keep, in tables: values, forms of arguments, refusals.

Only the public API is used. Every call is made several times: the first takes another way than later ones.
"""

from __future__ import annotations

import array
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jitree import Session
from jitree.errors import InvalidArgumentError, OutOfRangeError, StatusError
from tests.api.exact import ROUNDS, X, same

# -- values ----------------------------------------------------------------------------------------------


def numbers(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    """Small numbers that every element type holds."""
    return (np.arange(int(np.prod(shape))) % 2).reshape(shape).astype(dtype)


SIZES = (0, 1, 3, 64, 1000, 20000)
ELEMENTS = {
    "i1": np.bool_, "i2": ml_dtypes.int2, "i4": ml_dtypes.int4, "i8": np.int8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32,
    "f64": np.float64, "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "complex_f32": np.complex64, "complex_f64": np.complex128,
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTS)
def test_arrays_of_every_type_and_size(programs: Session, name: str) -> None:
    """The argument comes back: from numpy, from the device, and as a result of the call before."""
    function = programs[f"module.e1_{name}"]
    for size in SIZES:
        given = numbers(ELEMENTS[name], size)
        result = function(given)
        for _ in range(ROUNDS):
            same(result, given)
            same(function(given), given)
            same(function(programs.to_device(given)), given)
            result = function(result)


def doubled(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    total: np.ndarray[Any, Any] = (value + value).astype(value.dtype)
    return total


DOUBLED = {
    "double_i8": (np.int8, 1), "double_i64": (np.int64, 2), "double_f64": (np.float64, 1),
    "double_f16": (np.float16, 1), "double_bf16": (ml_dtypes.bfloat16, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBLED)
def test_dispatches_over_every_type_and_size(programs: Session, name: str) -> None:
    dtype, rank = DOUBLED[name]
    for size in SIZES:
        given = numbers(dtype, *([size] if rank == 1 else [size, 3]))
        for _ in range(ROUNDS):
            same(programs[f"kinds.{name}"](given), doubled(given))
            same(programs[f"kinds.{name}"](programs.to_device(given)), doubled(given))


BITS = np.array([True, False, True])
TEN = (2,) * 10
ROWS: dict[str, tuple[str, tuple[Any, ...], Any]] = {
    "nothing": ("arithmetic.nothing", (), None),
    "no result": ("arithmetic.consume", (X,), None),
    "rank 0": ("arithmetic.square", (np.array(3, np.float32),), np.array(9, np.float32)),
    "rank 0 from a number": ("arithmetic.square", (3,), np.array(9, np.float32)),
    "rank 0 from a numpy number": ("arithmetic.square", (np.float32(3),), np.array(9, np.float32)),
    "rank 0, i8": ("module.e0_i8", (np.int8(-3),), np.array(-3, np.int8)),
    "rank 3": ("module.e3_i32", (numbers(np.int32, 2, 3, 4),), numbers(np.int32, 2, 3, 4)),
    "rank 3, empty": ("module.e3_i32", (numbers(np.int32, 2, 0, 4),), numbers(np.int32, 2, 0, 4)),
    "rank 10": ("kinds.rank10", (numbers(np.int32, *TEN),), numbers(np.int32, *TEN)),
    "rank 10, empty": ("kinds.rank10", (numbers(np.int32, *TEN[1:], 0),), numbers(np.int32, *TEN[1:], 0)),
    "made by the program": ("calls.iota", (5,), np.arange(5, dtype=np.float32)),
    "large, made by the program": ("calls.iota", (300000,), np.arange(300000, dtype=np.float32)),
    "none, made by the program": ("calls.iota", (0,), np.arange(0, dtype=np.float32)),
    "booleans": ("kinds.differ", (BITS, BITS[::-1].copy()), np.array([False] * 3)),
    "booleans from floats": ("kinds.less", (X, X[::-1]), np.array([True, True, False, False])),
    "host read": ("calls.at", (X, 2), 2.0),
    "large": ("arithmetic.large", (np.ones(65536, np.float32),), np.full(65536, 2, np.float32)),
    "constant": ("calls.constant", (), np.arange(1, 5, dtype=np.float32)),
    "literal": ("calls.literal", (), np.arange(1, 5, dtype=np.float32)),
    "argument and results": ("calls.both", (X,), (X, 2 * X, 2 * X)),
    "numbers and arrays": (
        "calls.mixed", (X, -1, X + 1, 1 << 40, 0.5, 0.1, True, -3),
        (2 * X + 1, -1, 1 << 40, 0.5, 0.1, True, -3, X * (X + 1)),
    ),
    "all kinds of numbers": (
        "arithmetic.numbers", (-(1 << 31), (1 << 63) - 1, -0.5, 1e300, False, 127),
        (-(1 << 31), (1 << 63) - 1, -0.5, 1e300, False, 127),
    ),
    "not a number": ("module.s_f32", (float("nan"),), float("nan")),
    "infinity": ("module.s_f32", (float("-inf"),), float("-inf")),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_calls(programs: Session, row: str) -> None:
    name, arguments, expected = ROWS[row]
    for _ in range(ROUNDS):
        same(programs.call(name, *arguments), expected)
    on_device = [programs.to_device(value) if isinstance(value, np.ndarray) else value for value in arguments]
    for _ in range(ROUNDS):
        same(programs.prepare(name)(*on_device), expected)


# -- forms of arguments ------------------------------------------------------------------------------------


class Derived(np.ndarray[Any, Any]):
    """A numpy array of another class."""


class Convertible:
    """An object that numpy makes an array of."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return M


M = np.arange(12, dtype=np.float32).reshape(3, 4)


def misaligned(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    block = np.zeros(value.nbytes + 1, np.uint8)
    result: np.ndarray[Any, Any] = block[1:].view(value.dtype).reshape(value.shape)
    result[...] = value
    return result


def read_only(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result = value.copy()
    result.flags.writeable = False
    return result


def mapped(value: np.ndarray[Any, Any], folder: Path) -> np.ndarray[Any, Any]:
    path = folder / "array"
    value.tofile(path)
    return np.memmap(path, value.dtype, "r", shape=value.shape)


# numpy advises against np.matrix, but there are programs that use it.
FORMS: dict[str, Callable[[np.ndarray[Any, Any], Path], Any]] = {
    "plain": lambda value, folder: value,
    "transposed": lambda value, folder: np.ascontiguousarray(value.T).T,
    "Fortran": lambda value, folder: np.asfortranarray(value),
    "backwards": lambda value, folder: value[::-1, ::-1].copy()[::-1, ::-1],
    "every second": lambda value, folder: np.repeat(np.repeat(value, 2, 0), 2, 1)[::2, ::2],
    "read-only": lambda value, folder: read_only(value),
    "other byte order": lambda value, folder: value.astype(value.dtype.newbyteorder()),
    "misaligned": lambda value, folder: misaligned(value),
    "subclass": lambda value, folder: value.view(Derived),
    "matrix": lambda value, folder: np.matrix(value),
    "memmap": mapped,
    "memoryview": lambda value, folder: np.ascontiguousarray(value).data,
    "lists": lambda value, folder: value.tolist(),
    "tuples": lambda value, folder: tuple(map(tuple, value.tolist())),
    "sequence of arrays": lambda value, folder: list(value),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_arrays(programs: Session, form: str, tmp_path: Path) -> None:
    function = programs["module.e2_f32"]
    for value in (M, M[:1], M[:, :1], M[1:, 1:], np.arange(40000, dtype=np.float32).reshape(200, 200)):
        given = FORMS[form](value, tmp_path)
        for _ in range(ROUNDS):
            result = function(given)
            same(result, np.ascontiguousarray(value))
            assert not isinstance(given, np.ndarray) or not np.shares_memory(np.asarray(result), given)
            assert np.array_equal(np.asarray(given), value), "arguments are left alone"
        if form not in ("lists", "tuples"):
            same(function(programs.to_device(given)), np.ascontiguousarray(value))


def test_other_forms(programs: Session) -> None:
    zero_strides = np.broadcast_to(np.float32(3), (2, 3))
    empty = np.zeros((2, 0), np.float32)
    for given, expected in (
        (zero_strides, np.full((2, 3), 3, np.float32)), (Convertible(), M), (empty, empty),
    ):  # fmt: skip
        for _ in range(ROUNDS):
            same(programs["module.e2_f32"](given), np.asarray(expected))
    for _ in range(ROUNDS):
        same(programs["module.e1_f32"](array.array("f", [1, 2])), np.array([1, 2], np.float32))
        unsigned = np.array([[0, 1 << 31, 3]] * 2, np.uint32)
        same(programs["arithmetic.add_named"](unsigned, unsigned), (unsigned + unsigned).view(np.int32))


OWN = {
    "i8": (np.int8, np.uint8, np.bool_), "i32": (np.int32, np.uint32), "i64": (np.int64, np.uint64),
    "si32": (np.int32,), "ui8": (np.uint8,), "ui32": (np.uint32,), "i1": (np.bool_,),
}  # fmt: skip
"""The arrays that each type takes as they are; it also takes those whose values numpy casts safely."""


@pytest.mark.parametrize("name", OWN)
def test_integers_of_each_sign(programs: Session, name: str) -> None:
    function = programs[f"module.e1_{name}"]
    declared = OWN[name][0]
    for dtype in (np.bool_, *(np.dtype(f"{sign}{size}").type for sign in "iu" for size in (1, 4, 8))):
        array: np.ndarray[Any, Any] = np.array([0, 1, 1], dtype)
        for given in (array, programs.to_device(array)):
            for _ in range(ROUNDS):
                is_taken = dtype in OWN[name] or np.can_cast(dtype, declared, "safe")
                if is_taken or (name == "i1" and array.nbytes == 3 and given is array):
                    assert np.asarray(function(given)).tolist() == array.tolist()
                    continue
                with pytest.raises(InvalidArgumentError, match=f"type mismatch; expected {name} .* but have"):
                    function(given)
    if name == "i1":
        for _ in range(ROUNDS):
            with pytest.raises(
                InvalidArgumentError, match="a 2xi8 array; it has other elements than 0 and 1"
            ):
                function(np.array([1, 2], np.int8))


class Level(enum.IntEnum):
    HIGH = 7


class Real(float):
    """A number of a class of its own."""


NUMBERS: dict[str, list[tuple[Any, Any]]] = {
    "i1": [(True, True), (0, False), (np.True_, True), (1.0, True)],
    "i8": [(-128, -128), (127, 127), (np.uint8(255), -1), (5.0, 5), (True, 1), (Level.HIGH, 7)],
    "i16": [(-32768, -32768), (np.uint16(65535), -1), (np.int64(3), 3)],
    "i32": [
        (-(1 << 31), -(1 << 31)), (np.array((1 << 32) - 1, np.uint32), -1), (Level.HIGH, 7),
        (np.array(3), 3), (np.float32(4), 4),
    ],
    "i64": [
        (-(1 << 63), -(1 << 63)), (np.uint64((1 << 64) - 1), -1), (np.uint64(1 << 63), -(1 << 63)),
        (False, 0),
    ],
    "index": [(0, 0), ((1 << 63) - 1, (1 << 63) - 1), (3.0, 3)],
    "f16": [(0.1, float(np.float16(0.1))), (65504, 65504.0), (True, 1.0)],
    "f32": [
        (0.1, float(np.float32(0.1))), (1 << 24, float(1 << 24)), (np.float64(0.1), float(np.float32(0.1))),
        (1e-50, 0.0), (Real(2.5), 2.5), (3.4028234663852886e38, 3.4028234663852886e38), (np.array(1.5), 1.5),
        (3.4028235e38, 3.4028234663852886e38), (-0.0, -0.0), (np.int8(-1), -1.0),
    ],
    "f64": [
        (0.1, 0.1), (1 << 53, float(1 << 53)), (np.float32(0.1), float(np.float32(0.1))), (Real(2.5), 2.5),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(programs: Session, name: str) -> None:
    for given, expected in NUMBERS[name]:
        for _ in range(ROUNDS):
            same(programs.call(f"module.s_{name}", given), expected)


# -- refusals --------------------------------------------------------------------------------------------

WORDS = ("text", None, [1], 1j, b"1", np.array([1]), object(), np.ma.masked, np.timedelta64(1))
WRONG_NUMBERS: dict[str, tuple[Any, ...]] = {
    "i1": (2, -1, 0.5), "i8": (128, 255, -129, 1.5, np.int16(200)), "i16": (32768, -32769, float("nan")),
    "i32": (1 << 31, (1 << 32) - 1, -(1 << 31) - 1, 1e10, float("inf"), np.uint64(1 << 40)),
    "i64": (1 << 63, (1 << 64) - 1, -(1 << 63) - 1, 1 << 100, 0.5), "index": (1 << 63, -1.5),
    "f16": (65536, 1e6, 2049), "f32": (1e39, -1e39, (1 << 24) + 1, 1 << 200, np.float64(1e300)),
    "f64": ((1 << 53) + 1, 1 << 2000),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_NUMBERS)
def test_numbers_that_do_not_fit(programs: Session, name: str) -> None:
    function = programs[f"module.s_{name}"]
    for given in (*WRONG_NUMBERS[name], *WORDS):
        for _ in range(ROUNDS):
            with pytest.raises(
                InvalidArgumentError, match=f"(?s)input0: expected {name} but got .*`sync func @s_{name}"
            ):
                function(given)
            same(function(1), True if name == "i1" else 1.0 if name.startswith("f") else 1)


REFUSED: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "too few": ("add", (X,), "expected 2 arguments but passed 1"),
    "none": ("add", (), "expected 2 arguments but passed 0"),
    "too many": ("add", (X, X, X), "expected 2 arguments but passed 3"),
    "too many for none": ("nothing", (1,), "expected 0 arguments but passed 1"),
    "dimension": ("add", (X, X[:3]), "input1 shape dimension 0 mismatch; expected 4 but have 3"),
    "longer": ("add", (np.zeros(5, np.float32), X), "input0 shape dimension 0 mismatch; .* have 5"),
    "rank": ("add", (X, X.reshape(2, 2)), "input1 shape rank mismatch; expected 1 but have 2"),
    "rank of a dynamic shape": ("twice", (X,), "input0 shape rank mismatch; expected 2 but have 1"),
    "inner dimension": ("twice", (np.zeros((3, 2), np.float32),), "dimension 1 .* expected 3 but have 2"),
    "rank 0 for a vector": ("add", (X, np.float32(1)), "input1 shape rank mismatch; expected 1 but have 0"),
    "vector for rank 0": ("square", (X[:1],), "input0 shape rank mismatch; expected 0"),
    "f64": ("add", (X.astype(np.float64), X), "input0 element type mismatch; expected f32"),
    "i32": ("add", (X, X.astype(np.int32)), "input1 element type mismatch; expected f32 .* but have i32"),
    "cf64 of the same size": ("add", (np.zeros(2, np.complex64), X), "element type mismatch"),
    "null": ("add", (X, None), "ref is null; input1"),
    "text": ("add", ("text", X), "input0: expected tensor<4xf32> but got 'text'"),
    "objects": ("add", (X.astype(object), X), "input0: expected .* but got an array of dtype object"),
    "dates": ("add", (X, X.astype("M8[s]")), "an array of dtype datetime64"),
    "structures": ("add", (X, np.zeros(4, [("a", "f4")])), r"an array of dtype \[\('a', '<f4'\)\]"),
    "long doubles": ("add", (X, X.astype(np.longdouble)), "input1"),
    "a mask": ("add", (X, np.ma.masked_array(X, X > 1)), "but got a 4xf32 masked array; .*array.filled"),
    "a list with a mask": ("add", ([np.ma.masked, 1, 2, 3], X), "input0: .* programs know no masks"),
    "numbers that lose": ("add", (X, [1, 2, 3, 1 << 25 | 1]), "cannot be converted without loss"),
    "ragged": ("add", (X, [1, [2, 3], 4, 5]), "inhomogeneous"),
    "a class": ("add", (X, np.ndarray), "but got <class 'numpy.ndarray'> of type type"),
    "a number for an array": ("large", (1.0,), "input0 shape rank mismatch; expected 1 but have 0"),
    "an array for a number": ("scale", (np.zeros(8, np.float32), X), "input1: expected f32 but got a 4xf32"),
}  # fmt: skip
VALID: dict[str, tuple[tuple[Any, ...], Any]] = {
    "add": ((X, X), 2 * X), "nothing": ((), None), "square": ((np.float32(3),), np.array(9, np.float32)),
    "twice": ((np.ones((2, 3), np.float32),), np.full((2, 3), 2, np.float32)),
    "large": ((np.ones(65536, np.float32),), np.full(65536, 2, np.float32)),
    "scale": ((np.ones(8, np.float32), 3.0), np.full(8, 3, np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("row", REFUSED)
def test_refused_calls_leave_nothing(programs: Session, row: str) -> None:
    """The same error each time, and the next call is right."""
    name, arguments, text = REFUSED[row]
    function = programs[f"arithmetic.{name}"]
    texts = set()
    for _ in range(ROUNDS):
        with pytest.raises(InvalidArgumentError, match=text) as failure:
            function(*arguments)
        texts.add(str(failure.value))
        valid, expected = VALID[name]
        same(function(*valid), expected)
    assert len(texts) == 1 and f"`sync func @{name}(" in texts.pop()
    if row != "a mask" and all(getattr(value, "dtype", 0) in (np.float32, np.int32) for value in arguments):
        on_device = [programs.to_device(value) for value in arguments]
        for _ in range(ROUNDS):
            with pytest.raises(InvalidArgumentError, match=text):
                function(*on_device)


def test_arguments_by_name(programs: Session) -> None:
    function = programs["arithmetic.add_named"]
    left, right = np.ones((2, 3), np.int32), np.full((2, 3), 2, np.int32)
    for _ in range(ROUNDS):
        same(function(right=right, left=left), left + right)
        same(function(left, right=right), left + right)
        for names, text in (
            ({"wrong": right}, "argument 'wrong' is unknown; there are: left, right"),
            ({"left": right}, "argument 'left' is given twice"),
            ({"out": right}, "out: the program puts no result into storage"),
        ):
            with pytest.raises(InvalidArgumentError, match=text):
                function(left, **names)
        with pytest.raises(InvalidArgumentError, match="missing: right"):
            function(left=left)


FAILING: dict[str, tuple[str, tuple[Any, ...], type[StatusError], tuple[Any, ...], Any]] = {
    "an assertion": ("checked", (X, -1), StatusError, (X, 1), 2 * X),
    "a read outside": ("at", (X, 1 << 40), OutOfRangeError, (X, 3), 3.0),
    "a read before": ("at", (X, -1), OutOfRangeError, (X, 3), 3.0),
    "too much memory": ("iota", (1 << 58,), StatusError, (2,), X[:2]),
    "a negative size": ("iota", (-1,), OutOfRangeError, (2,), X[:2]),
}


@pytest.mark.parametrize("row", FAILING)
def test_calls_that_fail_inside(programs: Session, row: str) -> None:
    name, arguments, kind, valid, expected = FAILING[row]
    function = programs[f"calls.{name}"]
    texts = set()
    for _ in range(ROUNDS):
        with pytest.raises(kind) as failure:
            function(*arguments)
        texts.add(str(failure.value))
        same(function(*valid), expected)
    assert len(texts) == 1 and f"`sync func @{name}(" in texts.pop()
