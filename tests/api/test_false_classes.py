"""Objects that say by ``__class__`` that they are something else are refused by name, or do what it does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import proxy

import numpy as np
import pytest

import jitree
from jitree import Session
from jitree.errors import InvalidArgumentError, StatusError
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
