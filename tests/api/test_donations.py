"""Donated arrays: lost by a call that takes them, by no other, and passed to it once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

from jitree import Array, Session, donate
from jitree.api.calls.transfers import wrap_in_place
from jitree.errors import FailedPreconditionError, InvalidArgumentError
from jitree.hal.fence import Fence
from tests.api.direct import direct, needs_machine_code
from tests.api.programs import ASYNCHRONOUS, OUTPUTS
from tests.api.test_large_arrays import python_calls

X = np.arange(4, dtype=np.int32)
ROUNDS = 4
"""Machine code makes the last calls, where there is any."""


@pytest.fixture(params=["plain", "fast"])
def session(request: pytest.FixtureRequest) -> Session:
    session = Session("local-sync", tier=request.param)
    outputs = session.load(OUTPUTS)
    if request.param == "fast":
        direct(outputs.double_first, X, X)
        direct(outputs.double_both, X, X)
    return session


class Subclass(np.ndarray[Any, Any]):
    pass


class OnlyDlpack:
    def __init__(self, array: Array) -> None:
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


TWICE: dict[str, Callable[[Any, Array], Any]] = {
    "donated twice": lambda outputs, a: outputs.double_both(donate(a), donate(a)),
    "one donation twice": lambda outputs, a: outputs.double_both(*[donate(a)] * 2),
    "donated and passed": lambda outputs, a: outputs.double_first(donate(a), a),
    "passed and donated": lambda outputs, a: outputs.double_first(a, donate(a)),
    "donated and copied": lambda outputs, a: outputs.double_both(donate(a), a),
    "by name": lambda outputs, a: outputs.double_first(input1=a, input0=donate(a)),
    "its view": lambda outputs, a: outputs.double_first(donate(a), a.buffer_view),
    "another array of its memory": lambda outputs, a: outputs.double_first(
        donate(a), Array(a.buffer_view, a.device)
    ),
    "storage of a result": lambda outputs, a: outputs.one_of_two(donate(a), out=a),
    "a numpy array": lambda outputs, a: outputs.double_first(donate(a), np.asarray(a)),
    "a numpy array, overwritten": lambda outputs, a: outputs.double_both(np.asarray(a), donate(a)),
    "a part of a numpy array": lambda outputs, a: outputs.double_first(donate(a), np.asarray(a)[1:3]),
    "a numpy array, backwards": lambda outputs, a: outputs.double_first(donate(a), np.asarray(a)[::-1]),
    "a subclass": lambda outputs, a: outputs.double_first(donate(a), np.asarray(a).view(Subclass)),
    "bytes of it": lambda outputs, a: outputs.double_first(donate(a), memoryview(np.asarray(a))),  # type: ignore[arg-type]
    "DLPack": lambda outputs, a: outputs.double_first(donate(a), OnlyDlpack(a)),
}


@pytest.mark.parametrize("way", TWICE)
def test_an_array_that_is_passed_twice(session: Session, way: str) -> None:
    outputs = session.modules["outputs"]
    for _ in range(ROUNDS):
        array = session.to_device(X)
        with pytest.raises(InvalidArgumentError, match=r"input\d: .* is donated and passed a second"):
            TWICE[way](outputs, array)
        assert np.array_equal(array, X)
        assert np.array_equal(outputs.double_first(donate(array), X), 2 * X) and array.is_donated


@pytest.mark.parametrize("first", [True, False])
def test_none_is_lost_when_another_is_refused(session: Session, first: bool) -> None:
    double = session["outputs.double_both"]
    for _ in range(ROUNDS):
        array, wrong = session.to_device(X), session.to_device(X.astype(np.float32))
        both = (donate(array), donate(wrong)) if first else (donate(wrong), donate(array))
        with pytest.raises(InvalidArgumentError, match="element type mismatch"):
            double(*both)
        assert not array.is_donated and not wrong.is_donated


def test_a_donation_is_for_one_call(session: Session) -> None:
    double = session["outputs.double_first"]
    for _ in range(ROUNDS):
        donation = donate(session.to_device(X))
        assert np.array_equal(double(donation, session.to_device(X)), 2 * X)
        with pytest.raises(FailedPreconditionError, match="donated to a call and cannot be used any more"):
            double(donation, X)


def test_a_donated_array_is_nowhere(session: Session) -> None:
    array = session.to_device(X)
    session["outputs.double"](donate(array))
    with pytest.raises(FailedPreconditionError, match="donated to a call"):
        session.to_device(array)


USES: dict[str, Callable[[Array], Any]] = {
    "numpy": np.asarray,
    "its shape": lambda array: array.shape,
    "an element": lambda array: array[0],
    "writing": lambda array: array.__setitem__(0, 1),
    "DLPack": lambda array: array.__dlpack__(),
    "ready": lambda array: array.ready,
    "wait": lambda array: array.wait(),
    "await": lambda array: next(array.__await__()),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_donated_array_is_refused(session: Session, use: str) -> None:
    computed = session.to_device(X)
    pending = Array(session.to_device(X).buffer_view, session.device, Fence.create(session.device))
    for array in (computed, pending):
        array._give_up()
        with pytest.raises(FailedPreconditionError, match="donated to a call and cannot be used any more"):
            USES[use](array)
        assert array.is_donated and "donated" in repr(array)


def test_what_lies_beside_a_donated_array_is_no_matter(session: Session) -> None:
    """Also results that lie in one block of memory."""
    double = session["outputs.double_both"]
    for _ in range(ROUNDS):
        first, second = double(X, X + 1)
        assert np.array_equal(session["outputs.double_first"](donate(first), second), 4 * X)
        assert np.array_equal(second, 2 * X + 2)


def test_a_numpy_array_around_a_donated_one(session: Session) -> None:
    """It begins before the memory that is given away. One beside that memory may be passed."""
    double = session["outputs.double_first"]
    block = np.zeros(1 << 17, np.uint8)
    around = block[-block.ctypes.data % 64 :].view(np.uint8)[: 1 << 16 | 1 << 12].view(np.int32)
    for _ in range(ROUNDS):
        view = wrap_in_place(around[16 : 16 + (1 << 14)], session.device)
        assert view is not None
        array = Array(view, session.device)
        with pytest.raises(InvalidArgumentError, match="is donated and passed a second"):
            double(donate(array), around)
        assert np.array_equal(double(donate(array), around[:16]), np.zeros(1 << 14))


def test_only_one_of_two_threads_gives_an_array_away() -> None:
    array = Session("local-sync", tier="plain").to_device(X)
    array._give_up()
    with pytest.raises(FailedPreconditionError, match="donated to a call"):
        array._give_up()


def test_a_call_waits_for_a_donated_array_that_is_still_computed() -> None:
    with Session("local-task") as session:
        add = session.load(ASYNCHRONOUS).add
        for _ in range(ROUNDS):
            memory, fence = session.to_device(np.zeros(64, np.float32)), Fence.create(session.device)
            pending = Array(memory.buffer_view, session.device, fence)
            result = add.submit(donate(pending), np.ones(64, np.float32))
            assert not result.ready and pending.is_donated
            np.asarray(memory)[:] = 5
            fence.signal()
            assert np.array_equal(result, np.full(64, 6, np.float32))


@needs_machine_code
def test_an_array_of_another_sign_is_copied_or_given_away_without_python() -> None:
    """As one of the declared type is."""
    session = Session("local-sync", tier="fast")
    kept = session.to_device(np.arange(4, dtype=np.uint32))
    double = direct(session.load(OUTPUTS).double, kept)
    double(kept)
    given = session.to_device(np.arange(4, dtype=np.uint32))
    double(donate(session.to_device(np.arange(4, dtype=np.uint32))))
    for value in (kept, donate(given)):
        assert not python_calls(double, value)
        result = double(kept)
        assert list(np.asarray(result)) == [0, 2, 4, 6] and result.dtype == np.int32
    assert list(np.asarray(kept)) == [0, 1, 2, 3] and given.is_donated


class Switch:
    """Runs another thread's code at one place of an action where Python may change threads."""

    def __init__(self, place: int, other: Callable[[], object]) -> None:
        self.left = place
        self._other = other

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_return"):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                with suppress(FailedPreconditionError):
                    self._other()

    def during(self, action: Callable[[], object]) -> None:
        look = self._look  # kept until the end, as that of `Interruption`
        sys.setprofile(look)
        try:
            with suppress(FailedPreconditionError):
                action()
        finally:
            sys.setprofile(None)


