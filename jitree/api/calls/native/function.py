"""Calls a function: arguments, program, results. Machine code.

Everything happens on the context's machine of direct calls, with the context's lock held. Whatever is not as
usual is done by Python: the whole call, when nothing has happened yet, or what is left of it.
"""

from __future__ import annotations

from jitree.api.calls.native.arguments import PACKED, pass_arguments
from jitree.api.calls.native.arrays import take_back
from jitree.api.calls.native.fences import (
    drop_signal,
    give_up_signal,
    note_extents,
    pass_fences,
    take_owed,
    take_signalled,
    taken_signal,
    when_done,
    when_submitted,
)
from jitree.api.calls.native.layout import CAPSULE_POINTER_AT, AwaitedRecord, CallRecord, Python
from jitree.api.calls.native.lending import end_lending
from jitree.api.calls.native.names import put_in_order
from jitree.api.calls.native.python import (
    call_with_self,
    comes_again,
    drained,
    drop,
    forgets_error,
    invoke,
    invoke_with,
    invoke_with_number,
    is_done,
    retained,
)
from jitree.codegen.primitives import call, lesser, load64, stack, store64, unlikely
from jitree.codegen.record import layout_of, place_of, size_of
from jitree.modules.hal.native.entries import STATE_RELEASED, State, bury, release
from jitree.regs.layout import EXIT_FINISHED, FRAME, PATIENT, PROMPT, STATE, Entry, GateRecord
from jitree.regs.machine import PROMPT_TIME

_FRAME_SIZE = FRAME.size
_FRAME_WORDS = layout_of(CallRecord)["begun_frame"]
_STATE_WORDS = layout_of(CallRecord)["begun_state"]
_STATE_BEGIN = STATE["pc"]
_STATE_SIZE = STATE["module"] + 8 - STATE["pc"]

_AWAITED_SIZE = size_of(AwaitedRecord)

_AWAITED = 3
_SLOWLY = -1
"""Stands for a result: nothing has happened, Python is to make the call."""


def function_method(self: int, arguments: int, count: int, names: int, python: Python) -> int:
    """``Function.__call__``: ``self`` is the function, ``names`` a tuple of those of the last arguments, or
    0."""
    return call_by_record(python, self, arguments, count, names, PATIENT, python.call_slowly)


def submit_method(self: int, arguments: int, count: int, names: int, python: Python) -> int:
    """As :func:`function_method`, for ``AsynchronousFunction.submit``."""
    return call_by_record(python, self, arguments, count, names, PROMPT, python.submit_slowly)


def attempt_method(self: int, arguments: int, count: int, names: int, python: Python) -> int:
    """As :func:`function_method`, for ``Function.attempt``."""
    return call_by_record(python, self, arguments, count, names, _AWAITED, python.attempt_slowly)


def direct_method(self: int, arguments: int, count: int, names: int) -> int:
    """A builtin: makes a call by a DirectCall, which comes first, and by its arguments. Gives the DirectCall
    if nothing has happened, since that takes Python."""
    python = Python(load64(self + CAPSULE_POINTER_AT))
    direct = load64(arguments)
    result = call_by_direct(python, direct, arguments + 8, count - 1, names, PATIENT)
    return result if result != _SLOWLY else retained(python, direct)


def run_method(self: int, arguments: int, count: int, names: int) -> int:
    """A builtin of a DirectCall and what Python has packed of all arguments: the results, or NotImplemented
    where the function cannot be run now."""
    python = Python(load64(self + CAPSULE_POINTER_AT))
    record = CallRecord(load64(load64(load64(arguments) + python.direct_record) + CAPSULE_POINTER_AT))
    result = call_through_gate(python, record, arguments + 8 | PACKED, count - 1, PATIENT)
    return result if result != _SLOWLY else retained(python, python.not_implemented)


def run_rows(record: CallRecord, packed: int) -> int:
    """A C function for interpreters whose objects machine code does not know: as :func:`run_method`, of a
    tuple. It looks into no object."""
    python = Python(record.python)
    result = call_through_gate(python, record, packed | PACKED, record.argument_count, PATIENT)
    return result if result != _SLOWLY else retained(python, python.not_implemented)


def call_by_record(
    python: Python, function: int, arguments: int, count: int, names: int, prompt: int, slowly: int
) -> int:
    """``prompt``: PATIENT to wait for the results, PROMPT to return arrays that may still be computed,
    ``_AWAITED`` to return what is to be awaited where there is something to wait for. ``slowly``: the Python
    function that does what machine code does not."""
    direct = load64(function + python.function_direct)
    if not unlikely(direct == 0 or direct == python.none):
        result = call_by_direct(python, direct, arguments, count, names, prompt)
        if result != _SLOWLY:
            return result
    return call_with_self(python, slowly, function, arguments, count, names)


