"""The watchdog: what it says about waits that take long, and that it is silent otherwise."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest

from jitree import Session
from jitree.errors import InvalidArgumentError, ResourceExhaustedError
from jitree.hal import watchdog
from jitree.hal.command_list import BoundCommands, CommandList
from jitree.hal.device import Device
from jitree.hal.driver import DriverRegistry
from jitree.hal.fence import Fence
from jitree.hal.local.device import LocalDevice
from jitree.hal.local.executor import require_native_executor
from jitree.hal.local.operation import Operation
from jitree.hal.semaphore import Semaphore
from tests.hal.helpers import TIMEOUT, allocate, finish
from tests.hal.native_kernels import BUSY, aligned, dispatch
from tests.hal.test_threads import read_record

SECONDS = 0.02


class Reports:
    """What the watchdog has written."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._arrived = threading.Condition()

    def write(self, text: str) -> None:
        with self._arrived:
            self.texts.append(text)
            self._arrived.notify_all()

    def expect(self, pattern: str) -> str:
        """The first report that matches, awaited."""

        def found() -> str | None:
            return next((text for text in self.texts if re.search(pattern, text, re.DOTALL)), None)

        with self._arrived:
            text = self._arrived.wait_for(found, TIMEOUT)
        assert text is not None, (pattern, self.texts)
        return text


@pytest.fixture
def reports() -> Iterator[Reports]:
    reports = Reports()
    watchdog.start(SECONDS, reports.write)
    yield reports
    watchdog.stop()


