"""Bytes that the host has just uploaded, and that a program wants to see: a position."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from jitree import Array, Session
from jitree.base.dlpack import DLTensor, Versioned, pointer
from jitree.base.dlpack_names import VERSIONED_NAME
from jitree.base.finalizers import Finalizer
from jitree.cuda.device import CudaDevice
from jitree.cuda.launches import StreamRecord
from jitree.hal.timeline_record import MOST_KNOWN
from tests.api.test_exported import Consumer, delete
from tests.cuda.fake import FakeDriver
from tests.cuda.programs import LENDING, POSITIONS
from tests.cuda.test_lending import warm

pytestmark = pytest.mark.usefixtures("machine_code")

ROWS = np.arange(64, dtype=np.float32).reshape(8, 8)
LAUNCH, WAIT = "cuLaunchKernelEx", "cuStreamQuery"


def position(number: int) -> np.ndarray[Any, Any]:
    return np.array(number, np.int32)


@pytest.fixture
def get(session: Session) -> Any:
    """A row, by its position, of rows."""
    function, rows = session.load(POSITIONS).get, session.to_device(ROWS)
    warm(function, rows, position(1))
    for number in range(60):
        place = session.to_device(position(number % 8))
        assert np.array_equal(np.asarray(function(rows, place))[0], ROWS[number % 8])
    return function


def exported(array: Array, consumer: Consumer | None) -> tuple[DLTensor, object]:
    """What another library gets of an array, by DLPack's functions or its method, and what keeps that."""
    if consumer is None:
        capsule: Any = array.__dlpack__(stream=1, max_version=(1, 0))
        return Versioned.from_address(pointer(id(capsule), VERSIONED_NAME)).tensor, capsule
    managed = consumer.export(array)
    return managed.contents.tensor, Finalizer(partial(delete, managed))


def submitted(fake: FakeDriver) -> list[str]:
    return [name for name in fake.names() if name != "cuCtxSetCurrent"]


def test_a_position_is_not_read_from_the_device(fake: FakeDriver, session: Session, get: Any) -> None:
    rows = session.to_device(ROWS)
    np.asarray(get(rows, position(5)))
    fake.be_lazy()
    for number in (3, 6):
        place = session.to_device(position(number))
        fake.calls.clear()
        row = get(rows, place)
        assert submitted(fake)[:3] == [LAUNCH, LAUNCH, WAIT], "the kernel, the copy that will be read, a wait"
        assert np.array_equal(np.asarray(row)[0], ROWS[number])
        assert LAUNCH not in submitted(fake)[2:]


@pytest.mark.parametrize("others", [0, 1, 3, MOST_KNOWN, 3 * MOST_KNOWN])
def test_other_uploads_in_between(fake: FakeDriver, session: Session, get: Any, others: int) -> None:
    """The host knows the last few; it reads the others from the device."""
    rows = session.to_device(ROWS)
    for number in range(4):  # until there is pinned memory for all of them
        np.asarray(get(rows, position(5)))
        place = session.to_device(position(number))
        kept = [session.to_device(position(0)) for _ in range(others)]
        fake.calls.clear()
        assert np.array_equal(np.asarray(get(rows, place))[0], ROWS[number])
        del kept
    assert submitted(fake).count(LAUNCH) == (2 if others < MOST_KNOWN else 3)


def test_arguments_that_share_an_upload(fake: FakeDriver, session: Session, get: Any) -> None:
    put, rows = session["positions.put"], session.to_device(ROWS)
    row = np.full((1, 8), -1, np.float32)
    warm(put, rows, row, position(1))
    fake.calls.clear()
    changed = put(rows, row, position(6))
    assert submitted(fake).count(WAIT) == 1, "one wait"
    expected = ROWS.copy()
    expected[[1, 6]] = -1  # the program writes to its argument
    assert np.array_equal(np.asarray(changed), expected)


def test_what_a_program_has_written_is_read(fake: FakeDriver, session: Session, get: Any) -> None:
    rows, place = session.to_device(ROWS), session.to_device(position(2))
    place[()] = position(7)
    assert np.array_equal(np.asarray(get(rows, place))[0], ROWS[7])


