"""Many threads, tasks and processes at a time: exact results, and nothing is held up or broken for others."""

from __future__ import annotations

import asyncio
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from jitree import Array, CustomModule, Instance, Session
from jitree.dispatch import session_lock
from jitree.errors import CancelledError, FailedPreconditionError, StatusCode
from jitree.hal import watchdog
from jitree.hal.fence import Fence
from jitree.hal.local import task
from jitree.hal.local.device import LocalDevice
from jitree.hal.semaphore import Semaphore
from tests.api.direct import direct
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, STATE
from tests.hal.helpers import TIMEOUT, wait_until

X = np.arange(64, dtype=np.float32)


class Held:
    """A session on one worker, which does nothing before :meth:`free`: all work is queued after it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._free, begun = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            assert self._free.wait(TIMEOUT)

        assert isinstance(session.device, LocalDevice)
        self.done = Fence([(Semaphore(), 1)])
        session.device._queue(-1).submit("hold", None, self.done, hold, -1)
        assert begun.wait(TIMEOUT)

    def queued(self) -> int:
        assert isinstance(self.session.device, task.TaskDevice)
        (line,) = self.session.device._pools[0].report()
        return int(line.split()[-3])

    def free(self) -> None:
        self._free.set()
        assert self.done.wait(TIMEOUT) == StatusCode.OK


@pytest.fixture(params=["plain", "fast"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Python starts every operation, and none of them on the submitting thread."""
    monkeypatch.setattr(task, "INLINE_COST", -1)
    monkeypatch.setattr(task, "INLINE_DEFERRED_COST", -1)
    watchdog.start(3600)
    with Session("local-task://?threads=1", tier=request.param) as session:
        held = Held(session)
        yield held
        held.free()
    watchdog.stop()


def test_awaited_calls_overlap_and_leave_the_loop_alone(held: Held) -> None:
    """A hundred calls of each kind are under way at once; the loop's heart beats meanwhile."""
    module = held.session.load(ASYNCHRONOUS)

    async def main() -> None:
        calls = [asyncio.ensure_future(module.synchronous.async_(X[:4] * number)) for number in range(100)]
        calls += [asyncio.ensure_future(module.add.async_(X, X * number)) for number in range(100)]
        while held.queued() < 200:
            await asyncio.sleep(0)
        assert not any(call.done() for call in calls)
        held.free()
        results = await asyncio.gather(*calls)
        for number in range(100):
            assert np.array_equal(results[number], X[:4] * number * 2)
            assert np.array_equal(results[100 + number], X + X * number)

    asyncio.run(main())


