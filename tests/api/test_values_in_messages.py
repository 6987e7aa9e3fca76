"""Messages about values that have no text: integers of thousands of digits, objects whose ``repr`` fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import Session
from jitree.base.arguments import shown
from jitree.errors import InvalidArgumentError, StatusError
from jitree.hal import watchdog
from jitree.hal.local.topology import check_threads
from jitree.observe.finite import choice_of
from jitree.regs.list import VmList
from tests.api.programs import ARITHMETIC
from tests.base.rows import each_row

HUGE = 10**5000
X = np.arange(4, dtype=np.float32)


class Untold:
    """What a program defines."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Index:
    def __index__(self) -> int:
        return HUGE


VALUES = [HUGE, -HUGE, [HUGE], (-HUGE,), {"a": HUGE}, Untold(), [Untold()], Index()]
IDS = ["huge", "negative", "list", "tuple", "dict", "untold", "list of untold", "index"]
PLACES: dict[str, Callable[[Session, Any], object]] = {
    "i32": lambda session, value: session["arithmetic.numbers"](value, 2, 3.0, 4.0, True, 6),
    "f64": lambda session, value: session["arithmetic.numbers"](1, 2, 3.0, value, True, 6),
    "array": lambda session, value: session["arithmetic.add"](value, X),
    "out": lambda session, value: session["arithmetic.add"](X, X, out=value),
    "submitted": lambda session, value: session["arithmetic.add"].submit(value, X),
    "invoke": lambda session, value: session.context.invoke(
        session["arithmetic.numbers"].vm_function, (value, 2, 3.0, 4.0, 1, 6)
    ),
    "empty": lambda session, value: session.empty(value),
    "second dimension": lambda session, value: session.empty((2, value)),
    "donate": lambda session, value: jitree.donate(value),
    "session": lambda session, value: Session(value),
    "check_finite": lambda session, value: choice_of(value),
    "tap": lambda session, value: session.tap(value),
    "types": lambda session, value: session.tap("*", types=value),
    "keep": lambda session, value: session.tap("*", keep=value),
    "allocate": lambda session, value: session.device_allocator.allocate(48, 0, value, alignment=128),
    "alignment": lambda session, value: session.device_allocator.allocate(48, 0, 64, alignment=value),
    "threads": lambda session, value: check_threads(value),
    "element type": lambda session, value: VmList(value),
    "capacity": lambda session, value: VmList("i32").resize(value),
    "watchdog": lambda session, value: watchdog.start(value),
    "function": lambda session, value: session[value],
}


@pytest.fixture(scope="module")
def session() -> Session:
    session = Session("local-sync", tier="fast")
    session.load(ARITHMETIC)
    return session


@pytest.mark.parametrize("value", VALUES, ids=IDS)
def test_they_are_refused(value: Any, session: Session) -> None:
    def check(place: Callable[[Session, Any], object]) -> None:
        with pytest.raises(StatusError) as caught:
            place(session, value)
        assert 20 < len(str(caught.value)) < 1000

    each_row(PLACES, check)


def test_lists_refuse_huge_integers() -> None:
    numbers = VmList("i64")
    for value in (HUGE, -HUGE):
        with pytest.raises(StatusError, match="64 bits"):
            numbers.append(value)


@pytest.mark.parametrize("value", [-HUGE, HUGE], ids=["refused", "no limit"])
def test_times_that_are_huge_numbers(value: int, session: Session) -> None:
    """A time so far away is no limit, and one that is negative is refused, as any is."""
    add = session["arithmetic.add"]
    if value > 0:
        assert np.array_equal(add(X, X, timeout=value), X + X)
    else:
        with pytest.raises(InvalidArgumentError, match="timeout: expected a number of seconds"):
            add(X, X, timeout=value)


def test_texts() -> None:
    assert shown("a" * 100) == f"'{'a' * 59}…" and shown([1, 2]) == "[1, 2]"
    assert "digits" in shown(HUGE) and shown(Untold()) == "(no text)"


def test_lists_that_have_no_end_of_text() -> None:
    many: list[object] = []
    for _ in range(64):
        many = [many, many]
    assert shown(many).startswith("[[[[...], [...]]") and len(shown(many)) < 100
    assert shown([1.5, (2,), "x"]) == "[1.5, (2,), 'x']"
