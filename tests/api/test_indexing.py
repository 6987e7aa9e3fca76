"""Reading and assigning parts of device arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitree
from jitree import Array, Session
from jitree.cuda.device import CudaDevice
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StatusError,
    UnimplementedError,
)
from jitree.hal.buffer import Buffer
from jitree.hal.fence import Fence
from tests.api.programs import ARITHMETIC
from tests.cuda.fake import FakeDriver
from tests.cuda.kernels import KERNELS
from tests.fuzz.faults import Place, failing

CUBE = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
INDICES: tuple[Any, ...] = (
    0, -1, ..., (), (1, 2), (1, 2, 3), slice(None), slice(1, 2), (slice(None), 1), (..., 2), (0, slice(1, 3)),
    (slice(None), slice(0, 2), slice(1, 3)), (slice(None, None, -1), 0), (..., slice(0, 4, 2)), (None, 1),
    (slice(2, 1),), np.int64(1), (1, ..., None, 0),
)  # fmt: skip


@pytest.fixture(params=["local-sync", "local-task", "cuda"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    if request.param != "cuda":
        with Session(request.param, tier="plain") as session:
            yield session
        return
    fake = FakeDriver()
    fake.kernels.update(KERNELS)
    with CudaDevice(fake, 0) as device, Session(device, tier="plain") as session:
        yield session


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_any_basic_index_reads_and_assigns_what_numpy_does(session: Session, index: Any) -> None:
    array, host = session.to_device(CUBE), CUBE.copy()
    part = array[index]
    assert np.array_equal(part, host[index]) and np.shape(part) == np.shape(host[index])
    assert type(part) is type(host[index])
    for value in (7, np.float32(0.5), np.full(np.shape(host[index]), 9, np.float32)):
        array[index] = value
        host[index] = value
        assert np.array_equal(array, host)
    filled = session.to_device(np.full(np.shape(host[index]), -3, np.float32))
    array[index] = filled
    host[index] = -3
    assert np.array_equal(array, host)


SLICES = st.builds(slice, *[st.none() | st.integers(-4, 4)] * 2, st.sampled_from([None, 1, 1, 2, -1, -2]))


@given(
    index=st.tuples(*[st.integers(-2, 1) | SLICES, st.integers(-3, 2) | SLICES, st.integers(-4, 3) | SLICES])
)
def test_random_parts(index: Any) -> None:
    fake = FakeDriver()
    fake.kernels.update(KERNELS)
    host, value = CUBE.copy(), np.arange(100, 100 + CUBE[index].size, dtype=np.float32)
    value = value.reshape(CUBE[index].shape)
    host[index] = value
    with CudaDevice(fake, 0) as device, Session(device, tier="plain") as session:
        for source in (value, session.to_device(value)):
            array = session.to_device(CUBE)
            assert np.array_equal(array[index], CUBE[index])
            array[index] = source
            assert np.array_equal(array, host)


def test_values_are_spread_and_taken_from_anywhere(session: Session) -> None:
    array, host = session.to_device(CUBE), CUBE.copy()
    row = np.arange(4, dtype=np.float32)
    for index, value in (
        (0, row), ((slice(None), 1), row), (1, np.ones((1, 1, 3, 1), np.float32)), ((0, 0), [1, 2, 3, 4]),
        (..., np.float32(2)), ((1, slice(0, 2)), row[::-1]),
    ):  # fmt: skip
        array[index] = session.to_device(np.asarray(value)) if index == 1 else value
        host[index] = value
        assert np.array_equal(array, host)
    array[0] = session.to_device(row)
    host[0] = row
    assert np.array_equal(array, host)
    with Session("local-sync") as other:  # an array of another device
        array[1] = other.to_device(row)
    host[1] = row
    assert np.array_equal(array, host)


def test_an_array_is_assigned_to_itself(session: Session) -> None:
    array = session.to_device(CUBE)
    array[...] = array
    assert np.array_equal(array, CUBE)
    square = session.to_device(np.arange(9, dtype=np.float32).reshape(3, 3))
    square[::-1] = square
    assert np.array_equal(square, np.arange(9).reshape(3, 3)[::-1])


@pytest.mark.parametrize(
    ("index", "value", "error", "text"),
    [
        (2, 0, OutOfRangeError, "2x3x4xf32 array: index 2 is out of bounds"),
        ((0, -4), 0, OutOfRangeError, "out of bounds"),
        (2**70, 0, OutOfRangeError, f"array: index {2**70} is out of bounds for axis 0 with size 2"),
        ((..., -(2**70), 0), 0, OutOfRangeError, f"{-(2**70)} is out of bounds for axis 1 with size 3"),
        ((0, 0, 0, 0), 0, OutOfRangeError, "too many indices"),
        ([0, 1], 0, InvalidArgumentError, "by integers and slices"),
        (True, 0, InvalidArgumentError, "by integers and slices"),
        (CUBE > 3, 0, InvalidArgumentError, "by integers and slices"),
        (slice(0.5), 0, InvalidArgumentError, "the index"),
        ((..., ...), 0, OutOfRangeError, "ellipsis"),
        (0, np.zeros((3, 4)), InvalidArgumentError, "elements of f32 is assigned a 3x4xf64 array"),
        (0, np.zeros((3, 4), np.int32), InvalidArgumentError, "which has others: assign"),
        (0, np.zeros(3, np.float32), InvalidArgumentError, r"a value of shape \(3,"),
        (0, np.zeros((2, 3, 4), np.float32), InvalidArgumentError, "of shape"),
        (0, 1 + 2j, InvalidArgumentError, "complex"),
        (0, 1e300, InvalidArgumentError, "without loss"),
        (0, "x", InvalidArgumentError, "expected elements of f32"),
        (0, None, InvalidArgumentError, "expected elements of f32"),
        (0, [[1], [2, 3]], InvalidArgumentError, "inhomogeneous"),
        (0, np.ma.masked_array(np.zeros((3, 4), np.float32)), InvalidArgumentError, "masked"),
    ],
)  # fmt: skip
def test_what_cannot_be_assigned(
    session: Session, index: Any, value: Any, error: type[StatusError], text: str
) -> None:
    array = session.to_device(CUBE)
    with pytest.raises(error, match=text):
        array[index] = value
    assert np.array_equal(array, CUBE)


@pytest.mark.parametrize(
    ("index", "near", "axis", "size"),
    [
        (2**70, 2**40, 0, 2), (-(2**70), -(2**40), 0, 2), (2**63, 2, 0, 2), (-(2**63) - 1, -3, 0, 2),
        ((0, 2**70), (0, 3), 1, 3), ((..., 2**70), (..., 4), 2, 4),
        ((None, 0, ..., 2**70, 0), (None, 0, ..., 3, 0), 1, 3), ((np.uint64(2**63), 0), (2, 0), 0, 2),
    ],
)  # fmt: skip
def test_integers_beyond_64_bits_are_outside(
    session: Session, index: Any, near: Any, axis: int, size: int
) -> None:
    """numpy says of them that they are no integers; what is said is what it says of those nearer."""
    array = session.to_device(CUBE)
    with pytest.raises(IndexError, match=f"is out of bounds for axis {axis} with size {size}") as said:
        CUBE[near]
    items, nears = (item if isinstance(item, tuple) else (item,) for item in (index, near))
    far, close = next((far, close) for far, close in zip(items, nears, strict=True) if far != close)
    expected = str(said.value).replace(f"index {close} ", f"index {int(far)} ")
    with pytest.raises(IndexError) as raised:
        array[index]
    assert type(raised.value) is IndexError and str(raised.value) == expected


def test_integers_without_a_text_are_outside(session: Session) -> None:
    with pytest.raises(IndexError, match="is out of bounds for axis 0 with size 2"):
        session.to_device(CUBE)[1 << 20000]
    with pytest.raises(IndexError, match="array is 3-dimensional, but 4 were indexed"):
        session.to_device(CUBE)[..., 2**63, 0, 0, 0]


def test_arrays_that_must_stay_as_they_are(session: Session) -> None:
    donated = session.to_device(CUBE)
    donated._give_up()
    with pytest.raises(FailedPreconditionError, match="donated"):
        donated[0] = 1
    array = session.to_device(CUBE)
    with pytest.raises(FailedPreconditionError, match="donated"):
        array[...] = donated
    packed = Array(array.buffer_view.__class__(array.buffer_view.buffer, (4, 8), 0x10000004), session.device)
    with pytest.raises(UnimplementedError, match="i4 share bytes"):
        packed[0] = 1
    if session.device.array_exchange is None:
        block = np.zeros(1 << 15, np.float32)
        offset = -block.ctypes.data % 64 // 4
        block.flags.writeable = False
        kept = session.to_device(block[offset : offset + 20000])
        if not kept.buffer_view.buffer.is_writable:
            with pytest.raises(PermissionDeniedError, match="read-only"):
                kept[0] = 1


def test_a_device_is_asked_for_the_part_alone(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    if session.device.array_exchange is None:
        pytest.skip("the host sees the memory")
    read: list[int] = []
    real = CudaDevice.read_buffer

    def read_buffer(device: CudaDevice, source: Buffer, wait: Fence | None = None) -> Any:
        read.append(source.byte_length)
        return real(device, source, wait)

    monkeypatch.setattr(CudaDevice, "read_buffer", read_buffer)
    array = session.to_device(CUBE)
    assert array[1, 2, 3] == 23 and array.item(0, 1, 2) == 6
    assert np.array_equal(array[1, 2], CUBE[1, 2])
    assert np.array_equal(array[:, 1], CUBE[:, 1]), "two runs, read at once"
    assert read == [4, 4, 16, 32]
    assert array[[0]].shape == (1, 3, 4) and array[0, 0, 0] == 0
    assert read[4:] == [96], "the whole array, once"


def test_parts_of_many_runs_without_memory_for_them(session: Session) -> None:
    """A part is read with the array then, and assigned by RESOURCE_EXHAUSTED; both were a MemoryError."""
    if session.device.array_exchange is None:
        pytest.skip("the host sees the memory")
    host = np.arange(2048, dtype=np.float32).reshape(512, 4)
    array = session.to_device(host)
    refused = Place(((np, "zeros"),), MemoryError)
    with failing(refused, 1):
        assert np.array_equal(array[:, 1], host[:, 1])
    with failing(refused, 1), pytest.raises(ResourceExhaustedError, match="run by run"):
        array[:, 1] = 0
    array[:, 1] = 0
    assert not np.any(array[:, 1])


def test_assigning_comes_after_what_has_been_submitted() -> None:
    with Session("local-task", tier="plain") as session:
        device, array = session.device, session.to_device(np.zeros(1 << 20, np.float32))
        target = session.empty(1 << 20)
        gate, done = Fence.create(device), Fence.create(device)
        buffers = array.buffer_view.buffer, target.buffer_view.buffer
        device.queue_copy(-1, gate, done, buffers[0], 0, buffers[1], 0, 4 << 20)
        threading.Timer(0.05, gate.signal).start()
        array[...] = 1
        assert done.is_reached() and not np.any(target), "the copy saw what was there when it was submitted"
        failing = Fence.create(device)
        device.queue_copy(-1, failing, Fence.create(device), buffers[0], 0, buffers[1], 0, 4)
        threading.Timer(0.05, lambda: failing.fail(jitree.errors.AbortedError("gone"))).start()
        array[0] = 2
        assert array[0] == 2, "what others fail with is told to them"


def test_calls_see_what_was_assigned(session: Session) -> None:
    if session.device.array_exchange is not None:
        pytest.skip("the program is compiled for processors")
    module = session.load(ARITHMETIC)
    x = session.to_device(np.arange(4, dtype=np.float32))
    for value in range(5):
        x[1] = value
        assert np.array_equal(module.add(x, x), [0, 2 * value, 4, 6])
