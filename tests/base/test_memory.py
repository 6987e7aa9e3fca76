"""Mapped memory: protections, alignment, lifetime; and what a process makes once."""

from __future__ import annotations

import ctypes
import gc
import os
import threading

import pytest

from jitree.base import platform
from jitree.base.memory import once
from jitree.base.platform import EXECUTE, PAGE_SIZE, READ, WRITE, Mapping, map_code
from jitree.base.platform.files import read_memory
from jitree.errors import InvalidArgumentError, PermissionDeniedError, ResourceExhaustedError
from jitree.regs.memory import MemoryBlock
from tests.hal.helpers import TIMEOUT


def rights(address: int) -> str | None:
    """Access of the page at an address, as /proc/self/maps prints it; None when nothing is mapped."""
    with open("/proc/self/maps") as file:
        for line in file:
            bounds, access, *_ = line.split()
            start, end = (int(text, 16) for text in bounds.split("-"))
            if start <= address < end:
                return access
    return None


def test_protections_by_page() -> None:
    mapping = Mapping(3 * PAGE_SIZE - 5)
    assert mapping.size == 3 * PAGE_SIZE and rights(mapping.address) == "---p"
    mapping.protect(0, mapping.size, READ | WRITE)
    view = mapping.view()
    view[:4] = b"abcd"
    assert not any(view[4:]), "new memory is zero"
    mapping.protect(PAGE_SIZE + 1, 1, READ)
    assert [rights(mapping.address + page * PAGE_SIZE) for page in range(3)] == ["rw-p", "r--p", "rw-p"]
    mapping.protect(0, PAGE_SIZE, READ | EXECUTE)
    assert rights(mapping.address) == "r-xp" and bytes(view[:4]) == b"abcd"


def test_writable_and_executable_is_refused() -> None:
    with pytest.raises(PermissionDeniedError, match="both writable and executable"):
        Mapping(1).protect(0, 1, READ | WRITE | EXECUTE)


@pytest.mark.parametrize(("offset", "size"), [(0, PAGE_SIZE + 1), (-1, 1), (PAGE_SIZE, 1)])
def test_bounds(offset: int, size: int) -> None:
    with pytest.raises(InvalidArgumentError):
        Mapping(PAGE_SIZE).protect(offset, size, READ)


def test_the_system_is_not_asked_about_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mapping, "_set_access", staticmethod(lambda *_: -1))
    Mapping(PAGE_SIZE).protect(PAGE_SIZE, 0, READ | EXECUTE)


@pytest.mark.parametrize("alignment", [1, PAGE_SIZE, 16 * PAGE_SIZE, 1 << 21])
def test_alignment(alignment: int) -> None:
    mapping = Mapping(100, alignment)
    assert mapping.address % max(alignment, PAGE_SIZE) == 0
    mapping.protect(0, mapping.size, READ | WRITE)
    assert rights(mapping.address) == "rw-p"


def test_unmapped_with_the_object() -> None:
    mapping = Mapping(PAGE_SIZE)
    address = mapping.address
    assert rights(address) is not None
    del mapping
    gc.collect()
    assert rights(address) is None


def test_what_a_child_reads_is_its_own_memory() -> None:
    """Not that of its parent, which had read before."""
    block = MemoryBlock(PAGE_SIZE)
    assert read_memory(block.address, 8) == bytes(8)
    child = os.fork()
    if not child:
        status = 1
        try:
            block.array[:8] = 7
            status = int(read_memory(block.address, 8) != bytes([7] * 8))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_more_than_the_address_space() -> None:
    for reserve in (Mapping, MemoryBlock):
        with pytest.raises(ResourceExhaustedError, match="could not be reserved"):
            reserve(1 << 60)


def test_code_is_called() -> None:
    code = {"x86_64": "b82a000000c3", "aarch64": "40058052c0035fd6"}.get(platform.MACHINE)
    if code is None:
        pytest.skip("no machine code for this processor")
    mapping = map_code(bytes.fromhex(code))
    assert rights(mapping.address) == "r-xp"
    assert ctypes.CFUNCTYPE(ctypes.c_int)(mapping.address)() == 42


def test_much_free_memory_goes_back_and_little_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(platform, "_malloc_trim", lambda pad: given.append(pad.value))
    free = platform._free_memory()
    if free >= 1 << 62:
        pytest.skip("this C library does not say how much it keeps")
    platform.give_back_much_free_memory()
    assert bool(given) == (free > 8 << 20)
    held = [bytes(30_000) for _ in range(1000)]  # too small to be mappings of their own
    marks = [bytearray(1000) for _ in held]  # what keeps the heap from shrinking by itself
    del held
    platform.give_back_much_free_memory()
    assert given and marks


def test_free_memory_goes_back_where_nobody_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(platform, "_malloc_trim", lambda pad: given.append(pad.value))
    monkeypatch.setattr(platform, "_counter", lambda: None)
    platform.give_back_much_free_memory()
    assert given == [0]


THREADS = 4


def test_threads_that_come_at_once_get_the_same() -> None:
    together = threading.Barrier(THREADS)
    seen: list[object] = []

    @once
    def made() -> object:
        together.wait(TIMEOUT)
        return object()

    threads = [threading.Thread(target=lambda: seen.append(made())) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert len(seen) == THREADS and {id(item) for item in [*seen, made()]} == {id(seen[0])}
