"""The number of threads changes; the records of queues that machine code reads."""

from __future__ import annotations

import ctypes
import os
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jitree.codegen.record import layout_of
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    UnimplementedError,
)
from jitree.hal.command_list import CommandList
from jitree.hal.device import Device
from jitree.hal.driver import DriverRegistry
from jitree.hal.fence import Fence
from jitree.hal.local import thread_team
from jitree.hal.local.device import LocalDevice
from jitree.hal.local.executor import require_native_executor
from jitree.hal.local.queue_record import PROFILED, UNSUPPORTED, Queue, QueueRecord
from jitree.hal.local.task import INLINE_BYTES, TaskDevice
from jitree.hal.local.topology import unpinned
from jitree.hal.local.workers import WorkerPool
from jitree.hal.profiling import ProfilingMode
from tests.hal.helpers import TIMEOUT, Meeting, allocate, direct, finish, new_threads, wait_until
from tests.hal.kernels import Call, Kernel, PythonExecutable
from tests.hal.native_kernels import BUSY, aligned, dispatch


def test_threads_of_a_pool_come_and_go() -> None:
    pool, threads = WorkerPool("test-pool", unpinned(1)), new_threads("test-pool")
    for count in (3, 1, 5, 2):
        pool.resize(unpinned(count))
        assert pool.worker_count == count
        barrier = threading.Barrier(count, timeout=TIMEOUT)
        tasks = [Meeting(barrier) for _ in range(count)]
        pool.post(*tasks)
        assert all(task.done.wait(TIMEOUT) for task in tasks)
        wait_for_threads(threads, count)
    pool.close()
    assert threads() == 0


def test_results_do_not_depend_on_the_number_of_threads(registry: DriverRegistry) -> None:
    require_native_executor()
    workers = new_threads("jitree-worker")
    with registry.create_device("local-task://?threads=2") as device:
        for count in (2, 4, 1, 3, 2):
            device.set_threads(count)
            assert device.threads == count
            assert device.query_i64("hal.dispatch", "concurrency") == (True, count)
            visits = run_busy(device)
            assert (visits == 1).all()
            wait_for_threads(workers, count - 1)
    assert workers() == 0


