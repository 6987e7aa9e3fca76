"""Arrays to and from other libraries, and between host, files and device."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jitree import Array, Session
from jitree.api.calls import packing, reference_packing, tensor_packing
from jitree.api.calls.declaration import DeclaredTensor, Parameter
from jitree.base import dlpack
from jitree.cuda import interop
from jitree.cuda.device import CudaDevice
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    PermissionDeniedError,
    StatusError,
)
from jitree.hal.buffer import BufferView
from jitree.hal.enums import MemoryAccess
from jitree.hal.exchange import HostTransfers
from jitree.hal.fence import Fence
from jitree.types import BY_NAME
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_results import CUresult

STATELESS = Path(__file__).parents[1] / "data" / "cuda" / "stateless.vmfb"
F32 = BY_NAME["f32"]
READ, WRITE = int(MemoryAccess.READ), int(MemoryAccess.WRITE)
SIZES = [0, 1, 3, 16, 1000, 128 << 10, (128 << 10) + 1, 1 << 20, (1 << 20) + 1, (8 << 20) + 5]


# Host and files.


@pytest.mark.parametrize("size", SIZES)
def test_host_to_device_and_back(device: CudaDevice, size: int) -> None:
    data = np.arange(size, dtype=np.uint8)
    buffer = device.device_allocator.allocate(0x30, 0, size)
    device.write_buffer(buffer, data)
    expected, data[:] = data.copy(), 0xAA  # it may be changed at once
    assert np.array_equal(device.read_buffer(buffer), expected)


def test_reading_comes_after_what_has_been_submitted(fake: FakeDriver, device: CudaDevice) -> None:
    for memory_type in (0x30, 0x46):  # of the device, of the host
        buffer = device.device_allocator.allocate(memory_type, 0, 64)
        fake.hold()
        device.write_buffer(buffer, np.full(64, 5, np.uint8))
        timer = threading.Timer(0.02, fake.release)
        timer.start()
        assert (device.read_buffer(buffer) == 5).all()
        timer.join()


def test_reading_asks_once_whether_the_device_is_done(fake: FakeDriver, device: CudaDevice) -> None:
    buffer, done = device.device_allocator.allocate(0x30, 0, 64), Fence.create(device)
    device.queue_fill(-1, None, done, buffer, 0, 64, 5, 1)
    fake.calls.clear()
    assert (device.read_buffer(buffer, done) == 5).all()
    assert fake.count("cuStreamQuery") == 1
    assert not any("Synchronize" in name or "Event" in name for name in fake.names())


def test_large_results_are_not_pinned(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = device.device_allocator.allocate(0x30, 0, 65 << 20)
    fake.calls.clear()
    assert len(device.read_buffer(buffer)) == 65 << 20
    assert not fake.count("cuMemHostAlloc") and fake.count("cuMemcpyDtoHAsync") == 1


@pytest.mark.parametrize("size", [0, 100, (8 << 20), (20 << 20) + 3])
def test_files(device: CudaDevice, tmp_path: Path, size: int) -> None:
    path = tmp_path / "data"
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    path.write_bytes(b"head" + data.tobytes())
    file = device.import_file(-1, READ | WRITE, path)
    buffer, read, written = (
        device.device_allocator.allocate(0x30, 0, size),
        Fence.create(device),
        Fence.create(device),
    )
    device.queue_read(-1, None, read, file, 4, buffer, 0, size)
    device.queue_write(-1, read, written, buffer, 0, file, 4 + size, size)
    written.wait()
    assert path.read_bytes() == b"head" + data.tobytes() * 2
    assert np.array_equal(device.read_buffer(buffer), data)


def test_file_that_ends_early(device: CudaDevice, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(100))
    file = device.import_file(-1, READ, path)
    wait, done = Fence.create(device), Fence.create(device)
    device.queue_read(-1, wait, done, file, 0, device.device_allocator.allocate(0x30, 0, 100), 0, 100)
    path.write_bytes(bytes(10))
    wait.signal()
    with pytest.raises(OutOfRangeError, match=r"ended|outside"):
        done.wait(20)


# Arrays.


def test_arrays_live_on_the_device(session: Session) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = session.to_device(values)
    assert array.buffer_view.buffer.host_address is None
    assert np.array_equal(np.asarray(array), values) and array.device is session.device
    assert session.to_device(array) is array
    assert "float32 on cuda" in repr(array)
    strided = session.to_device(values[:, ::2])
    assert np.array_equal(np.asarray(strided), values[:, ::2])
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.int4, np.bool_, np.complex64):
        small = np.array([1, 0, 1], dtype)
        assert np.array_equal(np.asarray(session.to_device(small)), small)


def test_explicit_transfers(fake: FakeDriver) -> None:
    with CudaDevice(fake, 0, HostTransfers.EXPLICIT) as device, Session(device=device) as session:
        program = session.load(STATELESS)
        values = np.ones(8, np.float32)
        array = session.to_device(values)
        assert np.array_equal(array.to_host(), values)
        for use in (
            lambda: np.asarray(array),
            lambda: array + 1,
            lambda: array[0],
            lambda: array.item(0),
            lambda: list(array),
            lambda: float(array),
        ):
            with pytest.raises(FailedPreconditionError, match="to_host"):
                use()
        with pytest.raises(FailedPreconditionError, match="to_device"):
            program.scale(values, array)


def test_array_interface(session: Session) -> None:
    array = session.to_device(np.arange(6, dtype=np.int16).reshape(2, 3))
    interface = array.__cuda_array_interface__
    device: Any = session.device
    assert interface == {
        "shape": (2, 3), "typestr": "<i2", "data": (array.buffer_view.buffer.address, False), "version": 3,
        "strides": None, "stream": int(device.stream.handle),
    }  # fmt: skip
    assert not hasattr(session.to_device(np.zeros(2, ml_dtypes.bfloat16)), "__cuda_array_interface__")
    with Session(device="local-sync") as local:
        assert not hasattr(local.to_device(np.zeros(2)), "__cuda_array_interface__")


class Foreign:
    """Another library's array: a part of the protocols of one of ours."""

    def __init__(self, array: Array, **changes: object) -> None:
        self._interface = {**array.__cuda_array_interface__, **changes}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._interface