@pytest.mark.parametrize("by_method", [False, True])
def test_what_another_library_has_written_is_read(
    fake: FakeDriver, session: Session, get: Any, by_method: bool
) -> None:
    rows, consumer = session.to_device(ROWS), Consumer()
    for first, second in ((2, 7), (3, 1)):
        place = session.to_device(position(first))
        tensor, kept = exported(place, None if by_method else consumer)
        fake.bytes_at(tensor.data, 4).view("<i4")[:] = second
        assert np.array_equal(np.asarray(get(rows, place))[0], ROWS[second])
        del kept


def test_what_ends_the_host_s_knowledge(
    fake: FakeDriver, device: CudaDevice, session: Session, get: Any
) -> None:
    """Submissions of Python's, and memory that others get: whatever they do with it."""
    stream, consumer, rows = device.stream, Consumer(), session.to_device(ROWS)
    record = StreamRecord(stream.share.address)

    def submit(place: Array) -> None:
        with stream.lock:
            stream.begin()
            stream.end()

    def by_method(place: Array) -> None:
        place.__dlpack__()

    for end in (submit, by_method, consumer.export, partial(get, rows)):
        place = session.to_device(position(3))
        assert record.known_count and record.worked < record.tick
        end(place)
        assert not record.known_count
    submit(place)
    assert record.worked == record.tick


def test_memory_that_other_devices_use(
    fake: FakeDriver, device: CudaDevice, session: Session, get: Any
) -> None:
    rows = session.to_device(ROWS)
    with CudaDevice(fake, 0) as other:
        other.stream.device_address(rows.buffer_view.buffer)
    place = session.to_device(position(3))
    fake.calls.clear()
    assert np.array_equal(np.asarray(get(rows, place))[0], ROWS[3])
    assert submitted(fake).count(LAUNCH) == 3, "it was read from the device"


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_random_positions(
    fake: FakeDriver, device: CudaDevice, session: Session, get: Any, seed: int, is_lazy: bool
) -> None:
    """Reads give what was written last: by an upload, by a call, or by another library."""
    choose, put, add = random.Random(seed), session["positions.put"], session.load(LENDING).add
    consumer = Consumer()
    warm(put, session.to_device(ROWS), ROWS[:1], position(1))
    if is_lazy:
        fake.be_lazy()
    rows, model = session.to_device(ROWS), ROWS.copy()
    places: list[tuple[Array, int]] = []
    kept: list[object] = []
    for turn in range(200):
        number = choose.randrange(8)
        action = choose.randrange(8)
        if len(places) < 2 or action == 0:
            places.append((session.to_device(position(number)), number))
        elif action == 1:  # in place
            index = choose.randrange(len(places))
            places[index][0][()] = position(number)
            places[index] = places[index][0], number
        elif action == 2 and not is_lazy:  # by another library, when what came before is done
            index = choose.randrange(len(places))
            place = places[index][0]
            tensor, keeper = exported(place, choose.choice((None, consumer, consumer)))
            kept.append(keeper)
            device.stream.synchronize()
            fake.bytes_at(tensor.data, 4).view("<i4")[:] = number
            places[index] = place, number
        elif action == 3:
            place, number = choose.choice(places)
            row = np.full((1, 8), turn, np.float32)
            model[number] = turn
            rows = put(rows, row, choose.choice((place, position(number))))
        elif action == 4:
            vector = np.full(8, turn, np.float32)
            assert np.array_equal(np.asarray(add(vector, session.to_device(vector))), 2 * vector)
        else:
            place, number = choose.choice(places)
            found = get(rows, choose.choice((place, place, position(number))))
            if choose.random() < 0.6:
                assert np.array_equal(np.asarray(found)[0], model[number]), (turn, action)
        while len(places) > 5:
            del places[choose.randrange(len(places))]
    assert np.array_equal(np.asarray(rows), model)
    assert get.is_direct and put.is_direct
