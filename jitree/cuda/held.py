"""Hold command lists back, to launch several as one graph.

A launch costs the host more than all that a small list takes otherwise. The first list that comes while the
device has nothing to do is launched at once. Those that follow are held back until their launches are many,
or until something waits or has to come after them. A sequence of lists that comes a second time gets a
program, one graph for all its lists. Until Python has made it, the lists are launched one after the other.
"""

from __future__ import annotations

from jitree.codegen.primitives import lesser, load64, store64
from jitree.codegen.record import atomic_replace, atomic_store, place_of
from jitree.cuda.launches import is_empty, launch, mixed
from jitree.cuda.stream_record import (
    BUCKETS,
    MOST_HELD,
    MOST_HELD_WORDS,
    MOST_WANTED,
    ProgramRecord,
    ProgramTableRecord,
    StreamRecord,
)
from jitree.hal.timeline_record import OWNED_BY_CODE, SUBMITTING

_FEWEST_LAUNCHES = 16
"""The first graph after a wait: the device has little to do until it comes."""
_MOST_LAUNCHES = 256
"""Each is twice the one before, up to this."""
_PATIENCE = 1 << 16
"""Looks at a stream on which another thread is just submitting."""
_WANTED_SIZE = 8 + 8 * MOST_HELD


def words_of(program: ProgramRecord) -> int:
    """How many words a submission has."""
    return load64(program.firsts + 8 * program.launch_count)


def is_idle(stream: StreamRecord) -> bool:
    """Whether the device does nothing but uploads, as the host knows."""
    return stream.completed >= stream.worked


def can_wait(stream: StreamRecord, program: ProgramRecord) -> bool:
    """Whether a list is one to be held back."""
    if stream.held == 0:
        if is_idle(stream):
            stream.held_limit = _FEWEST_LAUNCHES
            return False
        return program.launch_count < stream.held_limit and words_of(program) <= MOST_HELD_WORDS
    return True


def is_room_for(stream: StreamRecord, sequences: ProgramTableRecord, program: ProgramRecord) -> bool:
    """Whether a list can be held back with those that are."""
    if stream.held == 0:
        return True
    is_small = stream.held_words + words_of(program) <= MOST_HELD_WORDS
    return is_small and stream.held < MOST_HELD and stream.sequences == sequences


def are_launches(program: ProgramRecord, words: int) -> bool:
    """Whether all launches of a list have workgroups, as graphs need."""
    for number in range(program.launch_count):
        if is_empty(words + 8 * load64(program.firsts + 8 * number + 8) - 16):
            return False
    return True


def hold(stream: StreamRecord, sequences: ProgramTableRecord, program: ProgramRecord) -> None:
    """Holds a list back whose words follow those that are held. Machine code is just submitting it."""
    store64(stream.held_programs + 8 * stream.held, place_of(program))
    stream.held += 1
    stream.held_words += words_of(program)
    stream.held_launches += program.launch_count
    stream.sequences = sequences


def launch_held(stream: StreamRecord) -> None:
    """Launches what is held back. Machine code is just submitting, and all of that is counted."""
    count = stream.held
    if count == 0:
        return
    first = stream.tick - count + 1
    if not is_launched_as_one(stream, count) and stream.failed == 0:
        launch_each(stream, count)
    if stream.failed != 0:
        stream.failed = first
    stream.held = 0
    stream.held_words = 0
    stream.held_launches = 0
    stream.held_limit = lesser(2 * stream.held_limit, _MOST_LAUNCHES)


def is_launched_as_one(stream: StreamRecord, count: int) -> bool:
    """Whether the held lists have been launched as a sequence. Else none has, or ``failed`` says so."""
    if count == 1:
        return False
    found = sequence_hash(stream.held_programs, count)
    sequence = find_sequence(stream.sequences, stream.held_programs, count, found)
    if not sequence:
        note_missed(stream.sequences, stream.held_programs, count, found)
        return False
    return launch(stream, sequence, stream.words)


def launch_each(stream: StreamRecord, count: int) -> None:
    """Launches the held lists one after the other. What the driver refuses ``failed`` says."""
    words = stream.words
    for index in range(count):
        program = ProgramRecord(load64(stream.held_programs + 8 * index))
        if not launch(stream, program, words):
            stream.failed = stream.tick
            return
        words += 8 * words_of(program)


def has_launched_held(stream: StreamRecord) -> bool:
    """Whether nothing is held back, now at the latest, and nothing was refused. Machine code is not just
    submitting on this thread."""
    for _ in range(_PATIENCE):
        if stream.held == 0:
            return stream.failed == 0
        if atomic_replace(stream.owner, OWNED_BY_CODE, SUBMITTING):
            launch_held(stream)
            atomic_store(stream.owner, OWNED_BY_CODE)
    return False


# -- sequences -----------------------------------------------------------------------------------------


def sequence_hash(programs: int, count: int) -> int:
    """A number of 32 bits for so many programs."""
    found = count
    for index in range(count):
        program = load64(programs + 8 * index)
        found = mixed(found, ProgramRecord(program).hash, program)
    return found


def find_sequence(sequences: ProgramTableRecord, programs: int, count: int, wanted: int) -> ProgramRecord:
    """What launches so many lists as one, 0 if there is nothing."""
    sequence = ProgramRecord(load64(sequences.buckets + 8 * (wanted & (BUCKETS - 1))))
    while sequence:
        if sequence.hash == wanted and sequence.row_count == count:
            index = 0
            members = place_of(sequence.shapes)
            while index < count and load64(members + 8 * index) == load64(programs + 8 * index):
                index += 1
            if index == count:
                return sequence
        sequence = sequence.next
    return ProgramRecord(0)


def note_missed(sequences: ProgramTableRecord, programs: int, count: int, found: int) -> None:
    """There is no such sequence. Python is to make it if it comes for the second time."""
    if sequences.missed == 0:
        return
    place = missed_place(sequences.missed, found)
    if load64(place) != found:
        store64(place, found)
        return
    number = sequences.wanted_count
    if number == MOST_WANTED:
        return
    row = sequences.wanted + _WANTED_SIZE * number
    store64(row, count)
    for index in range(count):
        store64(row + 8 + 8 * index, load64(programs + 8 * index))
    sequences.wanted_count = number + 1
    store64(place, 0)


def missed_place(missed: int, found: int) -> int:
    """Finds where a hash is, or is to be: each has two places, so that two that come in turn both stay."""
    first = missed + 8 * (found & (BUCKETS - 1))
    second = missed + 8 * ((found >> 16) & (BUCKETS - 1))
    is_second = load64(second) == found or (load64(first) != 0 and load64(first) != found)
    return second if is_second else first


def asks_python(stream: StreamRecord, sequences: ProgramTableRecord) -> bool:
    """Whether Python submits a list and makes sequences before the next."""
    count = sequences.wanted_count
    return count != 0 and (is_idle(stream) or count == MOST_WANTED)