def call_by_direct(python: Python, direct: int, arguments: int, count: int, names: int, prompt: int) -> int:
    """Makes a call by a DirectCall."""
    retained(python, direct)  # the session may be closed meanwhile
    record = CallRecord(load64(load64(direct + python.direct_record) + CAPSULE_POINTER_AT))
    if names == 0:
        result = call_through_gate(python, record, arguments, count, prompt)
    else:
        result = call_in_order(python, record, arguments, count, names, prompt)
    drop(python, direct)
    return result


def call_in_order(
    python: Python, record: CallRecord, arguments: int, count: int, names: int, prompt: int
) -> int:
    """Makes a call with arguments that have names."""
    values = stack(8 * record.argument_count)
    if put_in_order(python, record, arguments, count, names, values):
        return call_through_gate(python, record, values, record.argument_count, prompt)
    ordered = call(python.vectorcall, record.order, arguments, count, names)
    if ordered == 0:
        return 0
    length = call(python.length, ordered)
    result = _SLOWLY
    if length == record.argument_count:
        for index in range(length):
            store64(values + 8 * index, call(python.get_item, ordered, index))
        result = call_through_gate(python, record, values, length, prompt)
    drop(python, ordered)
    return result


def call_through_gate(python: Python, record: CallRecord, arguments: int, count: int, prompt: int) -> int:
    """Makes a call with the context's lock, if nothing of the context is running."""
    if unlikely(count != record.argument_count or load64(python.ended) != 0):
        return _SLOWLY
    if unlikely(load64(python.pending) > record.beside):
        return _SLOWLY
    if unlikely(not enter_gate(python, record)):
        return 0
    if unlikely(record.gate.ready == 0):
        return leave_gate(python, record, _SLOWLY)
    awaited = AwaitedRecord(stack(_AWAITED_SIZE))
    awaited.what = 0
    awaited.submission = 0
    awaited.cancels = record.gate.cancels
    result = leave_gate(python, record, call_directly(python, record, arguments, prompt, awaited))
    if not unlikely(awaited.what != 0):
        return result
    record.gate.waits += 1
    if prompt == PATIENT and awaited.submission != 0:
        return when_done(python, record, awaited, result)
    return when_submitted(python, record, awaited, result, prompt)


def enter_gate(python: Python, record: CallRecord) -> bool:
    """Takes the context's lock. False with an exception set: Ctrl-C while another thread had it."""
    if not unlikely(record.acquire_code == 0):
        taken = call(record.acquire_code, record.lock, record.at_once, 0)
    else:
        taken = invoke_with(python, record.acquire, python.false)
    if not is_done(python, taken):
        return False
    return taken == python.true or is_done(python, invoke(python, record.wait_at_gate))


def leave_gate(python: Python, record: CallRecord, result: int) -> int:
    """Gives the lock up, whatever exception is on its way, and returns the result."""
    error = stack(24)
    if unlikely(result == 0):
        call(python.fetch_error, error, error + 8, error + 16)
    if not unlikely(record.release_code == 0):
        is_given = is_done(python, call(record.release_code, record.lock, 0))
    else:
        is_given = is_done(python, invoke(python, record.release))
    if unlikely(result == 0) and is_given:
        call(python.restore_error, load64(error), load64(error + 8), load64(error + 16))
    return result


def call_directly(
    python: Python, record: CallRecord, arguments: int, prompt: int, awaited: AwaitedRecord
) -> int:
    """Makes a call, with the lock held and the machine of direct calls free. ``awaited`` says then what is to
    be waited for when the lock has been given up."""
    gate = record.gate
    state = record.state
    gate.ready = 0
    gate.nesting = 1
    gate.begun = gate.cancels
    record.producer = 0
    record.producer_type = 0
    record.goes_on = prompt != PATIENT
    if unlikely(not tidy(python, record, state)):
        return settle(python, record, 0)
    # Arguments last: what is donated cannot be had again for another try.
    if unlikely(not pass_fences(python, record, state) or not pass_arguments(python, record, arguments)):
        drop_registers(record, state)
        return settle(python, record, _SLOWLY if forgets_error(python) else 0)
    if unlikely(load64(record.told) != 0) and not is_done(python, invoke(python, record.tell)):
        drop_registers(record, state)
        return settle(python, record, 0)
    signal = taken_signal(record)
    reason = begin(python, record, state, prompt)
    if unlikely(reason != EXIT_FINISHED) and prompt == _AWAITED:
        rest = invoke_with_number(python, record.set_aside, place_of(signal))
        if rest != 0 and rest != python.none:  # that call has the machine now
            drop_signal(state, signal)
            note_writes(python, record)
            end_lending(python, record)
            gate.nesting = 0
            return rest
        is_complete = is_done(python, rest)
    else:
        is_complete = reason == EXIT_FINISHED or is_done(python, invoke(python, record.go_on))
    state.last_wait = 0
    note_writes(python, record)
    if unlikely(prompt != PATIENT):
        state.prompt = PATIENT
    if unlikely(not is_complete):
        return ended(python, record, gate, signal)
    # Before Python runs, which might give new references to what is to be freed.
    if unlikely(not drained(python, record, state)):
        give_up_signal(python, record, state, signal)
        return settle(python, record, 0)
    if not signal:
        return settle(python, record, take_owed(python, record, state, state.owed, awaited))
    return settle(python, record, take_signalled(python, record, state, signal, prompt, awaited))


