"""Buffers, spans, the heap allocator and its pool."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitree
from jitree.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
)
from jitree.hal.buffer import Allocation, Buffer
from jitree.hal.device import Device
from jitree.hal.enums import BufferCompatibility, BufferUsage, MemoryAccess, MemoryType
from jitree.hal.heap import HeapAllocator, size_class
from tests.hal.helpers import DEFAULT_USAGE, DEVICE_LOCAL, SHARED, allocate


def aligned(size: int, offset: int = 0) -> np.ndarray:
    """Bytes that begin ``offset`` after a multiple of 64."""
    memory = np.zeros(size + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + size]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4096, 1_000_001])
def test_buffers_are_aligned_and_as_long_as_asked(any_device: Device, size: int) -> None:
    buffer = any_device.device_allocator.allocate(SHARED, DEFAULT_USAGE, size)
    assert buffer.address % 64 == 0
    assert buffer.byte_length == size == buffer.host_view().nbytes


def test_heap_adds_what_the_host_can_do_anyway(host_memory_device: Device) -> None:
    buffer = host_memory_device.device_allocator.allocate(DEVICE_LOCAL, BufferUsage.DISPATCH_STORAGE, 4)
    assert buffer.memory_type == DEVICE_LOCAL | MemoryType.HOST_VISIBLE
    assert buffer.allowed_usage == BufferUsage.DISPATCH_STORAGE | BufferUsage.TRANSFER | BufferUsage.MAPPING
    assert buffer.allowed_access == MemoryAccess.ALL


def test_zero_means_optimal_and_default_usage(any_device: Device) -> None:
    buffer = any_device.device_allocator.allocate(0, 0, 4)
    assert buffer.memory_type & MemoryType.DEVICE_LOCAL == MemoryType.DEVICE_LOCAL
    assert not buffer.memory_type & MemoryType.OPTIMAL
    assert buffer.allowed_usage & BufferUsage.DEFAULT == BufferUsage.DEFAULT


def test_allocator_refuses_nonsense() -> None:
    allocator = HeapAllocator()
    for size in (-1, -64):
        with pytest.raises(OutOfRangeError, match="has wrapped"):
            allocator.allocate(0, 0, size)
    for size in (-4096, -(2**63)):
        with pytest.raises(ResourceExhaustedError, match=f"cannot allocate {size + 2**64} bytes"):
            allocator.allocate(0, 0, size)
    with pytest.raises(InvalidArgumentError):
        allocator.allocate(0, 0, 8, alignment=48)
    with pytest.raises(ResourceExhaustedError):
        allocator.allocate(0, 0, 1 << 60)
    with pytest.raises(ResourceExhaustedError):
        allocator.allocate(0, 0, 1 << 80)


@pytest.mark.parametrize("where", ["jitree.hal.device", "jitree.api.resources"])
def test_threads_that_ask_at_once_have_the_same_memory_of_the_host(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread asks while the first one makes it."""
    owner: Any = jitree.Instance()
    if where.endswith("device"):
        owner = owner.create_device("local-sync")
    others = list[HeapAllocator]()

    def make() -> HeapAllocator:
        monkeypatch.undo()
        others.append(owner.host_allocator)
        return HeapAllocator()

    monkeypatch.setattr(f"{where}.HeapAllocator", make)
    assert [owner.host_allocator] == others == [owner.host_allocator]


def test_allocator_limit() -> None:
    allocator = HeapAllocator(limit=1000)
    first = allocator.allocate(0, 0, 600)
    with pytest.raises(ResourceExhaustedError, match="600 of 1000"):
        allocator.allocate(0, 0, 600)
    del first
    assert allocator.allocate(0, 0, 600).byte_length == 600


@pytest.mark.parametrize("alignment", [1, 64, 128, 4096])
def test_alignment_on_request(alignment: int) -> None:
    buffer = HeapAllocator().allocate(0, 0, 100, alignment=alignment)
    assert buffer.address % alignment == 0
    assert buffer.byte_length == 100


def test_query_compatibility(any_device: Device) -> None:
    answer = any_device.device_allocator.query_compatibility(DEVICE_LOCAL, DEFAULT_USAGE, DEFAULT_USAGE, 16)
    assert BufferCompatibility.ALLOCATABLE in answer
    assert BufferCompatibility.QUEUE_DISPATCH in answer


# Spans.


@given(st.data())
def test_spans_of_spans_share_bytes(data: st.DataObject) -> None:
    size = 200
    buffer = HeapAllocator().allocate(0, 0, size)
    buffer.host_array()[:] = np.arange(size, dtype=np.uint8)
    start, span = 0, buffer
    for _ in range(3):
        offset = data.draw(st.integers(0, span.byte_length))
        length = data.draw(st.integers(-1, span.byte_length - offset))
        start, span = start + offset, span.subspan(offset, length)
    assert bytes(span.host_view()) == bytes(range(start, start + span.byte_length))
    assert span.address == buffer.address + start
    assert span.allocation is buffer.allocation


def test_whole_span_is_the_same_object() -> None:
    buffer = HeapAllocator().allocate(0, 0, 16)
    assert buffer.subspan(0) is buffer
    assert buffer.subspan(0, 16) is buffer
    assert buffer.subspan(16).byte_length == 0


@pytest.mark.parametrize(("offset", "length"), [(0, 17), (17, -1), (17, 0), (-1, 4), (8, 9), (4, -2)])
def test_spans_outside(offset: int, length: int) -> None:
    with pytest.raises(OutOfRangeError):
        HeapAllocator().allocate(0, 0, 16).subspan(offset, length)


