"""Ctrl-C in kernels and programs that never end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.codegen.record import layout_of, size_of
from jitree.errors import CancelledError, DeadlineExceededError
from jitree.hal.command_layout import KernelDispatch
from jitree.hal.local import interrupts
from jitree.hal.local.queue import LocalQueue
from jitree.hal.local.task import TaskDevice
from jitree.loaders.vmvx import arguments
from tests.api.direct import prepare_calls
from tests.modules.helpers import python_session

_PROGRAMS = Path(__file__).parents[2] / "data" / "programs"
_TIERS = ["plain", "fast", "auto", "native"]
_SCRIPT = """
import os, signal, sys, threading
import numpy as np
import jitree

path, device, raised, *tiers = sys.argv[1:]
two = np.int32(2)
found = np.full(4096, 2, np.int32)


class Alarm(Exception):
    pass


kind = {"Alarm": Alarm, "GeneratorExit": GeneratorExit, "KeyboardInterrupt": KeyboardInterrupt}[raised]
sent = signal.SIGINT if kind is KeyboardInterrupt else signal.SIGALRM


def ring(number, frame):
    raise kind


signal.signal(signal.SIGALRM, ring)


def interrupted(call, seconds):
    kill = threading.Timer(seconds, os.kill, (os.getpid(), sent))
    try:
        kill.start()
        result = call()
    except kind:
        pass
    else:
        sys.exit(f"a result of a kernel that never ends: {np.asarray(result)}")
    kill.join()


for tier in tiers:
    print(tier, flush=True)
    session = jitree.Session(device, tier=tier)
    search = session.load(path).f
    for _ in range(3):
        assert (np.asarray(search(found, two)) == 2).all()
    for place in (slice(None), 4095):  # where it never ends; only in some threads' parts
        begin = found.copy()
        begin[place] = 3
        interrupted(lambda: search(begin, two), 0.05)
        interrupted(lambda: np.asarray(search.submit(begin, two)), 0.05)
        assert (np.asarray(search(found, two)) == 2).all()
    interrupted(lambda: search(begin, two), 0)
    session.close()  # which waits for the threads
