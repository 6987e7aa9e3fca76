"""Arguments from libraries with DLPack's C exchange interface: the same results as of a numpy copy, and
nothing that they may say of their arrays does harm."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitree import Function, Session
from jitree.base import dlpack
from jitree.base.dlpack_names import VERSIONED_NAME
from jitree.errors import InvalidArgumentError
from tests.api import producers
from tests.api.direct import X, direct, needs_machine_code
from tests.api.producers import Tensor, new_type
from tests.api.programs import ARITHMETIC, ECHO, OUTPUTS

pytestmark = needs_machine_code

ECHOES = {
    "e1_f32": np.float32, "e1_f64": np.float64, "e1_i32": np.int32, "e1_i8": np.int8, "e1_i64": np.int64,
    "e1_f16": np.float16, "e1_bf16": ml_dtypes.bfloat16, "e1_f8E5M2": ml_dtypes.float8_e5m2,
    "e1_i1": np.bool_, "e1_ui8": np.uint8, "e1_complex_f32": np.complex64, "e1_complex_f64": np.complex128,
}  # fmt: skip


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session("local-sync", tier="fast") as session:
        session.load(ARITHMETIC, ECHO, OUTPUTS)
        yield session


@pytest.fixture(scope="module")
def add(session: Session) -> Function:
    return direct(session["arithmetic.add"], X, X)


def learned(function: Function, cls: type[Any], *others: Any) -> type[Any]:
    """The type, after Python has taken one of its arrays."""
    tensor: Any = function.arguments[0].tensor
    function(cls(X.astype(tensor.element_type.dtype)), *others)
    return cls


def test_machine_code_asks_the_type(add: Function) -> None:
    foreign = learned(add, new_type(), X)
    tensor = foreign(X.copy())
    assert np.array_equal(add(tensor, tensor), X + X)
    assert (tensor.described, tensor.exported) == (2, 0)


def test_the_caller_may_change_the_array_and_drop_it(session: Session) -> None:
    echo = direct(session["module.e1_f32"], X)
    foreign = learned(echo, new_type())
    results = []
    for number in range(50):
        tensor = foreign(X + number)
        results.append(echo(tensor))
        tensor.array[:] = -1
        del tensor
        gc.collect(0)
    for number, result in enumerate(results):
        assert np.array_equal(result, X + number)


@pytest.mark.parametrize("name", ECHOES)
def test_types(session: Session, name: str) -> None:
    array = (np.arange(4) % 2).astype(ECHOES[name])
    echo = direct(session[f"module.{name}"], array)
    foreign = new_type()
    echo(foreign(array))
    for given_array in (array, array[::-1], np.repeat(array, 2)[::2]):
        tensor = foreign(given_array)
        result = np.asarray(echo(tensor))
        assert result.dtype == array.dtype and np.array_equal(result, given_array)
        assert tensor.described == 1 and not tensor.exported


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 5), offset=st.integers(0, 3), step=st.sampled_from([1, 2, -1]), turned=st.booleans()
)
def test_offsets_and_strides(session: Session, rows: int, offset: int, step: int, turned: bool) -> None:
    function = session["arithmetic.twice"]
    if not function.is_direct:
        direct(function, np.zeros((1, 3), np.float32))
    whole = np.arange(200, dtype=np.float32).reshape(10, 20)
    array = whole[:rows, offset : offset + 3 * abs(step)][:, ::step][:, :3]
    if turned:
        array = np.asfortranarray(array)
    foreign = _known(function)
    tensor = foreign(array, data=(array.ctypes.data - 4 * offset) or None, byte_offset=4 * offset)
    assert np.array_equal(function(tensor), 2 * array.copy())


_foreign: list[type[Tensor]] = []


def _known(function: Function) -> type[Tensor]:
    if not _foreign:
        _foreign.append(new_type())
        function(_foreign[0](np.zeros((1, 3), np.float32)))
    return _foreign[0]


def test_rank_zero_and_no_strides(session: Session, add: Function) -> None:
    foreign = learned(add, new_type(), X)
    tensor = foreign(X.copy(), strides=None)
    assert np.array_equal(add(tensor, X), X + X) and not tensor.exported


LARGE = (ctypes.c_int64 * 1)(1 << 62)
NEGATIVE = (ctypes.c_int64 * 1)(-4)
ODD: dict[str, dict[str, Any]] = {
    "device": {"device_kind": 2}, "lanes": {"lanes": 2, "bits": 16}, "bits": {"bits": 64},
    "code": {"code": 0}, "rank": {"rank": 2}, "no rank": {"rank": 0}, "negative rank": {"rank": -1},
    "huge rank": {"rank": 1 << 30},
    "no shape": {"shape": None}, "large": {"shape": LARGE}, "negative": {"shape": NEGATIVE},
    "no memory": {"data": None},
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_what_is_odd_is_left_to_python(add: Function, odd: str) -> None:
    """Which asks ``__dlpack__``, that says something else here."""
    foreign = learned(add, new_type(), X)
    tensor = foreign(X.copy(), **ODD[odd])
    assert np.array_equal(add(tensor, X), X + X)
    assert (tensor.described, tensor.exported) == (1, 1)


def failing(function: str) -> Any:
    """A function of CPython's that fails in its own way, in place of the description."""
    return getattr(ctypes.pythonapi, function)


