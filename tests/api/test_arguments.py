"""Arguments and results of calls: conversions, refusals and their texts."""

from __future__ import annotations

import array
import gc
import math
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree import HostExport, HostModule, Module, Session
from jitree.api.calls.conversion import convert_exactly
from jitree.api.calls.declaration import Parameter
from jitree.api.calls.number_packing import DoublePacker, IntegerPacker, NumberPacker, SinglePacker
from jitree.api.calls.reference_packing import ReferencePacker
from jitree.api.calls.tensor_packing import ArrayTransfer, ready_view
from jitree.base.arguments import said
from jitree.errors import InvalidArgumentError, StatusError
from jitree.regs.list import VmList
from jitree.regs.ref_types import RefTypes
from tests.api.direct import direct
from tests.api.programs import ARITHMETIC, ECHO, REFERENCES, TORCH_STYLE

X = np.arange(4, dtype=np.float32)
UNUSED: Any = ArrayTransfer(None, ready_view)  # type: ignore[arg-type]
"""For packers that get no arrays."""


VALID_CALLS = {
    "add": (X, X), "add_named": (np.zeros((2, 3), np.int32),) * 2, "twice": (np.zeros((5, 3), np.float32),),
    "square": (np.float32(3),), "scale": (np.zeros(8, np.float32), 2.0),
    "large": (np.zeros(65536, np.float32),), "sums": (np.zeros(4, np.int64), 1), "consume": (X,),
    "nothing": (), "numbers": (1, 2, 3.0, 4.0, 1, 6),
}  # fmt: skip


@pytest.fixture(scope="module", params=["plain", "fast"])
def module(request: pytest.FixtureRequest) -> Module:
    """On the fast tier machine code calls all functions, from the third call on."""
    module = Session("local-sync", tier=request.param).load(ARITHMETIC)
    for name, arguments in VALID_CALLS.items():
        if request.param == "fast":
            direct(module[name], *arguments)
    return module


@pytest.fixture(scope="module")
def references() -> Module:
    return Session("local-sync", tier="plain").load(REFERENCES)


# -- numbers -----------------------------------------------------------------------------------------

INTEGERS = {
    "i1": (1, 32, 0, 1), "i8": (8, 32, -128, 127), "i16": (16, 32, -32768, 32767),
    "i32": (32, 32, -(1 << 31), (1 << 31) - 1), "i64": (64, 64, -(1 << 63), (1 << 63) - 1),
    "si8": (8, 32, -128, 127), "ui8": (8, 32, 0, 255), "si32": (32, 32, -(1 << 31), (1 << 31) - 1),
    "ui32": (32, 32, 0, (1 << 32) - 1), "ui64": (64, 64, 0, (1 << 64) - 1),
    "index": (64, 64, -(1 << 63), (1 << 63) - 1),
}  # fmt: skip
"""(bits, bits of the register, least, greatest)"""


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_keep_their_bits_or_are_refused(name: str) -> None:
    bits, storage, low, high = INTEGERS[name]
    packer = IntegerPacker(Parameter("n", name), storage)
    for value in {low, low + 1, -1, 0, 1, high - 1, high, 1 << (bits - 1), (1 << (bits - 1)) - 1}:
        if low <= value <= high:
            packed = packer.pack(value)
            assert -(1 << (storage - 1)) <= packed < 1 << (storage - 1)
            assert (packed - value) % (1 << bits) == 0
    for value in (low - 1, high + 1, 1 << 70):
        with pytest.raises(InvalidArgumentError, match=f"n: expected {name} but got {value} of type int"):
            packer.pack(value)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_types_without_a_sign_take_the_bits_of_unsigned_integers_of_their_width(bits: int) -> None:
    largest = (1 << bits) - 1
    carrier = np.dtype(f"uint{bits}").type
    packer = IntegerPacker(Parameter("n", f"i{bits}"), max(bits, 32))
    for value in (carrier(largest), np.array(largest, carrier), np.array(largest, f">u{bits // 8}")):
        assert packer.pack(value) == -1
    for refused in (largest, float(1 << bits - 1), 1 << bits - 1):
        with pytest.raises(InvalidArgumentError, match=rf"the bits of numpy\.uint{bits}\({int(refused)}\)"):
            packer.pack(refused)
    with pytest.raises(InvalidArgumentError, match=f"expected si{bits} but got"):
        IntegerPacker(Parameter("n", f"si{bits}"), max(bits, 32)).pack(carrier(largest))
    assert bits == 64 or IntegerPacker(Parameter("n", "i64"), 64).pack(carrier(largest)) == largest


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, 1),
        (np.int8(-3), -3),
        (np.uint64(7), 7),
        (5.0, 5),
        (np.float32(4), 4),
        (np.array(9), 9),
        (np.True_, 1),
    ],
)
def test_what_is_an_integer(value: Any, expected: int) -> None:
    packed = IntegerPacker(Parameter("n", "i32"), 32).pack(value)
    assert packed == expected and type(packed) is int


