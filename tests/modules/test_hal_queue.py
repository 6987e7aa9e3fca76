"""Fences, command buffers and queue operations of module ``hal``."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from jitree.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    ResourceExhaustedError,
    StatusCode,
    UnimplementedError,
)
from jitree.regs.buffer import VmBuffer
from tests.modules.helpers import ANY, DEFAULT_USAGE, DEVICE_LOCAL, Hal, content, text


def test_fences(hal: Hal) -> None:
    fence = hal.fence()
    assert hal("fence.query", fence) == StatusCode.DEFERRED
    hal("fence.signal", fence)
    assert hal("fence.query", fence) == StatusCode.OK
    failed = hal.fence()
    hal("fence.fail", failed, 0x20 | StatusCode.DATA_LOSS)
    assert hal("fence.query", failed) == StatusCode.DATA_LOSS
    with pytest.raises(InvalidArgumentError):
        hal("fence.fail", hal.fence(), 0x20)


def test_joining(hal: Hal) -> None:
    assert hal("fence.join", 0, []) is None
    assert hal("fence.join", 0, [None, None]) is None
    first, second = hal.fence(), hal.fence()
    joined = hal("fence.join", 0, [first, None, second])
    hal("fence.signal", first)
    assert hal("fence.query", joined) == StatusCode.DEFERRED
    hal("fence.signal", second)
    assert hal("fence.query", joined) == StatusCode.OK


def test_awaiting(hal: Hal) -> None:
    fence = hal.fence()
    assert hal("fence.await", -1, 0, []) == StatusCode.OK
    assert hal("fence.await", 0, 0, [fence]) == StatusCode.DEADLINE_EXCEEDED
    start = time.monotonic()
    assert hal("fence.await", 30, 0, [None, fence]) == StatusCode.DEADLINE_EXCEEDED
    assert 0.025 < time.monotonic() - start < 5
    timer = threading.Timer(0.03, fence.signal)
    timer.start()
    assert hal("fence.await", -1, 0, [None, fence]) == StatusCode.OK
    timer.join()
    assert hal("fence.await", -1, 0, [fence] * 32) == StatusCode.OK
    with pytest.raises(ResourceExhaustedError):
        hal("fence.await", -1, 0, [fence] * 33)


def test_awaiting_a_failed_fence_fails_the_call(hal: Hal) -> None:
    fence, pending = hal.fence(), hal.fence()
    fence.fail(DataLossError("the disk is gone"))
    for timeout in (0, 50, -1):
        with pytest.raises(DataLossError, match="the disk is gone"):
            hal("fence.await", timeout, 0, [pending, fence])


def test_awaiting_in_asyncio(hal: Hal) -> None:
    function = hal.session.context.lookup("hal.fence.await")

    async def main() -> tuple[object, ...]:
        slow, quick, failing = hal.fence(), hal.fence(), hal.fence()
        loop = asyncio.get_running_loop()
        loop.call_later(0.03, quick.signal)
        loop.call_later(0.03, failing.fail, DataLossError("gone"))
        waits = [
            hal.session.context.invoke_async(function, (timeout, 0, [fence]))
            for timeout, fence in ((-1, quick), (20, slow), (1000, quick), (-1, failing))
        ]
        return tuple(await asyncio.gather(*waits, return_exceptions=True))

    forever, timed_out, in_time, failed = asyncio.run(main())
    assert (forever, timed_out, in_time) == ([0], [StatusCode.DEADLINE_EXCEEDED], [0])
    assert isinstance(failed, DataLossError)


def test_queue_operations_in_fence_order(hal: Hal) -> None:
    device, memory = hal.device, hal.fence()
    target = hal("device.queue.alloca", device, ANY, None, memory, 0, DEVICE_LOCAL, DEFAULT_USAGE, 32, 0)
    filled, updated, copied, finished = (hal.fence() for _ in range(4))
    result = hal.buffer(bytes(8))
    hal("device.queue.copy", device, ANY, updated, copied, target, 4, result, 0, 8, 0)
    hal("device.queue.barrier", device, ANY, copied, finished, 0)
    hal("device.queue.update", device, ANY, filled, updated, VmBuffer.alias(b"abcd"), 1, target, 6, 3, 0)
    hal("device.queue.fill", device, ANY, memory, filled, target, 0, 32, 0xBBAA, 2, 0)
    hal("device.queue.flush", device, ANY)
    assert hal("fence.await", -1, 0, [finished]) == 0
    assert content(result) == b"\xaa\xbbbcd\xbb\xaa\xbb"
    released = hal.fence()
    hal("device.queue.dealloca", device, ANY, finished, released, target, 0)
    assert hal("fence.await", -1, 0, [released]) == 0


def test_a_failed_wait_fence_fails_the_signal_fence(hal: Hal) -> None:
    wait, signal = hal.fence(), hal.fence()
    hal("device.queue.barrier", hal.device, ANY, wait, signal, 0)
    hal("fence.fail", wait, StatusCode.DATA_LOSS)
    with pytest.raises(DataLossError):
        hal("fence.await", -1, 0, [signal])


def test_pools_do_not_exist(hal: Hal) -> None:
    with pytest.raises(UnimplementedError):
        hal("device.queue.alloca", hal.device, ANY, None, None, 1, DEVICE_LOCAL, DEFAULT_USAGE, 32, 0)


def test_recorded_transfers(hal: Hal) -> None:
    first, second = hal.buffer(bytes(range(16))), hal.buffer(bytes(16))
    commands = hal.commands(mode=1)
    hal("command_buffer.begin_debug_group", commands, text("group"))
    hal("command_buffer.copy_buffer", commands, 0, 0, first, 4, second, 0, 8, 0)
    hal("command_buffer.execution_barrier", commands, 28, 13, 0)
    hal("command_buffer.fill_buffer", commands, second, 8, 4, 0, 0x11223344, 4, 0)
    hal("command_buffer.update_buffer", commands, VmBuffer.alias(b"xyz"), 1, second, 12, 2, 0, 0)
    hal("command_buffer.advise_buffer", commands, second, 0, 0, 0, 0)
    hal("command_buffer.flush_buffer", commands, 0, second, 0, -1)
    hal("command_buffer.invalidate_buffer", commands, 0, second, 0, 1 << 20)  # the range does not matter
    hal("command_buffer.end_debug_group", commands)
    hal("command_buffer.finalize", commands)
    done = hal.fence()
    hal("device.queue.execute", hal.device, ANY, None, done, commands, 0)
    assert hal("fence.await", -1, 0, [done]) == 0
    assert content(second) == bytes(range(4, 12)) + b"\x44\x33\x22\x11yz\0\0"
    with pytest.raises(FailedPreconditionError):
        hal("device.queue.execute", hal.device, ANY, None, hal.fence(), commands, 0)


def test_binding_tables(hal: Hal) -> None:
    commands = hal.commands(capacity=2)
    hal("command_buffer.copy_buffer", commands, 0, 1, None, 2, None, 0, 4, 0)
    hal("command_buffer.finalize", commands)
    source = hal.buffer(bytes(range(16)))
    for shift in (0, 4):
        target = hal.buffer(bytes(8))
        hal.execute(commands, (source, shift, 12), (target, 4, -1))
        assert content(target) == bytes(4) + bytes(range(2 + shift, 6 + shift))
    with pytest.raises(InvalidArgumentError, match="slot 1"):
        hal.execute(commands, (source, 0, -1))
    with pytest.raises(InvalidArgumentError, match="slot 0"):
        hal.execute(commands, (None, 0, 0), (source, 0, -1))
    with pytest.raises(OutOfRangeError):
        hal.execute(commands, (source, 0, 17), (hal.buffer(bytes(8)), 0, -1))


def test_recording_rules(hal: Hal) -> None:
    buffer = hal.buffer(bytes(16))
    commands = hal.commands(categories=2)
    with pytest.raises(FailedPreconditionError, match="TRANSFER"):
        hal("command_buffer.fill_buffer", commands, buffer, 0, 16, 0, 0, 1, 0)
    with pytest.raises(FailedPreconditionError, match="finalized"):
        hal("device.queue.execute", hal.device, ANY, None, hal.fence(), commands, 0)
    hal("command_buffer.finalize", commands)
    with pytest.raises(FailedPreconditionError):
        hal("command_buffer.finalize", commands)
    commands = hal.commands()
    with pytest.raises(InvalidArgumentError):
        hal("command_buffer.fill_buffer", commands, buffer, 0, 16, 0, 0, 3, 0)
    with pytest.raises(InvalidArgumentError, match="overlap"):
        hal("command_buffer.copy_buffer", commands, 0, 0, buffer, 0, buffer, 4, 8, 0)
    with pytest.raises(OutOfRangeError):
        hal("command_buffer.copy_buffer", commands, 0, 0, None, 0, buffer, 4, 8, 0)  # no slots
    with pytest.raises(OutOfRangeError):
        hal("command_buffer.fill_buffer", commands, buffer, 8, 16, 0, 0, 1, 0)


@pytest.mark.parametrize(
    ("operation", "send", "receive"),
    [(0x90001, True, True), (0x90103, True, True), (9, True, True), (6, True, True), (7, True, True)],
)
def test_collectives_that_make_no_sense(operation: int, send: bool, receive: bool) -> None:
    from tests.modules.test_hal_table import FakeChannel

    hal = Hal("local-sync")
    buffer = hal.buffer(bytes(16))
    with pytest.raises(InvalidArgumentError, match="collective"):
        hal(
            "command_buffer.collective", hal.commands(), FakeChannel(), operation, 0, 0, 0,
            buffer if send else None, buffer if receive else None, 0, 16, 0, 16, 4,
        )  # fmt: skip
    with pytest.raises(InvalidArgumentError, match="FakeChannel cannot be used by a local device"):
        hal(
            "command_buffer.collective", hal.commands(), FakeChannel(), 0x90101, 0, 0, 0,
            buffer, buffer, 0, 16, 0, 16, 4,
        )  # fmt: skip
    hal.session.close()


class Recorder:
    """Stands for the command buffer of a device: keeps what reaches it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


def test_dispatches_reach_the_command_buffer() -> None:
    from jitree.modules.hal import command_buffer

    recorder, executable, buffer = Recorder(), object(), object()
    bindings = [(0, 3, None, 16, 32), (0, 0, buffer, 0, -1)]
    handler: Any = command_buffer
    handler.dispatch(None, recorder, executable, 7, -1, 2, 3, 0, [1, -1], bindings)
    handler.dispatch_indirect(None, recorder, executable, 7, 1, None, 8, 0, [], bindings)
    handler.dispatch_indirect(None, recorder, executable, 7, 1, None, 8, 2, [], bindings)
    references = [(3, None, 16, 32), (0, buffer, 0, -1)]
    assert recorder.calls == [
        ("dispatch", executable, 7, (0xFFFFFFFF, 2, 3), [1, -1], references, 0),
        ("dispatch_indirect", executable, 7, (1, None, 8, 12), [], references, 1),
        ("dispatch_indirect", executable, 7, (1, None, 8, 12), [], references, 2),
    ]
