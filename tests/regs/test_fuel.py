"""How much fuel machine code gives itself, and when it asks Python: the functions themselves, in Python."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest

from jitree.base.stop_word import NEVER
from jitree.regs import access as fuel
from jitree.regs.handles import HandleTable
from jitree.regs.layout import (
    SLOW_DONE,
    SLOW_LOOK,
    SLOW_REFUSED,
    STATE,
    STATE_WORDS,
    TICK_SHIFT,
    MachineState,
)
from jitree.regs.machine import FUEL, Machine
from jitree.regs.records import FunctionRecords
from jitree.regs.ref_types import RefTypes

CLOCK, PYTHON = 1001, 1002
MILLISECOND = 1_000_000


class Code:
    """Machine code whose branches take so long. ``answer`` is what Python says to it."""

    def __init__(self) -> None:
        self.now = 5
        self.asked = 0
        self.answer = SLOW_DONE
        self.word = array("q", [NEVER])
        places = CLOCK, self.word.buffer_info()[0]
        self._table = array("q", [*bytes(fuel.CLOCK // 8), *places])
        self._state = array("q", bytes(STATE.size))
        self.state = MachineState(self._state.buffer_info()[0])
        self.state.math = self._table.buffer_info()[0]
        self.state.slow = PYTHON
        self.state.tick = 1 << TICK_SHIFT
        self.state.grant = 256
        self.state.attended = NEVER
        self.state.time = 30 * MILLISECOND

    def call(self, address: int, *arguments: int) -> int:
        if address == CLOCK:
            return self.now
        assert address == PYTHON and self.state.outcome == SLOW_LOOK
        self.asked += 1
        self.state.outcome = self.answer
        self.state.time = 30 * MILLISECOND
        return 0

    def grants(self, nanoseconds: int, count: int) -> Iterator[int]:
        """What is given time after time, where a branch takes so long."""
        for _ in range(count):
            self.now += self.state.grant * nanoseconds
            yield fuel.refuel_function(self.state)


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Code:
    made = Code()
    monkeypatch.setattr(fuel, "call", made.call)
    return made


def test_python_is_asked_as_often_whatever_a_branch_costs(code: Code) -> None:
    for cost in (1, 100, 10_000, 5 * MILLISECOND, 1):
        begun, code.asked = code.now, 0
        while code.asked < 20:
            next(code.grants(cost, 1))
            assert code.now - begun < 20 * 40 * MILLISECOND + fuel.MOST * cost
        assert code.now - begun > 20 * 20 * MILLISECOND


def test_cheap_branches_hardly_look_at_the_clock(code: Code) -> None:
    assert list(code.grants(1, 20))[-1] == fuel.MOST


def test_the_loop_is_left_when_the_time_is_over(code: Code) -> None:
    code.now += 29 * MILLISECOND
    assert fuel.refuel(code.state) > 0, "the clock was not looked at before in this call"
    code.now += 29 * MILLISECOND
    assert fuel.refuel(code.state) > 0
    code.now += MILLISECOND
    assert (fuel.refuel(code.state), code.asked) == (0, 0)


@pytest.mark.parametrize(("answer", "given"), [(SLOW_REFUSED, 0), (SLOW_LOOK, -1)])
def test_a_function_is_left_or_ends_as_python_says(code: Code, answer: int, given: int) -> None:
    code.answer = answer
    assert not fuel.look(code.state)
    code.now += 31 * MILLISECOND
    assert fuel.refuel_function(code.state) == given
    code.state.time = 0
    assert fuel.look(code.state) == (answer == SLOW_LOOK)
    code.state.slow = code.state.time = 0
    assert (fuel.refuel_function(code.state), fuel.look(code.state)) == (0, False)


def test_a_clock_that_goes_back_counts_the_branches(code: Code) -> None:
    fuel.look(code.state)
    code.now -= 3
    before = code.state.time
    fuel.look(code.state)
    assert code.state.time == before - code.state.grant


def test_python_is_asked_at_once_when_a_thread_has_rung(code: Code) -> None:
    """Once for each ring."""
    list(code.grants(1, 10))
    assert not code.asked
    for number in (1, 2):
        code.word[0] = NEVER + number
        list(code.grants(1, 10))
        assert code.asked == number


def test_python_is_asked_when_a_deadline_passes(code: Code) -> None:
    """Until it has put that off; and once for each new time."""
    list(code.grants(1, 10))
    code.word[0] = code.now + MILLISECOND
    next(code.grants(1, 1))
    assert code.asked == 1
    while code.now < code.word[0]:
        assert code.asked == 1
        next(code.grants(1, 1))
    assert code.asked == 2
    list(code.grants(1, 3))
    assert code.asked == 5
    code.word[0] = NEVER
    list(code.grants(1, 3))
    assert code.asked == 6


def test_what_a_branch_takes_is_not_forgotten_when_python_has_looked() -> None:
    """A block may take milliseconds: 256 of them would run before anything could end the call."""
    machine = Machine(HandleTable(RefTypes(), capacity=16), FunctionRecords())
    given = [machine.state[STATE_WORDS.fuel]]
    for granted in (3, 1 << 13):
        machine.state[STATE_WORDS.grant] = granted
        machine.fill_fuel()
        given.append(machine.state[STATE_WORDS.fuel])
    assert given == [1, 3, FUEL]