"""
"""One process for all tiers: to start one takes longer than they do. Each tier is the first one of some."""


@pytest.mark.parametrize(("device", "first"), [("local-sync", 0), ("local-task://?threads=2", 1)])
@pytest.mark.parametrize(("raised", "second"), [("KeyboardInterrupt", 0), ("Alarm", 1), ("GeneratorExit", 2)])
def test_an_endless_kernel_is_interrupted(device: str, first: int, raised: str, second: int) -> None:
    """On every thread that takes part, whatever its caller waits for; what follows is as usual. What a
    handler raises is the call's exception."""
    tiers = [*_TIERS[first + second :], *_TIERS[: first + second]]
    program = [sys.executable, "-c", _SCRIPT, str(_PROGRAMS / "endless.vmfb"), device, raised, *tiers]
    done = subprocess.run(program, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and done.stdout.split() == tiers, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr


_LOOP = """
import os, signal, sys, threading
import numpy as np
import jitree

path, device, tier = sys.argv[1:]
with jitree.Session(device, tier=tier) as session:
    double = session.load(path).double_until
    for _ in range(3):
        assert double(np.float32(1), 100.0)[1] == 7
    kill = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    try:
        kill.start()
        double(np.float32(0), 1.0)
    except KeyboardInterrupt:
        kill.join()
        assert double(np.float32(1), 100.0)[1] == 7
"""


@pytest.mark.parametrize("tier", ["plain", "fast", "native"])
def test_an_endless_loop_of_dispatches_is_interrupted(tier: str) -> None:
    """Whatever one turn of it takes: not only when machine code has made so many turns."""
    program = [sys.executable, "-c", _LOOP, str(_PROGRAMS / "state.vmfb"), "local-sync", tier]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


_ASYNCIO = """
import asyncio, faulthandler, os, signal, sys, threading
import numpy as np
import jitree

faulthandler.dump_traceback_later(50, exit=True)
kernels, state, device, tier = sys.argv[1:]
session = jitree.Session(device, tier=tier)
search, double = session.load(kernels).f, session.load(state).double_until
two, found = np.int32(2), np.full(4096, 2, np.int32)
begin = found.copy()
begin[4095] = 3  # where it never ends


def check():
    assert (np.asarray(search(found, two)) == 2).all()
    assert double(np.float32(1), 100.0)[1] == 7


async def call(function):
    function()


async def call_in_a_task(function):
    async with asyncio.TaskGroup() as group:
        group.create_task(call(function))


async def clean_up():
    try:
        await asyncio.sleep(60)
    finally:
        check()


def interrupted(coroutine):
    kill = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    try:
        kill.start()
        asyncio.run(coroutine)
    except KeyboardInterrupt:
        kill.join()
    else:
        sys.exit("what never ends has ended")


check()
for called in (call, call_in_a_task):
    interrupted(called(lambda: search(begin, two)))
    interrupted(called(lambda: np.asarray(search.submit(begin, two))))
    interrupted(called(lambda: double(np.float32(0), 1.0)))
interrupted(search.async_(begin, two))
interrupted(double.async_(np.float32(0), 1.0))
interrupted(clean_up())
check()
session.close()
"""


@pytest.mark.parametrize("tier", ["plain", "auto"])
@pytest.mark.parametrize("device", ["local-sync", "local-task://?threads=2"])
def test_one_interrupt_is_enough_where_an_event_loop_runs(device: str, tier: str) -> None:
    """It cancels a task, and calls that keep the loop from its turns look for that themselves; calls that
    clean up after it are made."""
    paths = [str(_PROGRAMS / name) for name in ("endless.vmfb", "state.vmfb")]
    program = [sys.executable, "-c", _ASYNCIO, *paths, device, tier]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr


class _Strike:
    """Raises KeyboardInterrupt once, at the place of that number since the call has submitted its work, when
    other threads have begun that; or where the call begins to sleep."""

    def __init__(self, place: int, queue: LocalQueue) -> None:
        self.place = place
        self.left = place
        self.sleeps = False
        self._queue = queue

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_name
        self.sleeps = event == "c_call" and name == "_sleep" and argument.__name__ == "acquire"
        if not self.sleeps and (event not in ("call", "c_return") or name == "<genexpr>"):
            return
        operations = tuple(self._queue.announced)
        if not operations:
            return
        self.left -= 1
        if self.sleeps or self.left <= 0:
            sys.setprofile(None)
            until = time.monotonic() + 0.02
            while not operations[0].has_begun and time.monotonic() < until:
                time.sleep(0.001)  # it never begins where this thread has not posted it yet
            raise KeyboardInterrupt


def test_an_interrupt_anywhere_in_a_call_ends_its_kernel() -> None:
    """Also right after another thread has begun it, when nothing waits for it yet."""
    found = np.full(4096, 2, np.int32)
    with python_session("local-task://?threads=2") as session:
        device = session.device
        assert isinstance(device, TaskDevice)
        search = session.load(_PROGRAMS / "endless.vmfb").f
        for _ in range(2):
            search(found, 2)
        queue = device._queue(-1)
        place = 0
        while True:
            place += 1
            strike = _Strike(place, queue)
            sys.setprofile(strike)
            try:
                search(np.full(4096, 3, np.int32), 2)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            until = time.monotonic() + 20
            while (queue.announced or _is_busy(device)) and time.monotonic() < until:
                time.sleep(0.001)
            assert not queue.announced and not _is_busy(device), f"it goes on after place {place}"
            if strike.sleeps:
                break
        assert place > 50
        assert (np.asarray(search(found, 2)) == 2).all()


_LAST = 0x7FFFFFFF
_BINDING_COUNT = 8
"""The place of that field in DISPATCH."""


class _StrikeInside(_Strike):
    """Not where the caller has the results already."""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename != __file__:
            super().__call__(frame, event, argument)


def test_an_interrupt_anywhere_in_a_submission_by_machine_code_ends_its_kernel(no_collector: None) -> None:
    """Nobody has its results, whether the program, the fence or the results are looked at."""
    with Session("local-task://?threads=2", tier="fast") as session:
        # It takes all turns, so that a caller that goes on leaves such work to other threads.
        found, never, last = map(
            session.to_device, (np.ones(4096, np.int32), np.full(4096, -1, np.int32), np.int32(_LAST))
        )
        device, search = session.device, session.load(_PROGRAMS / "asynchronous_endless.vmfb").f
        assert isinstance(device, TaskDevice)
        for _ in range(3):
            assert (np.asarray(search.submit(found, last)) == _LAST).all()
        assert search.is_direct
        queue, place, comes = device._queue(-1), 0, True
        while comes:
            place, comes = place + 1, False
            sys.setprofile(_StrikeInside(place, queue))
            try:
                kept = search.submit(never, last)
            except KeyboardInterrupt:
                comes = True
            finally:
                sys.setprofile(None)
            if not comes:  # the session knows its work by what it gives
                session.cancel()
            until = time.monotonic() + 20
            while (queue.announced or _is_busy(device)) and time.monotonic() < until:
                time.sleep(0.0001)
            if queue.announced or _is_busy(device):
                session.cancel()
                for operation in tuple(queue.announced):
                    operation.interrupt(CancelledError("the test has ended"))
                pytest.fail(f"it goes on after place {place}")
        assert place > 30 and not kept._is_there()
        assert (np.asarray(search(found, last)) == _LAST).all()


def _is_busy(device: TaskDevice) -> bool:
    shared = device._pools[0]._shared
    return bool(shared.tasks) or len(shared.parked) < len(shared.threads)


def test_an_interrupt_anywhere_in_an_awaited_call_by_machine_code_ends_its_kernel(no_collector: None) -> None:
    """Until the event loop has had two turns: what comes then is the loop's."""
    with Session("local-task://?threads=2", tier="fast") as session:
        found, never, last = map(
            session.to_device, (np.ones(4096, np.int32), np.full(4096, -1, np.int32), np.int32(_LAST))
        )
        device, search = session.device, session.load(_PROGRAMS / "asynchronous_endless.vmfb").f
        assert isinstance(device, TaskDevice)
        for _ in range(3):
            assert (np.asarray(asyncio.run(search.async_(found, last))) == _LAST).all()
        prepare_calls()
        assert search.is_direct
        queue, place, strike = device._queue(-1), 0, None

        async def call(strike: _Strike) -> None:
            def end() -> None:
                sys.setprofile(None)
                if strike.left > 0:
                    session.cancel()

            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, end)
            sys.setprofile(strike)
            with suppress(CancelledError):
                await search.async_(never, last)

        while strike is None or strike.left <= 0:
            place += 1
            strike = _StrikeInPackage(place, queue)
            try:
                asyncio.run(call(strike))
            except KeyboardInterrupt:
                assert strike.left <= 0
            finally:
                sys.setprofile(None)
            until = time.monotonic() + 20
            while (queue.announced or _is_busy(device)) and time.monotonic() < until:
                time.sleep(0.0001)
            if queue.announced or _is_busy(device):
                session.cancel()
                pytest.fail(f"it goes on after place {place}")
        assert place > 5
        assert (np.asarray(search(found, last)) == _LAST).all()


