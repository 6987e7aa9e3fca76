"""Public methods of devices, allocators, buffers, views and functions refuse what are no arguments; none of
them ends the process, then or later."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.base.cancel_scopes import deadline
from jitree.dispatch.linking import split_name
from jitree.errors import InvalidArgumentError, OutOfRangeError, StatusError
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.command_list import check_workgroups
from jitree.hal.device import Device
from jitree.hal.fence import Fence, wait_fences
from jitree.hal.groups.rendezvous import EnvironmentProvider, FolderStore
from jitree.hal.heap import HeapAllocator
from jitree.hal.waiting import WaitMode
from tests.hal.helpers import ANY, REUSABLE

_FLOAT_32 = 0x21000020
PROGRAM = Path(__file__).parents[1] / "data" / "programs" / "arithmetic.vmfb"

ATTACK = """
import gc
import inspect
import random
import sys
import numpy as np
import jitree
from jitree.hal.fence import Fence

random.seed(0)
session = jitree.Session(sys.argv[2], tier="fast")
add = session.load(sys.argv[1]).add
values = np.arange(4, dtype=np.float32)
while not add.is_direct:
    result = add(values, values)
device = session.device
allocator = device.device_allocator
buffer = allocator.allocate(0, 0, 256)
fence, view = Fence.create(device), add(values, values).buffer_view
commands = device.create_command_buffer(0, 3, -1, 2)
(lent,) = allocator.lend(64, 1)
odd = [
    None, "text", b"bytes", -1, 0, 1, 7, 1 << 40, (1 << 63) - 1, 1 << 64, -(1 << 63), 1.5, True, object(), (),
    [], {}, (1, 64, None), (64, 64, np.zeros(64, np.uint8)), (0, None, 0, 0), np.zeros(3), np.uint64(1 << 40),
    memoryview(bytearray(128)), (0, buffer, np.uint64(1 << 40), 4), lent, int, buffer, device,
    fence, view, commands,
]
for target in (add, device, allocator, device.host_allocator, buffer, view, commands):
    for name in dir(target):
        method = getattr(target, name)
        if name.startswith("_") or not callable(method) or name in ("close", "async_"):
            continue
        try:
            count = len(inspect.signature(method).parameters)
        except ValueError:  # machine code says nothing of its arguments
            count = 2
        for given in [(value,) * count for value in odd] + [random.choices(odd, k=count) for _ in range(40)]:
            try:
                method(*given)
            except Exception:
                pass
device.replace_device_allocator(allocator)
gc.collect()
for _ in range(8):
    assert (np.asarray(add.submit(values, values)) == 2 * values).all()
    assert (np.asarray(add(values, values)) == 2 * values).all()
