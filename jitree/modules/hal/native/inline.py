"""Allocate and dispatch for programs without a device (``hal_inline``, ``hal_loader``). Machine code.

Their buffers are memory of the host, and their kernels run on the calling thread, alone.

Machine code allocates from the pools of a local device, and runs nothing while an observer of
the device is attached.
"""

from __future__ import annotations

from jitree.codegen.primitives import below, load32, stack, store32, store64, unlikely
from jitree.codegen.record import place_of
from jitree.hal.checks import is_aligned, workgroups_refusal
from jitree.hal.command_layout import BINDING_ALIGNMENT, KIND_DISPATCH, Command, KernelEntry, List
from jitree.hal.enums import MAXIMUM_BINDINGS, BufferUsage, MemoryAccess, MemoryType
from jitree.hal.local.executor.rows import COMMAND_SIZE
from jitree.modules.hal.native.buffers import has_address, new_buffer, range_length
from jitree.modules.hal.native.dispatches import COUNT_MASK, agrees, kernel_of
from jitree.modules.hal.native.entries import STATE_RELEASED, State, new_entry, release
from jitree.modules.hal.native.execution import LIST_SIZE, run_alone
from jitree.modules.hal.native.layout import CONSTANTS, LARGEST_POOLED, HandlePoolRecord
from jitree.modules.hal.native.registers import (
    DONE,
    REFUSED,
    argument_count,
    finish,
    give,
    give_two,
    is_kind,
    number,
    reference,
)
from jitree.regs.access import retain
from jitree.regs.layout import ACCESS_READ, ACCESS_WRITE, KIND_BUFFER, PLACE_SHIFT, Entry
from jitree.vmfb.words import TAG_VALUE64

INLINE_MEMORY = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
INLINE_USAGE = int(BufferUsage.TRANSFER | BufferUsage.DISPATCH_STORAGE | BufferUsage.MAPPING)
_HOST_VISIBLE = int(MemoryType.HOST_VISIBLE)
_WRITE = int(MemoryAccess.WRITE)
_LARGEST_ALIGNMENT = 64
_FIRST_CONSTANT = 5


def is_on_host(handle_pool: HandlePoolRecord) -> bool:
    """Whether pools have host memory and no observer."""
    queue = handle_pool.queue
    return bool(queue) and queue.alone != 0 and queue.tell == 0 and not queue.timeline


def buffer_allocate(state: State, values: int, refs: int, words: int) -> int:
    """A buffer, and its memory."""
    handle_pool = state.handle_pool
    alignment = number(values, words, 0)
    size = number(values, words, 1)
    if not below(alignment - 1, _LARGEST_ALIGNMENT) or alignment & (alignment - 1) != 0:
        return REFUSED
    if unlikely(not is_on_host(handle_pool) or not 0 <= size <= LARGEST_POOLED):
        return REFUSED
    buffer = new_buffer(state, handle_pool, handle_pool.queue, INLINE_MEMORY, INLINE_USAGE, size)
    if not buffer:
        return REFUSED
    memory = memory_of(state, handle_pool, buffer, ACCESS_READ | ACCESS_WRITE)
    if unlikely(not memory):
        release(handle_pool, buffer, place_of(state) + STATE_RELEASED)
        return REFUSED
    return give_two(state, refs, words, buffer, memory)


def buffer_storage(state: State, values: int, refs: int, words: int) -> int:
    """The memory of a buffer, which keeps that."""
    handle_pool = state.handle_pool
    buffer = reference(refs, words, 0)
    if not has_address(handle_pool, buffer) or buffer.access >> PLACE_SHIFT != 0:
        return REFUSED
    if buffer.access & _HOST_VISIBLE == 0:
        return REFUSED
    access = ACCESS_READ | (ACCESS_WRITE if buffer.encoding & _WRITE else 0)
    memory = memory_of(state, handle_pool, buffer, access)
    if not memory:
        return REFUSED
    return give(state, refs, words, memory)


