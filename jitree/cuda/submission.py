"""Put command lists into a stream, as graphs of the table of programs. A Timeline names these functions.

A list is found by the shapes of its rows, and held back for a while if the device has enough to do
(``launches.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.codegen.primitives import (
    call_int,
    greater,
    lesser,
    load32,
    load64,
    quotient,
    stack,
    store64,
)
from jitree.codegen.record import (
    Atomic,
    atomic_add,
    atomic_load,
    atomic_replace,
    atomic_store,
    place_of,
    size_of,
)
from jitree.cuda.launches import (
    BUCKETS,
    MOST_NEIGHBOURS,
    ProgramRecord,
    ProgramTableRecord,
    Shape,
    StreamRecord,
    are_launches,
    asks_python,
    can_wait,
    has_launched_held,
    hold,
    is_room_for,
    launch,
    launch_held,
    launch_singly,
    mixed,
    words_of,
)
from jitree.hal.command_layout import (
    KIND_COPY,
    KIND_DISPATCH,
    KIND_DISPATCH_INDIRECT,
    KIND_FILL,
    KIND_UPDATE,
    Command,
    List,
)
from jitree.hal.local.executor.rows import next_row
from jitree.hal.timeline_record import DEFAULT_ORDER, OWNED_BY_CODE, OWNED_BY_PYTHON, SUBMITTING

if TYPE_CHECKING:
    from jitree.codegen.image.generated import Generated

SHAPE_SIZE = size_of(Shape)
_MASK = 0xFFFFFFFF
_NOT_READY = 600
"""CUDA_ERROR_NOT_READY of cuda.h."""


def submit(
    stream: StreamRecord, programs: ProgramTableRecord, table: List, addresses: int, lengths: int, data: int
) -> int:
    """As ``Timeline.submit``: the list has entered the stream, or is held back."""
    program = find(programs, table)  # while the stream is Python's programs may go
    if not program or asks_python(stream, programs):
        return 0
    if not is_room_for(stream, programs, program):
        launch_held(stream)
    if stream.failed != 0:
        return 0
    is_held = can_wait(stream, program)
    words = stream.words + 8 * stream.held_words if is_held else stack(8 * words_of(program))
    fill_words(stream, table, addresses, lengths, data, words)
    if not are_launches(program, words):
        launch_held(stream)
        if stream.launch_kernel == 0 or not launch_singly(stream, program, words):
            return 0
        is_held = False
    elif is_held:
        hold(stream, programs, program)
    elif not launch(stream, program, words):
        return 0
    stream.tick += 1
    if is_held and stream.held_launches >= stream.held_limit:
        launch_held(stream)
    return 1


def stage(stream: StreamRecord, target: int, source: int, length: int) -> int:
    """As ``Timeline.stage``, by the driver's copy, if the device has nothing else to do. That takes a third
    of a launch; after a kernel it would begin later."""
    if stream.completed < stream.worked or stream.held != 0:
        return 0
    if call_int(stream.set_current, stream.context) != 0:
        return 0
    if call_int(stream.copy_to_device, target, source, length, stream.handle) != 0:
        return 0
    stream.tick += 1
    return 1


def is_done(stream: StreamRecord, tick: int, looks: int) -> int:
    """As ``Timeline.is_done``. Fails where the stream has."""
    # order of completed: a number that grows; an old one asks the driver once more
    if tick <= stream.completed:
        return 1
    if not has_launched_held(stream) or looks == 0 or call_int(stream.set_current, stream.context) != 0:
        return 0
    # order of asking: before what it looks at, as Python does the other way round
    atomic_add(stream.asking, 1)  # before it looks whether the stream may be asked for
    status = _NOT_READY
    while status == _NOT_READY and looks > 0:
        # order of query: after `asking`
        status = call_int(atomic_load(stream.query), stream.handle)
        looks -= 1
    atomic_add(stream.asking, -1)
    if status != 0:
        return 0
    stream.completed = greater(stream.completed, tick)
    return 1


def take_over(stream: StreamRecord) -> int:
    """Asks for Python, which is going to submit: 1 when the stream is its, 0 while machine code submits.
    Nothing is held back then."""
    # order of owner: a lock: acquires what the last owner stored
    if atomic_replace(stream.owner, OWNED_BY_CODE, SUBMITTING):
        launch_held(stream)
        atomic_store(stream.owner, OWNED_BY_PYTHON)
        return 1
    return 1 if atomic_load(stream.owner) == OWNED_BY_PYTHON else 0


def hand_over(stream: StreamRecord) -> None:
    """Says for Python that it has submitted what it had to."""
    # order of owner: a lock: acquires what the last owner stored
    atomic_replace(stream.owner, OWNED_BY_PYTHON, OWNED_BY_CODE)


# -- streams of others ---------------------------------------------------------------------------------


def follow(stream: StreamRecord, producer: int) -> int:
    """As ``Timeline.follow``. The driver sees to that for the legacy default stream. Of others that is done
    nearly always, and to ask costs less than an event."""
    if producer == DEFAULT_ORDER:
        return 1
    if call_int(stream.set_current, stream.context) != 0:
        return 0
    # order of query: after `asking` of who joins; others use their own stream
    if call_int(atomic_load(stream.query), producer) == 0:
        return 1
    # order of owner: a lock: acquires what the last owner stored
    if not atomic_replace(stream.owner, OWNED_BY_CODE, SUBMITTING):
        return 0
    launch_held(stream)
    is_ordered = waits(stream, stream.handle, producer)
    atomic_store(stream.owner, OWNED_BY_CODE)
    return 1 if is_ordered else 0


def join(stream: StreamRecord, place: int) -> int:
    """As ``Timeline.join``: the other stream is of the same GPU, and holds nothing back."""
    if place >= MOST_NEIGHBOURS:
        return 0
    entry = stream.neighbours + 8 * place
    there = StreamRecord(load64(entry))
    if not there or there.ordinal != stream.ordinal or there.held != 0:
        return 0
    # order of asking: before what it looks at, as Python does the other way round
    atomic_add(there.asking, 1)  # before it looks whether the stream is still there
    # order of neighbours: after `asking`
    is_there = atomic_load(Atomic(entry)) == place_of(there)
    follows = is_there and (there.completed >= there.tick or follow(stream, there.handle) != 0)
    atomic_add(there.asking, -1)
    return 1 if follows else 0


def precede(stream: StreamRecord, consumer: int) -> int:
    """As ``Timeline.precede``. The other library may write to what the host knew of."""
    if stream.completed >= stream.tick and stream.known_count == 0:
        return 1
    if call_int(stream.set_current, stream.context) != 0:
        return 0
    # order of owner: a lock: acquires what the last owner stored
    if not atomic_replace(stream.owner, OWNED_BY_CODE, SUBMITTING):
        return 0
    stream.known_count = 0
    launch_held(stream)
    has_ended = stream.completed >= stream.tick or consumer == DEFAULT_ORDER
    is_ordered = stream.failed == 0 and (has_ended or waits(stream, consumer, stream.handle))
    atomic_store(stream.owner, OWNED_BY_CODE)
    return 1 if is_ordered else 0


def waits(stream: StreamRecord, later: int, earlier: int) -> bool:
    """Has one of two streams wait for what the other one has by now."""
    if call_int(stream.record_event, stream.event, earlier) != 0:
        return False
    return call_int(stream.wait_for_event, later, stream.event, 0) == 0


HOOKS: Final = (submit, stage, is_done, follow, join, precede)
"""What a Timeline names."""


def generate() -> Generated:
    """The LLVM IR, in the builder process."""
    from jitree.codegen import functions
    from jitree.codegen.image.generated import one_unit

    entries = (*HOOKS, take_over, hand_over, fill_words)
    return one_unit(functions.texts(entries), [entry.__name__ for entry in entries])


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


def find(programs: ProgramTableRecord, table: List) -> ProgramRecord:
    """The program of a list, 0 if there is none."""
    if not programs:
        return ProgramRecord(0)
    wanted = shape_hash(table)
    program = ProgramRecord(load64(programs.programs + 8 * (wanted & (BUCKETS - 1))))
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


def fill_words(
    stream: StreamRecord, table: List, addresses: int, lengths: int, data: int, words: int
) -> None:
    """Writes parameters and grid of each launch of a list, in order. ``data`` is where the device finds the
    bytes of updates."""
    row = table.rows
    for _ in range(table.row_count):
        if row.kind == KIND_DISPATCH or row.kind == KIND_DISPATCH_INDIRECT:
            words = dispatch_words(table, row, addresses, words)
        elif row.kind == KIND_FILL or row.kind == KIND_COPY or row.kind == KIND_UPDATE:
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
    """Encodes a fill, copy or update for machine code. A fill is (target, length, pattern), the others are
    (target, source, length); see :func:`dispatch_words`."""
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