print("survived")
"""


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_an_attack_on_every_method(device: str) -> None:
    command = [sys.executable, "-c", ATTACK, str(PROGRAM), device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


@pytest.mark.parametrize("odd", [None, 5, -64, 64, 1 << 70, 64.0, "text", (), (64, 64, np.zeros(64))])
def test_blocks_that_were_not_lent(odd: Any) -> None:
    allocator = HeapAllocator()
    allocator.lend(64, 1)
    with pytest.raises(StatusError, match="address: "):
        allocator.take_back(odd)
    assert allocator.kept_bytes == 0


def test_a_block_is_taken_back_once() -> None:
    allocator = HeapAllocator()
    (block,) = allocator.lend(64, 1)
    allocator.take_back(block[0])
    with pytest.raises(StatusError, match="address: no block that is lent"):
        allocator.take_back(block[0])
    assert allocator.lend(64, 2)[0][0] == block[0]


@pytest.mark.parametrize("odd", [None, -64, 0, 7, "text", 64.0, 1 << 70 | 1])
def test_blocks_of_no_size_class(odd: Any) -> None:
    with pytest.raises(StatusError, match="capacity: expected"):
        HeapAllocator().lend(odd, 1)


@pytest.mark.parametrize("kind", [np.uint64, np.int64, np.uint16])
def test_ranges_do_not_wrap_around(device: Device, kind: Any) -> None:
    buffer = device.device_allocator.allocate(0, 0, 256)
    commands = device.create_command_buffer(REUSABLE, ANY)
    assert buffer.subspan(kind(64), kind(64)).byte_offset == 64
    with pytest.raises(OutOfRangeError):
        commands.fill_buffer((0, buffer, kind(300), 4), 1, 1)
    with pytest.raises(OutOfRangeError):
        buffer.subspan(kind(300), kind(4))


def test_sizes_do_not_wrap_around() -> None:
    allocator = HeapAllocator()
    assert allocator.allocate(0, 0, np.int8(100)).byte_length == 100  # type: ignore[arg-type]
    half = np.int64(1 << 32)
    with pytest.raises(OutOfRangeError, match="overflows 64 bits"):
        BufferView(allocator.allocate(0, 0, 256), (half, half), _FLOAT_32)  # type: ignore[arg-type]


@pytest.mark.parametrize("counts", [(-1, 1, 1), (1, -1, -1), (1, 1, -1)])
def test_negative_workgroup_counts(counts: tuple[int, int, int]) -> None:
    with pytest.raises(OutOfRangeError, match="workgroups"):
        check_workgroups(*counts)


def untold(odd: Any) -> Any:
    return 5 if isinstance(odd, str) else odd


def present(odd: Any) -> Any:
    return 5 if odd is None else odd


def untimely(odd: Any) -> Any:
    return "1" if odd is None or isinstance(odd, float) else odd


ODD = [None, "text", 1.5, [()], object(), np.zeros(3), np.array(["a"])]


@pytest.mark.parametrize("odd", ODD)
def test_arguments_of_another_kind_are_statuses(device: Device, odd: Any) -> None:
    allocator, commands = HeapAllocator(), device.create_command_buffer(REUSABLE, ANY, -1, 1)
    buffer = device.device_allocator.allocate(0, 0, 256)
    commands.fill_buffer((0, None, 0, 4), 1, 1)
    for call in (
        lambda: allocator.forget(odd),
        lambda: allocator.lend(64, odd),
        lambda: split_name(odd),
        lambda: device.create_command_buffer(odd, ANY),
        lambda: device.create_command_buffer(REUSABLE, ANY, odd),
        lambda: device.wait_semaphores(WaitMode.ALL, odd, 0),
        lambda: device.wait_semaphores(WaitMode.ALL, [(odd, 1)], 0),
        lambda: device.profiling_begin(odd),
        lambda: commands.require_slot(odd, 0, 0),
        lambda: commands.check_table(odd),
        lambda: commands.dispatch(odd, 0, (1, 1, 1), [], []),
        lambda: Buffer(buffer.allocation, odd, 4),
        lambda: Buffer(buffer.allocation, 0, odd),
        lambda: device.query_i64("hal.cpu", untold(odd)),
        lambda: device.query_i64(untold(odd), "key"),
        lambda: device.set_threads(odd),
        lambda: device.write_buffer(odd, np.zeros(4, np.uint8)),
        lambda: device.write_buffer(buffer, np.zeros(300, np.uint8) if odd is None else memoryview(b"a")),  # type: ignore[arg-type]
        lambda: device.read_buffer(odd),
        lambda: device.queue_fill(ANY, None, None, odd, 0, 4, 0, 1),
        lambda: device.queue_copy(ANY, None, None, buffer, 0, odd, 0, 4),
        lambda: device.queue_copy(ANY, None, None, odd, 0, buffer, 0, 4),
        lambda: device.queue_update(ANY, None, None, memoryview(b"abcd"), 0, odd, 0, 4),
        lambda: device.queue_execute(ANY, None, None, present(odd)),
        lambda: device.queue_barrier(ANY, present(odd), None),
        lambda: device.queue_barrier(ANY, None, present(odd)),
        lambda: device.queue_alloca(ANY, present(odd), None, 0, 0, 0, 64),
        lambda: device.create_semaphore(0).signal(odd),
        lambda: device.create_semaphore(0).wait(1, untimely(odd)),
        lambda: Fence.create(device).wait(untimely(odd)),
        lambda: Fence.join([present(odd)]),
    ):
        with pytest.raises(StatusError):
            call()


@pytest.mark.parametrize(("offset", "length"), [(-4, 8), (300, 4), (0, 257), (8, -2), (np.uint64(300), 4)])
def test_buffers_are_inside_of_their_allocation(device: Device, offset: Any, length: Any) -> None:
    allocation = device.device_allocator.allocate(0, 0, 256).allocation
    with pytest.raises(OutOfRangeError, match="outside a buffer of 256 bytes"):
        Buffer(allocation, offset, length)


def test_more_blocks_than_fast_paths_want() -> None:
    with pytest.raises(StatusError, match="count: expected at most"):
        HeapAllocator().lend(64, 1 << 40)


@pytest.mark.parametrize("odd", ODD)
def test_what_contexts_and_instances_are_told(odd: Any) -> None:
    with Session("local-sync") as session:
        with pytest.raises(StatusError):
            session.context.notify(odd)
        with pytest.raises(StatusError):
            session.instance.loaders_with(None, untold(odd), ())
        with pytest.raises(StatusError):
            session.instance.loaders_with(None, (), untold(odd))


def test_lists_inside_themselves() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(StatusError), Session("local-sync") as session:
        session.to_device(endless)


@pytest.mark.parametrize("odd", [-1, -1e-9, float("-inf"), float("nan"), -(10**400), np.float32(-1), "1", 1j])
@pytest.mark.parametrize("reached", [True, False])
def test_times_that_are_none_are_refused(odd: Any, reached: bool) -> None:
    """Whether there is anything to wait for or not."""
    with Session("local-sync") as session:
        device = session.device
        semaphore = device.create_semaphore(5)
        value = 5 if reached else 6
        fence = Fence([(semaphore, value)])
        waits = (
            lambda: semaphore.wait(value, odd),
            lambda: fence.wait(odd),
            lambda: wait_fences([fence, None], odd),
            lambda: device.wait_semaphores(WaitMode.ALL, [(semaphore, value)], odd),
            lambda: deadline(odd),
            lambda: FolderStore("nowhere", odd),
            lambda: EnvironmentProvider({}, odd),
        )
        for wait in waits:
            with pytest.raises(InvalidArgumentError, match="timeout: expected"):
                wait()


def test_times_without_end_are_no_limit() -> None:
    with Session("local-sync") as session:
        semaphore = session.device.create_semaphore(0)
        threading.Timer(0.01, semaphore.advance, (1,)).start()
        assert semaphore.wait(1, float("inf")) and semaphore.wait(1, 10**400)
        assert not semaphore.wait(2, 0) and not semaphore.wait(2, -0.0)