class Unsized:
    def __len__(self) -> int:
        raise ZeroDivisionError("no length")


@pytest.mark.parametrize("function", ["PyObject_Size", "PyErr_BadArgument"])
def test_descriptions_that_fail(add: Function, function: str) -> None:
    """With an exception and -1, with an exception and 0."""
    broken = producers.capsule(producers.interface(failing(function)))
    foreign = learned(add, type("Broken", (Unsized, Tensor), {dlpack.EXCHANGE_ATTRIBUTE: broken}), X)
    for _ in range(3):
        assert np.array_equal(add(foreign(X.copy()), X), X + X)


def test_descriptions_that_fail_without_saying_why(add: Function) -> None:
    silent = producers.Describe(lambda value, out: -1)
    foreign = learned(
        add, new_type(**{dlpack.EXCHANGE_ATTRIBUTE: producers.capsule(producers.interface(silent))}), X
    )
    assert np.array_equal(add(foreign(X.copy()), X), X + X)


def test_ctrl_c_in_a_description(add: Function) -> None:
    class Interrupted:
        is_armed = False

        def __len__(self) -> int:
            raise KeyboardInterrupt

    broken = producers.capsule(producers.interface(failing("PyObject_Size")))
    foreign = learned(add, type("Broken", (Interrupted, Tensor), {dlpack.EXCHANGE_ATTRIBUTE: broken}), X)
    with pytest.raises(KeyboardInterrupt):
        add(foreign(X.copy()), X)
    assert np.array_equal(add(X, X), X + X)


def chain(*majors: int) -> Any:
    previous = None
    for major in reversed(majors):
        interface = producers.interface(major=major, previous=previous)
        producers.KEPT.append(interface)
        previous = ctypes.addressof(interface)
    return producers.capsule(interface)


class Raising:
    def __get__(self, value: object, cls: type) -> object:
        raise AttributeError("not yet")


ATTRIBUTES: dict[str, tuple[Callable[[], Any], bool]] = {
    "an older one after it": (lambda: chain(3, 2, 1), True),
    "a newer one": (lambda: chain(2), False),
    "an older one": (lambda: chain(0), False),
    "another name": (lambda: producers.capsule(producers.interface(), b"dltensor"), False),
    "no function": (lambda: producers.capsule(producers.interface(None)), False),
    "no capsule": (lambda: 5, False),
    "None": (lambda: None, False),
    "raising": (Raising, False),
}


@pytest.mark.parametrize("what", ATTRIBUTES)
def test_attributes(add: Function, what: str) -> None:
    make, is_used = ATTRIBUTES[what]
    foreign = learned(add, new_type(**{dlpack.EXCHANGE_ATTRIBUTE: make()}), X)
    tensor = foreign(X.copy())
    for count in (1, 2):
        assert np.array_equal(add(tensor, X), X + X)
        assert (tensor.described, tensor.exported) == ((count, 0) if is_used else (0, count))


def test_subclasses(add: Function) -> None:
    """Inherit the functions in C, unless they say otherwise what they hold."""
    foreign = new_type()

    class Same(foreign):  # type: ignore[misc, valid-type]
        pass

    class Negative(foreign):  # type: ignore[misc, valid-type]
        def __dlpack__(self, **options: Any) -> Any:
            return (-self.array).__dlpack__(**options)

    learned(add, Same, X)
    learned(add, Negative, X)
    tensor = Same(X.copy())
    assert np.array_equal(add(tensor, X), X + X) and tensor.described == 1
    for _ in range(3):
        assert np.array_equal(add(Negative(X.copy()), X), np.zeros(4))


class Lazy:
    requires_grad = False
    negated = False

    def is_neg(self) -> bool:
        return self.negated