@pytest.mark.parametrize(
    "value", [1.5, math.nan, math.inf, "1", None, [1], 1j, np.array([1]), np.array([1, 2])]
)
def test_what_is_no_integer(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="n: expected i32 but got "):
        IntegerPacker(Parameter("n", "i32"), 32).pack(value)


@pytest.mark.parametrize(
    "packer",
    [
        IntegerPacker(Parameter("x", "i32"), 32),
        DoublePacker(Parameter("x", "f64")),
        SinglePacker(Parameter("x", "f32")),
    ],
)
@pytest.mark.parametrize("mask", [True, False])
def test_masked_numbers(packer: NumberPacker, mask: bool) -> None:
    with pytest.raises(InvalidArgumentError, match=r"x: expected .* masked array.*array\.filled"):
        packer.pack(np.ma.masked_array(3, mask))


@pytest.mark.parametrize("packer", [DoublePacker(Parameter("x", "f64")), SinglePacker(Parameter("x", "f32"))])
def test_what_is_no_float(packer: DoublePacker) -> None:
    for value in ("1", None, [1.0], 1j, np.timedelta64(5), np.longdouble("1e400"), np.ma.masked, 10**400):
        with pytest.raises(InvalidArgumentError, match="x: expected f"):
            packer.pack(value)
    assert packer.pack(ml_dtypes.bfloat16(1.5)) == packer.pack(np.array(1.5, ml_dtypes.bfloat16)) == 1.5
    assert packer.pack(np.longdouble("inf")) == math.inf


@given(st.one_of(st.floats(), st.integers(-(1 << 300), 1 << 300)))
def test_doubles_are_exact_or_refused(value: float) -> None:
    packer = DoublePacker(Parameter("x", "f64"))
    try:
        packed = packer.pack(value)
    except InvalidArgumentError:
        assert isinstance(value, int) and int(float(value)) != value
    else:
        assert type(packed) is float and (packed == value or packed != packed)


@given(st.one_of(st.floats(), st.integers(-(1 << 140), 1 << 140)))
def test_singles_are_rounded_but_keep_integers(value: Any) -> None:
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    try:
        packed = SinglePacker(Parameter("x", "f32")).pack(value)
    except InvalidArgumentError:
        assert math.isfinite(value) and (math.isinf(rounded) or (isinstance(value, int) and rounded != value))
    else:
        assert np.float32(packed) == np.float32(value) or packed != packed
        assert isinstance(value, float) or rounded == value


def test_numbers_through_a_program(module: Module) -> None:
    values = (-(1 << 31), (1 << 63) - 1, 0.1, 0.1, True, -128)
    results = module.numbers(*values)
    assert results == (-(1 << 31), (1 << 63) - 1, float(np.float32(0.1)), 0.1, True, -128)
    assert [type(value) for value in results] == [int, int, float, float, bool, int]
    assert module.numbers(np.uint32(0xFFFFFFFF), -1, np.float16(2), 3, np.False_, np.int8(5))[:4] == (
        -1,
        -1,
        2.0,
        3.0,
    )


def test_refused_numbers_name_argument_expected_and_given(module: Module) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        module.numbers(1, 2, 3, "four", True, 6)
    text = str(raised.value)
    assert text.startswith(
        "INVALID_ARGUMENT; input3: expected f64 but got 'four' of type str; invoking function"
    )
    declaration, caret = text.split("\n")[1:]
    assert declaration == f"`{module.numbers.declaration}`"
    assert declaration[caret.index("^") : len(caret)] == "%input3: f64"


