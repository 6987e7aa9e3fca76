"""Makes the fences of asynchronous functions, and waits for their results. Machine code.

The second fence after the arguments is reached when the results are there. The first one is null: arrays that
are still computed are arguments for Python.
"""

from __future__ import annotations

from jitree.api.calls.native.layout import (
    PASS_ARRAY,
    PASS_REFERENCE,
    Argument,
    AwaitedRecord,
    CallRecord,
    Python,
)
from jitree.api.calls.native.python import (
    comes_again,
    drop,
    invoke_with_number,
    invoke_with_numbers,
    invoke_with_object_and_number,
    is_done,
    is_true,
)
from jitree.api.calls.native.read_ahead import read_ahead
from jitree.api.calls.native.results import take_results
from jitree.codegen.primitives import call, load64, stack, store64, unlikely
from jitree.codegen.record import place_of, size_of
from jitree.hal.timeline_record import Timeline
from jitree.modules.hal.native.entries import STATE_RELEASED, State, new_entry, release
from jitree.modules.hal.native.fences import is_done_at_a_glance, is_done_in_a_moment, is_done_within, tick_of
from jitree.regs.access import retain
from jitree.regs.layout import PATIENT, PROMPT, Entry

_ARGUMENT_SIZE = size_of(Argument)


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
    for index in range(record.argument_count):
        argument = Argument(record.arguments + index * _ARGUMENT_SIZE)
        if PASS_ARRAY <= argument.kind <= PASS_REFERENCE:
            handle = Entry(load64(argument.place))
            is_known = bool(handle) and handle.address != 0
            store64(place, handle.address if is_known else 0)
            store64(place + 8, handle.length if is_known else 0)
        place += 16


def taken_signal(record: CallRecord) -> Entry:
    """A reference to the fence that was passed, which the program will drop; 0 if there is none."""
    place = record.signal
    return retain(Entry(load64(place))) if place != 0 else Entry(0)


def drop_signal(state: State, signal: Entry) -> None:
    release(state.handle_pool, signal, place_of(state) + STATE_RELEASED)


def give_up_signal(python: Python, record: CallRecord, state: State, signal: Entry) -> None:
    """Drops the fence of a call whose exception is set: nobody gets what its work computes."""
    if signal:
        error = stack(24)
        call(python.fetch_error, error, error + 8, error + 16)
        handle = call(python.new_long, place_of(signal))
        call(python.restore_error, load64(error), load64(error + 8), load64(error + 16))
        give_up_work(python, record, handle)
        drop(python, handle)
    drop_signal(state, signal)


def give_up_work(python: Python, record: CallRecord, work: int) -> None:
    """Tells the work of a call, by an object that says which, of the exception that is set, which stays. What
    a signal's handler raises meanwhile is another one for the same call: the work is told again."""
    error = stack(24)
    call(python.fetch_error, error, error + 8, error + 16)
    call(python.normalize_error, error, error + 8, error + 16)
    if load64(error + 16) != 0:
        call(python.set_traceback, load64(error + 8), load64(error + 16))
    arguments = stack(16)
    store64(arguments, work)
    store64(arguments + 8, load64(error + 8))
    while not is_done(python, call(python.vectorcall, record.give_up_work, arguments, 2, 0)):
        has_no_room = comes_again(python)
        call(python.clear_error)
        if has_no_room:
            break
    call(python.restore_error, load64(error), load64(error + 8), load64(error + 16))