class _StrikeInPackage(_Strike):
    """Not in the event loop."""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if f"{os.sep}jitree{os.sep}" not in frame.f_code.co_filename:
            return
        if event == "call" and frame.f_lineno != frame.f_code.co_firstlineno:
            return  # no such place: what goes on where it has yielded is raised in, not in front of it
        super().__call__(frame, event, argument)


def test_what_machine_code_has_submitted_is_not_the_next_call_s() -> None:
    """Which ends by its deadline: what its thread has submitted or awaits elsewhere goes on."""
    with Session("local-task://?threads=2", tier="fast") as session:
        found, never, last = map(
            session.to_device, (np.ones(4096, np.int32), np.full(4096, -1, np.int32), np.int32(_LAST))
        )
        search = session.load(_PROGRAMS / "asynchronous_endless.vmfb").f
        for _ in range(3):
            np.asarray(search(found, last))
        prepare_calls()
        assert search.is_direct

        async def call() -> None:
            awaited = asyncio.create_task(search.async_(never, last))
            await asyncio.sleep(0)  # it has begun
            submitted = search.submit(never, last)
            assert not interrupts.this_thread.submitted
            with pytest.raises(DeadlineExceededError):
                search(never, last, timeout=0.01)
            await asyncio.sleep(0)
            assert not awaited.done() and not submitted._is_there()
            session.cancel()
            for pending in (awaited, submitted):
                with pytest.raises(CancelledError):
                    np.asarray(await pending)

        asyncio.run(call())


def test_stop_of_iteration_that_a_handler_raises_leaves_no_binding_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python takes it for the end of what is iterated on where a function in C calls what it interrupts."""
    fields = [0] * len(layout_of(KernelDispatch).packer().unpack(bytes(size_of(KernelDispatch))))
    fields[_BINDING_COUNT] = 2
    steps = iter((bytes, bytes, iter(()).__next__, bytes))
    monkeypatch.setattr(arguments, "_memory", lambda *_: next(steps)())
    state = (layout_of(KernelDispatch).packer().pack(*fields), bytes(16), bytes(16), bytes(16), 0, 0)
    with pytest.raises(StopIteration):
        arguments.read_grid(state)


def test_the_thread_that_waits_for_others_rests_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    resting = interrupts.resting(1234)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            resting.__exit__(None, None, None)

    monkeypatch.setattr(interrupts, "time", SimpleNamespace(sleep=sleep))
    resting.__enter__()
    interrupts._look(5678)
    assert not slept, "another job's"
    interrupts._look(1234)
    assert len(slept) == 3
