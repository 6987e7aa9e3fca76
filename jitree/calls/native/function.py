"""A call of a function. Machine code.

Everything happens on the context's machine of direct calls, with the context's lock held. Whatever is not as
usual is done by Python: the whole call, when nothing has happened yet, or what is left of it.
"""

from __future__ import annotations

from jitree.calls.native.arguments import Argument, pass_argument
from jitree.calls.native.arrays import Call
from jitree.calls.native.fences import drop_signal, pass_fences, take_signalled, taken_signal, when_reached
from jitree.calls.native.layout import ARGUMENT, CALL, CAPSULE_POINTER_AT
from jitree.calls.native.owners import Owners, take_back
from jitree.calls.native.python import (
    Python,
    drop,
    forgets_error,
    invoke,
    invoke_with,
    is_done,
    is_instance,
    retained,
)
from jitree.calls.native.results import take_results
from jitree.codegen.primitives import Fields, call, load, load64, stack, store, store64
from jitree.modules.hal.native.entries import STATE_RELEASED, State, release
from jitree.regs.layout import FRAME, LEFT_EXIT, PATIENT, PROMPT, STATE, TURN

Turn = Fields(TURN)
Frame = Fields(FRAME)

_ARGUMENT_SIZE = ARGUMENT.size
_FRAME_SIZE = FRAME.size
_FRAME_WORDS = CALL["frame_0"]
_STATE_WORDS = CALL["state_0"]
_STATE_BEGIN = STATE["pc"]
_STATE_SIZE = STATE["module"] + 8 - STATE["pc"]

_GENERALLY = -1
"""In place of a result: nothing has happened, Python is to make the call."""


def function_method(self: int, arguments: int, count: int, names: int) -> int:
    """``Function.__call__``: ``self`` is the capsule of the PYTHON record, the function is the first
    argument, ``names`` a tuple of those of the last arguments, or 0."""
    python = load64(self + CAPSULE_POINTER_AT)
    result = call_by_record(python, arguments, count, names, PATIENT)
    if result != _GENERALLY:
        return result
    return call(load(python, Python.vectorcall), load(python, Python.call_generally), arguments, count, names)


def submit_method(self: int, arguments: int, count: int, names: int) -> int:
    """As :func:`function_method`, for ``AsynchronousFunction.submit``."""
    python = load64(self + CAPSULE_POINTER_AT)
    result = call_by_record(python, arguments, count, names, PROMPT)
    if result != _GENERALLY:
        return result
    return call(
        load(python, Python.vectorcall), load(python, Python.submit_generally), arguments, count, names
    )


def place_method(self: int, arguments: int, count: int, names: int) -> int:
    """A builtin of two arguments, a DirectCall that runs nothing and its one argument: the array that this
    becomes, or None if that takes Python."""
    python = load64(self + CAPSULE_POINTER_AT)
    record = load64(load64(load64(arguments) + load(python, Python.direct_record)) + CAPSULE_POINTER_AT)
    result = call_in_turn(python, record, arguments + 8, count - 1, PATIENT)
    return result if result != _GENERALLY else retained(python, load(python, Python.none))


def call_by_record(python: int, arguments: int, count: int, names: int, prompt: int) -> int:
    """``prompt`` is what STATE.prompt says meanwhile: PATIENT to wait for the results, PROMPT to return
    arrays that may still be computed."""
    if count < 1 or not is_instance(python, load64(arguments), load(python, Python.function_type)):
        return _GENERALLY
    direct = load64(load64(arguments) + load(python, Python.function_direct))
    if direct == 0 or direct == load(python, Python.none):
        return _GENERALLY
    retained(python, direct)  # the session may be closed meanwhile
    record = load64(load64(direct + load(python, Python.direct_record)) + CAPSULE_POINTER_AT)
    if names == 0:
        result = call_in_turn(python, record, arguments + 8, count - 1, prompt)
    else:
        result = call_in_order(python, record, arguments, count, names, prompt)
    drop(python, direct)
    return result


