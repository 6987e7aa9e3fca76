"""Objects that say by ``__class__`` that they are something else are refused by name, or do what it does."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import proxy

import numpy as np
import pytest

import jitree
from jitree import Session
from jitree.base import folding
from jitree.errors import InvalidArgumentError, StatusError, pass_interruption
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.device import Device
from jitree.kernels import Kernel
from jitree.params import ParameterIndex
from jitree.params.provider import ParameterProvider
from tests.api.programs import ARITHMETIC
from tests.api.test_odd_arguments import CALLS, OPTIONS
from tests.api.test_odd_constructors import CALLS as CONSTRUCTORS

GOOD = np.ones(4, np.float32)
CLASSES: tuple[Any, ...] = (
    str, bytes, memoryview, int, float, bool, list, tuple, dict, set, type(None), np.ndarray, np.generic,
    np.float32, np.dtype, np.ma.MaskedArray, jitree.Array, Session, jitree.Module, jitree.Function, Buffer,
    BufferView, Device, jitree.VmList, jitree.VmBuffer, jitree.Instance, jitree.CustomModule, jitree.Limits,
    ParameterIndex, ParameterProvider, Path, Mapping, Sequence, os.PathLike, type(jitree.donate), slice,
)  # fmt: skip


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("local-sync") as made:
        yield made


def false(kind: type) -> Any:
    """An object that says that it is of a class, and has nothing of it."""

    class False_:
        __class__ = property(lambda self: kind)

    return False_()


def _making(call: Callable[[Any], object]) -> Callable[[Session, Any], object]:
    return lambda session, value: call(value)


def _taking(option: str) -> Callable[[Session, Any], object]:
    return lambda session, value: Session("local-sync", **{option: value}).close()


def _listing(option: str) -> Callable[[Session, Any], object]:
    taking = _taking(option)
    return lambda session, value: taking(session, [value])


def _with_parameters(make: Callable[[Any], Any]) -> Callable[[Session, Any], object]:
    return lambda session, value: Session("local-sync", parameters=make(value)).close()


WAYS: dict[str, Callable[[Session, Any], object]] = {
    **CALLS,
    **{name: _making(call) for name, call in CONSTRUCTORS.items()},
    **{f"{option}=": _taking(option) for option in OPTIONS},
    **{f"{option}=[]": _listing(option) for option in OPTIONS},
    "parameter": _with_parameters(lambda value: {"a": value}),
    "name of a parameter": _with_parameters(lambda value: {value: GOOD}),
    "parameter of a scope": _with_parameters(lambda value: {"a": {"b": value}}),
    "input": lambda session, value: session["arithmetic.add"](value, GOOD),
    "items": lambda session, value: session["arithmetic.add"]([value] * 4, GOOD),
    "submit": lambda session, value: session["arithmetic.add"].submit(value, GOOD),
    "timeout": lambda session, value: session["arithmetic.add"](GOOD, GOOD, timeout=value),
    "Kernel": lambda session, value: Kernel(value),
    "types": lambda session, value: Kernel(len, value),
    "a type": lambda session, value: Kernel(len, [value]),
    "grid": lambda session, value: Kernel(len, grid=value),
    "arguments": lambda session, value: Kernel(len, arguments=value),
    "replace": lambda session, value: session.replace(value, len),
    "kernel": lambda session, value: session.replace("*", value),
    "reload": lambda session, value: session.reload(value),
    "jitree.load": lambda session, value: jitree.load(value),
    "compile": lambda session, value: jitree.compile(value),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_false_class_gives_a_status(session: Session, way: str) -> None:
    session.load(ARITHMETIC)
    refused = 0
    for kind in CLASSES:
        try:
            WAYS[way](session, false(kind))
        except StatusError:
            refused += 1
    assert refused >= (way not in ("contains", "to_device"))


@pytest.mark.parametrize("kind", [jitree.Array, memoryview, list, BufferView])
def test_the_argument_is_named(session: Session, kind: type) -> None:
    add = session.load(ARITHMETIC).add
    for call in (add, add.submit):
        with pytest.raises(InvalidArgumentError, match=r"input1: .*False_"):
            call(GOOD, false(kind))
    with pytest.raises(InvalidArgumentError, match=r"parameters: .*False_"):
        Session("local-sync", parameters={"a": false(dict)})


def _of_ours() -> BaseException:
    """An error of ours, as it comes before it is folded."""
    with pytest.raises(InvalidArgumentError) as found:
        Session("local-sync", parameters={"a": false(list)})
    return TypeError("of ours").with_traceback(found.tb)


def test_lists_of_lists_are_looked_at_as_far_as_they_are_asked_for() -> None:
    """One list that is in another many times has more items than there is memory for."""
    error, many = _of_ours(), [1] * 2000
    values = [many] * 2000
    tracemalloc.start()
    try:
        assert not folding.false_class(error, [("values", values)], pass_interruption)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_proxy_of_what_is_no_more_may_raise_anything() -> None:
    def gone(self: object) -> Any:
        raise RuntimeError("there is nothing behind it")

    class Gone:
        __class__ = property(gone)

    assert folding.false_class(_of_ours(), [("x", GOOD), ("y", [Gone()])], pass_interruption).startswith(
        "y: a Gone says"
    )


def test_too_many_arguments_are_said_to_be(session: Session) -> None:
    """Functions without local variables have no more names."""
    with pytest.raises(TypeError, match="positional argument"):
        session.close(1, 2)  # type: ignore[call-arg]


def test_the_whole_traceback_shows_where_it_was_noticed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITREE_TRACEBACK", "full")
    with pytest.raises(InvalidArgumentError) as found:
        session.load(ARITHMETIC).add(GOOD, false(jitree.Array))
    cause = found.value.__cause__
    assert cause is not None and cause.__traceback__ is not None


def test_what_callers_raise_stays_theirs(session: Session) -> None:
    """Also where an argument has a false class, which is not why."""

    class Failing:
        __class__ = property(lambda self: jitree.Array)

        @property
        def fence(self) -> None:
            raise TypeError("of the caller")

    with pytest.raises(TypeError, match="of the caller"):
        session.load(ARITHMETIC).add(Failing(), GOOD)


def test_a_proxy_is_what_it_stands_for(session: Session) -> None:
    array = session.to_device(GOOD)
    assert np.array_equal(session.load(ARITHMETIC).add(proxy(array), GOOD), 2 * GOOD)
