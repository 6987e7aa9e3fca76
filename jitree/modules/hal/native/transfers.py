"""``hal.device.queue.fill``, ``update`` and ``copy``: little at once, much as lists of one command are."""

from __future__ import annotations

from jitree.codegen.primitives import call, stack, store8, store64
from jitree.hal.command_layout import KIND_COPY, KIND_FILL
from jitree.hal.enums import MAXIMUM_UPDATE, BufferUsage, MemoryAccess
from jitree.hal.local.executor.records import COMMAND_SIZE, Command
from jitree.modules.hal.native.buffers import range_length
from jitree.modules.hal.native.commands import allows, repeated
from jitree.modules.hal.native.execution import run_row
from jitree.modules.hal.native.fences import can_signal, is_reached, signal
from jitree.modules.hal.native.records import Entry, HandlePoolRecord, State
from jitree.modules.hal.native.registers import DONE, REFUSED, finish, is_kind, number, queue_of, reference
from jitree.regs.layout import ACCESS_READ, KIND_BUFFER

_SOURCE = int(BufferUsage.TRANSFER_SOURCE)
_TARGET = int(BufferUsage.TRANSFER_TARGET)
_READ = int(MemoryAccess.READ)
_WRITE = int(MemoryAccess.WRITE)
MOST_FILLED = 256
MOST_COPIED = 64 << 10
"""Bytes that are moved right here; more is a command, which the threads of the device share."""


def is_ready(state: State, refs: int, words: int) -> bool:
    """Whether the operation may run here and now."""
    handle_pool = state.handle_pool
    if not queue_of(handle_pool, reference(refs, words, 0)):
        return False
    return is_reached(handle_pool, reference(refs, words, 2)) and can_signal(
        handle_pool, reference(refs, words, 3)
    )


def queue_fill(state: State, values: int, refs: int, words: int) -> int:
    if not is_ready(state, refs, words):
        return REFUSED
    handle_pool = state.handle_pool
    target = reference(refs, words, 4)
    offset = number(values, words, 5)
    pattern = number(values, words, 7)
    size = number(values, words, 8)
    if not allows(handle_pool, target, _TARGET, _WRITE) or number(values, words, 9) != 0:
        return REFUSED
    length = range_length(target, offset, number(values, words, 6))
    if length < 0 or (size != 1 and size != 2 and size != 4):
        return REFUSED
    if (offset | length) & (size - 1):
        return REFUSED
    place = target.address + offset
    word = repeated(pattern, size)
    if length > MOST_FILLED:
        row = Command(stack(COMMAND_SIZE))
        row.kind = KIND_FILL
        row.operand = 0
        row.pattern = word
        if run_command(state, handle_pool, reference(refs, words, 0), row, length, place, 0) != DONE:
            return REFUSED
    else:
        for index in range(length):
            store8(place + index, word >> (8 * (index & 3)))
    signal(reference(refs, words, 3))
    return finish(state, refs, words)


def queue_update(state: State, values: int, refs: int, words: int) -> int:
    if not is_ready(state, refs, words):
        return REFUSED
    handle_pool = state.handle_pool
    source = reference(refs, words, 4)
    target = reference(refs, words, 6)
    if not is_kind(source, KIND_BUFFER) or source.access & ACCESS_READ == 0:
        return REFUSED
    if not allows(handle_pool, target, _TARGET, _WRITE) or number(values, words, 9) != 0:
        return REFUSED
    from_offset = number(values, words, 5)
    offset = number(values, words, 7)
    length = range_length(target, offset, number(values, words, 8))
    if not 0 <= length <= MAXIMUM_UPDATE or range_length(source, from_offset, length) < 0:
        return REFUSED
    memmove = handle_pool.functions.memmove
    call(memmove, target.address + offset, source.address + from_offset, length)
    signal(reference(refs, words, 3))
    return finish(state, refs, words)


def queue_copy(state: State, values: int, refs: int, words: int) -> int:
    if not is_ready(state, refs, words):
        return REFUSED
    handle_pool = state.handle_pool
    source = reference(refs, words, 4)
    target = reference(refs, words, 6)
    if not allows(handle_pool, source, _SOURCE, _READ) or not allows(handle_pool, target, _TARGET, _WRITE):
        return REFUSED
    from_offset = number(values, words, 5)
    offset = number(values, words, 7)
    length = range_length(source, from_offset, number(values, words, 8))
    if number(values, words, 9) != 0 or length < 0:
        return REFUSED
    if range_length(target, offset, length) < 0:
        return REFUSED
    first = source.address + from_offset
    second = target.address + offset
    if first < second + length and second < first + length:
        return REFUSED
    if length > MOST_COPIED:
        row = Command(stack(COMMAND_SIZE))
        row.kind = KIND_COPY
        row.operand = 0
        if run_command(state, handle_pool, reference(refs, words, 0), row, length, first, second) != DONE:
            return REFUSED
    else:
        memmove = handle_pool.functions.memmove
        call(memmove, second, first, length)
    signal(reference(refs, words, 3))
    return finish(state, refs, words)


def run_command(
    state: State,
    handle_pool: HandlePoolRecord,
    device: Entry,
    row: Command,
    length: int,
    first: int,
    second: int,
) -> int:
    """Runs a fill of the first range, or a copy from there to the second one."""
    addresses = stack(16)
    lengths = stack(16)
    store64(addresses, first)
    store64(addresses + 8, second)
    store64(lengths, length)
    store64(lengths + 8, length)
    return run_row(state, handle_pool, queue_of(handle_pool, device), row, addresses, lengths)