def ended(python: Python, record: CallRecord, gate: GateRecord, signal: Entry) -> int:
    """Ends a call that failed in Python. That has settled everything unless Ctrl-C came first, or there was
    no more room on Python's stack. A reference to its fence is taken over."""
    give_up_signal(python, record, record.state, signal)
    gate.failures += 1
    error = stack(24)
    call(python.fetch_error, error, error + 8, error + 16)
    while gate.nesting != 0:
        if is_done(python, invoke(python, record.give_up)):
            continue
        has_no_room = comes_again(python)
        call(python.clear_error)
        if has_no_room:  # the next call that Python makes gets the machine ready
            release_frames(record, record.state)
            gate.nesting = 0
    end_lending(python, record)
    while not drained(python, record, record.state):
        call(python.clear_error)
    call(python.restore_error, load64(error), load64(error + 8), load64(error + 16))
    return 0


def note_writes(python: Python, record: CallRecord) -> None:
    """Notes that the host's copies are old where programs write."""
    if record.rewrites:
        store64(python.writes, load64(python.writes) + 1)


def tidy(python: Python, record: CallRecord, state: State) -> bool:
    """Drops what arrays and others have given back, and clears the registers. False with an exception set."""
    refs = record.refs
    for index in range(record.ref_count):
        store64(refs + 8 * index, 0)
    if not drained(python, record, state):  # Ctrl-C ended what drains at the end of the last call
        return False
    owners = record.owners
    if owners.count != 0:
        take_back(owners, state.handle_pool, place_of(state) + STATE_RELEASED)
        if not drained(python, record, state):
            return False
    if unlikely(call(python.length, record.deferred) != 0) and not is_done(
        python, invoke(python, record.drain_deferred)
    ):
        return False
    handle_pool = state.handle_pool
    if not handle_pool or not handle_pool.dead:
        return True
    bury(handle_pool, place_of(state) + STATE_RELEASED)
    return drained(python, record, state)


def begin(python: Python, record: CallRecord, state: State, prompt: int) -> int:
    """Runs the machine with what it has to know of the call. Returns EXIT_*."""
    state.looked = 0
    state.owed = 0
    if unlikely(prompt != PATIENT):
        state.prompt = PROMPT
        note_extents(record)
    else:
        state.last_wait = record.last_wait
    if unlikely(prompt == _AWAITED):
        state.time = lesser(state.time, PROMPT_TIME)
    return enter(python, record, state)


def enter(python: Python, record: CallRecord, state: State) -> int:
    """Makes the host's frame and runs the machine, without the GIL. Returns EXIT_*. Where nothing is to run,
    the arguments are the results."""
    if record.run == 0:
        return EXIT_FINISHED
    record.gate.calls += 1
    frame = place_of(record.frame)
    for place in range(0, _FRAME_SIZE, 8):
        store64(frame + place, load64(place_of(record) + _FRAME_WORDS + place))
    for place in range(0, _STATE_SIZE, 8):
        store64(place_of(state) + _STATE_BEGIN + place, load64(place_of(record) + _STATE_WORDS + place))
    thread = call(python.save_thread)
    reason = call(record.run, place_of(state))
    call(python.restore_thread, thread)
    return reason


def release_frames(record: CallRecord, state: State) -> None:
    """Drops the references in the registers of all frames."""
    end = state.frame.refs_end
    for place in range(record.refs, end, 8):
        handle = Entry(load64(place))
        store64(place, 0)
        release(state.handle_pool, handle, place_of(state) + STATE_RELEASED)
    state.frame = record.frame


def drop_registers(record: CallRecord, state: State) -> None:
    """Drops the references that are left in the host's frame."""
    refs = record.refs
    for index in range(record.ref_count):
        handle = Entry(load64(refs + 8 * index))
        store64(refs + 8 * index, 0)
        release(state.handle_pool, handle, place_of(state) + STATE_RELEASED)


def settle(python: Python, record: CallRecord, result: int) -> int:
    """Ends a call without frames of its own, and returns its result; 0 with an exception set."""
    gate = record.gate
    state = record.state
    error = stack(24)
    if unlikely(result == 0):
        call(python.fetch_error, error, error + 8, error + 16)
        drop_registers(record, state)
    is_well = drained(python, record, state)
    if unlikely(is_well and bool(record.lent)):
        end_lending(python, record)
        is_well = drained(python, record, state)
    if unlikely(is_well and gate.faults != 0):
        is_well = is_done(python, invoke(python, record.require_faultless))
    gate.nesting = 0
    gate.ready = gate.refused == 0
    if unlikely(result == 0):
        gate.failures += 1
        if not is_well:
            call(python.clear_error)
        call(python.restore_error, load64(error), load64(error + 8), load64(error + 16))
    elif unlikely(not is_well):
        if result != _SLOWLY:
            drop(python, result)
        result = 0
    return result
