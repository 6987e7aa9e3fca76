"""Results as arrays of another library."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from jitree import Array, Session
from jitree.errors import InvalidArgumentError, UnavailableError
from tests.api.programs import ARITHMETIC, ECHO

X = np.arange(4, dtype=np.float32)


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("local-sync", tier="fast") as session:
        session.load(ARITHMETIC, ECHO)
        yield session


def test_arrays_become_those_of_the_library(session: Session) -> None:
    add = session["arithmetic.add"].to("numpy")
    for result in (add(X, X), add(input0=X, input1=X), asyncio.run(add.async_(X, X))):
        assert type(result) is np.ndarray and np.array_equal(result, X + X)
    two = session["module.two"].to("numpy")(X, 5)
    assert type(two) is tuple and type(two[0]) is np.ndarray and two[1] == 5
    listed = session["module.list"].to("numpy")(np.array([1, 2], np.int32))
    assert not any(isinstance(item, Array) for item in listed)


def test_by_the_protocol_of_the_library(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("torch")
    library.from_dlpack = lambda array: ("taken", np.from_dlpack(array))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", library)
    kind, array = session["arithmetic.add"].to("torch")(X, X)
    assert kind == "taken" and np.array_equal(array, X + X)


def test_libraries_that_are_not_there(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    add = session["arithmetic.add"]
    for name in ("tensorflow", "", None, 3, ["torch"]):
        with pytest.raises(InvalidArgumentError, match="to: expected the name of a library but got"):
            add.to(name)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(UnavailableError, match=r"cupy cannot be imported .*; install cupy"):
        add.to("cupy")
