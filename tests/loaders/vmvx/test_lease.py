"""Scratch memory of kernels under a limit on memory: counted to the byte, in machine code as on the VM."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, Final

import numpy as np
import pytest

from jitree.errors import ResourceExhaustedError
from jitree.hal.command_list import CommandList
from jitree.hal.heap import HeapAllocator
from jitree.hal.local import executor
from jitree.loaders.vmvx.arguments import KernelArguments
from jitree.loaders.vmvx.context import Lease, WorkerContext
from jitree.loaders.vmvx.executable import VmvxExecutable
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from jitree.regs.buffer import VmBuffer
from jitree.regs.handles import HandleTable
from jitree.regs.memory import MAXIMUM_FRAMES, Bounds
from jitree.regs.ref_types import RefTypes
from tests.assembler import Assembler
from tests.base.interruption import interruptions
from tests.hal.native_kernels import aligned, whole
from tests.loaders.vmvx.cut_programs import compile_here, compiled, most_parts, run_parts
from tests.loaders.vmvx.programs import NUMBER, load
from tests.loaders.vmvx.test_native import KEEPS, LEAVES, SCRATCH
from tests.loaders.vmvx.test_parts import Product

TIERS: Final = ("plain", "fast", "native")
IN_TURN = f"""{NUMBER}
    %i16 = const.i64 100
    %i18 = const.i32 16
    %i20 = const.i64 0
    %r4 = buffer.alloc %i16:17, %i18
    buffer.store.i32 %r4, %i20:21, %i10
    %i10 = buffer.load.i32 %r4, %i20:21
    %r4 = const.ref.zero
    %r4 = buffer.alloc %i16:17, %i18
    %i19 = buffer.load.i32 %r4, %i20:21
    %i10 = or.i32 %i10, %i19
    buffer.store.i32 %r3, %i12:13, %i10
    return []
"""
"""Two buffers, never both at one time."""
MANY = f"""{NUMBER}
    %i16 = const.i64 8
    %i18 = const.i32 16
    {"".join(f"%r{number} = buffer.alloc %i16:17, %i18{chr(10)}" for number in range(4, 24))}
    buffer.store.i32 %r3, %i12:13, %i10
    return []
"""
"""More buffers than a worker context has handles for."""


def limited(memory: int | None = None, objects: int | None = None) -> tuple[HeapAllocator, Bounds]:
    allocator = HeapAllocator(memory, is_zeroed=True)
    lender = None if memory is None else allocator
    return allocator, Bounds(MAXIMUM_FRAMES - 1, objects, allocator.charge, None, lender)


def kernel(text: str, tier: str, bounds: Bounds, **options: Any) -> VmvxExecutable:
    module = Assembler("kernels", **options)
    module.function("f", ENTRY_CONVENTION, text, attrs={"binding_count": "1"})
    loaded = partial(load, module, tier, bounds=bounds)
    return compile_here(loaded) if tier == "native" else loaded()


def run(executable: VmvxExecutable, count: int) -> np.ndarray:
    block = aligned(np.full(count, -1, np.int32))
    commands = CommandList()
    commands.dispatch(executable, 0, (count, 1, 1), [], [whole(block)])
    executor.require_native_executor().execute(commands, *commands.bind(()))
    return block


@pytest.fixture
def finishes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Workgroups that Python has finished."""
    found: list[int] = []
    finish = WorkerContext.finish

    def counted(context: WorkerContext, *arguments: Any) -> None:
        found.append(context.reached)
        finish(context, *arguments)

    monkeypatch.setattr(WorkerContext, "finish", counted)
    return found


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("text", "needed"), [(SCRATCH, 200), (IN_TURN, 100), (LEAVES, 8), (MANY, 160)])
def test_the_least_memory(tier: str, text: str, needed: int) -> None:
    for spare in (0, 3, 10_000):
        executable = kernel(text, tier, limited(needed + spare)[1])
        for _ in range(3):
            assert (run(executable, 300) == np.arange(300)).all()
    executable = kernel(text, tier, limited(needed - 1)[1])
    for _ in range(3):
        with pytest.raises(ResourceExhaustedError, match=f"of {needed - 1} bytes are in use"):
            run(executable, 300)


