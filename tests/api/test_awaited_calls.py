"""Awaited calls that machine code makes: complete at once, or set aside until what they wait for happens."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import groupby
from traceback import walk_stack
from types import FrameType
from typing import Any, Final

import numpy as np
import pytest

import jitree
from jitree import Function, HostExport, HostModule, Session
from jitree.codegen.record import words_of
from jitree.dispatch.engine import Pending
from jitree.dispatch.native import engine, tiering
from jitree.errors import AbortedError, DataLossError
from jitree.regs.layout import GateRecord
from jitree.regs.machine import PROMPT_TIME, Machine
from tests.api.direct import CALLS, X, direct, live, needs_machine_code
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS
from tests.assembler import Assembler
from tests.hal.helpers import TIMEOUT

_GATE: Final = words_of(GateRecord)

pytestmark = needs_machine_code
PACKAGE = os.path.dirname(jitree.__file__) + os.sep
N = np.arange(64, dtype=np.float32)


class Slow(HostModule):
    """A host function that has to be waited for: one for each call of it, opened by the test."""

    name = "slow"

    def __init__(self) -> None:
        super().__init__()
        self.waits = False
        self.futures: list[asyncio.Future[None]] = []

    def exports(self) -> Iterable[HostExport]:
        return [HostExport("answer", "0i_i", self._answer)]

    def _answer(self, state: object, value: int) -> Any:
        if not self.waits:
            return value + 1
        future = asyncio.get_running_loop().create_future()
        self.futures.append(future)

        def resume() -> int:
            if value < 0:
                raise DataLossError("negative")
            return value + 1

        return Pending(lambda timeout: True, resume, lambda: future)

    async def reached(self, count: int) -> None:
        while len(self.futures) < count:
            await asyncio.sleep(0)

    def open(self) -> None:
        for future in self.futures:
            if not future.done():
                future.set_result(None)


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("local-sync", tier="fast") as session:
        yield session


@pytest.fixture
def slow(session: Session) -> Slow:
    slow = slow_in(session)
    slow.waits = True
    return slow


def slow_in(session: Session) -> Slow:
    slow = Slow()
    session.append_module(slow)
    program = Assembler("program").import_function("slow.answer", "0i_i")
    program.function("f", "0i_i", "%i1 = call @slow.answer [%i0]\n%i1 = add.i32 %i1, %i0\nreturn [%i1]")
    session.load(program.build())
    direct(session["program.f"], 1)
    return slow


def is_free(session: Session) -> bool:
    return session.context.invoker.ready is not None and session.context.invoker.gate[_GATE.nesting] == 0


def test_awaited_calls_become_direct(session: Session) -> None:
    add = session.load(ARITHMETIC).add

    async def main() -> None:
        for number in range(CALLS):
            assert np.array_equal(await add.async_(X, input1=X + number), X + X + number)

    asyncio.run(main())
    assert add.is_direct and type(add.attempt(X, X)) is type(add(X, X))


def test_a_call_that_waits_lets_others_run(session: Session, slow: Slow) -> None:
    function = session["program.f"]

    async def main() -> None:
        first = asyncio.ensure_future(function.async_(5))
        await slow.reached(1)
        assert not is_free(session)
        others = [asyncio.ensure_future(function.async_(number)) for number in range(10)]
        await slow.reached(11)
        slow.waits = False
        assert function(7) == 15
        slow.open()
        assert await first == 11
        assert await asyncio.gather(*others) == [2 * number + 1 for number in range(10)]

    asyncio.run(main())
    assert is_free(session) and function(1) == 3 and live(session) == 0


def test_a_failure_after_waiting(session: Session, slow: Slow) -> None:
    function = session["program.f"]

    async def main() -> None:
        call = asyncio.ensure_future(function.async_(-5))
        await slow.reached(1)
        slow.open()
        with pytest.raises(DataLossError, match=r"(?s)negative.*invoking function 'f'.*@f"):
            await call

    asyncio.run(main())
    assert is_free(session)


class Refusing(HostModule):
    name = "refusing"
    refuses = False

    def exports(self) -> Iterable[HostExport]:
        return [HostExport("answer", "0i_i", self._answer)]

    def _answer(self, state: object, value: int) -> int:
        if self.refuses:
            raise AbortedError("refused")
        return value


def test_a_failure_before(session: Session) -> None:
    refusing = Refusing()
    session.append_module(refusing)
    program = Assembler("program").import_function("refusing.answer", "0i_i")
    program.function("f", "0i_i", "%i1 = call @refusing.answer [%i0]\nreturn [%i1]")
    function = direct(session.load(program.build()).f, 1)
    refusing.refuses = True
    with pytest.raises(AbortedError, match="refused"):
        asyncio.run(function.async_(1))
    assert is_free(session)


def test_a_call_that_is_cancelled(session: Session, slow: Slow) -> None:
    function = session["program.f"]

    async def main() -> None:
        call = asyncio.ensure_future(function.async_(5))
        await slow.reached(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    slow.waits = False
    assert is_free(session) and function(1) == 3 and live(session) == 0


def test_a_call_that_nothing_awaits(session: Session, slow: Slow) -> None:
    function: Function = session["program.f"]

    async def main() -> None:
        made = function.attempt(5)
        assert not is_free(session)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            del made
            gc.collect()

    asyncio.run(main())
    slow.waits = False
    assert function(1) == 3 and is_free(session)


def test_functions_that_are_asynchronous(session: Session) -> None:
    """Their fence is awaited, whatever they return."""
    add = session.load(ASYNCHRONOUS).add
    x = np.arange(64, dtype=np.float32)

    async def main() -> None:
        for _ in range(12):
            result = await add.async_(x, x)
            assert result.ready and np.array_equal(result, x + x)

    asyncio.run(main())
    before = live(session)
    asyncio.run(main())
    assert add.is_direct and live(session) == before


def complete_at_once(session: Session, slow: Slow) -> Iterator[Awaitable[Any]]:
    yield session["arithmetic.add"].async_(X, X)


def set_aside(session: Session, slow: Slow) -> Iterator[Awaitable[Any]]:
    slow.waits = True
    yield asyncio.ensure_future(session["program.f"].async_(5))
    yield asyncio.sleep(0)
    slow.open()


AWAITED: dict[Callable[[Session, Slow], Iterator[Awaitable[Any]]], Any] = {
    complete_at_once: 2 * X, set_aside: 11,
}  # fmt: skip


class Interrupter:
    """Raises an exception at the place of that number of the package, and notes where it was."""

    def __init__(self, place: int, raised: type[BaseException]) -> None:
        self.left, self.raised = place, raised
        self.seen: set[str] = set()
        self.last = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "c_return") or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name == "<genexpr>" or (event == "call" and frame.f_lineno != code.co_firstlineno):
            return  # no such place: what goes on where it has yielded is raised in, not in front of it
        if any(caller.f_code.co_name == "__del__" for caller, _ in walk_stack(frame)):
            return  # Python swallows what is raised there
        self.seen.add(code.co_name)
        self.last = code.co_name
        self.left -= 1
        if self.left == 0:
            raise self.raised

    def during(self, action: Callable[[], object]) -> None:
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            action()
        finally:
            sys.setprofile(before)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, OverflowError])
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("awaited", AWAITED, ids=lambda awaited: awaited.__name__)
def test_an_interrupt_anywhere_in_an_awaited_call(
    awaited: Callable[[Session, Slow], Iterator[Awaitable[Any]]], device: str, raised: type[BaseException]
) -> None:
    """What a handler raises goes through as itself. The next call is right, also of another thread."""

    with Session(device, tier="fast") as session, ThreadPoolExecutor(1) as other, ExitStack() as after:
        told = list[object]()
        gc.freeze()
        after.callback(gc.unfreeze)
        slow = slow_in(session)
        add = session.load(ARITHMETIC, ASYNCHRONOUS)[1].add
        direct(session["arithmetic.add"], X, X)
        direct(add, N, N)

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
            steps = awaited(session, slow)
            call = next(steps)
            for step in steps:
                await step
            assert np.array_equal(await call, AWAITED[awaited])

        whole = Interrupter(0, raised)
        for interrupter in [whole] * CALLS:
            interrupter.during(lambda: asyncio.run(main()))
        assert "_call_async" in whole.seen
        assert not whole.seen & {"_invoke_async", "_take_turn", "_begin", "_pack"}, (
            "machine code makes the calls"
        )
        before, place, interrupter = live(session), 0, Interrupter(1, raised)
        while interrupter.left <= 0 or not place:
            place += 1
            interrupter = Interrupter(place, raised)
            told.clear()
            error: BaseException | None = None
            try:
                interrupter.during(lambda: asyncio.run(main()))
                # What a callback of the loop raises is told to its handler.
                assert interrupter.left > 0 or told, f"what was raised at place {place} was swallowed"
            except raised as found:
                error = found
            assert is_free(session), f"interrupted in {interrupter.last}, it waits for the garbage collector"
            del error  # which keeps the call
            slow.waits = False
            slow.futures.clear()
            gc.collect()
            assert other.submit(session["program.f"], 1).result(TIMEOUT) == 3
            assert np.array_equal(other.submit(add, N, N).result(TIMEOUT), 2 * N)
            assert is_free(session), f"interrupted at place {place}"
        assert place > 30 and live(session) <= before


ENDLESS = (
    Assembler("endless")
    .function("leaf", "0i_i", "%i1 = add.i32 %i0, %i0\nreturn [%i1]")
    .function("count", "0i_i", """
        %i1 = const.i32 1
        %i2 = const.i32 0
        br ^again
        ^again:
        %i2 = add.i32 %i2, %i1
        %i3 = cmp.lt.i32.s %i2, %i0
        cond_br %i3, ^again, ^end
        ^end:
        return [%i2]
    """)
)  # fmt: skip
for name, begin, called in (
    ("counts", "br ^again", "count"),
    ("leaves", "br ^again", "leaf"),
    ("more_leaves", "br ^first\n^first:\nbr ^again", "leaf"),
):
    ENDLESS.function(name, "0i_v", f"{begin}\n^again:\n[%i1] = call @{called} [%i0]\nbr ^again")


MOST_SOUGHT = 10
"""Times that machine code asks in a row, while it is sought where it may go on."""


async def some_turns(function: Function, events: list[object]) -> None:
    """Of an event loop, beside a call that never ends."""
    call = asyncio.ensure_future(function.async_(10_000))
    for _ in range(30):
        await asyncio.sleep(0)
        events.append("turn")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def longest_run(wanted: str, events: list[object]) -> int:
    return max((len([*run]) for event, run in groupby(events) if event == wanted), default=0)


def test_functions_inside_of_others_leave_the_event_loop_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[object] = []
    may_go_on = engine.may_go_on

    def look(machine: Machine) -> bool:
        events.append("look")
        return may_go_on(machine)

    monkeypatch.setattr(engine, "may_go_on", look)
    with Session("local-sync", tier="native") as session:
        asyncio.run(some_turns(session.load(ENDLESS.build()).counts, events))
    assert 0 < longest_run("look", events) <= MOST_SOUGHT


@pytest.mark.parametrize("name", ["leaves", "more_leaves"])
def test_what_calls_compiled_functions_goes_on_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever its time is over: at the call, or at the branch."""
    events: list[object] = []
    resume_address = tiering.resume_address

    def resume(machine: Machine, module: tiering.NativeModule, pc: int) -> int:
        address = resume_address(machine, module, pc)
        if address:
            events.append(machine.module.module.function_name(machine.function.ordinal))
        return address

    monkeypatch.setattr(tiering, "resume_address", resume)
    with Session("local-sync", tier="native") as session:
        asyncio.run(some_turns(session.load(ENDLESS.build())[name], events))
    assert name in events


@pytest.mark.parametrize("tier", ["fast", "native"])
def test_what_python_does_counts_as_time_of_a_call(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[object] = []
    now = 0

    def work(state: object) -> None:
        nonlocal now
        now += PROMPT_TIME // 2
        events.append("work")

    class Worker(HostModule):
        name = "worker"

        def exports(self) -> Iterable[HostExport]:
            return [HostExport("work", "0v_v", work)]

    program = Assembler("program").import_function("worker.work", "0v_v")
    program.function("f", "0i_v", "br ^again\n^again:\ncall @worker.work\nbr ^again")
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    with Session("local-sync", tier=tier) as session:
        session.append_module(Worker())
        asyncio.run(some_turns(session.load(program.build()).f, events))
    assert 0 < longest_run("work", events) <= 4
