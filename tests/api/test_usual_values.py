"""What users pass without a thought, and what they get: machine code does as the slow path does."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jitree import Function, Session, donate
from jitree.errors import InvalidArgumentError
from tests.api import producers
from tests.api.direct import CALLS, direct, live, needs_machine_code, prepare_calls
from tests.api.programs import ECHO
from tests.api.test_large_arrays import python_calls
from tests.assembler import Assembler

pytestmark = needs_machine_code
X = np.arange(4, dtype=np.int32)
FOREIGN = producers.new_type()
TENSOR = {"iree.abi.declaration": "sync func @f(%x: tensor<?xi32>) -> (%y: tensor<?xi32>)"}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    prepare_calls()
    with Session("local-sync", tier="fast") as session:
        session.load(ECHO).e1_f32(np.ones(2, np.float32))
        yield session


@pytest.fixture(scope="module")
def echo(session: Session) -> Function:
    """Gives an array of i32 back."""
    return direct(
        session.load(Assembler("echo").function("f", "0r_r", "return [%R0]", attrs=TENSOR).build()).f, X
    )


def test_dtypes_that_are_equal(echo: Function) -> None:
    """They are other objects, and what a process gets from another one has such."""
    arrays = (
        pickle.loads(pickle.dumps(X)), X.astype(np.dtype("<i4").newbyteorder("<")),
        X.astype(np.dtype(np.int32, metadata={"a": 1})),
        X.astype(np.intc), X.astype(">i4"),
    )  # fmt: skip
    for array in arrays:
        for _ in range(2):
            result = echo(array)
            assert result.dtype == np.int32 and np.array_equal(result, X)
        assert "_pack_other" not in python_calls(echo, array), "machine code copies it"


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("kind", ["numpy", "strided", "foreign"])
def test_unsigned_integers(session: Session, bits: int, kind: str) -> None:
    """Parameters of integers without a sign take them, and results that are arguments have the declared type,
    as others have."""
    text = f"tensor<?xi{bits}>"
    attrs = {"iree.abi.declaration": f"sync func @f(%x: {text}) -> (%y: {text})"}
    name = f"unsigned_{bits}_{kind}"
    program = Assembler(name).function("f", "0r_r", "return [%R0]", attrs=attrs).build()
    plain = np.array([0, 1, 5, 2**bits - 1], f"u{bits // 8}")
    value: Any = {"numpy": plain, "strided": np.repeat(plain, 2)[::2], "foreign": FOREIGN(plain)}[kind]
    signed = plain.astype(f"i{bits // 8}")
    function = direct(session.load(program).f, signed)
    for _ in range(CALLS + 1):
        result = function(value)
        assert result.dtype == signed.dtype and np.array_equal(result, signed)
        assert function(signed).dtype == signed.dtype
    assert "_pack_other" not in python_calls(function, value), "machine code copies it"


@pytest.mark.parametrize("given", [np.uint8, bool])
def test_device_arrays_of_another_sign(session: Session, given: type) -> None:
    """They keep their type, whatever the type of results in their memory, donated ones too."""
    attrs = {"iree.abi.declaration": "sync func @f(%x: tensor<?xi8>) -> (%y: tensor<?xi8>)"}
    name = f"device_{given.__name__}"
    program = Assembler(name).function("f", "0r_r", "return [%R0]", attrs=attrs).build()
    plain: np.ndarray[Any, Any] = np.array([0, 1, 1, 0], given)
    function = direct(session.load(program).f, plain.astype(np.int8))
    with Session("local-sync", tier="fast") as other:
        arrays = session.to_device(plain), other.to_device(plain)
        for array in arrays * (CALLS + 1):
            result = function(array)
            assert result.dtype == np.int8 and array.dtype == given
            assert np.array_equal(result, plain) and np.array_equal(array, plain)
        for array in arrays:
            before = live(session)
            for _ in range(3):
                assert function(donate(session.to_device(plain))).dtype == np.int8
            assert live(session) == before
            assert function(donate(array)).dtype == np.int8 and array.is_donated


@pytest.mark.parametrize(
    ("declared", "given"),
    [("i8", np.uint8), ("i8", bool), ("i32", np.uint32), ("i64", np.uint64), ("si32", np.int32)],
)
def test_device_arrays_of_another_sign_take_no_python(session: Session, declared: str, given: type) -> None:
    """As those of the declared type take none, kept and donated ones; nothing is left of a call."""
    text = f"tensor<?x{declared}>"
    attrs = {"iree.abi.declaration": f"sync func @f(%x: {text}) -> (%y: {text})"}
    name = f"python_{declared}_{given.__name__}"
    program = Assembler(name).function("f", "0r_r", "return [%R0]", attrs=attrs).build()
    plain: np.ndarray[Any, Any] = np.array([0, 1, 1, 0], given)
    function = direct(session.load(program).f, plain)
    array, made = session.to_device(plain), function(session.to_device(plain))
    assert made.dtype == np.dtype(declared.replace("si", "i").replace("i", "int")) and array.dtype == given
    for kept in (array, made):
        function(kept)
        live = session.context.invoker.table.live_count
        assert not python_calls(function, kept)
        assert session.context.invoker.table.live_count <= live and np.array_equal(function(kept), plain)
    assert not python_calls(function, donate(array)) and array.is_donated


@pytest.mark.parametrize("given", [np.int32, np.uint32])
def test_device_arrays_of_the_other_sign_are_refused(session: Session, given: type) -> None:
    """Where both have one, or one is of booleans."""
    declared = "ui32" if given is np.int32 else "si32"
    for text in (declared, "i1"):
        tensor = f"tensor<?x{text}>"
        attrs = {"iree.abi.declaration": f"sync func @f(%x: {tensor}) -> (%y: {tensor})"}
        program = Assembler(f"{text}_{given.__name__}").function("f", "0r_r", "return [%R0]", attrs=attrs)
        right = np.array([1, 0], {"ui32": np.uint32, "si32": np.int32, "i1": bool}[text])
        function = direct(session.load(program.build()).f, right)
        array = session.to_device(np.array([1, 0], given))
        for _ in range(CALLS):
            with pytest.raises(InvalidArgumentError, match=r"element type|elements"):
                function(array)


WIDER = {
    "i64": ("int32", "uint32", "int4", "bool"), "i16": ("int8", "uint8"), "ui64": ("uint8", "bool"),
    "si32": ("uint16", "int16"), "f32": ("float16", "bfloat16", "float8_e4m3fn", "int16", "uint8", "bool"),
    "f64": ("float32", "int32", "uint32", "float8_e8m0fnu"), "bf16": ("int8", "float8_e5m2"),
    "f16": ("int8", "uint8", "float8_e5m2fnuz"), "complex<f32>": ("float32", "int16"), "i8": ("int4",),
}  # fmt: skip
"""By declared type such as are converted."""
NARROWER = {
    "i32": ("int64", "uint64", "float32", "V2"), "ui16": ("int8", "float16"), "si8": ("uint8",),
    "f32": ("float64", "int32", "complex64", "V2"), "f16": ("bfloat16", "int16", "float8_e8m0fnu"),
    "bf16": ("float16", "int16"), "f64": ("int64", "longdouble"), "i1": ("int32", "float32"),
    "f8E5M2": ("float16", "int8"), "f8E8M0FNU": ("bool", "float16"), "i4": ("int8",),
}  # fmt: skip
"""By declared type such as are refused, though each element given could be converted."""


def named(dtype: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


@pytest.mark.parametrize("declared", sorted({*WIDER, *NARROWER}))
def test_types_decide_what_is_converted(session: Session, declared: str) -> None:
    """Of host and device arrays, in first calls and by machine code; whatever the elements are."""
    text = f"tensor<?x{declared}>"
    attrs = {"iree.abi.declaration": f"sync func @f(%x: {text}) -> (%y: {text})"}
    name = "wide_" + "".join(filter(str.isalnum, declared))
    program = Assembler(name).function("f", "0r_r", "return [%R0]", attrs=attrs).build()
    function = session.load(program).f
    for dtype in (*WIDER.get(declared, ()), *NARROWER.get(declared, ())):
        given = np.array([1, 0, 1], np.int32).astype(named(dtype)) if dtype[0] != "V" else np.zeros(3, dtype)
        forms = [given] if dtype == "longdouble" else [given, session.to_device(given)]
        for form in forms * CALLS:
            if dtype in WIDER.get(declared, ()):
                result = function(form)
                assert result.element_type.name == declared.replace("complex<f32>", "cf64")
                assert np.array_equal(
                    np.asarray(result).astype(complex), given.astype(complex), equal_nan=True
                )
                continue
            with pytest.raises(
                InvalidArgumentError, match=r"x: expected|x element type mismatch; expected .* have"
            ):
                function(form)


@pytest.mark.parametrize(("declared", "given"), [("i8", bool), ("i1", np.uint8), ("i1", np.int8)])
def test_booleans_and_bytes(session: Session, declared: str, given: type) -> None:
    """Parameters of either take the other; bytes that are no booleans are refused."""
    text = f"tensor<?x{declared}>"
    attrs = {"iree.abi.declaration": f"sync func @f(%x: {text}) -> (%y: {text})"}
    name = f"{declared}_{given.__name__}"
    program = Assembler(name).function("f", "0r_r", "return [%R0]", attrs=attrs).build()
    value: Any = np.array([0, 1, 1, 0] * 5, given)
    function = direct(session.load(program).f, value.astype(bool if declared == "i1" else np.int8))
    for _ in range(CALLS + 1):
        result = function(value)
        assert result.dtype == (bool if declared == "i1" else np.int8) and np.array_equal(result, value)
    assert "_pack_other" not in python_calls(function, value), "machine code copies it"
    for number in (0, 5, 8, 20) if declared == "i1" else ():
        with pytest.raises(InvalidArgumentError, match="other elements than 0 and 1"):
            function(np.array([0] * number + [2] + [1] * 3, given))


_SCALARS = (
    True, np.bool_(False), np.int8(-3), np.uint8(200), np.int16(-2), np.int32(7), np.int64(-9),
    np.int64(2**40), np.int64(2**24 + 1), np.int64(-(2**63)), np.uint32(2**31), np.uint64(2**63),
    np.float16(1.5), np.float32(0.1), np.float64(0.1), np.float64(-2.0), np.float64(1e300), np.float64("nan"),
    np.float32("inf"), np.complex64(1),
)  # fmt: skip
_DECLARED = ("i1", "i8", "i16", "i32", "i64", "ui8", "f16", "bf16", "f32", "f64")


def outcome(call: Any, value: object) -> object:
    try:
        result = np.asarray(call(value))
    except InvalidArgumentError as error:
        return str(error)
    return result.dtype, result.tobytes()


@pytest.mark.parametrize("shape", ["", "?x"])
@pytest.mark.parametrize("declared", _DECLARED)
def test_numbers_of_other_types(session: Session, declared: str, shape: str) -> None:
    """Booleans and scalars of numpy, alone and in lists: machine code makes of them what Python does."""
    text = f"tensor<{shape}{declared}>"
    attrs = {"iree.abi.declaration": f"sync func @f(%x: {text}) -> (%y: {text})"}
    name = f"scalar_{declared}_{len(shape)}"
    program = Assembler(name).function("f", "0r_r", "return [%R0]", attrs=attrs).build()
    function = session.load(program).f
    first: Any = [True] if shape else True
    direct(function, first)
    for scalar in _SCALARS:
        value: Any = [1, scalar, scalar] if shape else scalar
        assert outcome(function, value) == outcome(lambda given: function.call_slowly((given,), {}), value), (
            value
        )


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ("f32", (np.float64(0.1), np.int64(3), True, np.bool_(False), np.float16(3))),
        ("f64", (np.float32(3),)),
        ("f16", (np.float64(0.1),)),
        ("i32", (np.int64(3), np.bool_(True))),
        ("i8", (np.int64(-3), False)),
        ("i1", (True, np.bool_(True), 1)),
        ("?xf32", ([np.float64(1), 2], [True, np.int64(5)])),
        ("?xi1", ([True, False] * 20, [1, 0], [np.bool_(True)])),
        ("?xi8", ((True, False), [np.bool_(True)])),
        ("?xi32", ([np.uint32(3), True],)),
    ],
)
def test_no_python_makes_numbers_of_other_types(
    session: Session, declared: str, values: tuple[Any, ...]
) -> None:
    attrs = {"iree.abi.declaration": f"sync func @f(%x: tensor<{declared}>) -> (%y: tensor<{declared}>)"}
    name = f"number_{declared.replace('?x', 'list_')}"
    program = Assembler(name).function("f", "0r_r", "return [%R0]", attrs=attrs).build()
    function = direct(session.load(program).f, values[0])
    for value in values:
        assert not python_calls(function, value), value


@pytest.mark.parametrize(
    ("declared", "bits", "expected"),
    [
        ("i8", 128, -128), ("i8", -129, 127), ("i8", -5, -5), ("si8", 255, -1), ("ui8", 256, 0),
        ("i16", 32768, -32768),
        ("i1", 2, False), ("i1", 3, True), ("i32", -(2**31), -(2**31)), ("i4", 8, -8),
    ],
)  # fmt: skip
def test_numbers_of_part_of_a_register(session: Session, declared: str, bits: int, expected: int) -> None:
    """Programs leave anything in the bits above those of the declared type."""
    attrs = {"iree.abi.declaration": f"sync func @f(%x: i32) -> (%y: {declared})"}
    name = f"{declared}_{bits}".replace("-", "m")
    program = Assembler(name).function("f", "0i_i", "return [%i0]", attrs=attrs).build()
    function = session.load(program).f
    for _ in range(CALLS + 1):
        assert function(bits) == expected and type(function(bits)) is type(expected)


class Lazy:
    """An array that another thread computes when it is asked for."""

    def __init__(self, pool: ThreadPoolExecutor, function: Function) -> None:
        self.pool = pool
        self.function = function

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.pool.submit(self.function, X).result(timeout=30))


def test_an_argument_that_a_thread_computes_by_the_session(echo: Function) -> None:
    with ThreadPoolExecutor(1) as pool:
        for _ in range(4):
            assert np.array_equal(echo(Lazy(pool, echo)), X)


def test_sessions_that_compute_each_others_arguments(echo: Function) -> None:
    program = Assembler("echo").function("f", "0r_r", "return [%R0]", attrs=TENSOR).build()
    with Session("local-sync", tier="fast") as other, ThreadPoolExecutor(2) as pool:
        far = direct(other.load(program).f, X)
        barrier = threading.Barrier(2)

        def meet(function: Function, argument: Function) -> Any:
            barrier.wait(30)
            return np.asarray(function(Lazy(pool, argument)))

        results: list[Any] = []
        threads = [
            threading.Thread(target=lambda pair=pair: results.append(meet(*pair)))
            for pair in ((echo, far), (far, echo))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(results) == 2 and all(np.array_equal(result, X) for result in results)


def test_one_element_is_formatted(session: Session) -> None:
    assert f"{session.to_device(np.float32(1.5)):.2f}" == "1.50"
    array = session.to_device(X)
    assert f"{array}" == str(array)
    with pytest.raises(TypeError, match="format"):
        f"{array:.2f}"


def test_a_list_is_no_array_of_any_type(session: Session) -> None:
    attrs = {"iree.abi.declaration": "sync func @f(%x: !hal.buffer_view) -> (%y: !hal.buffer_view)"}
    echo = direct(
        session.load(Assembler("view").function("f", "0r_r", "return [%R0]", attrs=attrs).build()).f, X
    )
    for _ in range(3):
        with pytest.raises(
            InvalidArgumentError, match=r"x: expected !hal.buffer_view but got \[1, 2\] of type list"
        ):
            echo([1, 2])
        assert np.array_equal(echo(X), X)


def test_a_list_in_itself_ends(echo: Function) -> None:
    endless: list[Any] = []
    endless.append(endless)
    for _ in range(3):
        with pytest.raises(InvalidArgumentError, match=r"x: expected tensor|without end"):
            echo(endless)
