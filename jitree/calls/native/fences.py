"""Fences of calls of asynchronous functions: the second one behind the arguments is reached when the results
are there. Machine code.

The first one is null: arrays that are still computed are arguments for Python.
"""

from __future__ import annotations

from jitree.calls.native.arrays import Call
from jitree.calls.native.python import (
    Python,
    drop,
    invoke_with,
    invoke_with_number,
    is_done,
    is_true,
)
from jitree.calls.native.results import take_results
from jitree.codegen.primitives import load, load64, store, store64
from jitree.modules.hal.native.entries import (
    STATE_RELEASED,
    Entry,
    Natives,
    State,
    new_entry,
    release,
    retain,
)
from jitree.modules.hal.native.fences import is_reached
from jitree.regs.layout import PATIENT


def pass_fences(python: int, record: int, state: int) -> bool:
    """Whether there are fences as the function wants them."""
    place = load(record, Call.signal)
    if place == 0:
        return True
    natives = load(state, State.natives)
    if natives == 0 or load(natives, Natives.queue) == 0:
        return False
    fence = new_entry(state, natives, load(natives, Natives.fence))
    if fence == 0:
        if not is_true(python, invoke_with_number(python, load(record, Call.supply), 0)):
            return False
        fence = new_entry(state, natives, load(natives, Natives.fence))
        if fence == 0:
            return False
    store(fence, Entry.length, 0)
    store64(place, fence)
    return True


def taken_signal(record: int) -> int:
    """A reference to the fence that was passed, which the program will drop; 0 if there is none."""
    place = load(record, Call.signal)
    return retain(load64(place)) if place != 0 else 0


def drop_signal(state: int, signal: int) -> None:
    release(load(state, State.natives), signal, state + STATE_RELEASED)


def take_signalled(python: int, record: int, state: int, signal: int, prompt: int, awaited: int) -> int:
    """The results of a function whose fence, a reference to which is taken over, may not be reached yet: then
    arrays wait for it, or the caller has to, who finds it at ``awaited``. 0 with an exception set."""
    if is_reached(load(state, State.natives), signal):
        drop_signal(state, signal)
        return take_results(python, record)
    fence = invoke_with_number(python, load(record, Call.pending), signal)
    if fence == 0:
        return 0
    if prompt == PATIENT and fence != load(python, Python.none):
        store64(awaited, fence)
        return take_results(python, record)
    store(record, Call.fence, fence)
    results = take_results(python, record)
    store(record, Call.fence, load(python, Python.none))
    drop(python, fence)
    return results


def when_reached(python: int, record: int, fence: int, results: int) -> int:
    """Results when a fence, a reference to which is taken over, is reached; without the lock, other calls run
    meanwhile. 0 with an exception set."""
    if results != 0 and not is_done(python, invoke_with(python, load(record, Call.wait_for), fence)):
        drop(python, results)
        results = 0
    drop(python, fence)
    return results
