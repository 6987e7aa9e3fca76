"""Command buffers: what recording refuses, and what executing does."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jitree.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    OutOfRangeError,
    PermissionDeniedError,
    StatusCode,
    UnimplementedError,
)
from jitree.hal.buffer import Allocation, Buffer
from jitree.hal.device import Device
from jitree.hal.driver import DriverRegistry
from jitree.hal.fence import Fence
from jitree.hal.heap import HeapAllocator
from tests.hal.helpers import (
    ANY,
    DISPATCH,
    ONE_SHOT,
    REUSABLE,
    TIMEOUT,
    TRANSFER,
    allocate,
    contents,
    direct,
    execute,
    finish,
    record,
    slot,
)
from tests.hal.kernels import ADD, COUNT, FAIL, make_executable

# Recording.


def test_create_errors(any_device: Device) -> None:
    with pytest.raises(InvalidArgumentError):
        any_device.create_command_buffer(REUSABLE, 0)
    with pytest.raises(InvalidArgumentError):
        any_device.create_command_buffer(REUSABLE, ANY, -1, -1)


def test_recording_ends_once(any_device: Device) -> None:
    command_buffer, buffer = record(any_device), allocate(any_device, 16)
    command_buffer.finalize()
    for call in (
        command_buffer.finalize,
        lambda: command_buffer.fill_buffer(direct(buffer), 0, 4),
        lambda: command_buffer.execution_barrier(28, 13),
        lambda: command_buffer.begin_debug_group("x"),
        lambda: command_buffer.dispatch(make_executable(any_device), 0, (1, 1, 1), [1], []),
    ):
        with pytest.raises(FailedPreconditionError, match="finalized"):
            call()


def test_submission_needs_the_end_of_recording(any_device: Device) -> None:
    with pytest.raises(FailedPreconditionError, match="finalized before"):
        any_device.queue_execute(-1, None, None, record(any_device))


def test_debug_groups_must_balance(any_device: Device) -> None:
    command_buffer = record(any_device)
    with pytest.raises(FailedPreconditionError, match="without an open"):
        command_buffer.end_debug_group()
    command_buffer.begin_debug_group("outer")
    with pytest.raises(FailedPreconditionError, match="1 debug groups"):
        command_buffer.finalize()
    command_buffer.end_debug_group()
    command_buffer.finalize()


def test_categories(any_device: Device) -> None:
    buffer, other = allocate(any_device, 16), allocate(any_device, 16)
    transfer = record(any_device, categories=TRANSFER)
    with pytest.raises(FailedPreconditionError, match="DISPATCH"):
        transfer.dispatch(make_executable(any_device), ADD, (1, 1, 1), [1], [direct(buffer), direct(other)])
    dispatch = record(any_device, categories=DISPATCH)
    calls: tuple[Callable[[], object], ...] = (
        lambda: dispatch.fill_buffer(direct(buffer), 0, 4),
        lambda: dispatch.copy_buffer(direct(buffer), direct(other)),
        lambda: dispatch.update_buffer(memoryview(b"abcd"), 0, direct(buffer, 0, 4)),
        lambda: dispatch.flush_buffer(direct(buffer)),
        lambda: dispatch.invalidate_buffer(direct(buffer)),
    )
    for call in calls:
        with pytest.raises(FailedPreconditionError, match="TRANSFER"):
            call()
    dispatch.execution_barrier(28, 13)


def test_hints_record_nothing(any_device: Device) -> None:
    command_buffer, buffer = record(any_device, capacity=1), allocate(any_device, b"abcd")
    command_buffer.advise_buffer(direct(buffer))
    command_buffer.flush_buffer(slot(0))
    command_buffer.invalidate_buffer(direct(buffer, 1, 2))
    with pytest.raises(OutOfRangeError):
        command_buffer.flush_buffer(slot(1))
    command_buffer.finalize()
    execute(any_device, command_buffer, [(buffer, 0, -1)])
    assert contents(buffer) == b"abcd"


@pytest.mark.parametrize(
    ("offset", "length", "pattern_length", "error"),
    [
        (0, 16, 3, InvalidArgumentError),
        (0, 16, 0, InvalidArgumentError),
        (2, 4, 4, InvalidArgumentError),
        (0, 6, 4, InvalidArgumentError),
        (1, 2, 2, InvalidArgumentError),
        (0, 20, 4, OutOfRangeError),
        (20, -1, 4, OutOfRangeError),
        (-4, 4, 4, OutOfRangeError),
    ],
)
def test_fill_errors(
    any_device: Device, offset: int, length: int, pattern_length: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        record(any_device).fill_buffer(direct(allocate(any_device, 16), offset, length), 0, pattern_length)


def test_copy_errors(any_device: Device) -> None:
    command_buffer, buffer = record(any_device), allocate(any_device, 16)
    with pytest.raises(InvalidArgumentError, match="overlap"):
        command_buffer.copy_buffer(direct(buffer, 0, 8), direct(buffer, 4, 8))
    command_buffer.copy_buffer(direct(buffer, 4, 8), direct(buffer.subspan(4), 0, 8))  # onto itself: nothing
    for source, target in (((8, 12), (0, 12)), ((0, 12), (8, 12)), ((0, 4), (14, 4))):
        with pytest.raises(OutOfRangeError):
            command_buffer.copy_buffer(direct(buffer, *source), direct(allocate(any_device, 16), *target))


def test_update_errors(any_device: Device) -> None:
    command_buffer, target = record(any_device), allocate(any_device, 70_000)
    with pytest.raises(OutOfRangeError, match="source"):
        command_buffer.update_buffer(memoryview(b"abcd"), 2, direct(target, 0, 4))
    with pytest.raises(InvalidArgumentError, match="65536"):
        command_buffer.update_buffer(memoryview(bytes(70_000)), 0, direct(target))
    with pytest.raises(OutOfRangeError):
        command_buffer.update_buffer(memoryview(b"abcd"), 0, direct(target, 69_998, 4))


def test_read_only_buffers_cannot_be_targets(any_device: Device) -> None:
    memory = np.zeros(256, np.uint8)
    memory.flags.writeable = False
    view = memory[-memory.ctypes.data % 64 :][:64].data
    constant = HeapAllocator().import_host(view, 0, 0)
    assert constant is not None
    with pytest.raises(PermissionDeniedError):
        record(any_device).fill_buffer(direct(constant), 0, 4)
    command_buffer = record(any_device, capacity=1)
    command_buffer.fill_buffer(slot(0), 0, 4)
    command_buffer.finalize()
    with pytest.raises(PermissionDeniedError, match="slot 0"):
        any_device.queue_execute(-1, None, None, command_buffer, [(constant, 0, -1)])


def test_dispatch_errors(any_device: Device) -> None:
    command_buffer, executable = record(any_device, capacity=4), make_executable(any_device)
    buffer = direct(allocate(any_device, 64))
    cases: tuple[tuple[int, list[int], list[Any], type[Exception], str], ...] = (
        (3, [1], [buffer] * 2, OutOfRangeError, "function 3"),
        (-1, [1], [buffer] * 2, OutOfRangeError, "function -1"),
        (ADD, [], [buffer] * 2, InvalidArgumentError, "constants"),
        (ADD, [1], [buffer], InvalidArgumentError, "bindings"),
        (COUNT, [], [buffer] * 33, OutOfRangeError, "33 bindings"),
        (COUNT, [], [slot(4)], OutOfRangeError, "slot 4"),
        (COUNT, [], [direct(allocate(any_device, 64), 64, 4)], OutOfRangeError, "outside"),
    )
    for function, constants, bindings, error, text in cases:
        with pytest.raises(error, match=text):
            command_buffer.dispatch(executable, function, (1, 1, 1), constants, bindings)
    with pytest.raises(InvalidArgumentError, match="multiple of 4"):
        misaligned = direct(allocate(any_device, 64), 2, 12)
        command_buffer.dispatch_indirect(executable, COUNT, misaligned, [], [buffer])
    with pytest.raises(OutOfRangeError):
        command_buffer.dispatch_indirect(executable, COUNT, direct(allocate(any_device, 8)), [], [buffer])


def test_collectives_need_a_channel(host_memory_device: Device) -> None:
    with pytest.raises((UnimplementedError, InvalidArgumentError), match=r"collective|channel"):
        record(host_memory_device).collective(None, 0x90101, 0, None, None, 1)  # type: ignore[arg-type]


# Executing.


def test_transfers_in_order(device: Device) -> None:
    first, second = allocate(device, 16), allocate(device, 16)
    command_buffer = record(device)
    command_buffer.fill_buffer(direct(first), 0x0201, 2)
    command_buffer.update_buffer(memoryview(b"xxabcdyy"), 2, direct(first, 4, 4))
    command_buffer.execution_barrier(28, 13)
    command_buffer.copy_buffer(direct(first, 2, 8), direct(second, 8, 8))
    command_buffer.execution_barrier(28, 13)
    command_buffer.fill_buffer(direct(second, 15, 1), 0xFF, 1)
    command_buffer.fill_buffer(direct(second, 0, 0), 0, 4)
    command_buffer.finalize()
    execute(device, command_buffer)
    assert contents(first) == b"\x01\x02" * 2 + b"abcd" + b"\x01\x02" * 4
    assert contents(second) == b"\xee" * 8 + b"\x01\x02abcd\x01\xff"


def test_dispatch(device: Device) -> None:
    source, target = allocate(device, np.arange(16, dtype="<u4").tobytes()), allocate(device, bytes(64))
    command_buffer, executable = record(device), make_executable(device)
    command_buffer.dispatch(executable, ADD, (2, 4, 2), [0xFFFFFFFF], [direct(source), direct(target)])
    command_buffer.dispatch(executable, ADD, (0, 1, 1), [7], [direct(source), direct(target)])
    command_buffer.finalize()
    execute(device, command_buffer)
    assert (target.host_array().view("<u4") == np.arange(16, dtype="<u4") - np.uint32(1)).all()


def test_dispatch_counts_come_from_a_buffer_at_execution(device: Device) -> None:
    counts = allocate(device, np.array([9, 1, 1, 1], "<u4").tobytes())
    target = allocate(device, bytes(64))
    command_buffer, executable = record(device), make_executable(device)
    command_buffer.fill_buffer(direct(counts, 4, 4), 3, 4)
    command_buffer.execution_barrier(28, 13)
    command_buffer.dispatch_indirect(executable, COUNT, direct(counts, 4, 12), [], [direct(target)])
    command_buffer.finalize()
    execute(device, command_buffer)
    assert (target.host_array().view("<u4") == [1] * 3 + [0] * 13).all()


def test_queue_dispatch(device: Device) -> None:
    target, done = allocate(device, bytes(64)), Fence.create(device)
    device.queue_dispatch(-1, None, done, make_executable(device), COUNT, (4, 1, 2), [], [direct(target)])
    finish(done)
    assert (target.host_array().view("<u4") == [1] * 8 + [0] * 8).all()


def test_failing_kernel_names_itself(local_device: Device) -> None:
    done = Fence.create(local_device)
    local_device.queue_dispatch(-1, None, done, make_executable(local_device), FAIL, (3, 2, 1), [4], [])
    with pytest.raises(InternalError, match=r"fail.*42|42.*fail"):
        done.wait(TIMEOUT)


def test_reusable_and_one_shot(device: Device) -> None:
    target = allocate(device, bytes(64))
    reusable, once = record(device), record(device, modes=ONE_SHOT)
    for command_buffer in (reusable, once):
        command_buffer.dispatch(make_executable(device), COUNT, (1, 1, 1), [], [direct(target)])
        command_buffer.finalize()
    for _ in range(5):
        execute(device, reusable)
    execute(device, once)
    with pytest.raises(FailedPreconditionError, match="ONE_SHOT"):
        execute(device, once)
    assert target.host_array().view("<u4")[0] == 6


def test_concurrent_submissions_of_one_command_buffer(device: Device) -> None:
    """Eight threads, each with a binding table of its own."""
    rounds, threads = 20, 8
    command_buffer = record(device, capacity=2)
    command_buffer.dispatch(make_executable(device), ADD, (16, 1, 1), [1], [slot(0), slot(1)])
    command_buffer.execution_barrier(28, 13)
    command_buffer.copy_buffer(slot(1), slot(0))
    command_buffer.finalize()
    pairs = [(allocate(device, bytes(64)), allocate(device, bytes(64))) for _ in range(threads)]
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            for _ in range(rounds):
                execute(device, command_buffer, [(buffer, 0, -1) for buffer in pairs[index]])
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(2 * TIMEOUT)
    assert not errors
    assert all((pair[0].host_array().view("<u4") == rounds).all() for pair in pairs)


# Slots.


def test_slots_add_offsets(device: Device) -> None:
    target = allocate(device, 32)
    command_buffer = record(device, capacity=3)
    command_buffer.fill_buffer(slot(0, 4, 4), 1, 1)
    command_buffer.fill_buffer(slot(2, 4), 2, 1)
    command_buffer.finalize()
    execute(device, command_buffer, [(target, 0, 16), (None, 0, 0), (target, 16, 12), (None, 0, 0)])
    assert contents(target) == b"\xee" * 4 + b"\1" * 4 + b"\xee" * 12 + b"\2" * 8 + b"\xee" * 4


def test_whole_slot_copies(device: Device) -> None:
    first, second = allocate(device, b"abcdefgh"), allocate(device, 8)
    command_buffer = record(device, capacity=2)
    command_buffer.copy_buffer(slot(0, 2), slot(1, 2))
    command_buffer.finalize()
    execute(device, command_buffer, [(first, 0, -1), (second, 0, -1)])
    assert contents(second) == b"\xee\xeecdefgh"
    with pytest.raises(InvalidArgumentError, match="range of 2"):
        device.queue_execute(-1, None, None, command_buffer, [(first, 0, -1), (second, 0, 4)])


def test_binding_table_errors(any_device: Device) -> None:
    buffer = allocate(any_device, 16)
    command_buffer = record(any_device, capacity=2)
    command_buffer.copy_buffer(slot(0, 0, 8), slot(1, 4, 8))
    command_buffer.finalize()
    done = Fence.create(any_device)
    other = allocate(any_device, 16)
    for table, error in (
        ([], InvalidArgumentError),
        ([(buffer, 0, -1)], InvalidArgumentError),
        ([(buffer, 0, -1), (None, 0, 0)], InvalidArgumentError),
        ([(buffer, 0, 17), (other, 0, -1)], OutOfRangeError),
        ([(buffer, 17, -1), (other, 0, -1)], OutOfRangeError),
        ([(buffer, 0, 4), (other, 0, -1)], OutOfRangeError),
        ([(buffer, 0, -1), (other, 8, -1)], OutOfRangeError),
        ([(buffer, 0, -1), (buffer, 0, -1)], InvalidArgumentError),
    ):
        with pytest.raises(error):
            any_device.queue_execute(-1, None, done, command_buffer, table)
    assert done.query() == StatusCode.DEFERRED
    execute(any_device, command_buffer, [(buffer, 0, -1), (other, 0, -1)])


def test_one_shot_survives_a_bad_table(any_device: Device) -> None:
    buffer = allocate(any_device, 16)
    command_buffer = record(any_device, capacity=1, modes=ONE_SHOT)
    command_buffer.fill_buffer(slot(0), 0, 4)
    command_buffer.finalize()
    with pytest.raises(InvalidArgumentError):
        any_device.queue_execute(-1, None, None, command_buffer)
    execute(any_device, command_buffer, [(buffer, 0, -1)])


def test_binding_table_is_copied(device: Device) -> None:
    buffer, wait, done = allocate(device, 8), Fence.create(device), Fence.create(device)
    command_buffer = record(device, capacity=1)
    command_buffer.fill_buffer(slot(0), 0x11, 1)
    command_buffer.finalize()
    table = [(buffer, 0, 4)]
    device.queue_execute(-1, wait, done, command_buffer, table)
    table[0] = (buffer, 0, 8)
    wait.signal()
    finish(done)
    assert contents(buffer) == b"\x11" * 4 + b"\xee" * 4


def test_command_buffers_keep_their_buffers(device: Device) -> None:
    allocator = device.device_allocator
    command_buffer = record(device)
    target = allocate(device, 64)
    command_buffer.copy_buffer(direct(allocate(device, b"x" * 64)), direct(target))
    command_buffer.finalize()
    gc.collect()
    assert allocator.statistics.device.live == 128
    execute(device, command_buffer)
    assert contents(target) == b"x" * 64
    del command_buffer
    gc.collect()


def test_wait_with_inline_execution_is_refused(any_device: Device) -> None:
    command_buffer = any_device.create_command_buffer(0x10, ANY)
    command_buffer.finalize()
    with pytest.raises(InvalidArgumentError, match="inline"):
        any_device.queue_execute(-1, Fence.create(any_device), None, command_buffer)
    execute(any_device, command_buffer)


def test_null_buffer_execute_is_a_barrier(any_device: Device) -> None:
    done = Fence.create(any_device)
    any_device.queue_execute(-1, None, done, None)
    finish(done)


def test_memory_of_another_device_is_refused(any_device: Device) -> None:
    foreign = Buffer(Allocation(0x1000, 64, 0x30, 0xC03, 7, host_address=None))
    with pytest.raises(PermissionDeniedError, match="DEVICE_LOCAL"):
        record(any_device).fill_buffer(direct(foreign), 0, 4)
    command_buffer = record(any_device, capacity=1)
    command_buffer.fill_buffer(slot(0), 0, 4)
    command_buffer.finalize()
    with pytest.raises(PermissionDeniedError):
        any_device.queue_execute(-1, None, None, command_buffer, [(foreign, 0, -1)])


def test_null_device_leaves_buffers_alone(registry: DriverRegistry) -> None:

    with registry.create_device("null") as device:
        buffer = device.queue_alloca(-1, None, None, 0, 0x30, 0xC03, 64)
        command_buffer = record(device)
        command_buffer.fill_buffer(direct(buffer), 0xFF, 1)
        command_buffer.dispatch(make_executable(device), COUNT, (9, 9, 9), [], [direct(buffer)])
        command_buffer.finalize()
        execute(device, command_buffer)
        assert contents(buffer) == bytes(64)