def call_in_order(python: int, record: int, arguments: int, count: int, names: int, prompt: int) -> int:
    """With arguments that have names."""
    ordered = call(load(python, Python.vectorcall), load(python, Python.in_order), arguments, count, names)
    if ordered == 0:
        return 0
    length = call(load(python, Python.length), ordered)
    values = stack(8 * length)
    for index in range(length):
        store64(values + 8 * index, call(load(python, Python.get_item), ordered, index))
    result = call_in_turn(python, record, values, length, prompt)
    drop(python, ordered)
    return result


def call_in_turn(python: int, record: int, arguments: int, count: int, prompt: int) -> int:
    """With the context's lock, if nothing of the context is running."""
    if count != load(record, Call.argument_count):
        return _GENERALLY
    if not take_turn(python, record):
        return 0
    if load(load(record, Call.turn), Turn.ready) == 0:
        return give_turn(python, record, _GENERALLY)
    awaited = stack(8)
    store64(awaited, 0)
    result = give_turn(python, record, call_directly(python, record, arguments, prompt, awaited))
    fence = load64(awaited)
    return result if fence == 0 else when_reached(python, record, fence, result)


def take_turn(python: int, record: int) -> bool:
    """Takes the context's lock. False with an exception set: Ctrl-C while another thread had it."""
    taken = invoke_with(python, load(record, Call.acquire), load(python, Python.false))
    if not is_done(python, taken):
        return False
    return taken == load(python, Python.true) or is_done(
        python, invoke(python, load(record, Call.wait_for_turn))
    )


def give_turn(python: int, record: int, result: int) -> int:
    """Gives the lock up, whatever exception is on its way, and returns the result."""
    error = stack(24)
    if result == 0:
        call(load(python, Python.fetch_error), error, error + 8, error + 16)
    is_given = is_done(python, invoke(python, load(record, Call.release)))
    if result == 0 and is_given:
        call(load(python, Python.restore_error), load64(error), load64(error + 8), load64(error + 16))
    return result


def call_directly(python: int, record: int, arguments: int, prompt: int, awaited: int) -> int:
    """With the lock held, and the machine of direct calls free. At ``awaited``, which holds 0, is the fence
    then that is to be waited for when the lock has been given up."""
    turn = load(record, Call.turn)
    state = load(record, Call.state)
    store(turn, Turn.ready, 0)
    store(turn, Turn.nesting, 1)
    if not tidy(python, record, state):
        return settle(python, record, 0)
    # Arguments last, and of these what is donated: it cannot be had again for another try.
    if not pass_fences(python, record, state) or not pass_arguments(python, record, arguments):
        drop_registers(record, state)
        return settle(python, record, _GENERALLY if forgets_error(python) else 0)
    signal = taken_signal(record)
    if prompt != PATIENT:
        store(state, State.prompt, prompt)
    left = enter(python, record, state)
    is_complete = left == 0 or is_done(python, invoke(python, load(record, Call.go_on)))
    if prompt != PATIENT:
        store(state, State.prompt, PATIENT)
    if not is_complete:
        drop_signal(state, signal)
        return ended(python, record, turn)
    # Before Python runs, which might give new references to what is to be freed.
    if not drained(python, record, state):
        drop_signal(state, signal)
        return settle(python, record, 0)
    if signal == 0:
        return settle(python, record, take_results(python, record))
    return settle(python, record, take_signalled(python, record, state, signal, prompt, awaited))


def ended(python: int, record: int, turn: int) -> int:
    """The end of a call that failed in Python, which has settled everything unless Ctrl-C came first, or
    there was no more room on Python's stack."""
    error = stack(24)
    call(load(python, Python.fetch_error), error, error + 8, error + 16)
    while load(turn, Turn.nesting) != 0:
        if is_done(python, invoke(python, load(record, Call.give_up))):
            continue
        if forgets_error(python):  # no room; the next call that Python makes gets the machine ready
            release_frames(record, load(record, Call.state))
            store(turn, Turn.nesting, 0)
        else:
            call(load(python, Python.clear_error))
    call(load(python, Python.restore_error), load64(error), load64(error + 8), load64(error + 16))
    return 0


