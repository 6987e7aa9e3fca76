"""Large arrays of the host, which machine code copies."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jitree import CustomModule, Session
from jitree.errors import InvalidArgumentError
from tests.api import producers
from tests.api.direct import direct, live, needs_machine_code, through
from tests.api.producers import Tensor
from tests.api.programs import ALIASES, ARITHMETIC

pytestmark = needs_machine_code
COUNT = 16384
"""Elements of an array that takes a while to copy."""
X = np.arange(COUNT, dtype=np.float32)
MAKERS: tuple[Callable[[Host], Any], ...] = (
    np.asarray, producers.new_type(), type("Capsules", (Tensor,), {}),
)  # fmt: skip
"""What makes arrays of numpy, and of libraries with functions in C and without."""
DECLARED = {"iree.abi.declaration": "sync func @f(%x: tensor<?xf32>) -> (%y: tensor<?xf32>)"}
Host = npt.NDArray[np.float32]


class Memory(np.ndarray[Any, Any]):
    """Whose end can be seen."""


@pytest.fixture(params=["local-sync", "local-task"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(request.param, tier="fast") as session:
        yield session


def aligned(offset: int = 0) -> Host:
    block = np.zeros(X.nbytes + 128, np.uint8).view(Memory)
    start = -block.ctypes.data % 64 + offset
    made = np.asarray(block[start : start + X.nbytes]).view(np.float32)
    made[:] = X
    return made


def block_of(array: Host) -> weakref.ref[Any]:
    base: Any = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    return weakref.ref(base)


def python_calls(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """Functions of jitree's that Python runs in a call."""
    seen: list[str] = []

    def note(frame: FrameType, event: str, value: object) -> None:
        if event == "call" and "/jitree/api/" in frame.f_code.co_filename:
            seen.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return seen


def test_no_python_runs(session: Session) -> None:
    double = direct(session.load(ALIASES).double, X)
    array = aligned()
    for make in MAKERS:
        value = make(array)
        double(value)
        assert not python_calls(double, value)
        assert np.array_equal(double(value), 2 * X)


def test_nothing_is_kept(session: Session) -> None:
    double = direct(session.load(ALIASES).double, X)
    before = live(session)
    for number in range(20):
        array = aligned()
        array += number
        result = double(array)
        block = block_of(array)
        array[:] = -1
        assert np.array_equal(result, 2 * (X + number))
        del array
        gc.collect(0)
        assert block() is None, "the result does not keep it"
        with pytest.raises(InvalidArgumentError, match="shape dimension 0 mismatch"):
            double(aligned()[: COUNT - 16])
    del result
    assert live(session) == before


@pytest.mark.parametrize("writeable", [True, False])
def test_results_are_no_arrays_that_were_passed(session: Session, writeable: bool) -> None:
    same = direct(session.load(ALIASES).same, X)
    for make in MAKERS:
        array = aligned()
        seen = array.view()
        seen.flags.writeable = writeable
        value = make(seen)
        same(value)
        result = same(value)
        array[:] = -1
        assert np.array_equal(result, X) and np.asarray(result).flags.writeable


def test_what_python_looks_at(session: Session) -> None:
    """A host function gets a copy, which it may keep and change."""
    custom, kept = CustomModule("host"), []

    @custom.export
    def g(value: Any) -> Any:
        kept.append(value.buffer.host_array().view(np.float32))
        return value

    session.load(ALIASES)  # which uses the device
    echo = direct(through(session, custom, "0r_r", DECLARED), X)
    for writeable in (True, False):
        array = aligned()
        array.flags.writeable = writeable
        result, seen = echo(array), kept.pop()
        assert seen.flags.writeable and not np.shares_memory(seen, array)
        assert np.array_equal(result, X)


def test_where_a_result_is_put(session: Session) -> None:
    into = direct(session.load(ALIASES).into, X, session.empty(COUNT))
    for out in (aligned(), session.empty(COUNT)):
        array = np.asarray(out)
        array[:] = X
        assert np.array_equal(into(array, out=out), 2 * X), "read before it is written"
        assert np.array_equal(into(array, out=out), 4 * X)


def test_an_array_beside_one_that_python_packs_gets_no_view(session: Session) -> None:
    """It is passed by its owner, and refused as always."""
    ones = np.ones(4, np.float32)
    odd = SimpleNamespace(__array__=lambda: ones)
    add = direct(session.load(ARITHMETIC).add, ones, ones)
    for _ in range(3):
        result, other = add(ones, ones), session.to_device(np.zeros(3, np.float32))
        assert np.array_equal(add(result, odd), 3 * ones) and result._view is None
        with pytest.raises(InvalidArgumentError, match="shape"):
            add(other, odd)