def memory_of(state: State, handle_pool: HandlePoolRecord, buffer: Entry, access: int) -> Entry:
    """A new vm.buffer over the memory of a buffer, 0 without an entry."""
    memory = new_entry(state, handle_pool, KIND_BUFFER)
    if memory:
        memory.address = buffer.address
        memory.length = buffer.length
        memory.access = access
        memory.parent = retain(buffer)
    return memory


def executable_dispatch(state: State, values: int, refs: int, words: int) -> int:
    """Bindings are three registers each, the last of which is 64 bits wide; constants before them are 32."""
    handle_pool = state.handle_pool
    handle_pool.failure = 0  # as in ``queue_execute``
    entry = kernel_of(handle_pool, reference(refs, words, 0), number(values, words, 1))
    if unlikely(not entry or not is_on_host(handle_pool) or handle_pool.execute == 0):
        return REFUSED
    last = argument_count(words)
    first = last
    while first > _FIRST_CONSTANT and load32(words + 8 * (first - 1)) == TAG_VALUE64:
        first -= 3
    bindings = 0
    for index in range(first, last, 3):
        bindings += 1
        if not is_memory_range(values, refs, words, index):
            return REFUSED
    constants = first - _FIRST_CONSTANT
    if bindings > MAXIMUM_BINDINGS or constants > CONSTANTS:
        return REFUSED
    if not agrees(entry.constant_count, constants) or not agrees(entry.binding_count, bindings):
        return REFUSED
    row = Command(stack(COMMAND_SIZE))
    row.count_x = number(values, words, 2) & COUNT_MASK
    row.count_y = number(values, words, 3) & COUNT_MASK
    row.count_z = number(values, words, 4) & COUNT_MASK
    x, y, z = row.count_x & COUNT_MASK, row.count_y & COUNT_MASK, row.count_z & COUNT_MASK
    if workgroups_refusal(x, y, z):
        return REFUSED
    if x == 0 or y == 0 or z == 0:
        return finish(state, refs, words)
    table = List(stack(LIST_SIZE))
    write_dispatch(table, row, entry, constants, bindings)
    table.constants = stack(4 * constants)
    for index in range(constants):
        store32(table.constants + 4 * index, number(values, words, _FIRST_CONSTANT + index))
    table.addresses = stack(24 * bindings)
    table.lengths = table.addresses + 8 * bindings
    table.accesses = table.lengths + 8 * bindings
    for index in range(bindings):
        at = first + 3 * index
        buffer = reference(refs, words, at)
        store64(table.addresses + 8 * index, buffer.address + number(values, words, at + 1))
        store64(table.lengths + 8 * index, number(values, words, at + 2))
        store64(table.accesses + 8 * index, buffer.access)
    if run_alone(handle_pool, table) != DONE:
        return REFUSED
    return finish(state, refs, words)


def is_memory_range(values: int, refs: int, words: int, index: int) -> bool:
    """Whether the binding at an argument is a range for kernels. It is (buffer, offset, length)."""
    buffer = reference(refs, words, index)
    offset, length = number(values, words, index + 1), number(values, words, index + 2)
    if not is_kind(buffer, KIND_BUFFER) or length < 0 or range_length(buffer, offset, length) < 0:
        return False
    return is_aligned(buffer.address + offset, length, BINDING_ALIGNMENT)


def write_dispatch(table: List, row: Command, entry: KernelEntry, constants: int, bindings: int) -> None:
    """A list of one dispatch, whose constants and bindings come next."""
    row.kind = KIND_DISPATCH
    row.operand = 0
    row.operand_count = bindings
    row.constant = 0
    row.constant_count = constants
    row.entry = entry
    row.object = 0
    table.rows = row
    table.row_count = 1
    table.operand_count = bindings
    table.patch_count = 0
    table.local_memory = entry.local_memory