class Producer:
    """A DLPack producer in front of one of our arrays."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.options: dict[str, Any] = {}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        self.options = options
        return self.array.__dlpack__(**options)


class OldProducer(Producer):
    def __dlpack__(self, *, stream: int | None = None) -> Any:  # type: ignore[override]
        return self.array.__dlpack__(stream=stream)


@pytest.mark.parametrize("producer", [Foreign, Producer, OldProducer])
def test_arrays_are_taken_without_copying(session: Session, producer: Any) -> None:
    array = session.to_device(np.arange(6, dtype=np.float32).reshape(2, 3))
    taken = session.to_device(producer(array))
    assert taken.shape == (2, 3) and taken.dtype == np.float32
    assert taken.buffer_view.buffer.address == array.buffer_view.buffer.address
    assert np.array_equal(np.asarray(taken), np.asarray(array))


def test_memory_that_begins_between_two_words_of_a_kernel_is_copied(
    fake: FakeDriver, session: Session
) -> None:
    values = np.arange(9, dtype=np.float32)
    array = session.to_device(values)
    foreign = Foreign(array, data=(array.buffer_view.buffer.address + 4, False), shape=(8,))
    taken = session.to_device(foreign)
    assert taken.buffer_view.buffer.address % 64 == 0
    session.device.write_buffer(array.buffer_view.buffer, np.zeros(36, np.uint8))
    assert np.array_equal(np.asarray(taken), values[1:])


def test_a_copy_of_others_memory_that_fails_has_ended(fake: FakeDriver, session: Session) -> None:
    """The stream took it for a submission under way: it retired less than was done."""
    array = session.to_device(np.arange(9, dtype=np.float32))
    foreign = Foreign(array, data=(array.buffer_view.buffer.address + 4, False), shape=(8,))
    fake.fail_next("cuLaunchKernel", CUresult.CUDA_ERROR_INVALID_VALUE)
    with pytest.raises(InvalidArgumentError, match="cuLaunchKernel"):
        session.to_device(foreign)
    assert isinstance(session.device, CudaDevice)
    assert not session.device.stream._begun
    assert np.array_equal(np.asarray(session.to_device(foreign)), np.arange(1, 9))


def test_a_copy_of_others_memory_that_is_not_waited_for_is_not_handed_out(
    fake: FakeDriver, session: Session
) -> None:
    """The failure of the wait was for nobody, and the memory might change before it was copied."""
    array = session.to_device(np.arange(9, dtype=np.float32))
    foreign = Foreign(array, data=(array.buffer_view.buffer.address + 4, False), shape=(8,))
    fake.fail_next("cuStreamSynchronize", CUresult.CUDA_ERROR_INVALID_VALUE)
    with pytest.raises(InvalidArgumentError, match="cuStreamSynchronize"):
        session.to_device(foreign)
    assert np.array_equal(np.asarray(session.to_device(foreign)), np.arange(1, 9))


def test_looking_at_the_interface_keeps_nothing_more(session: Session) -> None:
    array = session.to_device(np.zeros(4, np.float32))
    before = len(weakref.finalize._registry)  # type: ignore[attr-defined]
    for _ in range(10):
        assert array.__cuda_array_interface__["shape"] == (4,)
    assert len(weakref.finalize._registry) <= before + 1  # type: ignore[attr-defined]


def test_arrays_of_a_closed_device_are_not_given_away(fake: FakeDriver) -> None:
    with CudaDevice(fake, 0) as device, Session(device=device) as session:
        array = session.to_device(np.zeros(4, np.float32))
        foreign = Foreign(array)
    exchange = session.device.array_exchange
    assert exchange is not None
    ways: tuple[Callable[[], object], ...] = (array.__dlpack__, lambda: exchange.import_view(foreign))
    for use in ways:
        with pytest.raises(StatusError, match="closed"):
            use()


def test_trimming_takes_back_what_consumers_have_done_with(fake: FakeDriver, session: Session) -> None:
    device: Any = session.device
    before = device.device_allocator.statistics.device.live
    array = session.to_device(np.zeros(64, np.float32))
    capsule = array.__dlpack__(stream=1)
    del array, capsule
    gc.collect()
    device.trim()
    assert device.device_allocator.statistics.device.live == before


def test_shared_memory_is_read_anew(session: Session) -> None:
    array = session.to_device(np.zeros(4, np.float32))
    taken = session.to_device(Producer(array))
    for value in (1, 2):
        device: Any = session.device
        device.write_buffer(array.buffer_view.buffer, np.full(4, value, np.float32).view(np.uint8))
        assert (np.asarray(taken) == value).all() and (np.asarray(array) == value).all()


def test_streams_are_ordered_by_events(fake: FakeDriver, session: Session) -> None:
    array = session.to_device(np.zeros(4, np.float32))
    device: Any = session.device
    own = int(device.stream.handle)
    fake.calls.clear()
    array.__dlpack__(stream=2)
    assert [(name, int(arguments[0])) for name, arguments in fake.calls if name == "cuStreamWaitEvent"] == [
        ("cuStreamWaitEvent", 2)
    ]
    fake.calls.clear()
    array.__dlpack__(stream=-1)
    assert not fake.count("cuStreamWaitEvent")
    fake.calls.clear()
    session.to_device(Foreign(array, stream=1))
    assert [int(arguments[1]) for name, arguments in fake.calls if name == "cuEventRecord"] == [1]
    assert [int(arguments[0]) for name, arguments in fake.calls if name == "cuStreamWaitEvent"] == [own]
    producer = Producer(array)
    session.to_device(producer)
    assert producer.options["stream"] == own
    with pytest.raises(BufferError, match="ambiguous"):
        array.__dlpack__(stream=0)


@pytest.mark.parametrize("consumer", [1, 2])
def test_memory_comes_back_after_the_consumers_work(
    fake: FakeDriver, session: Session, consumer: int
) -> None:
    """The driver sees to that for the legacy default stream."""
    device: Any = session.device
    array = session.to_device(np.zeros(64, np.float32))
    address = array.buffer_view.buffer.address
    capsule = array.__dlpack__(stream=consumer, max_version=(1, 0))
    del array
    gc.collect()
    assert device.device_allocator.allocate(0x30, 0, 256).address != address, "the capsule keeps it"
    del capsule
    gc.collect()
    fake.calls.clear()
    session.to_device(np.zeros(4, np.float32))  # the next submission
    records = [int(arguments[1]) for name, arguments in fake.calls if name == "cuEventRecord"]
    assert records == ([] if consumer == 1 else [consumer])
    held = [device.device_allocator.allocate(0x30, 0, 256) for _ in range(4)]
    assert address in {buffer.address for buffer in held}
    assert not interop._exported


def test_capsules_that_were_used_twice_or_are_none(session: Session) -> None:
    array = session.to_device(np.zeros(4, np.float32))
    capsule = array.__dlpack__(max_version=(1, 0))

    class Stale(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            return capsule

    session.to_device(Stale(array))
    with pytest.raises(InvalidArgumentError, match="used already"):
        session.to_device(Stale(array))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"strides": (4, 8)}, "contiguous"),
        ({"mask": object()}, "mask"),
        ({"typestr": "<U4"}, "<U4"),
        ({"data": (0x10, False)}, "not memory of cuda://0"),
        ({"shape": None}, "Foreign"),
    ],
)
def test_arrays_that_cannot_be_taken(session: Session, changes: dict[str, Any], text: str) -> None:
    array = session.to_device(np.zeros((2, 3), np.float32))
    with pytest.raises(InvalidArgumentError, match=text):
        session.to_device(Foreign(array, **changes))


def test_strides_without_gaps_are_fine(session: Session) -> None:
    array = session.to_device(np.zeros((2, 1, 3), np.float32))
    assert session.to_device(Foreign(array, strides=(12, 999, 4))).shape == (2, 1, 3)


def test_arrays_of_another_device() -> None:
    fake = FakeDriver(devices=2)
    with (
        CudaDevice(fake, 0) as first,
        CudaDevice(fake, 1) as second,
        Session(device=first) as one,
        Session(device=second) as other,
        Session(device="local-sync") as local,
    ):
        array = one.to_device(np.zeros(4, np.float32))
        for producer in (Producer(array), Foreign(array)):
            with pytest.raises(InvalidArgumentError, match="cuda://0 cannot be used on cuda://1"):
                other.to_device(producer)
            with pytest.raises(InvalidArgumentError, match="another device's memory"):
                local.to_device(producer)
        assert np.array_equal(np.asarray(other.to_device(array)), np.zeros(4, np.float32))


def test_read_only_memory(session: Session) -> None:
    array = session.to_device(np.zeros(4, np.float32))
    data = (array.buffer_view.buffer.address, True)
    taken = session.to_device(Foreign(array, data=data))
    assert taken.buffer_view.buffer.allowed_access == READ
    assert taken.__cuda_array_interface__["data"] == data
    with pytest.raises(BufferError, match=r"DLPack 1\.0"):
        taken.__dlpack__()
    again = session.to_device(Producer(taken))
    assert again.buffer_view.buffer.allowed_access == READ


def packer(session: Session, **attributes: Any) -> reference_packing.Packer:
    """Of a tensor, or of a reference."""
    tensor = attributes.pop("tensor", DeclaredTensor(F32, (4,)))
    parameter = Parameter("x", "!hal.buffer_view", tensor, **attributes)
    transfer = tensor_packing.ArrayTransfer(session.device, tensor_packing.ready_view)
    if tensor is None:
        return reference_packing.ReferencePacker(parameter, transfer, session.context.ref_types)
    return packing.tensor_packer(parameter, tensor, transfer)


def test_programs_do_not_write_to_read_only_memory(session: Session) -> None:
    array = session.to_device(np.ones(4, np.float32))
    address = array.buffer_view.buffer.address
    kept = Foreign(array, data=(address, True))
    storage, reference = packer(session, storage_of=0), packer(session, tensor=None)
    for value in (kept, session.to_device(kept), session.to_device(kept).buffer_view):
        with pytest.raises(PermissionDeniedError, match="x may be written to"):
            storage.pack(value)
    for value in (kept, session.to_device(kept).buffer_view):
        with pytest.raises(PermissionDeniedError, match="x may be written to"):
            reference.pack(value)
    taken = session.to_device(kept)
    view = reference.pack(taken)
    assert view is taken.buffer_view and view.buffer.address != address, (
        "it has memory of its own from now on"
    )
    assert np.array_equal(taken, np.ones(4)) and storage.pack(taken) is reference.pack(taken) is view
    for value in (kept, session.to_device(kept).buffer_view):
        copy: Any = packer(session).pack(value)
        assert copy.buffer.address != address and np.array_equal(Array(copy, session.device), np.ones(4))


def test_programs_overwrite_what_was_given_to_them(session: Session) -> None:
    array = session.to_device(np.ones(4, np.float32))
    address, consumed = array.buffer_view.buffer.address, packer(session, consumed=True)
    kept = session.to_device(Foreign(array, data=(address, True)))
    for value in (
        array,
        array.buffer_view,
        Foreign(array),
        tensor_packing.Donation(kept),
        np.ones(4, np.float32),
    ):
        view = consumed.pack(value)
        assert isinstance(view, BufferView) and view.buffer.is_writable and view.buffer.address != address
        assert np.array_equal(Array(view, session.device), np.ones(4))
    given: Any = consumed.pack(tensor_packing.Donation(array))
    assert given.buffer.address == address


@pytest.mark.parametrize("shape", [(2**62,), (-4,), (-2, -2), (2**32, 2**32)])
def test_shapes_that_no_tensor_has(session: Session, shape: tuple[int, ...]) -> None:
    array = session.to_device(np.ones(4, np.float32))
    with pytest.raises(InvalidArgumentError, match=r"cannot be taken: OUT_OF_RANGE; shape `"):
        session.to_device(Foreign(array, shape=shape))
    with pytest.raises(OutOfRangeError):
        session.empty(shape)


def test_element_types(session: Session) -> None:
    for dtype in (
        np.uint8,
        np.int64,
        np.float16,
        np.bool_,
        np.complex128,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e5m2,
    ):
        array = session.to_device(np.zeros(3, dtype))
        assert session.to_device(Producer(array)).dtype == dtype
    with pytest.raises(BufferError, match="i4"):
        session.to_device(np.zeros(3, ml_dtypes.int4)).__dlpack__()


def test_layout_of_the_records() -> None:
    """As dlpack.h has them on 64-bit machines."""
    assert ctypes.sizeof(dlpack.DLTensor) == 48
    assert ctypes.sizeof(dlpack.Managed) == 64
    assert ctypes.sizeof(dlpack.Versioned) == 80
    assert dlpack.Versioned.tensor.offset == 32
