"""Ends a process while a session is in some state: ``python -m tests.fuzz.endings STATE END``.

The state prints ``reached`` when it is reached. ``STATES`` and ``ENDS`` are the table. Without arguments,
each line of standard input names a state, a folder and ends, with tabs between them. Each end comes in a
process that is forked here, where all is imported: that takes longer than most states. What they say is in
the folder then; how they have ended is printed, and an empty line.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn

import numpy as np

import jitree
from jitree.errors import FailedPreconditionError, StatusError
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, PROGRAMS, STATE
from tests.security.programs import HOSTILE, VMVX

STATUS: Final = 5
"""What the process is told to end with."""
SECONDS: Final = 120.0
"""After which a process is said not to end."""
LIMIT: Final = 0.25
"""Seconds until a call of a thread ends that the interpreter waits for: it computes meanwhile."""
ENDLESS: Final = PROGRAMS / "endless.vmfb"
ENDLESS_LATER: Final = PROGRAMS / "asynchronous_endless.vmfb"
X: Final = np.arange(64, dtype=np.float32)
_FOUND: Final = np.zeros(4096, np.int32)
_NEVER: Final = np.int32(2)
"""What a search of zeros does not find: it has only odd numbers."""
kept: Final[list[Any]] = []
"""What the process has to its end, as globals of programs are."""


class PlannedError(Exception):
    """Ends a process."""


def session(*programs: Any, device: str = "local-task://?threads=2", **options: Any) -> jitree.Session:
    made = jitree.Session(device, **{"tier": "fast"} | options)
    made.load(*programs)
    kept.append(made)
    return made


def beside(work: Callable[[], object], is_daemon: bool = True) -> None:
    """Does something in a thread, and returns when that is about to begin."""
    begins = threading.Event()

    def run() -> None:
        begins.set()
        with suppress(StatusError):
            work()

    threading.Thread(target=run, daemon=is_daemon).start()
    begins.wait()


def for_ever(work: Callable[[], object]) -> Callable[[], NoReturn]:
    def run() -> NoReturn:
        while True:
            work()

    return run


# -- states ------------------------------------------------------------------------------------------


def an_open_session() -> None:
    one = session(ASYNCHRONOUS)
    kept.append(one["asynchronous.add"].submit(X, X))


def a_call_of_bytecode(**options: Any) -> None:
    one = session(HOSTILE.build(), **options)
    beside(one["hostile.spin"])
    while not one.context.invoker.gate[0] and not one.context.invoker.is_busy:
        pass


def a_call_that_waits_for_a_kernel(device: str) -> None:
    beside(partial(session(ENDLESS, device=device)["module.f"], _FOUND, _NEVER))


def calls_of_many_threads(device: str) -> None:
    one = session(ARITHMETIC, STATE, ASYNCHRONOUS, device=device)
    for _ in range(2):
        beside(for_ever(partial(one["asynchronous.add"], X, X)))
        beside(for_ever(one["state.increment"]))
        beside(for_ever(lambda: one["asynchronous.add"].submit(X, X)))


def a_call_that_the_interpreter_waits_for() -> None:
    one = session(HOSTILE.build())
    beside(partial(one["hostile.spin"], timeout=LIMIT), is_daemon=False)


def a_function_of_the_host() -> None:
    module, entered = jitree.CustomModule("slow"), threading.Event()

    @module.export(signature="f32 -> f32")
    def wait(value: float) -> float:
        entered.set()
        threading.Event().wait()
        return value

    one = session(module)
    beside(partial(one["slow.wait"], np.float32(1)))
    entered.wait()


def queued_work() -> None:
    one = session(ENDLESS_LATER, ASYNCHRONOUS)
    kept.append(one["module.f"].submit(_FOUND, _NEVER))
    kept.append(one["asynchronous.add"].submit(X, X))


def an_awaited_call(end: Callable[[], object]) -> None:
    """The loop runs in this thread: the end comes in one of its callbacks."""
    one = session(ENDLESS_LATER)

    async def calls() -> None:
        task = asyncio.ensure_future(one["module.f"].async_(_FOUND, _NEVER))
        await asyncio.sleep(0)
        reached()
        end()
        await task

    asyncio.run(calls())


def an_event_loop_beside() -> None:
    one = session(ENDLESS_LATER)
    begun = threading.Event()

    async def calls() -> None:
        task = asyncio.ensure_future(one["module.f"].async_(_FOUND, _NEVER))
        await asyncio.sleep(0)
        begun.set()
        await task

    beside(lambda: asyncio.run(calls()))
    begun.wait()


def a_build(**options: Any) -> None:
    """In the test's folder there are no images yet."""
    one = session(STATE, ARITHMETIC, **options)
    beside(for_ever(one["state.increment"]))


def a_sandbox(is_calling: bool) -> None:
    one = jitree.Session("local-sync", sandbox="process", limits=jitree.Limits(memory=1 << 28))
    kept.append(one)
    module = one.load(VMVX)
    image = np.zeros((8, 8), np.float32)
    module.classify(image)
    if is_calling:
        beside(for_ever(partial(module.classify, image)))