def test_cancelled_calls_leave_nothing_broken(held: Held) -> None:
    module = held.session.load(ASYNCHRONOUS)

    async def main() -> None:
        calls = [asyncio.ensure_future(module.add.async_(X, X * number)) for number in range(20)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(module.synchronous.async_(X[:4]), 0.01)
        held.free()
        results: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
        for number in range(1, 20, 2):
            assert np.array_equal(results[number], X + X * number)
        assert np.array_equal(await module.add.async_(X, X), X + X)

    asyncio.run(main())
    assert np.array_equal(module.add(X, X), X + X)


def test_a_call_that_waits_does_the_queued_work(held: Held) -> None:
    module = held.session.load(ASYNCHRONOUS)
    assert np.array_equal(module.synchronous(X[:4]), X[:4] * 2)
    value = module.add.submit(X, X)
    for _ in range(30):
        value = module.add.submit(value, X)
    assert not value.ready
    assert np.array_equal(value, X * 32)
    assert held.queued() == 0


def test_results_that_are_not_waited_for_in_time(held: Held) -> None:
    module = held.session.load(ASYNCHRONOUS)
    value = module.add.submit(X, X)
    assert value.fence is not None
    assert value.fence.wait(0) == StatusCode.DEADLINE_EXCEEDED
    assert np.array_equal(value, X + X)


def test_closing_ends_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with Session("local-task://?threads=1", tier="plain") as session:
        fence = Fence.create(session.device)
        module = session.load(ASYNCHRONOUS)
        blocked = module.add.submit(X, X)
        pending = type(blocked)(blocked.buffer_view, session.device, fence)
        result = module.add.submit(pending, X)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(np.asarray, result)
            session.close()
            with pytest.raises((CancelledError, FailedPreconditionError)):
                waiting.result(TIMEOUT)


@pytest.mark.parametrize("tier", ["plain", "fast"])
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_closing_ends_calls_that_wait_for_their_results(device: str, tier: str) -> None:
    """Calls that have begun and such that just begin; what they wait for never happens."""
    for pause in range(6):
        with Session(device, tier=tier) as session:
            add = session.load(ASYNCHRONOUS).add
            assert np.array_equal(add(X, X), X + X) and np.array_equal(add(X, X), X + X)
            never = Array(session.to_device(X).buffer_view, session.device, Fence.create(session.device))
            with ThreadPoolExecutor(3) as pool:
                calls = [pool.submit(add, never, X) for _ in range(3)]
                time.sleep(0.001 * pause)
                session.close()
                for call in calls:
                    with pytest.raises((CancelledError, FailedPreconditionError)):
                        call.result(TIMEOUT)


@pytest.mark.parametrize("tier", ["plain", "fast"])
@pytest.mark.parametrize("device", ["local-sync", "local-task://?threads=3"])
def test_one_session_from_threads_and_tasks_together(tier: str, device: str) -> None:
    """Plain, submitted and awaited calls of one session, with state, while the number of threads changes."""
    with Session(device, tier=tier) as session:
        module, state = session.load(ASYNCHRONOUS), session.load(STATE)
        large = session.load(ARITHMETIC).large
        stop = threading.Event()

        def plain(number: int) -> list[int]:
            counts = []
            for step in range(15):
                value = X * (number * 100 + step)
                assert np.array_equal(module.add(value, X), value + X)
                assert np.array_equal(module.add.submit(module.add.submit(value, X), X), value + X + X)
                counts.append(state.increment())
            return counts

        def awaited(number: int) -> list[int]:
            async def main() -> list[int]:
                counts = []
                for _ in range(15):
                    value = X * number
                    results = await asyncio.gather(*(module.add.async_(value, X) for _ in range(5)))
                    assert all(np.array_equal(result, value + X) for result in results)
                    counts.append(await state.increment.async_())
                return counts

            return asyncio.run(main())

        def heavy(number: int) -> list[int]:
            values = np.full(65536, number, np.float32)
            expected = np.asarray(large(values)).copy()
            for _ in range(15):
                assert np.array_equal(large(values), expected)
            return []

        def resize(number: int) -> list[int]:
            while device != "local-sync" and not stop.wait(0.002):
                session.device.set_threads(number % 4 + 1)
                number += 1
            return []

        with ThreadPoolExecutor(10) as pool:
            resizing = pool.submit(resize, 0)
            running = [pool.submit(work, number) for number in range(3) for work in (plain, awaited, heavy)]
            counts = [count for future in running for count in future.result(60)]
            stop.set()
            resizing.result(TIMEOUT)
        assert sorted(counts) == list(range(11, 11 + 6 * 15))


@pytest.mark.parametrize("device", ["local-sync", "local-task://?threads=2"])
def test_a_thread_that_waits_for_a_session_is_noticed(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long device work of calls is done without the session then, until no thread has waited for a while."""
    monkeypatch.setattr(task, "INLINE_LIMIT", 0)
    with Session(device, tier="fast") as session:
        values = np.ones(65536, np.float32)
        large = direct(session.load(ARITHMETIC).large, values)  # which tries the lock itself
        expected = np.array(large(values))
        invoker = session.context.invoker

        def call_while_another_has_it() -> None:
            with ThreadPoolExecutor(1) as pool:
                with invoker.lock:
                    before = invoker._contended_until
                    result = pool.submit(large, values)
                    wait_until(lambda: invoker._contended_until > before)
                assert np.array_equal(result.result(TIMEOUT), expected)

        for _ in range(3):
            assert np.array_equal(large(values), expected) and not invoker.is_contended()
        monkeypatch.setattr(session_lock, "_CONTENDED_SECONDS", 3600.0)
        call_while_another_has_it()
        assert invoker.is_contended()
        assert np.array_equal(large(values), expected)
        invoker._contended_until = 0.0
        assert np.array_equal(large(values), expected) and not invoker.is_contended()


@pytest.mark.parametrize("tier", ["plain", "fast"])
def test_the_watchdog_sees_who_waits_for_a_session(tier: str) -> None:
    """And who has it, for calls that take the slow path and for others."""
    inside, free, reports = threading.Event(), threading.Event(), queue.Queue[str]()
    custom = CustomModule("host")

    @custom.export
    def hold() -> None:
        inside.set()
        assert free.wait(TIMEOUT)

    watchdog.start(0.02, reports.put)
    try:
        with Session("local-sync", tier=tier) as session, ThreadPoolExecutor(1, "the waiter") as pool:
            add = session.load(ARITHMETIC).add
            session.load(custom)
            assert np.array_equal(add(X[:4], X[:4]), 2 * X[:4])
            for call in (lambda: add(X[:4], X[:4]), lambda: add.submit(X[:4], X[:4])):
                inside.clear()
                free.clear()
                holder = threading.Thread(target=session["host.hold"], name="the holder")
                holder.start()
                assert inside.wait(TIMEOUT)
                result = pool.submit(call)
                while "the waiter" not in (text := reports.get(timeout=TIMEOUT)):
                    pass
                assert (
                    "waiting for 0." in text and "the call gate of a session, which the holder has at" in text
                )
                free.set()
                assert np.array_equal(result.result(TIMEOUT), 2 * X[:4])
                holder.join(TIMEOUT)
    finally:
        watchdog.stop()


def test_sessions_that_share_a_device_and_its_threads() -> None:
    with Instance.default().create_device("local-task://?threads=2") as device:

        def work(number: int) -> None:
            with Session(device, tier="fast") as session:
                module, state = session.load(ARITHMETIC), session.load(STATE)
                values = np.full(65536, number, np.float32)
                expected = np.asarray(module.large(values)).copy()
                for step in range(20):
                    assert np.array_equal(module.large(values), expected)
                    assert np.array_equal(state.accumulate(X[:4]), X[:4] * (step + 1))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))


FORKING = """
import os, sys
import numpy as np
import jitree
session = jitree.Session("local-task://?threads=2")
module = session.load(sys.argv[1])
values = np.ones(65536, np.float32)
expected = np.array(module.large(values))
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        same = all(np.array_equal(module.large(values), expected) for _ in range(10))
        session.close()
        os._exit(0 if same else 1)
    children.append(child)
    assert np.array_equal(module.large(values), expected)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert np.array_equal(module.large(values), expected)
sys.exit(max(codes))
"""


def test_sessions_go_on_in_forked_children() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, str(ARITHMETIC)],
        check=True, timeout=60, env=environment,
    )  # fmt: skip


FORKED_MEANWHILE = """
import os, sys, threading
import numpy as np
import jitree
X = np.arange(4, dtype=np.float32)
inside, free = threading.Event(), threading.Event()
custom = jitree.CustomModule("host")

@custom.export
def hold() -> None:
    inside.set()
    free.wait()

session, other = jitree.Session(sys.argv[2]), jitree.Session(sys.argv[2])
session.load(custom)
busy, idle = session.load(sys.argv[1]).add, other.load(sys.argv[1]).add
assert np.array_equal(busy(X, X), 2 * X) and np.array_equal(idle(X, X), 2 * X)
thread = threading.Thread(target=session["host.hold"])
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    try:
        busy(X, X)
    except jitree.errors.FailedPreconditionError as error:
        assert "in use by another thread when this process was forked" in str(error)
        session.close()
        same = np.array_equal(idle(X, X), 2 * X)
        same &= np.array_equal(jitree.load(sys.argv[1], device=sys.argv[2]).add(X, X), 2 * X)
        os._exit(0 if same else 1)
    os._exit(2)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
free.set()
thread.join()
assert np.array_equal(busy(X, X), 2 * X)
sys.exit(code)
"""


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_a_session_that_is_in_use_at_a_fork_is_lost_to_the_child(device: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED_MEANWHILE, str(ARITHMETIC), device],
        check=True, timeout=60, env=environment,
    )  # fmt: skip