PASSED: dict[str, Callable[[Array, Any], Any]] = {
    "passed": lambda array, keeper: array._be_passed(keeper, PASSED),
    "looked at": lambda array, keeper: array.buffer_view,
    "its shape": lambda array, keeper: array.shape,
    "its type": lambda array, keeper: array.element_type,
    "donated": lambda array, keeper: array._give_up(),
}


@needs_machine_code
@pytest.mark.parametrize("is_result", [True, False])
@pytest.mark.parametrize("what", PASSED)
def test_a_thread_donates_what_another_one_uses(what: str, is_result: bool) -> None:
    """At whatever place of either, nothing is left of it: a handle of that memory would be another's."""
    with Session("local-sync", tier="fast") as session:
        double = session.load(OUTPUTS).double
        direct(double, X)
        keeper: Any = double(X)._keeper
        for first in (False, True):
            place, is_over = 1, False
            while not is_over:
                array: Any = double(X) if is_result else session.to_device(X)
                actions = [partial(PASSED[what], array, keeper), array._give_up]
                switch = Switch(place, actions[first])
                switch.during(actions[not first])
                place, is_over = place + 1, switch.left > 0
                if is_over:
                    array._give_up() if not array.is_donated else None
                assert array.is_donated
                assert array._passed_as is array._keeper is array._elements is None, f"place {place - 1}"
