"""Submit command lists to a device's stream, as graphs of the table of programs.

A list is found by the shapes of its rows, and held back for a while if the device has enough to do
(``held.py``).
"""

from __future__ import annotations

from jitree.codegen.primitives import (
    call,
    call_int,
    greater,
    lesser,
    load32,
    load64,
    quotient,
    stack,
    store64,
)
from jitree.codegen.record import atomic_load, atomic_replace, atomic_store, place_of, size_of
from jitree.hal.command_layout import (
    KIND_BARRIER,
    KIND_COPY,
    KIND_DISPATCH,
    KIND_FILL,
    KIND_UPDATE,
    Command,
    List,
)
from jitree.hal.local.executor.rows import next_row
from jitree.hal.stream_record import (
    BUCKETS,
    LEGACY_STREAM,
    OWNED_BY_CODE,
    OWNED_BY_PYTHON,
    SUBMITTING,
    ProgramRecord,
    Shape,
    StreamRecord,
)
from jitree.modules.hal.native.buffers import take_storage
from jitree.modules.hal.native.entries import STATE_RELEASED, State, release
from jitree.modules.hal.native.held import (
    are_launches,
    asks_python,
    can_wait,
    hold,
    is_room_for,
    launch_held,
    words_of,
)
from jitree.modules.hal.native.known import forget, remember
from jitree.modules.hal.native.launches import launch, launch_singly, mixed
from jitree.modules.hal.native.layout import POOL_COUNT, HandlePoolRecord
from jitree.modules.hal.native.registers import DONE, REFUSED
from jitree.regs.layout import Entry

SHAPE_SIZE = size_of(Shape)
_MASK = 0xFFFFFFFF


def submit(
    state: State,
    handle_pool: HandlePoolRecord,
    stream: StreamRecord,
    table: List,
    addresses: int,
    lengths: int,
) -> int:
    """Submits a list with the ranges given. REFUSED when its shape is unknown, or Python owns the stream."""
    size = update_size(table)
    staged = Entry(0)
    if size != 0:
        staged = stage(state, handle_pool, table.data, size)
        if not staged:
            return REFUSED
    result = REFUSED
    if atomic_replace(stream.owner, OWNED_BY_CODE, SUBMITTING):
        data = staged.address if staged else 0
        if enters(handle_pool, stream, table, addresses, lengths, data):
            forget(stream)
            result = DONE
        atomic_store(stream.owner, OWNED_BY_CODE)
    release(handle_pool, staged, place_of(state) + STATE_RELEASED)
    return result


def submit_new(state: State, handle_pool: HandlePoolRecord, stream: StreamRecord, table: List) -> int:
    """As :func:`submit`, of an update of memory of the device alone that nothing else has been told of."""
    length = load64(table.lengths)
    staged = stage(state, handle_pool, table.data, length)
    if not staged:
        return REFUSED
    result = REFUSED
    if atomic_replace(stream.owner, OWNED_BY_CODE, SUBMITTING):
        if is_sent(handle_pool, stream, load64(table.addresses), staged.address, length) or enters(
            handle_pool, stream, table, table.addresses, table.lengths, staged.address
        ):
            remember(handle_pool, stream, load64(table.addresses), staged.address, length)
            result = DONE
        atomic_store(stream.owner, OWNED_BY_CODE)
    release(handle_pool, staged, place_of(state) + STATE_RELEASED)
    return result


def stage(state: State, handle_pool: HandlePoolRecord, data: int, size: int) -> Entry:
    """Pinned memory with bytes of the host, 0 without such memory."""
    staged = take_storage(state, handle_pool, size, 1, POOL_COUNT)
    if staged:
        memmove = handle_pool.functions.memmove
        call(memmove, staged.address, data, size)
    return staged


