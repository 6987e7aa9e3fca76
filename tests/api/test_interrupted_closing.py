"""Closing that is interrupted leaves nothing: the next one finishes it, or the end of what is forgotten."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.api.process import worker
from jitree.base.finalizers import Finalized, has_guard
from jitree.hal.local.task import TaskDevice
from jitree.hal.local.topology import Topology
from jitree.hal.local.workers import WorkerPool
from tests.api.programs import ASYNCHRONOUS, STATE
from tests.base.interruption import AtJump, Interruption, interruptions


def _started() -> Session:
    """A session whose threads all run."""
    session = Session("local-task://?threads=3")
    device = session.device
    assert isinstance(device, TaskDevice)
    for team in device._teams:
        team.start()
    done = threading.Event()

    class Task:
        def run(self) -> None:
            done.set()

        def cancel(self, failure: Exception) -> None: ...

    device._pools[0].post(Task())
    assert done.wait(60)
    return session


def _threads_since(before: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before]


def _close_again(holder: list[Session]) -> None:
    holder[0].close()


def _forget(holder: list[Session]) -> None:
    holder.clear()
    gc.collect()


@pytest.mark.parametrize("finish", [_close_again, _forget])
def test_closing_goes_on(finish: Callable[[list[Session]], None]) -> None:
    before = set(threading.enumerate())
    place = 0
    while True:
        holder = [_started()]
        threads = _threads_since(before)
        assert threads
        place += 1 + place // 8
        interruption = Interruption(place)
        interruption.during(holder[0].close)
        finish(holder)
        for thread in threads:
            thread.join(60)
        assert not _threads_since(before), f"interrupted at place {place}"
        if not interruption.came:
            break
    assert place > 20


@pytest.mark.parametrize("kind", [Interruption, AtJump])
def test_no_reference_stays_when_closing_goes_on(
    kind: type[Interruption], request: pytest.FixtureRequest
) -> None:
    """Of the constants and variables of two programs."""
    gc.collect()
    gc.disable()  # hooks of the collector run at any place, and are not the closing that is interrupted
    request.addfinalizer(gc.enable)
    place = 0
    while True:
        session = Session("local-sync", tier="fast")
        session.load(STATE, ASYNCHRONOUS)
        session["state.increment"]()
        place += 1
        interruption = kind(place)
        interruption.during(session.close)
        session.close()
        assert not session.context.table.live_count, f"interrupted at place {place}"
        if not interruption.came:
            break
    assert place > 20 or (kind is AtJump and sys.version_info >= (3, 12))  # 3.12.3 tells of no jump here


def test_the_end_of_a_forgotten_session_is_interrupted(request: pytest.FixtureRequest) -> None:
    gc.collect()
    gc.disable()  # CPython 3.12 collects where the hook of `Interruption` begins, which drops what is raised
    request.addfinalizer(gc.enable)
    before = set(threading.enumerate())
    place = 0
    while True:
        holder = [_started()]
        threads = _threads_since(before)
        place += 1 + place // 8
        interruption = Interruption(place)
        came_out = interruption.during(holder.clear)
        for thread in threads:
            thread.join(60)
        assert not _threads_since(before), f"interrupted at place {place}"
        is_right = came_out == interruption.came or interruption.was_none
        assert is_right, f"the interrupt at place {place} was lost"
        if not interruption.came:
            break
    assert place > 8


class _TooLate(Exception):
    def __init__(self, seconds: int) -> None:
        super().__init__(f"after {seconds} s")


def test_what_a_handler_raises_comes_after_the_end() -> None:
    """It is the same error, with what it was made of."""
    error = _TooLate(3)
    steps = list[str]()

    def expire(number: int, frame: FrameType | None) -> None:
        raise error

    class Late(Finalized):
        def __init__(self) -> None:
            self.will_end()

        def end(self) -> None:
            steps.append("begun")
            if len(steps) == 1:
                signal.raise_signal(signal.SIGUSR1)
            steps.append("ended")

    earlier = signal.signal(signal.SIGUSR1, expire)
    try:
        late = [Late()]
        with pytest.raises(_TooLate) as raised:
            late.clear()
            steps.append("went on")  # at the next look of Python it is raised
            for _ in range(2):
                pass
    finally:
        signal.signal(signal.SIGUSR1, earlier)
    assert raised.value is error
    assert steps[:3] == ["begun", "begun", "ended"]


def test_waiting_work_is_cancelled_by_the_second_closing() -> None:
    cancelled = list[int]()

    class Work:
        def __init__(self, number: int) -> None:
            self.number = number

        def run(self) -> None: ...

        def cancel(self, failure: Exception) -> None:
            if self.number == 3 and 3 not in interrupted:
                interrupted.append(3)
                raise KeyboardInterrupt
            cancelled.append(self.number)

    interrupted = list[int]()
    pool = WorkerPool("test-worker", Topology((None,)))
    pool._shared.coming = True  # no thread comes for the tasks
    pool.post(*map(Work, range(6)))
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    pool.close()
    assert sorted(cancelled) == list(range(6))


def _descriptors_of_no_session() -> int:
    """The number of descriptors when the process that starts others is there, and none of those."""
    session: Any = Session("local-sync", sandbox="process")
    session._alive()
    session.close()
    gc.collect()  # what earlier tests have left
    return len(os.listdir("/proc/self/fd"))


def test_a_process_ends_when_closing_was_interrupted() -> None:
    """As many descriptors as before, and no process."""
    before = _descriptors_of_no_session()
    place = 0
    while True:
        session: Any = Session("local-sync", sandbox="process")
        session._alive()
        place += 2 + place // 4
        interruption = Interruption(place)
        interruption.during(session.close)
        session.close()
        assert len(os.listdir("/proc/self/fd")) == before, f"interrupted at place {place}"
        if not interruption.came:
            break
    assert place > 8


def test_nothing_is_left_of_a_process_whose_start_was_interrupted() -> None:
    """No descriptor; the process ends with the last one that leads to it."""
    before = _descriptors_of_no_session()
    places = 0

    def start() -> None:
        opened.append(Session("local-sync", sandbox="process"))
        opened[0]._alive()

    for interruption in interruptions(32):
        opened = list[Any]()
        interruption.during(start)
        while opened:
            opened.pop().close()
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before, f"interrupted at place {interruption.place}"
        places += 1
    assert places > 40


def test_an_end_waits_for_what_a_start_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock that an end takes is held: a start that was interrupted goes on in a thread."""
    held = list[bool]()

    class Theirs:
        def fileno(self) -> int:
            return 0

        def close(self) -> None:
            held.append(has_guard())

    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError("no process")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    starter = worker.ForkServer()
    starter._theirs.close()
    monkeypatch.setattr(starter, "_theirs", Theirs())
    with pytest.raises(OSError, match="no process"):
        starter.start()
    assert held == [True]
    starter.end()


