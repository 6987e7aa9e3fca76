"""Runs spans of compiled VMVX kernels (ENTRY_SPAN). Machine code.

One loop over the rows of a span's workgroups serves all kernels: it calls theirs by address. Only the
builder of the image and tests import this module.
"""

from __future__ import annotations

from jitree.codegen import functions
from jitree.codegen.image.generated import Generated, one_unit
from jitree.codegen.primitives import below, call, call_int, load64, quotient, remainder, stack_address, ticks
from jitree.codegen.record import atomic_add, atomic_load, atomic_replace, atomic_store, layout_of, place_of
from jitree.hal.command_layout import KernelDispatch, Workgroup
from jitree.loaders.vmvx.kernels import (
    MAXIMUM_BINDINGS,
    MOST_FINISHED,
    SCRATCH_MARK,
    STACK_SIZE,
    WORKGROUP_DONE,
    WORKGROUP_LEFT,
    WORKGROUP_LITTERED,
    WORKGROUP_REFUSED,
    Contexts,
    KernelEnvironment,
    WorkerContextRecord,
)
from jitree.regs.access import refuel_function
from jitree.regs.layout import ACCESS_PRIVATE, ACCESS_READ, ACCESS_WRITE, Entry, MachineState, Packed, Scratch

FIRST_CONTEXT = layout_of(Contexts)["first"]
FIRST_BINDING = layout_of(WorkerContextRecord)["binding"]


def has_room(environment: KernelEnvironment, context: WorkerContextRecord) -> bool:
    """Whether the frames, value slots and ref registers of the kernel fit."""
    state = context.state
    return (
        context.frame + environment.frames <= state.frames_limit
        and context.values + environment.values <= state.values_limit
        and context.refs + environment.refs <= state.refs_limit
    )


def workgroups(
    environment: KernelEnvironment,
    dispatch: KernelDispatch,
    context: WorkerContextRecord,
    first: int,
    last: int,
) -> int:
    """Runs parts of workgroups in a worker context aimed at them. A workgroup has ``KernelDispatch.parts``,
    often one, and then a call of the kernel runs those of a row; they run from one number up to another. It
    stops after one that has released something, and at one that has left: ``reached`` is then the number of
    the first that is not complete. WORKGROUP_*."""
    context.reached = first
    if not has_room(environment, context):
        return WORKGROUP_REFUSED
    state = context.state
    scratch = state.scratch
    code = environment.workgroup
    count_x = dispatch.count_x
    count_y = dispatch.count_y
    parts = dispatch.parts
    part = 0
    number = first
    if parts > 1:
        part = remainder(first, parts)
        number = quotient(first, parts)
    line = quotient(number, count_x)
    x = remainder(number, count_x)
    y = remainder(line, count_y)
    z = quotient(line, count_y)
    fuel = state.fuel
    while True:
        scratch.part = part
        if fuel <= 1:
            fuel = refuel_function(MachineState(place_of(state))) + 1
        if fuel <= 1:  # it is not to begin
            context.reached = first
            return WORKGROUP_LEFT
        end = x + 1
        if parts <= 1:  # the row, or its part before the last
            end = x + last - first
            if end > count_x:
                end = count_x
        fuel = call(code, place_of(dispatch), place_of(context), fuel - 1, x, y, z, end)
        reached = context.reached
        first += reached - x
        context.reached = first
        if fuel == 0:
            return WORKGROUP_LEFT
        if state.released:
            return WORKGROUP_LITTERED
        if first >= last:
            state.fuel = fuel
            return WORKGROUP_DONE
        part += 1
        if part < parts:
            continue
        part = 0
        x = reached
        if x == count_x:
            x = 0
            y += 1
            if y == count_y:
                y = 0
                z += 1


def run_span(environment: KernelEnvironment, dispatch: KernelDispatch, group: Workgroup) -> int:
    """Runs a span's workgroups in a worker context; Python does rests: 0, or the number of a failure."""
    first = group.first
    last = group.last
    if first >= last:
        return 0
    context = take_context(environment, dispatch, group)
    if not context:
        return call_int(environment.slow_path, place_of(environment), place_of(dispatch), place_of(group))
    context.state.stack_limit = stack_address() - STACK_SIZE
    context.state.looked = 0
    context.dispatch = place_of(dispatch)
    context.state.scratch.kernel = environment.kernel
    finished = 0
    result = 0
    while result == 0 and first < last:
        why = workgroups(environment, dispatch, context, first, last)
        first = context.reached
        if why == WORKGROUP_LITTERED:
            recycle(context)
        elif why == WORKGROUP_LEFT:
            result = finish(environment, dispatch, group, context)
            finished += 1
            first += 1
        is_over = why == WORKGROUP_REFUSED or (finished == MOST_FINISHED and dispatch.parts <= 1)
        if result == 0 and first < last and is_over:
            # order of busy: a lock: releases what was stored under it
            atomic_store(context.busy, 0)
            group.first = first
            return call_int(environment.run, place_of(environment), place_of(dispatch), place_of(group))
    atomic_store(context.busy, 0)
    if result == 0 and environment.contexts.interval != 0 and is_due(environment.contexts, ticks()):
        look = environment.contexts.look
        return call_int(look, place_of(environment), place_of(dispatch), place_of(group))
    return result


