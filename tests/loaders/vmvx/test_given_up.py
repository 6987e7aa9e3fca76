"""Copies of constants are given up where memory is short: kernels go on without, with the same bits, and
nothing reads memory that is gone."""

from __future__ import annotations

import mmap
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jitree.base import spare_memory
from jitree.base.platform import available_resources
from jitree.codegen.record import size_of, words_of
from jitree.errors import ResourceExhaustedError
from jitree.hal.driver import DeviceOptions
from jitree.hal.executable import ExecutableParameters
from jitree.hal.heap import HeapAllocator
from jitree.hal.local.device import SyncDevice
from jitree.loaders.vmvx.executable import VmvxExecutable
from jitree.loaders.vmvx.kernels import Contexts, WorkerContextRecord
from jitree.loaders.vmvx.loader import FORMAT, VmvxLoader
from jitree.loaders.vmvx.packed import Copies, PackedConstants
from jitree.regs.memory import Bounds
from tests.loaders.vmvx.test_packed import SIZE, executable, matrix_in, program, results

HOST = 0
_DUE = words_of(Contexts).due
_INTERVAL = words_of(Contexts).interval


class Loaded:
    """An executable with copies of its constants, and what its calls give."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        file, size = program()
        self.executable = executable(file, size, bounds)
        self.matrix = matrix_in(file, size)
        self.expected = self.call()
        self.call()

    def call(self) -> bytes:
        return results(self.executable, self.matrix)

    @property
    def copies(self) -> Copies:
        compiled = self.executable._compiled
        assert compiled is not None and compiled._copies is not None
        return compiled._copies

    def require_none(self) -> None:
        """There are no copies, and calls make none."""
        assert self.copies.reserved == 0
        for _ in range(4):
            assert self.call() == self.expected
        assert self.executable.copied == self.copies.reserved == self.copies.most_kept == 0


def left_are(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system says that so many bytes are left."""
    monkeypatch.setattr(available_resources, "available_memory", lambda: size)


def test_kernels_go_on_without() -> None:
    loaded = Loaded()
    assert loaded.executable.copied == SIZE and loaded.copies.most_kept >= SIZE
    loaded.copies.give_up()
    loaded.require_none()
    loaded.copies.give_up()


def test_a_context_that_a_thread_has_keeps_them() -> None:
    """Memory goes when its span is over: the thread itself looks then."""
    loaded = Loaded()
    assert loaded.executable._compiled is not None
    (context,) = loaded.executable._compiled._contexts.values()
    context._record[words_of(WorkerContextRecord).busy] = 1
    reserved = loaded.copies.reserved
    loaded.copies.give_up()
    assert loaded.copies.reserved == reserved > SIZE
    assert loaded.call() == loaded.expected  # in another context
    assert loaded.copies.reserved == reserved and loaded.executable.copied == SIZE
    context._record[words_of(WorkerContextRecord).busy] = 0
    loaded.copies.look()
    loaded.require_none()


def test_a_thread_that_has_ended_its_span_frees_them() -> None:
    loaded = Loaded()
    kept = loaded.copies._kept
    assert loaded.executable._compiled is not None and kept is not None
    (context,) = loaded.executable._compiled._contexts.values()
    context._record[words_of(WorkerContextRecord).busy] = 1
    loaded.copies.give_up()
    context._record[words_of(WorkerContextRecord).busy] = 0
    assert loaded.copies.reserved > 0
    assert loaded.call() == loaded.expected
    loaded.require_none()


def test_calls_that_run_meanwhile() -> None:
    for _ in range(5):
        loaded = Loaded()
        made = threading.Event()
        found: list[bytes] = []

        def calls(
            call: Callable[[], bytes] = loaded.call, made: threading.Event = made, found: list[bytes] = found
        ) -> None:
            for _ in range(20):
                found.append(call())
                made.set()

        threads = [threading.Thread(target=calls) for _ in range(3)]
        for thread in threads:
            thread.start()
        made.wait(60)
        loaded.copies.give_up()
        for thread in threads:
            thread.join()
        assert len(found) == 60 and set(found) == {loaded.expected}
        loaded.copies.look()
        loaded.require_none()


def test_little_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Loaded()
    monkeypatch.setattr(spare_memory, "_spares", [loaded.copies])  # not what nothing has collected yet
    most = loaded.copies.most_kept
    left_are(spare_memory.SHARE * most, monkeypatch)
    loaded.copies.look()
    assert loaded.executable.copied == SIZE
    left_are(spare_memory.SHARE * most - 1, monkeypatch)
    loaded.copies.look()
    loaded.require_none()


