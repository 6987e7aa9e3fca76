"""Ctrl-C at every place of a call where Python looks for it ends the call, and the session is as good as new.
So does any other exception of a signal handler, which goes through as itself.

Those places are the beginnings of functions and the ends of builtin ones, which a profiler is told of.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import CustomModule, Session, i32
from jitree.api.calls.native import handle_owners
from jitree.api.calls.native.handle_owners import LARGE
from jitree.base import finalizers
from jitree.errors import InvalidArgumentError, StatusCode, StatusError
from jitree.hal.fence import Fence
from jitree.hal.local.device import LocalDevice
from tests.api.direct import direct, needs_machine_code, prepare_calls
from tests.api.exact import X, same
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, CALLS, ECHO, OUTPUTS, REFERENCES, STATE
from tests.assembler import Assembler
from tests.base.interruption import interruptions
from tests.fuzz.interruptions import left
from tests.hal.helpers import TIMEOUT

PACKAGE = os.path.dirname(jitree.__file__) + os.sep
CHECKS = os.path.join(PACKAGE, "codegen", "checked")
"""What only checked machine code has: ends of memory call it."""
I = np.arange(4, dtype=np.int32)  # noqa: E741
N = np.arange(64, dtype=np.float32)


PROGRAM = Assembler("m").import_function("host.twice", "0i_i").function(
    "f", "0i_i", """
    [%i1] = call @host.twice [%i0]
    %i2 = const.i32 1
    %i1 = add.i32 %i1, %i2
    return [%i1]
    """,
)  # fmt: skip


def host_module() -> CustomModule:
    custom = CustomModule("host")

    @custom.export
    def twice(number: i32) -> i32:
        return 2 * number

    return custom


class Alarm(Exception):
    """As users raise it in a handler for ``signal.alarm``."""


class Failure(
    TimeoutError,
    MemoryError,
    TypeError,
    OverflowError,
    ValueError,
    KeyError,
    IndexError,
    BufferError,
    RecursionError,
):
    """Of all classes that work fails with."""


def is_in_an_end(frame: FrameType) -> bool:
    """Whether a ``__del__`` runs. Who calls the test is not looked at: that took most of the time."""
    caller: FrameType | None = frame
    while caller is not None and caller.f_code is not _TEST:
        if caller.f_code.co_name == "__del__":
            return True
        caller = caller.f_back
    return False


class Interrupter:
    """Raises an exception at the first place from the n-th on, as a signal handler might.

    Whether it is one is looked at there alone: to look at each before it took a quarter of the time.
    """

    def __init__(self, first: int, raised: type[BaseException]) -> None:
        self.first = first
        self.raised = raised
        self.seen = 0
        """Steps of the package so far, also those at which nothing can be raised."""
        self.came = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self.came or event not in ("call", "c_return"):
            return
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return
        self.seen += 1
        if self.seen < self.first:
            return
        if frame.f_code.co_name == "<genexpr>":
            return  # no such place: it may just be closed
        if is_in_an_end(frame) or frame.f_code.co_filename.startswith(CHECKS):
            return  # Python swallows what is raised there
        self.came = True
        raise self.raised


def arrays(session: Session) -> Any:
    return session["arithmetic.add"](session.to_device(X), X)


def storage(session: Session) -> Any:
    first, second = session.empty(4), session.empty(4)
    session["outputs.split"](X, out=(first, second))
    return first, second


def donated(session: Session) -> Any:
    return session["outputs.double"](jitree.donate(session.to_device(I)))


def asynchronous(session: Session) -> Any:
    function = session["asynchronous.add"]
    return function(function.submit(N, N), N)


def numbers(session: Session) -> Any:
    return session["arithmetic.sums"](np.arange(4), 5)


def objects(session: Session) -> Any:
    """What machine code made becomes an object."""
    result = session["calls.both"](X)
    return tuple([session["arithmetic.add"](one, one) for one in result if one.buffer_view.buffer])


def host_reads(session: Session) -> Any:
    return session["state.double_until"](np.float32(1), 100.0)


def waiting(session: Session) -> Any:
    """A call that waits, without the session, for what never happens, for a millisecond."""
    return session["asynchronous.await_fence"](Fence.create(session.device), 1)


def through_python(session: Session) -> Any:
    """A call that leaves machine code for a function in Python, which is what is interrupted."""
    return session["m.f"](20)


def failing(session: Session) -> Any:
    with pytest.raises(StatusError, match="negative"):
        session["calls.checked"](X, -1)
    with pytest.raises(InvalidArgumentError, match="input1"):
        session["arithmetic.add"](X, None)


def converted(session: Session) -> Any:
    """Numbers and arrays that are not in their usual form."""
    numbers = session["arithmetic.numbers"](np.int8(1), True, 3, np.float32(4), 1, np.uint8(255))
    return session["arithmetic.add"](list(X), X.astype(">f4")), *numbers


def lists(session: Session) -> Any:
    number, array = session["references.pair"](7, [1, 2])
    return number, array


CALLED: dict[Callable[[Session], Any], Any] = {
    arrays: 2 * X, storage: (2 * X, X * X), donated: 2 * I, asynchronous: 3 * N,
    numbers: (np.arange(5, 9), 5, 5.0), objects: (2 * X, 4 * X, 4 * X),
    host_reads: (np.array(128, np.float32), 7),
    waiting: int(StatusCode.DEADLINE_EXCEEDED), through_python: 41, failing: None,
    converted: (2 * X, 1, 1, 3.0, 4.0, True, -1), lists: (7, np.array([1, 2], np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("raised", [KeyboardInterrupt, Alarm, Failure, StopIteration])
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("called", CALLED, ids=lambda called: called.__name__)
def test_an_interrupt_anywhere_in_a_call(
    called: Callable[[Session], Any], device: str, raised: type[BaseException]
) -> None:
    """The next call is right and another thread can make it; the session can be closed."""
    with Session(device, tier="fast") as session, ThreadPoolExecutor(1) as other:
        session.load(ARITHMETIC, ASYNCHRONOUS, CALLS, OUTPUTS, REFERENCES, STATE)
        session.load(PROGRAM.build(), host_module())
        for _ in range(3):
            same(called(session), CALLED[called])
        handles = left(session)
        interrupted, interrupter = 0, Interrupter(1, raised)
        while interrupted == 0 or interrupter.came:
            interrupted += 1
            interrupter = Interrupter(interrupter.seen + 1, raised)
            before = sys.getprofile()
            sys.setprofile(interrupter)
            try:
                called(session)
                assert not interrupter.came, "it was swallowed"
            except raised:
                pass
            finally:
                sys.setprofile(before)
            same(other.submit(called, session).result(TIMEOUT), CALLED[called])
        assert interrupted > 3
        assert left(session) == handles, "no interrupt keeps one"


_TEST = test_an_interrupt_anywhere_in_a_call.__code__


@pytest.mark.parametrize("tier", ["plain", "fast"])
def test_an_interrupted_submission_is_given_up(tier: str, no_collector: None) -> None:
    """Wherever it is interrupted: nobody has its results."""
    with Session("local-sync", tier=tier) as session:
        device, add = session.device, session.load(ASYNCHRONOUS).add
        assert isinstance(device, LocalDevice)
        pending = session.to_device(N)
        pending._compute_until(Fence.create(device))
        places, announced = 0, device._queue(-1).announced
        for interruption in interruptions(0):
            before = set(announced)  # of places that interrupt nothing
            result = interruption.during(partial(add.submit, pending, N))
            if interruption.came:
                assert result or interruption.was_none
                assert not result or announced.keys() <= before, f"interrupted at place {interruption.place}"
            places += 1
        assert places > 300


@needs_machine_code
def test_an_interrupt_while_a_large_array_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code calls Python there, in the midst of the end of an object, which raises nothing: the
    interrupt was lost, and so was the array's handle if there was no room to note it."""
    with Session("local-sync", tier="fast") as session:
        prepare_calls()
        large = np.zeros(LARGE // 4, np.float32)
        kept = [direct(session.load(ECHO).e1_f32, large)(large)]
        before, real, raised = session.context.table.live_count, finalizers.with_lock, list[int]()

        def interrupted(*arguments: Any) -> Any:
            if not raised:
                raised.append(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            return real(*arguments)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(handle_owners, "with_lock", interrupted)
            kept.clear()
            for _ in range(10):
                pass  # where Python looks for it
        assert raised and session.context.table.live_count < before


@needs_machine_code
def test_an_interrupt_after_handles_were_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of Python's that arrays have given back lay in a list that the interrupted function alone had:
    they stayed, with what they keep. No profiler sees the call, which ctypes makes."""
    with Session("local-sync", tier="fast") as session:
        prepare_calls()
        add = direct(session.load(ARITHMETIC).add, X, X)
        before = left(session)
        kept = [add(X, X) for _ in range(3)]
        assert all(array.buffer_view.buffer for array in kept)  # which become Python's
        interface = kept[0]._keeper._back._interface
        real = interface.take_back

        def interrupted(*arguments: int) -> None:
            real(*arguments)
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(interface, "take_back", interrupted)
        kept.clear()
        with pytest.raises(KeyboardInterrupt):
            session.trim()
        assert left(session) == before