def is_due(contexts: Contexts, now: int) -> bool:
    """Whether this thread is to look what memory is left.

    The first interval begins with the first span.
    """
    # order of due: an exchange: one thread looks
    due = atomic_load(contexts.due)
    if now < due or not atomic_replace(contexts.due, due, now + contexts.interval):
        return False
    return due != 0


def finish(
    environment: KernelEnvironment, dispatch: KernelDispatch, group: Workgroup, context: WorkerContextRecord
) -> int:
    """Has the workgroup that the context has reached finished by the VM."""
    number = context.reached
    if dispatch.parts > 1:
        number = quotient(number, dispatch.parts)
    line = quotient(number, dispatch.count_x)
    group.x = remainder(number, dispatch.count_x)
    group.y = remainder(line, dispatch.count_y)
    group.z = quotient(line, dispatch.count_y)
    return call_int(
        environment.finish, place_of(environment), place_of(dispatch), place_of(group), place_of(context)
    )


def take_context(
    environment: KernelEnvironment, dispatch: KernelDispatch, group: Workgroup
) -> WorkerContextRecord:
    """Takes an unused worker context, aimed at a span's memory; none if all are taken."""
    count = dispatch.binding_count
    if count > MAXIMUM_BINDINGS:
        return WorkerContextRecord(0)
    context = free_context(environment.contexts, group.processor)
    if context:
        aim(context.local, group.local_memory, group.local_size)
        aim(context.constants, dispatch.constants, 4 * dispatch.constant_count)
        for index in range(count, context.bindings.length):  # a kernel may have kept them
            aim(binding(context, index), 0, 0)
        context.bindings.length = count
        for index in range(count):
            entry = binding(context, index)
            address = load64(dispatch.addresses + 8 * index)
            access = load64(dispatch.accesses + 8 * index)
            aim(entry, address, load64(dispatch.lengths + 8 * index))
            may_store = access & (ACCESS_WRITE | ACCESS_PRIVATE) != 0
            entry.access = ACCESS_READ | (ACCESS_WRITE if may_store else 0)
            if access & ACCESS_PRIVATE != 0 and is_news(environment, address, index):
                # order of busy: a lock: releases what was stored under it
                atomic_store(context.busy, 0)
                return WorkerContextRecord(0)
    return context


def is_news(environment: KernelEnvironment, address: int, index: int) -> bool:
    """Whether a kernel may store to constants whose copies are read. The size is 0 while Python changes the
    address: it is that of the address which is seen before and after it."""
    # order of changed: before and after `changed_size`: `CompiledKernels._tell_of_stores`
    changed = atomic_load(environment.changed)
    # order of changed_size: between two loads of `changed`
    size = atomic_load(environment.changed_size)
    is_known = below(address - changed, size) and atomic_load(environment.changed) == changed
    return environment.stores >> index & 1 != 0 and not is_known


def binding(context: WorkerContextRecord, index: int) -> Entry:
    """The handle of a buffer that a worker context binds."""
    return Entry(load64(place_of(context) + FIRST_BINDING + 8 * index))


def free_context(contexts: Contexts, thread: int) -> WorkerContextRecord:
    """Threads begin to look at different ones."""
    # order of count: acquires the contexts: `CompiledKernels._add_context`
    count = atomic_load(contexts.count)
    if count == 0:
        return WorkerContextRecord(0)
    for turn in range(count):
        index = remainder(thread + turn, count)
        context = WorkerContextRecord(load64(place_of(contexts) + FIRST_CONTEXT + 8 * index))
        # order of busy: a lock: acquires what the last owner stored
        if atomic_replace(context.busy, 0, 1):
            return context
    return WorkerContextRecord(0)


def aim(entry: Entry, address: int, length: int) -> None:
    """Lets a buffer's handle show other memory."""
    entry.address = address
    entry.length = length


def recycle(context: WorkerContextRecord) -> None:
    """Takes back the scratch buffers in the list of released entries; others stay in it for Python."""
    state = context.state
    scratch = state.scratch
    entry = state.released
    state.released = Entry(0)
    size = 0
    while entry:
        following = entry.link
        if entry.usage == SCRATCH_MARK:
            entry.link = scratch.free
            scratch.free = entry
            scratch.taken -= 1
            size += entry.length
        else:
            entry.link = state.released
            state.released = entry
        entry = following
    if scratch.taken == 0:
        scratch.next = context.scratch
    if scratch.lend != 0 and scratch.part == 0:
        scratch.paid -= size
        # order of room: a number alone
        atomic_add(scratch.room, size)


def let_go(context: WorkerContextRecord) -> int:
    """Has a worker context read no copies of constants from now on: 1; 0 while a thread has it."""
    # order of busy: a lock: acquires what the last owner stored
    if not atomic_replace(context.busy, 0, 1):
        return 0
    context.state.scratch.packed = Packed(0)
    atomic_store(context.busy, 0)
    return 1


def withdraw(scratch: Scratch) -> None:
    """Takes back the unused part of a context's memory limit. Any thread may."""
    # order of room: a number alone
    room = atomic_load(scratch.room)
    while not atomic_replace(scratch.room, room, 0):
        room = atomic_load(scratch.room)
    scratch.held -= room


_ENTRIES = (run_span, withdraw, let_go)


def generate() -> Generated:
    """The code that runs spans."""
    return one_unit(functions.texts(_ENTRIES), [entry.__name__ for entry in _ENTRIES])