def in_thread(name: str, work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def test_a_wait_that_never_ends(reports: Reports, registry: DriverRegistry) -> None:
    with registry.create_device("local-sync") as device:
        fence = Fence.create(device)
        thread = in_thread("the waiter", fence.wait)
        text = reports.expect("watchdog: the waiter has been waiting for")
        assert re.search(r"the waiter: waiting for \d+\.\d s: a semaphore \(0x\w+\) to go from 0 to 1", text)
        assert "by nothing: no operation that signals it has been submitted" in text
        fence.signal()
        thread.join(TIMEOUT)


def test_an_awaited_fence(reports: Reports, registry: DriverRegistry) -> None:
    with registry.create_device("local-sync") as device:
        fence = Fence.create(device)

        async def main() -> None:
            waiting = asyncio.ensure_future(wait())
            while not reports.texts:
                await asyncio.sleep(0.001)
            fence.signal()
            await waiting

        async def wait() -> None:
            await fence

        asyncio.run(main())
        assert "MainThread: awaiting for" in reports.texts[0]
        reports.texts.clear()


def test_a_wait_after_other_operations(reports: Reports, registry: DriverRegistry) -> None:
    with registry.create_device("local-task://?threads=2") as device:
        start, signal = Fence.create(device), Fence.create(device)
        buffer = allocate(device, 8)
        wait = start
        for _ in range(3):
            done = Fence.create(device)
            device.queue_fill(-1, wait, done, buffer, 0, 8, 1, 1)
            wait = done
        device.queue_copy(-1, wait, signal, buffer, 0, buffer, 4, 4)
        thread = in_thread("the waiter", signal.wait)
        reports.expect(
            r"the waiter: waiting .* by copy, after 3 others, of which the first waits for a semaphore"
        )
        start.signal()
        thread.join(TIMEOUT)
        finish(signal)


def test_work_that_takes_long(
    reports: Reports, registry: DriverRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that does it, by the names of the functions, and the thread that waits for it."""
    require_native_executor()
    with registry.create_device("local-task://?threads=2") as device:
        go, begun = threading.Event(), threading.Event()
        held = hold_back(device, monkeypatch, begun, go)
        visits, workers = aligned(np.zeros(4, np.uint32)), aligned(np.zeros(4, np.uint32))
        commands = CommandList()
        dispatch(commands, BUSY, (4, 1, 1), [10], visits, workers)
        done = Fence.create(device)
        device._queue(-1).submit("execute", None, done, held(commands), -1)  # type: ignore[attr-defined]
        assert begun.wait(TIMEOUT)
        thread = in_thread("the waiter", done.wait)
        text = reports.expect("the waiter: waiting .* by execute, which has been started")
        assert re.search(r"jitree-queue-0\.0: working for .* s: execute: busy \(4 x 1 x 1 workgroups\)", text)
        assert "jitree-queue-0: 1 of 2 threads, 0 parked; 0 tasks wait" in text
        go.set()
        thread.join(TIMEOUT)


def hold_back(
    device: Device, monkeypatch: pytest.MonkeyPatch, begun: threading.Event, go: threading.Event
) -> Callable[[CommandList], Callable[[], None]]:
    """Makes work that runs a list on the device when it is let go."""

    def run(bound: BoundCommands) -> None:
        begun.set()
        assert go.wait(TIMEOUT)
        device._execute(-1, bound)  # type: ignore[attr-defined]

    return lambda commands: partial(run, BoundCommands(commands, *commands.bind(())))


def test_work_on_the_thread_that_submits_it(reports: Reports, registry: DriverRegistry) -> None:
    """Others that wait for it are told who does it."""
    with registry.create_device("local-sync") as device:
        assert isinstance(device, LocalDevice)
        go, done = threading.Event(), Fence.create(device)
        submitter = in_thread(
            "the submitter", lambda: device._queue(-1).submit("copy", None, done, lambda: wait_for_event(go))
        )
        waiter = in_thread("the waiter", done.wait)
        text = reports.expect("the waiter: waiting .* by copy, which has been started")
        assert "the submitter: working for" in text
        go.set()
        submitter.join(TIMEOUT)
        waiter.join(TIMEOUT)
        assert done.timepoints[0][0].producer(1) is None


def wait_for_event(event: threading.Event) -> None:
    assert event.wait(TIMEOUT)


def test_places_in_the_program(reports: Reports, registry: DriverRegistry) -> None:
    with registry.create_device("local-sync") as device:
        fence = Fence.create(device)

        def wait_in_my_program() -> None:
            fence.wait()

        thread = in_thread("the waiter", wait_in_my_program)
        reports.expect(rf"at {re.escape(__file__)}:\d+ in wait_in_my_program")
        fence.signal()
        thread.join(TIMEOUT)


def test_a_chain_of_operations_is_described_whatever_its_length(registry: DriverRegistry) -> None:
    with registry.create_device("local-sync") as device:
        semaphore = device.create_semaphore()
        for index in range(1, 5000):
            device.queue_barrier(-1, Fence([(semaphore, index)]), Fence([(semaphore, index + 1)]))
        last = semaphore.producer(5000)
        assert isinstance(last, Operation)
        assert "barrier, after 4998 others, of which the first waits for a semaphore" in last.describe()


def test_short_waits_are_not_spoken_of(registry: DriverRegistry) -> None:
    reports = Reports()
    watchdog.start(3600, reports.write)
    with registry.create_device("local-task://?threads=2") as device:
        for _ in range(20):
            done = Fence.create(device)
            device.queue_fill(-1, None, done, allocate(device, 100_000), 0, 100_000, 1, 1)
            finish(done)
    watchdog.stop()
    assert reports.texts == []
    assert watchdog.current is None


def test_devices_made_while_it_is_on_let_python_start_everything(registry: DriverRegistry) -> None:
    watchdog.start(3600)
    with registry.create_device("local-sync") as device:
        assert read_record(device, "open") == 0
    watchdog.stop()
    with registry.create_device("local-sync") as device:
        assert read_record(device, "open") == 1


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_times_that_cannot_be(seconds: float) -> None:
    with pytest.raises(InvalidArgumentError, match="above 0 seconds"):
        watchdog.start(seconds)
    with pytest.raises(InvalidArgumentError, match="above 0 seconds"):
        Session("local-sync", watchdog=seconds)
    assert watchdog.current is None


def test_a_session_turns_it_on() -> None:
    with Session("local-sync", watchdog=3600):
        assert watchdog.current is not None and watchdog.current.seconds == 3600
    watchdog.stop()


def test_no_thread_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr("threading._start_new_thread", refused)
    with pytest.raises(ResourceExhaustedError, match="watching waits: cannot start a thread"):
        watchdog.start(3600)
    assert watchdog.current is None


PROGRAM = """
import threading
from jitree.hal.driver import all_drivers
from jitree.hal.fence import Fence
device = all_drivers().create_device("local-task")
fence = Fence.create(device)
threading.Timer(0.3, fence.signal).start()
fence.wait()
"""


def test_the_environment_turns_it_on() -> None:
    def run(seconds: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {watchdog.VARIABLE: seconds, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, env=environment,
            check=False,
        )  # fmt: skip

    result = run("0.05")
    assert result.returncode == 0 and "watchdog: MainThread has been waiting" in result.stderr
    result = run("soon")
    assert result.returncode == 1 and "JITREE_WATCHDOG='soon' is not a number of seconds" in result.stderr
    assert run("").stderr == ""


def test_forked_children_are_watched(reports: Reports) -> None:
    read, write = os.pipe()
    watchdog.start(SECONDS, lambda text: os.write(write, text.encode()))
    child = os.fork()
    if child == 0:
        Semaphore().wait(1, 0.5)
        os._exit(0)
    os.waitpid(child, 0)
    watchdog.stop()
    os.close(write)
    assert b"MainThread has been waiting" in os.read(read, 10_000)
    os.close(read)