def test_what_starts_processes_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt leaves no process that nothing waits for, wherever it comes; the next start goes on."""
    made = list[Any]()

    class Made:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            made.append(self)
            self.ended = list[str]()

        def kill(self) -> None:
            self.ended.append("killed")

        def wait(self) -> None:
            self.ended.append("awaited")

    monkeypatch.setattr(subprocess, "Popen", Made)
    before = len(os.listdir("/proc/self/fd"))
    for interruption in interruptions(0):
        made.clear()
        starter = worker.ForkServer()
        interruption.during(starter.start)
        starter.start()
        interruption.during(starter.end)
        starter.end()
        assert [one.ended[-2:] for one in made] == [["killed", "awaited"]]
        assert len(os.listdir("/proc/self/fd")) == before
    starter = worker.ForkServer()
    starter.end()
    starter.start()
    assert len(made) == 1, "one that has ended starts nothing"


def _profile(session: Session, handles: list[Any]) -> None:
    with session.profile():
        pass


def _tap(session: Session, handles: list[Any]) -> None:
    with session.tap():
        pass


def _replace(session: Session, handles: list[Any]) -> None:
    handles.append(session.replace("add_*", lambda lhs, rhs, out: np.subtract(lhs, rhs, out=out)))
    handles[0].undo()


@pytest.mark.parametrize(("look", "spread"), [(_profile, 16), (_tap, 24), (_replace, 24)])
def test_an_interrupt_leaves_nothing_that_looks(
    look: Callable[[Session, list[Any]], None], spread: int
) -> None:
    """Ended again, or forgotten, it ends, whatever was done of its beginning or its end."""
    numbers = np.arange(64, dtype=np.float32)
    with Session("local-sync") as session:
        session.load(ASYNCHRONOUS)
        add = session["asynchronous.add"]
        for _ in range(2):
            look(session, [])
        for interruption in interruptions(spread):
            handles: list[Any] = []
            interruption.during(partial(look, session, handles))
            for handle in handles:
                handle.undo()
            device = session.device
            left = [device.readers, session.context.table.readers, add.readers, device.profiler.mode]
            assert not any(left) and not session.is_looked_at, f"interrupted at place {interruption.place}"
            assert np.array_equal(add(numbers, numbers), 2 * numbers)