def test_machine_code_counts_by_itself(finishes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    lend = Lease.lend

    def counted(lease: Lease, size: int) -> int:
        asked.append(size)
        return lend(lease, size)

    monkeypatch.setattr(Lease, "lend", counted)
    allocator, bounds = limited(1000, 300)
    executable = kernel(SCRATCH, "native", bounds)
    for _ in range(3):
        assert (run(executable, 300) == np.arange(300)).all()
    assert (finishes, asked) == ([], [100, 100])
    assert len(allocator.allocate(0, 0, 1000).host_array()) == 1000, "nothing uses what kernels have used"


@pytest.mark.parametrize("tier", TIERS)
def test_memory_that_others_have(tier: str) -> None:
    allocator, bounds = limited(1000)
    executable = kernel(SCRATCH, tier, bounds)
    for size, fits in ((0, True), (801, False), (800, True), (1000, False), (1, True)):
        buffer = allocator.allocate(0, 0, size)
        if fits:
            assert (run(executable, 30) == np.arange(30)).all()
        else:
            with pytest.raises(ResourceExhaustedError, match="limit on memory"):
                run(executable, 30)
        del buffer


@pytest.mark.parametrize("tier", TIERS)
def test_memory_that_the_program_keeps(tier: str) -> None:
    """The globals of each context, a buffer in one of them, and one of 4 MB at a time."""
    allocator, bounds = limited(4_100_000)
    executable = kernel(KEEPS, tier, bounds, ref_global_count=1)
    assert (run(executable, 100) == np.arange(1, 101)).all()
    assert (run(executable, 100) == np.arange(101, 201)).all()
    globals_ = 8 * (1 + (tier == "native"))
    with pytest.raises(ResourceExhaustedError, match=f": {globals_ + 8} of 4100000 bytes are in use"):
        allocator.allocate(0, 0, 4_100_000 - globals_ - 7)
    allocator.allocate(0, 0, 4_100_000 - globals_ - 8)


@pytest.mark.parametrize("tier", TIERS)
def test_handles(tier: str) -> None:
    """A worker context's own handles take none from the program."""
    few = next(n for n in range(100) if _succeeds(SCRATCH, tier, n))
    assert next(n for n in range(few, 200) if _succeeds(MANY, tier, n)) == few + 18
    assert few == next(n for n in range(100) if _succeeds(SCRATCH, "plain", n))


def _succeeds(text: str, tier: str, objects: int) -> bool:
    try:
        executable = kernel(text, tier, limited(None, objects)[1])
        outcomes = []
        for _ in range(2):
            try:
                outcomes.append((run(executable, 9) == np.arange(9)).all())
            except ResourceExhaustedError:
                outcomes.append(False)
    except ResourceExhaustedError:
        return False
    assert len(set(outcomes)) == 1
    return bool(outcomes[0])


PRODUCT: Final = Product(48, 33, 17, (False, False), True, False, False, True)
SUMS: Final = 4 * 48 * (33 + 3)


def test_parts_have_copies_that_are_not_counted(finishes: list[int]) -> None:
    allocator, bounds = limited(SUMS, 300)
    executable = compiled(PRODUCT.text(), bounds)
    assert most_parts(executable) > 4
    expected = [aligned(block) for block in PRODUCT.blocks(2)]
    run_parts(compiled(PRODUCT.text()), 2, (), expected, 1)
    for seed in range(4):
        found = [aligned(block) for block in PRODUCT.blocks(2)]
        run_parts(executable, 2, (), found, 5, seed)
        assert [block.tobytes() for block in found] == [block.tobytes() for block in expected]
    assert finishes == []
    allocator.allocate(0, 0, SUMS)


def test_a_first_part_without_memory_fails() -> None:
    """Other threads may have done their parts; where the result is an argument, none can be repeated."""
    allocator, bounds = limited(SUMS)
    executable = compiled(PRODUCT.text(), bounds)
    buffer = allocator.allocate(0, 0, 1)
    for seed in range(4):
        with pytest.raises(ResourceExhaustedError, match="limit on memory"):
            run_parts(executable, 1, (), PRODUCT.blocks(1), 5, seed)
    del buffer
    run_parts(executable, 1, (), PRODUCT.blocks(1), 5)


def test_threads_and_the_host_at_one_time() -> None:
    """Kernels of several threads and the host take from one limit, and leave it as it was."""
    threads, size = 4, 10_000
    allocator, bounds = limited(200 * threads + size)
    executable = kernel(SCRATCH, "native", bounds)
    wrong: list[object] = []

    def work() -> None:
        try:
            for _ in range(300):
                wrong.extend(run(executable, 20)[run(executable, 20) != np.arange(20)])
        except ResourceExhaustedError as error:
            wrong.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        allocator.allocate(0, 0, size)
    for worker in workers:
        worker.join()
    assert wrong == []
    allocator.allocate(0, 0, 200 * threads + size)


def test_handles_of_kernels_are_given_up_once() -> None:
    """Also where an interrupt comes between them, and the end of their context is done again."""
    for interruption in interruptions(0):
        table = HandleTable(RefTypes())
        arguments = KernelArguments(table, 2)
        others = [table.wrap(VmBuffer.alias(bytearray(4))) for _ in range(3)]
        interruption.during(arguments.drop)
        arguments.drop()
        assert [table.count(handle) for handle in others] == [1, 1, 1]