def enters(
    handle_pool: HandlePoolRecord, stream: StreamRecord, table: List, addresses: int, lengths: int, data: int
) -> bool:
    """Whether a list has entered the stream, or is held back, and is counted. Machine code is just submitting
    it; ``data`` is where the device finds the bytes of updates."""
    program = find(handle_pool, table)  # while the stream is Python's programs may go
    sequences = handle_pool.sequences
    if not program or asks_python(stream, sequences):
        return False
    if not is_room_for(stream, sequences, program):
        launch_held(stream)
    if stream.failed != 0:
        return False
    is_held = can_wait(stream, program)
    words = stream.words + 8 * stream.held_words if is_held else stack(8 * words_of(program))
    fill_words(stream, table, addresses, lengths, data, words)
    if not are_launches(program, words):
        launch_held(stream)
        if stream.launch_kernel == 0 or not launch_singly(stream, program, words):
            return False
        is_held = False
    elif is_held:
        hold(stream, sequences, program)
    elif not launch(stream, program, words):
        return False
    count_submission(handle_pool, stream)
    stream.program = program
    stream.launched = stream.tick
    if is_held and stream.held_launches >= stream.held_limit:
        launch_held(stream)
    return True


def is_sent(
    handle_pool: HandlePoolRecord, stream: StreamRecord, target: int, source: int, length: int
) -> bool:
    """Whether pinned memory is on its way to a device that has nothing else to do, by the driver's copy. That
    takes a third of a launch; after a kernel it would begin later. Machine code is just submitting it."""
    if stream.completed < stream.worked or stream.held != 0:
        return False
    if call_int(stream.set_current, stream.context) != 0:
        return False
    if call_int(stream.copy_to_device, target, source, length, stream.handle) != 0:
        return False
    count_submission(handle_pool, stream)
    return True


def count_submission(handle_pool: HandlePoolRecord, stream: StreamRecord) -> None:
    """Something has entered the stream. Machine code is just submitting it."""
    stream.tick += 1
    handle_pool.submitted = stream.tick


def take_over(stream: StreamRecord) -> int:
    """Asks for Python, which is going to submit: 1 when the stream is its, 0 while machine code submits.
    Nothing is held back then."""
    if atomic_replace(stream.owner, OWNED_BY_CODE, SUBMITTING):
        launch_held(stream)
        atomic_store(stream.owner, OWNED_BY_PYTHON)
        return 1
    return 1 if atomic_load(stream.owner) == OWNED_BY_PYTHON else 0


def hand_over(stream: StreamRecord) -> None:
    """Says for Python that it has submitted what it had to."""
    atomic_replace(stream.owner, OWNED_BY_PYTHON, OWNED_BY_CODE)


def order_after(stream: StreamRecord, producer: int) -> bool:
    """Whether what is submitted from now on comes after what a stream of another library has by now. The
    driver sees to that for the legacy default stream. Of others that is done nearly always, and to ask costs
    less than an event."""
    if producer == LEGACY_STREAM:
        return True
    if call_int(stream.set_current, stream.context) != 0:
        return False
    if call_int(stream.query, producer) == 0:
        return True
    if not atomic_replace(stream.owner, OWNED_BY_CODE, SUBMITTING):
        return False
    launch_held(stream)
    is_ordered = waits(stream, stream.handle, producer)
    atomic_store(stream.owner, OWNED_BY_CODE)
    return is_ordered


def order_before(stream: StreamRecord, consumer: int) -> bool:
    """Whether what a stream of another library is given from now on comes after what this one has by now. It
    may write to what the host knew of."""
    if stream.completed >= stream.tick and stream.known_count == 0:
        return True
    if call_int(stream.set_current, stream.context) != 0:
        return False
    if not atomic_replace(stream.owner, OWNED_BY_CODE, SUBMITTING):
        return False
    stream.known_count = 0
    launch_held(stream)
    is_done = stream.completed >= stream.tick or consumer == LEGACY_STREAM
    is_ordered = stream.failed == 0 and (is_done or waits(stream, consumer, stream.handle))
    atomic_store(stream.owner, OWNED_BY_CODE)
    return is_ordered


def waits(stream: StreamRecord, later: int, earlier: int) -> bool:
    """Has one of two streams wait for what the other one has by now."""
    if call_int(stream.record_event, stream.event, earlier) != 0:
        return False
    return call_int(stream.wait_for_event, later, stream.event, 0) == 0