def test_threads_that_run_kernels_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is due: the first time is a moment after the first span."""
    loaded = Loaded()
    left_are(0, monkeypatch)
    assert loaded.copies._contexts[_DUE] > 1 and loaded.executable.copied == SIZE
    loaded.copies._contexts[_DUE] = 1
    assert loaded.call() == loaded.expected
    loaded.require_none()


def test_the_system_does_not_say_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise PermissionError("/proc/meminfo")

    loaded = Loaded()
    monkeypatch.setattr(available_resources, "available_memory", refused)
    loaded.copies.look()
    assert loaded.executable.copied == SIZE
    assert spare_memory.give_up_for(1 << 20)
    loaded.require_none()


def test_an_allocation_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the copies given up and is tried again, unless it is too large whatever happens."""
    loaded = Loaded()

    def make(size: int, dtype: type) -> np.ndarray:
        if loaded.copies.reserved:
            raise MemoryError
        return np.zeros(size, dtype)

    monkeypatch.setattr(np, "empty", make)
    left_are(1 << 20, monkeypatch)
    allocator = HeapAllocator()
    with pytest.raises(ResourceExhaustedError, match="cannot allocate 1099511627776 bytes"):
        allocator.allocate(HOST, HOST, 1 << 40)
    assert loaded.executable.copied == SIZE
    assert allocator.allocate(HOST, HOST, 1 << 19).byte_length == 1 << 19
    loaded.require_none()
    monkeypatch.setattr(np, "empty", make_none)
    with pytest.raises(ResourceExhaustedError):
        allocator.allocate(HOST, HOST, 1 << 20)


def make_none(size: int, dtype: type) -> np.ndarray:
    raise MemoryError


def limited(limit: int) -> tuple[HeapAllocator, Bounds]:
    allocator = HeapAllocator(limit)
    return allocator, Bounds(charge=allocator.charge, lender=allocator)


def test_a_limit_counts_them_until_it_needs_the_room() -> None:
    allocator, bounds = limited(1 << 22)
    loaded = Loaded(bounds)
    assert loaded.executable.copied == SIZE and loaded.copies.held >= SIZE
    kept = allocator.allocate(HOST, HOST, 1 << 20)
    assert loaded.executable.copied == SIZE
    whole = allocator.allocate(HOST, HOST, (1 << 22) - (1 << 20))
    assert kept.byte_length + whole.byte_length == 1 << 22
    with pytest.raises(ResourceExhaustedError, match="the limit on memory"):
        allocator.allocate(HOST, HOST, 1)
    assert loaded.copies.held == 0
    loaded.require_none()


def test_a_limit_without_room_for_them() -> None:
    _, bounds = limited(SIZE // 2)
    file, size = program()
    loaded = executable(file, size, bounds)
    assert loaded._compiled is not None and loaded._compiled._copies is None
    matrix = matrix_in(file, size)
    assert results(loaded, matrix) == results(loaded, matrix) == results(loaded, matrix)
    assert loaded.copied == 0


def test_a_device_counts_them(tmp_path: Path) -> None:
    data, size = program()
    path = tmp_path / "program.bin"
    path.write_bytes(data)
    device = SyncDevice(DeviceOptions(loaders=(VmvxLoader((), "native"),)))
    with path.open("rb") as opened:
        file = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    loaded = device.create_executable_cache().prepare_executable(
        ExecutableParameters(FORMAT, memoryview(file)[:size].toreadonly(), ())
    )
    assert isinstance(loaded, VmvxExecutable)
    assert device.memory().copied == 0 and "copies" not in str(device.memory())
    matrix = matrix_in(file, size)
    results(loaded, matrix)
    results(loaded, matrix)
    memory = device.memory()
    assert memory.copied == SIZE and f", {SIZE} of copies of constants" in str(memory)
    assert loaded._compiled is not None and loaded._compiled._copies is not None
    loaded._compiled._copies.give_up()
    assert device.memory().copied == 0


def test_readers_that_come_late_keep_their_own() -> None:
    """A context that is being made while copies are given up has memory as long as it may read it."""

    class Late:
        free = False

        def let_go(self) -> bool:
            return self.free

    copies = Copies(PackedConstants(memoryview(bytes(1 << 16))), None)
    contexts, late = array("q", bytes(size_of(Contexts))), Late()
    copies.watch(contexts, 0)
    copies.give_up()
    assert copies.reserved == 0 and not contexts[_INTERVAL], "threads need not look"
    copies.add(late)
    assert contexts[_INTERVAL] and contexts[_DUE] == 1
    copies.look()
    assert contexts[_INTERVAL], "it is not free yet"
    late.free = True
    copies.look()
    assert not contexts[_INTERVAL]
    late.free = False
    copies = Copies(PackedConstants(memoryview(bytes(1 << 16))), None)
    copies.add(late)
    copies.give_up()
    assert copies.reserved > 0 and copies.most_kept == 0
    late.free = True
    copies.give_up()
    assert copies.reserved == 0