def test_helpers_start_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who needs a team waits for one of them; and as many help as the system gives."""
    native = require_native_executor()
    starters, start = list[str](), threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        starters.append(threading.current_thread().name)
        if len(starters) == 4:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    helpers = thread_team._Helpers("test-team", unpinned(6), 1, native)
    helpers.start()
    wait_until(lambda: len(starters) == 4 and "3 helpers, 3 asleep" in helpers.report())
    # A thread in between starts the first one for the main thread.
    assert starters[1:] == [f"test-team.{number}" for number in (1, 2, 3)]
    assert helpers._team.workers == 3
    helpers.stop()
    for thread in helpers.stop():  # once more is the same
        thread.join(TIMEOUT)
    assert thread_count("test-team") == 0


def test_threads_change_while_work_is_going_on(registry: DriverRegistry) -> None:
    require_native_executor()
    with registry.create_device("local-task://?threads=2") as device:
        stop, failures = threading.Event(), list[object]()

        def work() -> None:
            try:
                while not stop.is_set():
                    assert (run_busy(device) == 1).all()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for count in [1, 4, 2, 3] * 5:
            device.set_threads(count)
            time.sleep(0.01)
        stop.set()
        for thread in threads:
            thread.join(TIMEOUT)
        assert not failures and not any(thread.is_alive() for thread in threads)


def test_numbers_of_threads_that_cannot_be(registry: DriverRegistry) -> None:
    with registry.create_device("local-task://?threads=2") as device:
        for count in (0, -1, 65):
            with pytest.raises(OutOfRangeError, match="1 to 64 threads"):
                device.set_threads(count)
        assert device.threads == 2
    pinned = registry.create_device(f"local-task://?cpu_ids={min(os.sched_getaffinity(0))}")
    with pinned, pytest.raises(FailedPreconditionError, match="cpu_ids"):
        pinned.set_threads(2)
    with registry.create_device("local-sync") as device:
        device.set_threads(1)
        assert device.threads == 1
        with pytest.raises(UnimplementedError, match="local-task"):
            device.set_threads(2)
    wrong: list[Any] = [1.5, "2", None]
    with registry.create_device("local-task://?threads=2") as device:
        for count in wrong:
            with pytest.raises(InvalidArgumentError, match="expected an integer but got"):
                device.set_threads(count)
        assert device.threads == 2


def test_a_block_has_another_number_of_threads(registry: DriverRegistry) -> None:
    with registry.create_device("local-task://?threads=2") as device:
        with device.threads(3):
            assert device.threads == 3
            with device.threads(1):
                assert device.threads == 1
            assert device.threads == 3
        with pytest.raises(ZeroDivisionError), device.threads(4):
            raise ZeroDivisionError
        with pytest.raises(OutOfRangeError, match="1 to 64 threads"), device.threads(0):
            pass
        assert device.threads == 2 and type(pickle.loads(pickle.dumps(device.threads))) is int


# What machine code reads.


def test_records_are_open_while_nothing_speaks_against_it(registry: DriverRegistry) -> None:
    device = registry.create_device("local-sync")
    assert read_record(device, "open") == 1 and read_record(device, "inline_limit") == -1
    device.profiling_begin(ProfilingMode.QUEUE_OPERATIONS)
    assert read_record(device, "open") == 1 and read_record(device, "log")
    device.profiling_end()
    assert read_record(device, "open") == 1 and not read_record(device, "log")
    device.close()
    assert read_record(device, "open") == 0
    with registry.create_device("null") as null:
        assert read_record(null, "open") == 0


def test_records_name_the_team(registry: DriverRegistry) -> None:
    require_native_executor()
    with registry.create_device("local-task://?threads=2") as device:
        assert read_record(device, "open") == 0, "the threads start with the first list"
        run_busy(device)
        assert read_record(device, "open") == 1
        first = read_record(device, "team")
        assert first and 0 < read_record(device, "immediate") < read_record(device, "inline_limit")
        device.set_threads(3)
        assert read_record(device, "open") == 0
        run_busy(device)
        assert read_record(device, "open") == 1 and read_record(device, "team") not in (0, first)
        device.set_threads(2)
        run_busy(device)
        assert read_record(device, "team") == first, "records of teams are kept"


def test_reasons_add_up() -> None:
    record = QueueRecord()
    record.hold(PROFILED)
    record.release(UNSUPPORTED)
    assert not record.is_open
    record.release(PROFILED)
    assert record.is_open


# Helpers.


def read_record(device: Device, field: str) -> int:
    assert isinstance(device, LocalDevice)
    return ctypes.c_int64.from_address(device.queue_record() + layout_of(Queue)[field]).value


def run_busy(device: Device) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Runs 64 workgroups of some microseconds on the device's team; how often each has run."""
    assert isinstance(device, TaskDevice)
    visits, workers = aligned(np.zeros(64, np.uint32)), aligned(np.zeros(64, np.uint32))
    commands = CommandList()
    dispatch(commands, BUSY, (64, 1, 1), [2000], visits, workers)
    device._team(-1).execute(commands, *commands.bind(()))
    return visits


def thread_count(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def wait_for_threads(present: Callable[[], int], most: int) -> None:
    wait_until(lambda: present() <= most)


# What runs at once.


@pytest.mark.parametrize(("size", "at_once"), [(1024, True), (INLINE_BYTES + 64, False)])
def test_small_work_runs_at_once_though_it_has_never_run(
    registry: DriverRegistry, size: int, at_once: bool
) -> None:
    require_native_executor()
    threads: list[str] = []

    def kernel(call: Call) -> int:
        threads.append(threading.current_thread().name)
        return 0

    with registry.create_device("local-task://?threads=2") as device:
        done, buffer = Fence.create(device), allocate(device, size)
        executable = PythonExecutable([Kernel("kernel", kernel, binding_count=1)])
        device.queue_dispatch(-1, None, done, executable, 0, (1, 1, 1), [], [direct(buffer)])
        assert done.is_reached() or not at_once
        finish(done)
    (thread,) = threads
    assert thread == threading.current_thread().name if at_once else thread.startswith("jitree-queue")