# -- finding -------------------------------------------------------------------------------------------


def shape_of(row: Command) -> int:
    """``Shape.kind`` of a row."""
    return row.kind | row.operand_count << 16 | row.constant_count << 32


def entry_of(row: Command) -> int:
    """``Shape.entry`` of a row."""
    if row.kind == KIND_DISPATCH:
        return place_of(row.entry)
    return 0


def shape_hash(table: List) -> int:
    """A number of 32 bits that lists of one shape have in common."""
    found = table.row_count & _MASK
    row = table.rows
    for _ in range(table.row_count):
        found = mixed(found, shape_of(row), entry_of(row))
        row = next_row(row)
    return found


def find(handle_pool: HandlePoolRecord, table: List) -> ProgramRecord:
    """The program of a list, 0 if there is none."""
    if handle_pool.programs == 0:
        return ProgramRecord(0)
    wanted = shape_hash(table)
    program = ProgramRecord(load64(handle_pool.programs + 8 * (wanted & (BUCKETS - 1))))
    while program:
        if program.hash == wanted and program.row_count == table.row_count and has_shape(program, table):
            return program
        program = program.next
    return ProgramRecord(0)


def has_shape(program: ProgramRecord, table: List) -> bool:
    row = table.rows
    shape = program.shapes
    for _ in range(table.row_count):
        if shape.kind != shape_of(row) or shape.entry != entry_of(row):
            return False
        row = next_row(row)
        shape = Shape(place_of(shape) + SHAPE_SIZE)
    return True


# -- the words of a submission -------------------------------------------------------------------------


def update_size(table: List) -> int:
    """Bytes of a list's updates."""
    size = 0
    row = table.rows
    for _ in range(table.row_count):
        if row.kind == KIND_UPDATE:
            size = greater(size, row.data + row.data_length)
        row = next_row(row)
    return size


def fill_words(
    stream: StreamRecord, table: List, addresses: int, lengths: int, data: int, words: int
) -> None:
    """``data`` is where the device finds the bytes of updates."""
    row = table.rows
    for _ in range(table.row_count):
        if row.kind == KIND_DISPATCH:
            words = dispatch_words(table, row, addresses, words)
        elif row.kind != KIND_BARRIER:
            words = transfer_words(stream, row, addresses, lengths, data, words)
        row = next_row(row)


def dispatch_words(table: List, row: Command, addresses: int, words: int) -> int:
    """Writes the words of a dispatch; the place after them."""
    first = addresses + 8 * row.operand
    for index in range(row.operand_count):
        store64(words + 8 * index, load64(first + 8 * index))
    words += 8 * row.operand_count
    constants = table.constants + 4 * row.constant
    for index in range(row.constant_count):
        store64(words + 8 * index, load32(constants + 4 * index) & _MASK)
    words += 8 * row.constant_count
    store64(words, (row.count_x & _MASK) | row.count_y << 32)
    store64(words + 8, row.count_z)
    return words + 16


def transfer_words(
    stream: StreamRecord, row: Command, addresses: int, lengths: int, data: int, words: int
) -> int:
    """As :func:`dispatch_words`, of a fill (target, length, pattern), or of a copy or update (target, source,
    length)."""
    operand = 8 * row.operand
    first = load64(addresses + operand)
    length = load64(lengths + operand)
    if row.kind == KIND_FILL:
        store64(words, first)
        store64(words + 8, length)
        store64(words + 16, row.pattern & _MASK)
    else:
        store64(words, load64(addresses + operand + 8) if row.kind == KIND_COPY else first)
        store64(words + 8, first if row.kind == KIND_COPY else data + row.data)
        store64(words + 16, length)
    blocks = quotient(length + stream.block_bytes - 1, stream.block_bytes)
    store64(words + 24, greater(1, lesser(blocks, stream.most_blocks)) | 1 << 32)
    store64(words + 32, 1)
    return words + 40