# -- tensors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        X, X[::-1][::-1], np.stack([X, X]).T[:, 0], X.astype(">f4"), [0, 1, 2, 3], (0.0, 1, True + 1, 3),
        array.array("f", [0, 1, 2, 3]), X.data, list(X), np.array(X, order="F"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_a_tensor(module: Module, value: Any) -> None:
    assert np.array_equal(module.add(value, X), X + X)


def test_read_only_and_strided_arrays(module: Module) -> None:
    frozen = X.copy()
    frozen.setflags(write=False)
    assert np.array_equal(module.add(frozen, np.repeat(X, 2)[::2]), X + X)


def test_a_signalling_nan_is_converted_whatever_numpy_raises() -> None:
    given = np.array([0x7F800001, 0x3F800000], np.uint32).view(np.float32)
    with Session("local-sync") as session, np.errstate(all="raise"):
        assert str(np.asarray(session.load(ECHO).e1_f64(given))) == "[nan  1.]"


def test_rank_zero(module: Module) -> None:
    for value in (3, 3.0, np.float32(3), np.array(3, np.float32), np.float64(3), True + 2):
        result = module.square(value)
        assert (float(result), result.shape, result.dtype) == (9.0, (), np.float32)


def test_dynamic_dimensions(module: Module) -> None:
    for rows in (0, 1, 5, 1000):
        value = np.full((rows, 3), 1.5, np.float32)
        assert np.array_equal(module.twice(value), value * 2)
    with pytest.raises(
        InvalidArgumentError, match=r"input0 shape dimension 1 mismatch; expected 3 but have 4"
    ):
        module.twice(np.zeros((2, 4), np.float32))


def test_integers_of_equal_width_are_interchangeable(module: Module) -> None:
    left, right = np.arange(6, dtype=np.uint32).reshape(2, 3), np.full((2, 3), -1, np.int32)
    assert np.asarray(module.add_named(left, right)).tolist() == (left.astype(np.int32) - 1).tolist()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (X.astype(np.int32), "input0 element type mismatch; expected f32 (float32) but have i32 (int32)"),
        (X.astype(np.float64), "input0 element type mismatch; expected f32 (float32) but have f64 (float64)"),
        (
            X.astype(ml_dtypes.int4).view("V1"),
            "input0 element type mismatch; expected f32 (float32) but have *8 (void8)",
        ),
        (
            X.reshape(2, 2),
            "input0 shape rank mismatch; expected 1 but have 2; expected shape `4`, actual shape `2x2`",
        ),
        (
            np.float32(1),
            "input0 shape rank mismatch; expected 1 but have 0 (scalar); expected shape `4`, actual shape ``",
        ),
        (
            X[:3],
            "input0 shape dimension 0 mismatch; expected 4 but have 3; expected shape `4`, actual shape `3`",
        ),
        ([1, 2, 3], "input0 shape dimension 0 mismatch; expected 4 but have 3"),
        (range(7, 2, -2), "input0 shape dimension 0 mismatch; expected 4 but have 3"),
        (range(1 << 62), "input0 shape dimension 0 mismatch; expected 4 but have 4611686018427387904"),
        (range(1 << 70), "input0 shape dimension 0 mismatch; expected 4 but have 1180591620717411303424"),
        (None, "ref is null; input0 needs a tensor<4xf32>"),
        ("text", "input0: expected tensor<4xf32> but got 'text' of type str"),
        (b"1234567890123456", "input0: expected tensor<4xf32> but got b'1234567890123456' of type bytes"),
        (object, "input0: expected tensor<4xf32> but got <class 'object'> of type type"),
        ([1, [2, 3], 4, 5], "input0: expected tensor<4xf32> but got [1, [2, 3], 4, 5] of type list"),
        ([1, "2", 3, 4], "input0: expected tensor<4xf32> but got"),
        ([1, None, 3, 4], "input0: expected tensor<4xf32> but got"),
        ([1, 2, 3, 4j], "input0: expected tensor<4xf32> but got"),
        ([1, 2, 3, 1e39], "its elements cannot be converted without loss"),
        ([1, 2, 3, (1 << 24) + 1], "its elements cannot be converted without loss"),
        (X.astype(object), "input0: expected tensor<4xf32> but got an array of dtype object and shape (4,)"),
        (X.astype("datetime64[s]"), "input0: expected tensor<4xf32> but got an array of dtype datetime64[s]"),
        ({"a": 1}, "input0: expected tensor<4xf32> but got {'a': 1} of type dict"),
    ],
)  # fmt: skip
def test_what_is_no_tensor(module: Module, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        module.add(value, X)
    assert str(raised.value).startswith("INVALID_ARGUMENT; ") and message in str(raised.value)
    assert "invoking function 'add'" in str(raised.value)
    assert np.array_equal(module.add(X, X), X + X)


def test_device_arrays_are_checked_too(module: Module) -> None:
    session = module.session
    with pytest.raises(
        InvalidArgumentError, match=r"input1 element type mismatch; expected f32 .* but have i64"
    ):
        module.add(X, session.to_device([1, 2, 3, 4]))
    with pytest.raises(InvalidArgumentError, match="input1 shape rank mismatch"):
        module.add(X, session.to_device(X.reshape(2, 2)))
    assert np.array_equal(module.add(session.to_device(X), session.to_device(X)), X + X)


@pytest.mark.parametrize(
    ("given", "dtype", "kept"),
    [
        ([1, 2], ml_dtypes.float8_e8m0fnu, True),
        ([1, 0], ml_dtypes.float8_e8m0fnu, False),  # it has no zero
        ([1.0, 0.0], ml_dtypes.float8_e8m0fnu, False),
        ([1, 2], np.complex64, True),
        ([1 << 25 | 1], np.complex64, False),
        ([1 << 20], np.float16, False),
        ([(1 << 64) - 1], np.int64, False),
        ([(1 << 64) - 1], np.int32, False),
        ([-1], np.uint64, False),
        ([-1], ml_dtypes.uint4, False),
        ([-1, 7], ml_dtypes.int4, True),
        ([math.nan], np.int32, False),
        ([math.nan], np.bool_, False),
        ([math.inf, 1.5], np.float32, True),
        ([1e39], np.float32, False),
    ],
)
@pytest.mark.filterwarnings("error")
def test_numbers_keep_their_value(given: list[float], dtype: Any, kept: bool) -> None:
    array = np.array(given)
    if kept:
        assert convert_exactly(array, np.dtype(dtype), "x", "t", given).tolist() == given
    else:
        with pytest.raises(InvalidArgumentError, match="x: expected t"):
            convert_exactly(array, np.dtype(dtype), "x", "t", given)


def test_python_numbers_for_integer_tensors(module: Module) -> None:
    assert np.asarray(module.add_named([[1, 2, 3], [4, 5, 6]], np.zeros((2, 3), np.int32)))[1, 2] == 6
    for bad in ([[1.5, 2, 3], [4, 5, 6]], [[1 << 31, 0, 0], [0, 0, 0]], [[1 << 70, 0, 0], [0, 0, 0]]):
        with pytest.raises(InvalidArgumentError, match="left"):
            module.add_named(bad, np.zeros((2, 3), np.int32))


# -- counts, names, results --------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "missing"), [(0, "input0, input1"), (1, "input1"), (3, "")])
def test_wrong_number_of_arguments(module: Module, count: int, missing: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        module.add(*[X] * count)
    text = f"INVALID_ARGUMENT; expected 2 arguments but passed {count}; "
    text += f"missing: {missing}; invoking function 'add'; `sync func" if missing else "invoking function"
    assert str(raised.value).startswith(text)


def test_arguments_by_name(module: Module) -> None:
    value = np.ones((2, 3), np.int32)
    assert np.asarray(module.add_named(value, right=value * 2))[0, 0] == 3
    assert np.asarray(module.add_named(right=value * 2, left=value))[0, 0] == 3
    for names, message in (
        ({"wrong": value}, "argument 'wrong' is unknown; there are: left, right"),
        ({"left": value}, "argument 'left' is given twice"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            module.add_named(value, **names)
    with pytest.raises(InvalidArgumentError, match="missing: right"):
        module.add_named(left=value)


def test_results(module: Module) -> None:
    assert module.nothing() is None
    assert module.consume(X) is None
    tensor, number, single = module.sums(np.arange(4), 5)
    assert (np.asarray(tensor).tolist(), number, single) == ([5, 6, 7, 8], 5, 5.0)
    assert (type(number), type(single)) == (int, float)


def test_without_a_declaration(plain_session: Session) -> None:
    module = plain_session.load(TORCH_STYLE)
    assert module.main.declaration == "func @main(tensor<4xf32>, tensor<4xf32>) -> (!vm.ref<?>)"
    assert module.main.declaration in repr(module)
    assert np.array_equal(module.main(X, plain_session.to_device(X)), X + X)
    with pytest.raises(StatusError, match="element type mismatch"):
        module.main(X, X.astype(np.int32))
    with pytest.raises(StatusError, match="ref is null"):
        module.main(X, None)
    with pytest.raises(StatusError, match="ref type mismatch"):
        module.main(X, [1, 2, 3, 4])
    with pytest.raises(InvalidArgumentError, match=r"input1: expected !vm.ref<\?> but got 3"):
        module.main(X, 3)


def test_lists(references: Module) -> None:
    assert references.list_size([]) == 0
    values = references.list_same([1, -2.5, X, b"ab", None, [3, [4]], True, references.session.to_device(X)])
    assert values[:2] == [1, -2.5] and values[4:7] == [None, [3, [4]], 1]
    assert np.array_equal(values[2], X) and bytes(values[3]) == b"ab" and np.array_equal(values[7], X)
    number, tensor = references.pair(7, [1, 2])
    assert number == 7 and np.asarray(tensor).tolist() == [1.0, 2.0]
    with pytest.raises(InvalidArgumentError, match="element 1 of the list for input0"):
        references.list_size([1, "text"])


def test_lists_of_numbers_hold_what_they_are_given() -> None:
    packer = ReferencePacker(Parameter("xs", "!util.list<i32>"), UNUSED, RefTypes())
    packed = packer.pack([1, np.int64(-2), True, np.uint32(0xFFFFFFFF)])
    assert isinstance(packed, VmList) and list(packed) == [1, -2, 1, -1]
    for values in ([2.5], [1 << 31], ["text"], [None]):
        with pytest.raises(InvalidArgumentError, match=r"xs: expected i32 but got .*element 0 of the list"):
            packer.pack(values)
    floats = ReferencePacker(Parameter("xs", "!vm.list<f32>"), UNUSED, RefTypes())
    packed = floats.pack([1, 0.5])
    assert isinstance(packed, VmList) and list(packed) == [1.0, 0.5]
    with pytest.raises(InvalidArgumentError, match="xs: expected f32"):
        floats.pack([1e300])


def test_values_that_cannot_be_references_name_the_argument(references: Module) -> None:
    for value in (object(), {}, [{}]):
        with pytest.raises(InvalidArgumentError, match=r"input0: expected .* of type"):
            references.list_same(value)
    with pytest.raises(InvalidArgumentError, match=r"input0: expected !hal.buffer_view but got b'abc'"):
        references.view_rank(b"abc")


def test_variadic_functions(plain_session: Session) -> None:
    class Variadic(HostModule):
        name = "variadic"
        version = 0

        def exports(self) -> list[HostExport]:
            return [
                HostExport("sum", "0CiD_i", lambda state, values: sum(values)),
                HostExport("dot", "0CiFD_F", lambda state, rows: sum(a * b for a, b in rows)),
            ]

    variadic = plain_session.append_module(Variadic())
    assert variadic.sum([]) == 0 and variadic.sum([1, 2, 3]) == 6
    assert variadic.dot([(2, 1.5), (3, 2)]) == 9.0
    for function, value, message in (
        (variadic.sum, 3, r"input0: expected tuple<i32>\.\.\. but got 3"),
        (variadic.sum, [0.5], "input0: expected i32 but got 0.5"),
        (variadic.dot, [(1, 2.0, 3)], r"input0: expected tuple<i32, f64>\.\.\. but got \(1, 2.0, 3\)"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            function(value)


def test_objects_in_place_of_tensors(module: Module) -> None:
    buffer = module.session.to_device(X).buffer_view.buffer
    with pytest.raises(
        InvalidArgumentError, match=r"ref type mismatch; input0 needs a .* but got a hal.buffer"
    ):
        module.add(buffer, X)


def test_buffers_and_views(references: Module) -> None:
    assert references.view_rank(np.zeros((2, 3, 4), np.int16)) == 3
    assert references.buffer_length(X) == 16
    data = bytearray(b"abc")
    result = references.buffer_same(data)
    data[0] = ord("x")
    assert bytes(result) == b"xbc"
    assert bytes(references.buffer_same(b"")) == b""
    with pytest.raises(StatusError, match="ref is null"):
        references.view_rank(None)


def test_elements_of_the_host_are_put_on_the_device_by_a_copy(module: Module) -> None:
    host = np.asarray(module.large(np.ones(65536, np.float32)))
    assert host.__array_interface__["data"][0] % 64 == 0
    for elements in (host, host[:16]):
        assert not np.shares_memory(module.session.to_device(elements).to_host(), host)


def test_references_do_not_leak(module: Module) -> None:
    gc.collect()  # what other tests have left
    before = sys.getrefcount(X)
    for _ in range(20):
        module.add(X, X)
        with pytest.raises(InvalidArgumentError):
            module.add(X, None)
    assert sys.getrefcount(X) == before
    assert module.session.context.table.live_count < 50


def test_what_an_error_says_is_plain_text() -> None:
    """Also where its class gives a string of another class, which has code of its own."""

    class Text(str):
        def __format__(self, form: str) -> str:
            raise OSError("no")

        __str__ = __len__ = __getitem__ = __add__ = __format__  # type: ignore[assignment]

    class Odd(Exception):
        def __str__(self) -> str:
            return Text("odd")

    assert said(Odd()) == "Odd: odd"