def a_handler_that_calls() -> None:
    """One that is told at the very end, and one before."""
    one = session(ARITHMETIC)
    vector = np.arange(4, dtype=np.float32)

    def call() -> None:
        with suppress(FailedPreconditionError):
            assert np.array_equal(one["arithmetic.add"](vector, vector), 2 * vector)
        one.close()

    class Last:
        def __del__(self) -> None:
            with suppress(FailedPreconditionError):
                session(ARITHMETIC)

    atexit.register(call)
    kept.append(Last())


def a_handler_beside_calls() -> None:
    """It cancels and closes what threads are calling."""
    one = session(HOSTILE.build(), ARITHMETIC)
    beside(one["hostile.spin"])
    atexit.register(one.close)
    atexit.register(one.cancel)


def threads_that_open_sessions() -> None:
    def run() -> None:
        with jitree.Session("local-task://?threads=2", tier="fast") as one:
            one.load(ASYNCHRONOUS).add(X, X)

    for _ in range(2):
        beside(for_ever(run))


def a_tap() -> None:
    one = session(ARITHMETIC)
    tapped = one.tap()
    tapped.__enter__()
    kept.append(tapped)
    vector = np.arange(4, dtype=np.float32)
    beside(for_ever(partial(one["arithmetic.add"], vector, vector)))


STATES: Final[dict[str, Callable[[], object]]] = {
    "an open session": an_open_session,
    "a call of bytecode, fast": a_call_of_bytecode,
    "a call of bytecode, plain": partial(a_call_of_bytecode, tier="plain"),
    "a call that computes a kernel": partial(a_call_that_waits_for_a_kernel, "local-sync"),
    "a call that waits for a kernel": partial(a_call_that_waits_for_a_kernel, "local-task://?threads=2"),
    "calls of many threads, local-sync": partial(calls_of_many_threads, "local-sync"),
    "calls of many threads, local-task": partial(calls_of_many_threads, "local-task"),
    "a call that the interpreter waits for": a_call_that_the_interpreter_waits_for,
    "a function of the host": a_function_of_the_host,
    "queued work": queued_work,
    "an event loop beside": an_event_loop_beside,
    "a build": partial(a_build, tier="auto"),
    "a build that is waited for": partial(a_build, tier="native"),
    "a sandbox": partial(a_sandbox, False),
    "a call in a sandbox": partial(a_sandbox, True),
    "a handler that calls": a_handler_that_calls,
    "a handler beside calls": a_handler_beside_calls,
    "threads that open sessions": threads_that_open_sessions,
    "a tap": a_tap,
}
"""What a process does as it ends."""
AWAITED: Final = "an awaited call"
"""The state in which an end comes from inside."""


# -- ends ------------------------------------------------------------------------------------------


def fail() -> NoReturn:
    raise PlannedError("planned")


ENDS: Final[dict[str, tuple[Callable[[], object], int]]] = {
    "its last line": (bool, 0),
    "sys.exit": (partial(sys.exit, STATUS), STATUS),
    "os._exit": (partial(os._exit, STATUS), STATUS),
    "an exception": (fail, 1),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), -signal.SIGTERM),
    "SIGINT": (lambda: os.kill(os.getpid(), signal.SIGINT), -signal.SIGINT),
}
"""How it ends, and with what status."""


def reached() -> None:
    print("reached", flush=True)


def said(folder: str, end: str, descriptor: int) -> str:
    """The file that has what a process said on a descriptor."""
    return os.path.join(folder, f"{end} {descriptor}")


def forked(folder: str, end: str) -> int:
    """Forks a process in a new session, whose output goes to files. Returns 0 in the child."""
    process = os.fork()
    if process == 0:
        os.setsid()
        for descriptor in (1, 2):
            os.dup2(os.open(said(folder, end, descriptor), os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    return process


def tell_ends(processes: dict[str, int]) -> None:
    """Waits, and prints how each has ended: its process, its status, negative for a signal, or that it has
    not."""
    until = time.monotonic() + SECONDS
    for end, process in processes.items():
        while not (ended := os.waitpid(process, os.WNOHANG))[0] and time.monotonic() < until:
            time.sleep(0.002)
        if not ended[0]:
            os.kill(process, signal.SIGKILL)
        print(end, process, os.waitstatus_to_exitcode(ended[1]) if ended[0] else "does not end", sep="\t")


def fork_as_told() -> None:
    """Forks for lines of standard input. What is to build has the line's folder for its images.

    Ends look for garbage among what their states have made: to read all that was imported, and so to copy its
    memory, took most of the time."""
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        state, folder, *ends = line.rstrip("\n").split("\t")
        processes = {}
        for end in ends:
            processes[end] = forked(folder, end)
            if not processes[end]:
                if "build" in state:
                    os.environ["JITREE_CACHE_DIR"] = folder
                come_to(state, end)
                return
        tell_ends(processes)
        print(flush=True)


def come_to(state: str, end: str) -> None:
    action, _ = ENDS[end]
    if state == AWAITED:
        an_awaited_call(action)
        return
    STATES[state]()
    reached()
    action()


if __name__ == "__main__":
    if sys.argv[1:]:
        come_to(*sys.argv[1:])
    else:
        fork_as_told()
