"""Fences of calls of asynchronous functions: the second one after the arguments is reached when the results
are there. Machine code.

The first one is null: arrays that are still computed are arguments for Python.
"""

from __future__ import annotations

from jitree.api.calls.native.layout import ARGUMENT, PASS_ARRAY, PASS_REFERENCE
from jitree.api.calls.native.python import (
    drop,
    invoke_with_both,
    invoke_with_number,
    invoke_with_numbers,
    is_done,
    is_true,
)
from jitree.api.calls.native.read_ahead import read_ahead
from jitree.api.calls.native.records import Argument, CallRecord, Python
from jitree.api.calls.native.results import take_results
from jitree.codegen.primitives import call, load64, stack, store64
from jitree.codegen.record import place_of
from jitree.modules.hal.native.entries import STATE_RELEASED, new_entry, release
from jitree.modules.hal.native.fences import is_done_at_a_glance, is_done_in_a_moment, tick_of
from jitree.modules.hal.native.records import Entry, State, StreamRecord
from jitree.regs.counting import retain
from jitree.regs.layout import PATIENT, PROMPT

_ARGUMENT_SIZE = ARGUMENT.size


def pass_fences(python: Python, record: CallRecord, state: State) -> bool:
    """Whether there are fences as the function wants them."""
    place = record.signal
    if place == 0:
        return True
    handle_pool = state.handle_pool
    if not handle_pool or not handle_pool.queue:
        return False
    fence = new_entry(state, handle_pool, handle_pool.fence)
    if not fence:
        if not is_true(python, invoke_with_number(python, record.supply, 0)):
            return False
        fence = new_entry(state, handle_pool, handle_pool.fence)
        if not fence:
            return False
    fence.length = 0
    store64(place, place_of(fence))
    return True


def note_extents(record: CallRecord) -> None:
    """Says where the arrays that are passed lie: the call may use them when its caller goes on."""
    place = record.extents
    if place == 0:
        return
    argument = Argument(record.arguments)
    for _ in range(record.argument_count):
        if PASS_ARRAY <= argument.kind <= PASS_REFERENCE:
            handle = Entry(load64(argument.place))
            is_known = bool(handle) and handle.address != 0
            store64(place, handle.address if is_known else 0)
            store64(place + 8, handle.length if is_known else 0)
        argument = Argument(place_of(argument) + _ARGUMENT_SIZE)
        place += 16


def taken_signal(record: CallRecord) -> Entry:
    """A reference to the fence that was passed, which the program will drop; 0 if there is none."""
    place = record.signal
    return retain(Entry(load64(place))) if place != 0 else Entry(0)


def drop_signal(state: State, signal: Entry) -> None:
    release(state.handle_pool, signal, place_of(state) + STATE_RELEASED)


def take_signalled(
    python: Python, record: CallRecord, state: State, signal: Entry, prompt: int, awaited: int
) -> int:
    """The results of a function whose fence, a reference to which is taken over, may not be reached yet: then
    arrays wait for it, or the caller finds it at ``awaited`` and waits. 0 with an exception set."""
    tick = tick_of(state.handle_pool, signal)
    if tick > 0 and prompt != PATIENT and prompt != PROMPT:
        thread = call(python.save_thread)
        if is_done_at_a_glance(state.handle_pool.queue.stream, tick):
            tick = 0
        call(python.restore_thread, thread)
    if tick == 0 or (tick > 0 and prompt == PATIENT):
        drop_signal(state, signal)
        return take_owed(python, record, state, tick, awaited)
    if tick > 0:
        drop_signal(state, signal)
        fence = invoke_with_number(python, record.pending_submission, tick)
    else:
        fence = invoke_with_number(python, record.pending, place_of(signal))
    if fence == 0:
        return 0
    if prompt != PROMPT and fence != python.none:
        store64(awaited, fence)
        return take_results(python, record)
    record.fence = fence
    results = take_results(python, record)
    record.fence = python.none
    drop(python, fence)
    return results


def take_owed(python: Python, record: CallRecord, state: State, tick: int, awaited: int) -> int:
    """The results of a function that are there when submission ``tick`` is done, for which the caller waits
    then, as it finds it at ``awaited``; 0 = they are there. 0 with an exception set."""
    if tick == 0:
        return take_results(python, record)
    stream = state.handle_pool.queue.stream
    last = read_ahead(python, record, stream, tick)
    if record.lent:  # lent for as long as the call takes
        wait_for_device(python, stream, last)
    store64(awaited, place_of(stream))
    store64(awaited + 8, last)
    return take_results(python, record)


def when_reached(python: Python, record: CallRecord, fence: Entry, awaited: int, results: int) -> int:
    """Results when a fence, a reference to which is taken over, is reached; without the lock, other calls run
    meanwhile. At ``awaited`` is what :func:`function.call_directly` found there. 0 with an exception set."""
    if results != 0 and not is_done(
        python, invoke_with_both(python, record.wait_for, place_of(fence), load64(awaited + 16))
    ):
        drop(python, results)
        results = 0
    drop(python, place_of(fence))
    return results


def when_done(python: Python, record: CallRecord, stream: StreamRecord, awaited: int, results: int) -> int:
    """As :func:`when_reached`, when the device has done a submission (:func:`function.call_directly`)."""
    tick = load64(awaited + 8)
    if results == 0 or wait_for_device(python, stream, tick):
        return results
    if is_done(python, invoke_with_numbers(python, record.wait_for_submission, tick, load64(awaited + 16))):
        return results
    drop(python, results)
    return 0


def wait_for_device(python: Python, stream: StreamRecord, tick: int) -> bool:
    """Waits a moment until the device has done all that it was given, up to submission ``tick`` and further.
    False if that takes longer or fails: Python waits on, and knows why."""
    if tick <= stream.completed:
        return True
    thread = call(python.save_thread)
    is_done = is_done_in_a_moment(stream, tick) != 0
    call(python.restore_thread, thread)
    return is_done


def to_be_awaited(python: Python, record: CallRecord, fence: Entry, awaited: int, results: int) -> int:
    """As :func:`when_reached`, but gives a coroutine that waits."""
    if results != 0:
        arguments = stack(24)
        store64(arguments, place_of(fence))
        store64(arguments + 8, results)
        store64(arguments + 16, call(python.new_long, load64(awaited + 16)))
        rest = 0
        if load64(arguments + 16) != 0:
            rest = call(python.vectorcall, record.when_reached, arguments, 3, 0)
            drop(python, load64(arguments + 16))
        drop(python, results)
        results = rest
    drop(python, place_of(fence))
    return results