def test_arrays_that_are_more_than_their_memory(add: Function) -> None:
    def export(self: Any, **options: Any) -> Any:
        if self.requires_grad is not False:
            raise BufferError("requires a derivation")
        return self.array.__dlpack__(**options)

    foreign = type(
        "Lazy",
        (Lazy, Tensor),
        {"__dlpack__": export, dlpack.EXCHANGE_ATTRIBUTE: producers.capsule(producers.interface())},
    )
    learned(add, foreign, X)
    tensor = foreign(X.copy())
    assert np.array_equal(add(tensor, X), X + X) and tensor.described == 1
    tensor.requires_grad = True
    with pytest.raises(InvalidArgumentError, match="Lazy cannot be taken: requires a derivation"):
        add(tensor, X)
    tensor.requires_grad, tensor.negated = False, True
    with pytest.raises(InvalidArgumentError, match="the negative of its elements"):
        add(tensor, X)
    tensor.negated = 5
    with pytest.raises(InvalidArgumentError, match="the negative of its elements"):
        add(tensor, X)


def test_arrays_without_memory(add: Function) -> None:
    class Empty(Tensor):
        def __dlpack__(self, **options: Any) -> Any:
            capsule = super().__dlpack__(**options)
            tensor = dlpack._tensor(capsule)
            tensor.data = None
            return capsule

    with pytest.raises(InvalidArgumentError, match="Empty cannot be taken: it has no memory"):
        add(Empty(X.copy()), X)


def test_arrays_on_no_device(session: Session, add: Function) -> None:
    """As torch's on the device "meta", which only have a shape."""

    class Meta(Tensor):
        def __dlpack_device__(self) -> tuple[int, int]:
            raise ValueError("Unknown device type meta")

    for take in (lambda: add(Meta(X.copy()), X), lambda: session.to_device(Meta(X.copy()))):
        with pytest.raises(InvalidArgumentError, match=r"Meta cannot be taken: .*meta; pass"):
            take()


def test_types_that_die_are_forgotten(add: Function) -> None:
    """Another type may lie where one was."""
    for number in range(40):
        foreign = learned(add, new_type(), X)
        assert np.array_equal(add(foreign(X + number), X), X + X + number)
        del foreign
        gc.collect()
        other = type("Other", (Tensor,), {})
        assert np.array_equal(add(other(X.copy()), X), X + X)


def test_more_types_than_are_remembered(add: Function) -> None:
    types = [learned(add, new_type(), X) for _ in range(40)]
    for _ in range(2):
        for number, foreign in enumerate(types):
            assert np.array_equal(add(foreign(X + number), X), X + X + number)


# -- without functions in C ------------------------------------------------------------------------------


class Old(Tensor):
    """As before DLPack 1.0."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        self.exported += 1
        return self.array.__dlpack__()


@pytest.mark.parametrize("cls", [Tensor, Old])
def test_other_producers(session: Session, add: Function, cls: type[Tensor]) -> None:
    foreign = learned(add, type("Plain", (cls,), {}), X)
    for array in (X, X[::-1], np.repeat(X, 3)[::3]):
        tensor = foreign(array)
        assert np.array_equal(add(tensor, X), array + X)
        assert tensor.exported == 1


@pytest.mark.parametrize("made", [None, 5, "capsule", "raising", "version"])
def test_producers_that_change_their_mind(add: Function, made: Any) -> None:
    """What is no unused capsule of a known version is an error, as in numpy."""

    class Changing(Tensor):
        is_broken = False

        def __dlpack__(self, **options: Any) -> Any:
            capsule = self.array.__dlpack__(**options)
            if not self.is_broken:
                return capsule
            if made == "raising":
                raise BufferError("not now")
            if made == "capsule":
                np.from_dlpack(_Given(capsule))
            elif made == "version":
                address = dlpack.pointer(id(capsule), VERSIONED_NAME)
                dlpack.Versioned.from_address(address).major = 2
            else:
                return made
            return capsule

    tensor = learned(add, Changing, X)(X.copy())
    assert np.array_equal(add(tensor, X), X + X)
    tensor.is_broken = True
    for _ in range(2):
        with pytest.raises((InvalidArgumentError, TypeError, ValueError)):
            add(tensor, X)
    tensor.is_broken = False
    assert np.array_equal(add(tensor, X), X + X)


class _Given:
    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU_DEVICE


def test_programs_that_overwrite_what_they_are_given(session: Session) -> None:
    numbers = np.arange(4, dtype=np.int32)
    double = direct(session["outputs.double"], numbers)
    for foreign in (learned(double, new_type()), learned(double, type("Plain", (Tensor,), {}))):
        tensor = foreign(numbers.copy())
        assert np.array_equal(double(tensor), 2 * numbers)
        assert np.array_equal(tensor.array, numbers) and tensor.described + tensor.exported == 1