def tidy(python: int, record: int, state: int) -> bool:
    """Drops what arrays and others have given back, and clears the registers. False with an exception set."""
    refs = load(record, Call.refs)
    for index in range(load(record, Call.ref_count)):
        store64(refs + 8 * index, 0)
    owners = load(record, Call.owners)
    if load(owners, Owners.count) != 0:
        take_back(owners, load(state, State.natives), state + STATE_RELEASED)
        if not drained(python, record, state):
            return False
    if call(load(python, Python.length), load(record, Call.deferred)) == 0:
        return True
    return is_done(python, invoke(python, load(record, Call.drain_deferred)))


def drained(python: int, record: int, state: int) -> bool:
    """Frees the objects of Python's that machine code has released. False with an exception set."""
    return load(state, State.released) == 0 or is_done(python, invoke(python, load(record, Call.drain)))


def pass_arguments(python: int, record: int, arguments: int) -> bool:
    argument = load(record, Call.arguments)
    for _ in range(load(record, Call.argument_count)):
        value = load64(arguments + 8 * load(argument, Argument.position))
        if not pass_argument(python, record, argument, value):
            return False
        argument += _ARGUMENT_SIZE
    return True


def enter(python: int, record: int, state: int) -> int:
    """Makes the host's frame and runs the machine, without the GIL. Gives LEFT_*. Where nothing is to run the
    arguments are the results."""
    if load(record, Call.run) == 0:
        return LEFT_EXIT
    frame = load(record, Call.frame)
    for place in range(0, _FRAME_SIZE, 8):
        store64(frame + place, load64(record + _FRAME_WORDS + place))
    for place in range(0, _STATE_SIZE, 8):
        store64(state + _STATE_BEGIN + place, load64(record + _STATE_WORDS + place))
    thread = call(load(python, Python.save_thread))
    left = call(load(record, Call.run), state)
    call(load(python, Python.restore_thread), thread)
    return left


def release_frames(record: int, state: int) -> None:
    """Drops the references in the registers of all frames."""
    end = load(load(state, State.frame), Frame.refs_end)
    for place in range(load(record, Call.refs), end, 8):
        handle = load64(place)
        store64(place, 0)
        release(load(state, State.natives), handle, state + STATE_RELEASED)
    store(state, State.frame, load(record, Call.frame))


def drop_registers(record: int, state: int) -> None:
    """Drops the references that are left in the host's frame."""
    refs = load(record, Call.refs)
    for index in range(load(record, Call.ref_count)):
        handle = load64(refs + 8 * index)
        store64(refs + 8 * index, 0)
        release(load(state, State.natives), handle, state + STATE_RELEASED)


def settle(python: int, record: int, result: int) -> int:
    """Ends a call that has left no frames but the host's, and returns its result; 0 with an exception set."""
    turn = load(record, Call.turn)
    state = load(record, Call.state)
    error = stack(24)
    if result == 0:
        call(load(python, Python.fetch_error), error, error + 8, error + 16)
        drop_registers(record, state)
    is_well = drained(python, record, state)
    if is_well and load(turn, Turn.faults) != 0:
        is_well = is_done(python, invoke(python, load(record, Call.require_faultless)))
    store(turn, Turn.nesting, 0)
    store(turn, Turn.ready, 1)
    if result == 0:
        if not is_well:
            call(load(python, Python.clear_error))
        call(load(python, Python.restore_error), load64(error), load64(error + 8), load64(error + 16))
    elif not is_well:
        if result != _GENERALLY:
            drop(python, result)
        result = 0
    return result