def take_signalled(
    python: Python, record: CallRecord, state: State, signal: Entry, prompt: int, awaited: AwaitedRecord
) -> int:
    """The results of a function whose fence, a reference to which is taken over, may not be reached yet: then
    arrays wait for it, or the caller, as ``awaited`` says. 0 with an exception set."""
    tick = tick_of(state.handle_pool, signal)
    if tick > 0 and prompt != PATIENT and prompt != PROMPT:
        thread = call(python.save_thread)
        if is_done_at_a_glance(state.handle_pool.queue.timeline, tick):
            tick = 0
        call(python.restore_thread, thread)
    if tick == 0 or (tick > 0 and prompt == PATIENT):
        drop_signal(state, signal)
        return take_owed(python, record, state, tick, awaited)
    if tick > 0:
        fence = invoke_with_number(python, record.pending_submission, tick)
    else:
        fence = invoke_with_number(python, record.pending, place_of(signal))
    if fence == 0:
        give_up_signal(python, record, state, signal)
        return 0
    drop_signal(state, signal)
    if fence == python.none:
        drop(python, fence)
        return take_results(python, record)
    awaited.what = fence
    if prompt != PROMPT:
        return take_results(python, record)
    record.fence = fence
    results = take_results(python, record)
    record.fence = python.none
    return results


def take_owed(python: Python, record: CallRecord, state: State, tick: int, awaited: AwaitedRecord) -> int:
    """The results of a function that are there when submission ``tick`` is done, for which the caller waits,
    as ``awaited`` says; 0 = they are there. 0 with an exception set."""
    if tick == 0:
        return take_results(python, record)
    timeline = state.handle_pool.queue.timeline
    last = read_ahead(python, record, timeline, tick)
    is_done_within(timeline, last, 0)  # the device begins while results are made
    if record.lent:  # lent for as long as the call takes
        wait_for_device(python, timeline, last)
    awaited.what = place_of(timeline)
    awaited.submission = last
    return take_results(python, record)


def when_submitted(
    python: Python, record: CallRecord, awaited: AwaitedRecord, results: int, prompt: int
) -> int:
    """Results, as the caller waits for them, of a call whose fence, a reference to which is taken over, was
    not reached. 0 with an exception set: then the work is told of it."""
    fence = awaited.what
    if results != 0 and prompt == PATIENT:
        results = when_reached(python, record, awaited, results)
    elif results != 0 and prompt != PROMPT:
        results = to_be_awaited(python, record, awaited, results)
    if unlikely(results == 0):
        give_up_work(python, record, fence)
    drop(python, fence)
    return results


def when_reached(python: Python, record: CallRecord, awaited: AwaitedRecord, results: int) -> int:
    """Results when the awaited fence is reached; without the lock, other calls run meanwhile. 0 with an
    exception set."""
    fence = awaited.what
    if is_done(python, invoke_with_object_and_number(python, record.wait_for, fence, awaited.cancels)):
        return results
    drop(python, results)
    return 0


def when_done(python: Python, record: CallRecord, awaited: AwaitedRecord, results: int) -> int:
    """As :func:`when_reached`, when the device has done the awaited submission."""
    tick = awaited.submission
    if results == 0 or wait_for_device(python, Timeline(awaited.what), tick):
        return results
    if is_done(python, invoke_with_numbers(python, record.wait_for_submission, tick, awaited.cancels)):
        return results
    drop(python, results)
    return 0


def wait_for_device(python: Python, timeline: Timeline, tick: int) -> bool:
    """Waits a moment until the device has done all that it was given, up to submission ``tick`` and further.
    False if that takes longer or fails: Python waits on, and knows why."""
    if tick <= timeline.completed:
        return True
    thread = call(python.save_thread)
    is_done = is_done_in_a_moment(timeline, tick)
    call(python.restore_thread, thread)
    return is_done


def to_be_awaited(python: Python, record: CallRecord, awaited: AwaitedRecord, results: int) -> int:
    """As :func:`when_reached`, but gives what waits when it is awaited."""
    rest = 0
    cancels = call(python.new_long, awaited.cancels)
    if cancels != 0:
        arguments = stack(24)
        store64(arguments, awaited.what)
        store64(arguments + 8, results)
        store64(arguments + 16, cancels)
        rest = call(python.vectorcall, record.when_reached, arguments, 3, 0)
        drop(python, cancels)
    drop(python, results)
    return rest
