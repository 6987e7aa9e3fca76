"""For how long machine code runs until Python looks after signals, for the loop and compiled functions.

Branches and calls count STATE.fuel down, which costs next to nothing; when it is used up, machine code looks
at the clock. It gives itself as much more as lasts a moment, whatever a branch costs, until the time that it
has (STATE.time) is over.
"""

from __future__ import annotations

from jitree.codegen.primitives import call, load64
from jitree.codegen.processor import ticks
from jitree.codegen.record import place_of
from jitree.regs.layout import LIBRARY_FUNCTIONS, SLOW_DONE, SLOW_LOOK, SLOW_REFUSED, TICK_SHIFT, MachineState

CLOCK = 8 * len(LIBRARY_FUNCTIONS)
"""Where the address of :func:`clock` is, which is not the same for all processors."""
STOP = CLOCK + 8
"""Where the address of the word is that says when to look (:mod:`jitree.base.stop_word`)."""
MOST = 1 << 13
"""Branches in a row. Looking at the clock takes as long as some twenty of them."""
LONG = 1_000_000
"""Nanoseconds after which less is given: less than a thousandth of what a user would notice."""


def clock() -> int:
    """The time, in ticks."""
    return ticks()


def spend_time(state: MachineState) -> int:
    """Counts the time since the clock was last looked at, and gives it; where that was in another call, a
    nanosecond for each branch. The time is over when another thread has rung, or a deadline has passed."""
    now = call(load64(state.math + CLOCK))
    passed = (now - state.looked) * state.tick >> TICK_SHIFT
    if state.looked == 0 or passed < 0:
        passed = state.grant
    state.looked = now
    stop = load64(load64(state.math + STOP))
    if stop == state.attended and now < stop:
        state.time -= passed
    else:
        state.attended = stop
        state.time = 0
    return passed


def grant(state: MachineState) -> int:
    """The fuel that follows."""
    passed = spend_time(state)
    fuel = state.grant
    if passed > LONG:
        fuel = fuel >> 3 | 1
    elif fuel < MOST:
        fuel <<= 1
    state.grant = fuel
    return fuel


def ask(state: MachineState) -> int:
    """Has Python look after signals, and fill the time up. SLOW_*, SLOW_LOOK where the call is to end."""
    if state.slow == 0:
        return SLOW_REFUSED
    state.outcome = SLOW_LOOK
    call(state.slow, place_of(state))
    state.looked = 0
    outcome: int = state.outcome
    return outcome


def refuel(state: MachineState) -> int:
    """More fuel for the loop; 0 where the time is over, and Python is to see what else there is to do."""
    fuel = grant(state)
    return 0 if state.time <= 0 else fuel


def refuel_function(state: MachineState) -> int:
    """More fuel for a compiled function, which loses much when it is left; 0 where it is to be left all the
    same, -1 where the call is to end."""
    fuel = grant(state)
    if state.time <= 0:
        outcome = ask(state)
        if outcome != SLOW_DONE:
            fuel = 0 if outcome == SLOW_REFUSED else -1
    return fuel


def look(state: MachineState) -> bool:
    """Whether code that does much without branches that take fuel is to end."""
    spend_time(state)
    return state.time <= 0 and ask(state) == SLOW_LOOK


FUNCTIONS = (spend_time, grant, ask, refuel, refuel_function, look)
CALLED = (refuel, refuel_function, look)
"""What the loop and compiled functions call."""
