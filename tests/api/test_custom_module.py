"""Modules written in Python: types, state, errors, compiled functions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

import jitree
from jitree import CustomModule, Instance, Session, VmBuffer, VmList, f32, f64, i32, i64
from jitree.api.custom_module import API_VERSION
from jitree.api.custom_types import parse_signature
from jitree.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    StatusCode,
    StatusError,
    UnimplementedError,
)
from tests.api.programs import LIBRARY, PROGRAM
from tests.assembler import Assembler


@pytest.fixture
def custom() -> CustomModule:
    return CustomModule("host")


def passing_on(name: str, cconv: str, body: str) -> bytes:
    """A module ``m`` whose ``f`` calls a function of module ``host``."""
    return Assembler("m").import_function(f"host.{name}", cconv).function("f", cconv, body).build()


def load(session: Session, custom: CustomModule, program: bytes) -> Callable[..., Any]:
    session.load(program, custom)
    function: Callable[..., Any] = session["m.f"]
    return function


ONE_REFERENCE = "[%r1] = call @host.{} [%r0]\nreturn [%r1]"


def call_with(session: Session, custom: CustomModule, name: str, argument: object) -> Any:
    """Passes a reference through a program to a function and its result back."""
    program = passing_on(name, "0r_r", ONE_REFERENCE.format(name))
    if "m.f" not in [f"{module}.f" for module in session.modules]:
        session.load(program, custom)
    return session["m.f"](argument)


# -- types -----------------------------------------------------------------------------------------------


def test_numbers(session: Session, custom: CustomModule) -> None:
    seen: list[tuple[object, ...]] = []

    @custom.export
    def mix(a: i32, b: i64, c: f32, d: f64) -> tuple[i64, f64]:
        seen.append((a, b, c, d))
        return a * b, c / d

    body = "[%i8:9, %i10:11] = call @host.mix [%i0, %i2:3, %i4, %i6:7]\nreturn [%i8:9, %i10:11]"
    function = load(session, custom, passing_on("mix", "0iIfF_IF", body))
    assert function(-3, 1 << 40, 1.5, 4.0) == (-3 << 40, 0.375)
    assert seen == [(-3, 1 << 40, 1.5, 4.0)]


def test_tensors(session: Session, custom: CustomModule) -> None:
    @custom.export
    def double(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        assert not x.flags.writeable
        return 2 * x

    for value in (
        np.arange(6, dtype="f4").reshape(2, 3),
        np.zeros((0, 4), "i8"),
        np.float64(3),
        np.ones(3, "?"),
    ):
        result = call_with(session, custom, "double", value)
        np.testing.assert_array_equal(np.asarray(result), 2 * value)


STATED: Final = [
    (np.float32, np.arange(3, dtype=np.int16), [0, 1, 2]),
    (np.int64, np.arange(3, dtype=np.int32), [0, 1, 2]),
    (np.int32, np.arange(3, dtype=np.uint32), [0, 1, 2]),
    (np.float32, [0.5, 1], [0.5, 1]),
    (np.int8, np.array([True]), [1]),
    (np.floating, np.ones(1, np.int8), [1]),
    (np.float32, np.ones(1), "expected f32 (float32) but have f64 (float64)"),
    (np.float32, np.float64(1), "expected f32 (float32) but have f64 (float64)"),
    (np.int32, np.ones(1, np.int64), 'pass x.astype("int32")'),
    (np.int32, [0.5], "result 0: expected elements of i32"),
]
"""The type of an annotation, what the function returns, what programs get."""


@pytest.mark.parametrize("is_on_device", [False, True])
def test_results_of_a_stated_type(session: Session, custom: CustomModule, is_on_device: bool) -> None:
    program = Assembler("m")
    for number, (stated, result, _) in enumerate(STATED):
        given = session.to_device(result) if is_on_device and isinstance(result, np.ndarray) else result
        give: Any = partial(lambda given, x: given, given)
        returned = npt.NDArray[stated]  # type: ignore[valid-type]
        give.__name__, give.__annotations__ = "give", {"x": np.ndarray, "return": returned}
        custom.export(f"give{number}")(give)
        program.import_function(f"host.give{number}", "0r_r")
        program.function(f"f{number}", "0r_r", ONE_REFERENCE.format(f"give{number}"))
    module = session.load(program.build(), custom)[0]
    for number, (stated, _, expected) in enumerate(STATED):
        if isinstance(expected, str):
            with pytest.raises(InternalError) as caught:
                module[f"f{number}"](np.zeros(1, np.int8))
            assert expected in str(caught.value)
        else:
            array = module[f"f{number}"](np.zeros(1, np.int8))
            assert np.asarray(array).tolist() == expected
            assert stated is np.floating or array.dtype in (stated, np.uint32, np.bool_)


def test_device_arrays_and_other_ways_to_give_tensors(session: Session, custom: CustomModule) -> None:
    @custom.export
    def pick(x: jitree.Array) -> jitree.Array:
        results: list[Any] = [x, x.buffer_view, [[1.5, 2.5]], 7, np.asarray(x)[::2]]
        return results[int(np.asarray(x)[0])]  # type: ignore[no-any-return]

    for index, expected in enumerate(([0, 5], [1, 5], [[1.5, 2.5]], 7, [4])):
        result = call_with(session, custom, "pick", np.array([index, 5], "i4"))
        assert np.asarray(result).tolist() == expected


def test_buffers(session: Session, custom: CustomModule) -> None:
    @custom.export
    def flip(data: VmBuffer) -> bytes:
        flipped = bytes(data)[::-1]
        data.view[0] = ord("X")
        return flipped

    data = VmBuffer.alias(bytearray(b"abc"))
    assert bytes(call_with(session, custom, "flip", data)) == b"cba"
    assert bytes(data) == b"Xbc"


def test_lists(session: Session, custom: CustomModule) -> None:
    @custom.export
    def extend(items: VmList) -> list[i32]:
        items.append(items[0])
        return [len(items), 7]

    items = VmList()
    items.append(1.5)
    result = call_with(session, custom, "extend", items)
    assert list(result) == [2, 7] and items[1] == 1.5


def test_null(session: Session, custom: CustomModule) -> None:
    @custom.export
    def maybe(x: np.ndarray | None) -> np.ndarray | None:
        return None if x is not None else np.array([1], np.float32)

    assert call_with(session, custom, "maybe", np.array([5], np.float32)) is None
    assert np.asarray(call_with(session, custom, "maybe", None)).tolist() == [1]


def test_registered_classes(custom: CustomModule) -> None:
    @custom.type("host.token")
    class Token:
        def __init__(self, value: int) -> None:
            self.value = value

    @custom.export
    def make(value: i32) -> Token:
        return Token(value)

    @custom.export
    def read(token: Token) -> i32:
        return token.value

    module = Assembler("m").import_function("host.make", "0i_r").import_function("host.read", "0r_i")
    module.type("!host.token")
    body = "[%r0] = call @host.make [%i0]\n[%i1] = call @host.read [%R0]\nreturn [%i1]"
    with Session("local-sync", tier="plain", instance=Instance()) as session:
        session.load(module.function("f", "0i_i", body).build(), custom)
        assert session["m.f"](41) == 41
        with pytest.raises(
            InvalidArgumentError, match=r"argument 0: ref type mismatch; expected host\.token"
        ):
            session["host.read"](np.array([1], np.float32))


def test_anything_and_spans_by_calling_convention(plain_session: Session, custom: CustomModule) -> None:
    seen: list[object] = []

    @custom.export("f.sum", signature="0CrID_I")
    def total(rows: list[tuple[object, int]]) -> int:
        seen.extend(row[0] for row in rows)
        return sum(row[1] for row in rows)

    body = "[%i2:3] = call.variadic @host.f.sum [2] [%r0, %i0:1, %r0, %i0:1]\nreturn [%i2:3]"
    module = Assembler("m").import_function("host.f.sum", "0CrID_I").function("f", "0Ir_I", body)
    assert load(plain_session, custom, module.build())(20, None) == 40
    assert seen == [None, None]


@pytest.mark.parametrize(
    ("text", "cconv"),
    [
        ("i32, array -> f32", "0ir_f"),
        ("() -> ()", "0v_v"),
        ("->", "0v_v"),
        ("(i64, f64, buffer?, list, ref) -> (array?, i32)", "0IFrrr_ri"),
    ],
)
def test_signatures_as_text(text: str, cconv: str) -> None:
    assert parse_signature(text).cconv == cconv


def test_text_takes_the_place_of_annotations(plain_session: Session, custom: CustomModule) -> None:
    custom.export("half", signature="array -> array")(lambda x: x / 2)
    assert np.asarray(call_with(plain_session, custom, "half", np.array([3], np.float32))).tolist() == [1.5]


def test_types_that_the_vm_does_not_have(custom: CustomModule) -> None:
    def unannotated(x) -> None: ...  # type: ignore[no-untyped-def]
    def text(x: str) -> None: ...
    def no_result(x: i32): ...  # type: ignore[no-untyped-def]
    def maybe_number(x: i32 | None) -> None: ...
    def keyword(*, x: i32) -> None: ...

    for function, message in (
        (unannotated, "'unannotated': parameter 'x' has no annotation"),
        (text, "'text': parameter 'x' has annotation"),
        (no_result, "'no_result': what it returns is not annotated"),
        (maybe_number, "'maybe_number': parameter 'x'"),
        (keyword, "'keyword': parameter 'x' is not positional"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            custom.export(function)
    for signature in ("i32", "i31 -> i32", "i32? -> i32", "0x_i"):
        with pytest.raises(InvalidArgumentError):
            custom.export("f", signature=signature)(lambda x: x)
    assert list(custom.exports()) == []


# -- state and life --------------------------------------------------------------------------------------


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, amount: i32) -> i32:
        self.count += amount
        return self.count

    def fork(self) -> Counter:
        other = Counter()
        other.count = self.count
        return other


def counting(custom_name: str = "host") -> CustomModule:
    module = CustomModule(custom_name, state=Counter)
    module.export(Counter.add)
    return module


ADD = passing_on("add", "0i_i", "[%i1] = call @host.add [%i0]\nreturn [%i1]")


def test_every_session_has_state_of_its_own(session: Session) -> None:
    module = counting()
    function = load(session, module, ADD)
    assert [function(1), function(5)] == [1, 6]
    with Session("local-sync", tier="plain") as other:
        assert load(other, module, ADD)(10) == 10
    assert function(1) == 7


def test_forks_take_over_what_the_state_gives_them(plain_session: Session) -> None:
    function = load(plain_session, counting(), ADD)
    function(5)
    fork = plain_session.context.fork()
    assert fork.invoke(fork.lookup("m.f"), [1]) == [6]
    assert function(1) == 6


def test_state_dies_with_the_session() -> None:
    states: list[weakref.ref[Counter]] = []

    def create() -> Counter:
        counter = Counter()
        states.append(weakref.ref(counter))
        return counter

    module = CustomModule("host", state=create)
    module.export(Counter.add)
    session = Session("local-sync", tier="plain")
    load(session, module, ADD)(1)
    session.close()
    del session
    gc.collect()
    assert [state() for state in states] == [None]


def test_a_module_in_use_does_not_change(plain_session: Session) -> None:
    module = counting()
    plain_session.load(module)
    with pytest.raises(FailedPreconditionError, match="'host' is in use"):
        module.export(lambda: None)
    with pytest.raises(FailedPreconditionError, match="'host' is in use"):
        module.type("a.b")(Counter)


def test_the_same_function_twice(custom: CustomModule) -> None:
    custom.export("f", signature="i32 -> i32")(abs)
    custom.export("f", signature="i64 -> i64")(abs)
    with pytest.raises(AlreadyExistsError, match=r"'host' exports 'f' with signature '0i_i' already"):
        custom.export("f", signature="i32 -> i32")(abs)


def test_called_from_python(session: Session) -> None:
    module = session.load(counting())
    assert module.add(3) == 3 and session.call("host.add", 4) == 7


def test_compiled_programs_that_import_tensors(session: Session) -> None:
    """A module in Python in place of the compiled library that the program was written for."""
    library = CustomModule("library")
    library.export("double", signature="array -> array")(lambda x: 2 * x)
    library.export("bump", signature="i32 -> i32")(lambda x: x + 1)
    program, _ = session.load(PROGRAM, library)
    assert np.asarray(program.quadruple(np.arange(4, dtype="f4"))).tolist() == [0, 4, 8, 12]
    assert program.bump_twice(1) == 3
    assert LIBRARY.exists()


# -- errors ----------------------------------------------------------------------------------------------


class Trouble(Exception):
    pass


def test_exceptions_pass_through_with_class_and_cause(session: Session, custom: CustomModule) -> None:
    @custom.export
    def fail(kind: i32) -> i32:
        if kind == 0:
            raise Trouble("deep") from KeyError("deeper")
        if kind == 1:
            raise DataLossError("gone")
        return kind

    function = load(
        session, custom, passing_on("fail", "0i_i", "[%i1] = call @host.fail [%i0]\nreturn [%i1]")
    )
    with pytest.raises(Trouble, match="deep") as caught:
        function(0)
    assert isinstance(caught.value.__cause__, KeyError)
    assert any("host.fail" in note and "m.f+" in note for note in caught.value.__notes__)
    with pytest.raises(DataLossError, match=r"gone.*host\.fail") as lost:
        function(1)
    assert lost.value.code is StatusCode.DATA_LOSS and len(lost.value.backtrace) == 1
    assert function(2) == 2


@pytest.mark.parametrize(
    ("signature", "result", "message"),
    [
        ("ref -> array", "text", "result 0: expected array but the function returned 'text' of type str"),
        ("ref -> array", None, "result 0: expected array but the function returned None"),
        ("ref -> array", [[1], [2, 3]], "result 0: expected array"),
        ("ref -> buffer", 5, "result 0: expected buffer but the function returned 5"),
        ("ref -> list", b"x", "result 0: expected list"),
        ("ref -> list", [object()], "result 0"),
        ("ref -> ref", object(), "cannot be passed as a reference"),
    ],
)
def test_wrong_results_leave_the_session_usable(
    session: Session, custom: CustomModule, signature: str, result: object, message: str
) -> None:
    results = [result]
    custom.export("f", signature=signature)(lambda x: results.pop() if results else x)
    with pytest.raises(StatusError, match=message):
        call_with(session, custom, "f", None)
    argument = {"array": np.array([1], np.float32), "buffer": b"x", "list": [1], "ref": None}[
        signature.split()[-1]
    ]
    call_with(session, custom, "f", argument)
    assert session.context.table.live_count == 0


def test_wrong_numbers_and_arity(session: Session, custom: CustomModule) -> None:
    answers: list[Any] = [None, "7", 1 << 40, (1, 2), 5]

    @custom.export
    def one() -> i32:
        return answers.pop(0)  # type: ignore[no-any-return]

    @custom.export
    def two() -> tuple[i32, f32]:
        return answers.pop(0)  # type: ignore[no-any-return]

    module = Assembler("m").import_function("host.one", "0v_i").import_function("host.two", "0v_if")
    module.function("one", "0v_i", "[%i0] = call @host.one []\nreturn [%i0]")
    module.function("two", "0v_if", "[%i0, %i1] = call @host.two []\nreturn [%i0, %i1]")
    session.load(module.build(), custom)
    for _ in range(4):
        with pytest.raises(InternalError, match=r"result 0: expected i32|returned \(1, 2\)"):
            session["m.one"]()
    assert session["m.one"]() == 5
    answers[:] = [1, (1, 2.0, 3), None, ("x", 1.0), (3, 0.5)]
    for _ in range(4):
        with pytest.raises(InternalError, match=r"2 results but returned|result 0: expected i32"):
            session["m.two"]()
    assert session["m.two"]() == (3, 0.5)


def test_wrong_arguments(plain_session: Session, custom: CustomModule) -> None:
    custom.export("f", signature="array -> array")(lambda x: x)
    with pytest.raises(InvalidArgumentError, match="argument 0: ref is null; expected array"):
        call_with(plain_session, custom, "f", None)
    with pytest.raises(
        InvalidArgumentError, match=r"argument 0: ref type mismatch; .* array but got a vm\.buffer"
    ):
        call_with(plain_session, custom, "f", b"bytes")


def test_signatures_that_differ_name_both(plain_session: Session, custom: CustomModule) -> None:
    custom.export("add", signature="i64 -> i64")(abs)
    with pytest.raises(InternalError, match=r"'host\.add' signature mismatch: expected '0i_i'.*'0I_I'"):
        plain_session.load(custom, ADD)
    assert plain_session.modules == {}


def test_a_newer_interface_is_refused(plain_session: Session) -> None:
    with pytest.raises(UnimplementedError, match=rf"version {API_VERSION + 1} .* has version {API_VERSION}"):
        CustomModule("host", api_version=API_VERSION + 1)
    assert load(plain_session, counting(), ADD)(1) == 1


def test_a_state_that_cannot_be_made(plain_session: Session) -> None:
    def create() -> object:
        raise Trouble("no state")

    module = CustomModule("host", state=create)
    with pytest.raises(Trouble):
        plain_session.load(module)
    assert plain_session.modules == {}
    assert load(plain_session, counting(), ADD)(1) == 1


def test_calls_back_into_the_session(session: Session, custom: CustomModule) -> None:
    @custom.export
    def down(n: i32) -> i32:
        return 0 if n == 0 else 1 + session.call("m.f", n - 1)

    function = load(
        session, custom, passing_on("down", "0i_i", "[%i1] = call @host.down [%i0]\nreturn [%i1]")
    )
    assert function(20) == 20
    with pytest.raises(StatusError, match="stack overflow"):
        function(1000)
    assert function(3) == 3
