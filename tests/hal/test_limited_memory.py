"""Limits on the memory of programs are met to the byte, and memory that is to be zero is."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import pytest

from jitree import Session
from jitree.base import cancel_scopes
from jitree.base.copying import PART
from jitree.codegen import image
from jitree.errors import CancelledError, ResourceExhaustedError
from jitree.hal.buffer import Buffer
from jitree.hal.heap import HeapAllocator
from jitree.modules.hal.native import RECIPE
from tests.base.interruption import Handler, interruptions
from tests.modules.hal_programs import BUFFERS, DEVICE, DEVICE_LOCAL, NULL, ROWS, USAGE, Program

TIERS = ("plain", "fast")
SIZES = (1000, 70, 0, 4097)
NONE = (None,) * 5
CALLS = 20
"""From the second call on machine code allocates, of memory that it has been lent."""


def program(byte: int | None = None) -> bytes:
    """Allocates buffers that live at the same time, and fills them with a byte if one is given."""
    made = Program(ROWS)
    for size, buffer in zip(SIZES, BUFFERS, strict=True):
        placed = (0, DEVICE_LOCAL, USAGE, size, 0)
        made.call("device.queue.alloca", DEVICE, -1, NULL, NULL, *placed, to=buffer)
        if byte is not None:
            made.call("device.queue.fill", DEVICE, -1, NULL, NULL, buffer, 0, -1, byte, 1, 0)
    return made.module("m" if byte is None else "filling")


def session_of(allocator: HeapAllocator, tier: str) -> Session:
    image.wait(RECIPE)
    session = Session("local-sync", tier=tier)
    session.device.replace_device_allocator(allocator)
    session.load(program())
    session.load(program(7))
    return session


def buffers(session: Session, module: str) -> list[Any]:
    return [
        value.host_array()
        for value in session.call_direct(f"{module}.f", session.device, *NONE)
        if hasattr(value, "host_array")
    ]


@pytest.mark.parametrize("tier", TIERS)
def test_a_limit_is_met_to_the_byte(tier: str) -> None:
    with session_of(HeapAllocator(limit=sum(SIZES)), tier) as session:
        for _ in range(CALLS):
            assert [len(array) for array in buffers(session, "m")] == list(SIZES)
    with session_of(HeapAllocator(limit=sum(SIZES) - 1), tier) as session:
        for _ in range(CALLS):
            with pytest.raises(ResourceExhaustedError, match="4097 bytes: 1070 of 5166 bytes are in use"):
                buffers(session, "m")


@pytest.mark.parametrize("tier", TIERS)
def test_results_that_are_kept_count(tier: str) -> None:
    with session_of(HeapAllocator(limit=2 * sum(SIZES)), tier) as session:
        for _ in range(CALLS):
            kept = buffers(session, "m")
            assert buffers(session, "m")
            more = buffers(session, "m")
            with pytest.raises(ResourceExhaustedError, match="of 10334 bytes are in use"):
                buffers(session, "m")
            del kept, more


@pytest.mark.parametrize("tier", TIERS)
def test_memory_is_zero_where_it_is_to_be(tier: str) -> None:
    for is_zeroed in (True, False):
        with session_of(HeapAllocator(is_zeroed=is_zeroed), tier) as session:
            for _ in range(CALLS):
                assert all((array == 7).all() for array in buffers(session, "filling"))
                assert not any(array.any() for array in buffers(session, "m")) or not is_zeroed


def test_machine_code_hands_out_limited_memory() -> None:
    allocator = HeapAllocator(limit=4 * sum(SIZES), is_zeroed=True)
    with session_of(allocator, "fast") as session:
        for _ in range(CALLS):
            buffers(session, "m")
        assert sum(borrower.counts[0] for borrower in allocator.borrowers) >= CALLS // 2 * sum(SIZES)


def test_what_a_limit_does_not_count_goes_back() -> None:
    """A program that kept one block of each batch had sixteen times the memory that its limit says."""
    allocator = HeapAllocator(limit=32 << 10)
    tracemalloc.start()
    try:
        first, *others = allocator.lend(16 << 10, 16)
        for block in others:
            allocator.take_back(block[0])
        del block, others
        allocator.trim()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held - first[1] < 16 << 10


def test_what_is_elsewhere_counts_until_it_ends() -> None:
    allocator = HeapAllocator(limit=100)
    charge = allocator.charge(60)
    with pytest.raises(ResourceExhaustedError, match="41 bytes: 60 of 100 bytes are in use"):
        allocator.charge(41)
    with pytest.raises(ResourceExhaustedError, match="41 bytes: 60 of 100 bytes are in use"):
        allocator.allocate(0, 0, 41)
    del charge
    assert allocator.allocate(0, 0, 100).byte_length == 100
    assert HeapAllocator().charge(1 << 50) is None


def test_clearing_a_large_block_ends_with_its_call() -> None:
    """The block stays for the next one, which gets it cleared."""
    allocator = HeapAllocator(is_zeroed=True)
    allocator.allocate(0, 0, 3 * PART).host_array()[:] = 7
    kept = allocator.kept_bytes
    with cancel_scopes.Scope() as scope:
        scope.end(CancelledError("as a deadline does"))
        with pytest.raises(CancelledError):
            allocator.allocate(0, 0, 3 * PART)
    assert kept == allocator.kept_bytes >= 3 * PART
    assert not allocator.allocate(0, 0, 3 * PART).host_array().any()
    assert allocator.kept_bytes == kept


def test_an_interrupt_leaves_no_memory_counted_that_is_free() -> None:
    """What came back was off the list, and not counted: the limit had less room for good."""
    places = 0
    for interruption in interruptions(16):
        allocator = HeapAllocator()
        kept = [allocator.allocate(0, 0, 64) for _ in range(3)]
        kept.clear()
        interruption.during(lambda allocator=allocator: allocator.kept_bytes)  # type: ignore[misc]
        assert allocator.kept_bytes and not allocator._accounting.live, f"at place {interruption.place}"
        places += 1
    assert places > 3


@pytest.mark.parametrize("limit", [None, 1 << 20])
def test_what_comes_back_counts_once_wherever_a_handler_takes_memory(limit: int | None) -> None:
    """A signal's handler runs on the thread that has the lock, in between."""
    places, kept = 0, list[Buffer]()

    def handle() -> None:
        kept.append(allocator.allocate(0, 0, 5000))

    for interruption in interruptions(16, partial(Handler, handle=handle)):
        allocator = HeapAllocator(limit)
        kept += [allocator.allocate(0, 0, 64) for _ in range(3)]
        kept.clear()
        interruption.during(lambda allocator=allocator: allocator.allocate(0, 0, 64))  # type: ignore[misc]
        kept.clear()
        assert allocator.kept_bytes and not allocator._accounting.live, f"at place {interruption.place}"
        places += 1
    assert places > 3