def test_owner_count_is_shared_by_spans() -> None:
    buffer = HeapAllocator().allocate(0, 0, 16)
    span = buffer.subspan(4, 4)
    assert buffer.is_terminal()
    span.preserve()
    assert not buffer.is_terminal()
    assert not buffer.discard()
    assert buffer.is_terminal()
    assert span.discard()


def test_device_memory_cannot_be_mapped() -> None:
    buffer = Buffer(Allocation(0x1000, 16, DEVICE_LOCAL, DEFAULT_USAGE, 7, host_address=None))
    with pytest.raises(PermissionDeniedError, match="DEVICE_LOCAL"):
        buffer.host_view()
    assert buffer.host_address is None


# Lifetime: memory is used again only when nothing refers to it.


def test_freed_block_is_used_again() -> None:
    allocator = HeapAllocator()
    buffer = allocator.allocate(0, 0, 1000)
    address = buffer.address
    del buffer
    assert allocator.kept_bytes == size_class(1000)
    assert allocator.allocate(0, 0, 990).address == address


@pytest.mark.parametrize("hold", ["span", "array", "slice", "memoryview"])
def test_block_lives_as_long_as_anything_made_from_it(hold: str) -> None:
    allocator = HeapAllocator()
    made_from: dict[str, Callable[[Buffer], object]] = {
        "span": lambda buffer: buffer.subspan(8, 8),
        "array": lambda buffer: buffer.host_array(),
        "slice": lambda buffer: buffer.host_array()[4:8].view("<u4").reshape(1, 1),
        "memoryview": lambda buffer: buffer.host_view()[10:20],
    }
    buffer = allocator.allocate(0, 0, 1000)
    address = buffer.address
    held = made_from[hold](buffer)
    del buffer
    gc.collect()
    assert allocator.kept_bytes == 0
    other = allocator.allocate(0, 0, 1000)
    assert other.address != address
    del held
    gc.collect()
    assert allocator.kept_bytes == size_class(1000)


def test_trim_gives_memory_back(any_device: Device) -> None:
    allocator: Any = any_device.device_allocator
    allocate(any_device, 5000)
    assert allocator.kept_bytes >= 5000
    any_device.trim()
    assert allocator.kept_bytes == 0


@given(st.integers(0, 1 << 40))
def test_size_classes_waste_little(size: int) -> None:
    capacity = size_class(size)
    assert capacity >= size and capacity % 64 == 0
    assert capacity <= max(64, size + max(64, size // 4))


def test_statistics() -> None:
    allocator = HeapAllocator()
    host = allocator.allocate(MemoryType.HOST_LOCAL, 0, 16)
    first = allocator.allocate(DEVICE_LOCAL, 0, 16)
    second = allocator.allocate(DEVICE_LOCAL, 0, 32)
    del first, host
    third = allocator.allocate(DEVICE_LOCAL, 0, 8)
    statistics = allocator.statistics
    assert (statistics.host.peak, statistics.host.allocated, statistics.host.freed) == (16, 16, 16)
    assert (statistics.device.peak, statistics.device.allocated, statistics.device.freed) == (48, 56, 16)
    assert statistics.device.live == second.byte_length + third.byte_length


def test_formatted_statistics() -> None:
    allocator = HeapAllocator()
    allocator.allocate(MemoryType.HOST_LOCAL, 0, 16)
    buffers = [allocator.allocate(DEVICE_LOCAL, 0, 48)]
    buffers.clear()
    assert allocator.formatted_statistics == (
        "[[ iree_hal_allocator_t memory statistics ]]\n"
        "  HOST_LOCAL:           16B peak /           16B allocated /           16B freed / "
        "           0B live\n"
        "DEVICE_LOCAL:           48B peak /           48B allocated /           48B freed / "
        "           0B live\n"
    )


def test_zeroed_allocator_hands_out_zeros_again() -> None:
    allocator = HeapAllocator(is_zeroed=True)
    allocator.allocate(0, 0, 100).host_array()[:] = 7
    assert not allocator.allocate(0, 0, 100).host_array().any()


# Imports.


def test_import_wraps_without_copying(host_memory_device: Device) -> None:
    source = aligned(256)
    buffer = host_memory_device.device_allocator.import_host(source.data, DEVICE_LOCAL, DEFAULT_USAGE)
    assert buffer is not None
    source[3] = 9
    assert buffer.host_view()[3] == 9
    assert buffer.address == source.ctypes.data
    buffer.host_array()[4] = 8
    assert source[4] == 8


def test_import_of_misaligned_memory_is_refused_politely() -> None:
    assert HeapAllocator().import_host(aligned(64, offset=16).data, DEVICE_LOCAL, DEFAULT_USAGE) is None


def test_import_of_read_only_memory_is_read_only() -> None:
    source = aligned(64)
    source.flags.writeable = False
    buffer = HeapAllocator().import_host(source.data, DEVICE_LOCAL, DEFAULT_USAGE)
    assert buffer is not None
    assert buffer.allowed_access == MemoryAccess.READ
    assert buffer.host_view().readonly
    with pytest.raises(ValueError, match="read-only"):
        buffer.host_array()[0] = 1


def test_import_keeps_its_source_and_releases_it() -> None:
    source = aligned(64)
    is_kept = weakref.ref(source)
    source[:] = 5
    buffer = HeapAllocator().import_host(source.data, 0, 0)
    assert buffer is not None
    span, array = buffer.subspan(8, 8), buffer.host_array()
    del source, buffer, span
    gc.collect()
    assert array[0] == 5 and is_kept() is not None
    del array
    gc.collect()
    assert is_kept() is None


def test_import_of_strided_memory_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError):
        HeapAllocator().import_host(aligned(64)[::2].data, 0, 0)


def test_import_of_nothing() -> None:
    buffer = HeapAllocator().import_host(memoryview(b""), 0, 0)
    assert buffer is not None and buffer.byte_length == 0
