"""Awaited calls leave their event loop its turns, whatever it is that they do at once."""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import sys
from collections.abc import Callable
from itertools import pairwise
from traceback import walk_stack
from types import BuiltinFunctionType, FrameType
from typing import Any
from weakref import ref

import numpy as np
import pytest

from jitree import Session
from jitree.api import event_loop_fairness
from jitree.api.event_loop_fairness import CallGate, _Turn
from jitree.dispatch import context, invocation
from jitree.dispatch.plain import handlers
from jitree.errors import CancelledError, FailedPreconditionError
from jitree.hal.fence import settling
from jitree.regs import machine
from jitree.regs.layout import PROMPT, STATE_WORDS
from tests.api.exact import X, same
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS
from tests.assembler import Assembler
from tests.hal.helpers import TIMEOUT

N = np.arange(64, dtype=np.float32)


async def pass_through() -> None:
    """As an awaited call begins."""
    gate = event_loop_fairness.running_gate()
    if gate is not None and not gate.is_open():
        await gate.pass_through()


class Clock:
    """Time that goes on only where it is told to."""

    def __init__(self) -> None:
        self.now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(event_loop_fairness, "monotonic", lambda: clock.now)
    return clock


class Rounds:
    """What a clock says in each round of the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.times: list[float] = []
        self._next()

    def _next(self) -> None:
        self.times.append(self._clock.now)
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> float:
        """The longest round."""
        self._handle.cancel()
        return max(end - begin for begin, end in pairwise(self.times))


async def begin_all(clock: Clock, costs: list[float]) -> tuple[int, float]:
    """Begins a call for each of the costs, in seconds, in their order: (rounds, the longest)."""
    rounds, begun = Rounds(clock), []

    async def call(number: int) -> None:
        await pass_through()
        begun.append(number)
        clock.now += costs[number]

    await asyncio.gather(*(call(number) for number in range(len(costs))))
    longest = rounds.stop()
    assert begun == list(range(len(costs)))
    return len(rounds.times), longest


def test_long_calls_begin_in_rounds_of_their_own(clock: Clock) -> None:
    rounds, longest = asyncio.run(begin_all(clock, [0.5] * 50))
    assert longest == 0.5 and rounds > 50


def test_short_calls_begin_together(clock: Clock) -> None:
    rounds, _ = asyncio.run(begin_all(clock, [2.0**-20] * 50))
    assert rounds < 5


def test_no_round_is_longer_than_a_breath_and_a_call(clock: Clock) -> None:
    choose = random.Random(1)
    costs = [choose.choice([0.0001, 0.0003, 0.002]) for _ in range(300)]
    rounds, longest = asyncio.run(begin_all(clock, costs))
    assert longest < event_loop_fairness.BREATH + 0.00201
    assert rounds < (2 + event_loop_fairness.REST) * sum(costs) / event_loop_fairness.BREATH


def test_a_task_that_sleeps_wakes_up_between_two_long_calls(clock: Clock) -> None:
    async def main() -> None:
        calls = asyncio.ensure_future(begin_all(clock, [0.5] * 50))
        while not calls.done():
            before = clock.now
            await asyncio.sleep(0.000001)
            assert clock.now - before <= 0.5

    asyncio.run(main())


def test_calls_that_give_up_hold_up_no_others(clock: Clock) -> None:
    async def main() -> None:
        begun = []

        async def call(number: int) -> None:
            await pass_through()
            begun.append(number)
            clock.now += 0.005

        choose = random.Random(2)
        calls = [asyncio.ensure_future(call(number)) for number in range(60)]
        kept = set(range(60))
        for _ in range(40):
            await asyncio.sleep(0)
            number = choose.randrange(60)
            if calls[number].cancel():
                kept.discard(number)
        await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
        assert begun == sorted(kept)
        await asyncio.wait_for(call(60), 20)

    asyncio.run(main())


def test_every_loop_has_its_own() -> None:
    async def main() -> CallGate | None:
        gate = event_loop_fairness.running_gate()
        await pass_through()
        assert event_loop_fairness.running_gate() is gate
        return gate

    assert len({asyncio.run(main()) for _ in range(3)} - {None}) == 3


@pytest.mark.parametrize("are_cancelled", [True, False])
def test_a_loop_that_ends_while_calls_wait_is_forgotten(clock: Clock, are_cancelled: bool) -> None:
    """The turn of a call that was cancelled, as by a signal, stayed, and with it a device (turns:41309)."""

    async def call() -> None:
        await pass_through()
        clock.now += 1.0

    async def main() -> None:
        calls = [asyncio.ensure_future(call()) for _ in range(3)]
        await asyncio.sleep(0)
        for one in calls[1:] * are_cancelled:
            one.cancel()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # tasks that still wait are destroyed
    loop.run_until_complete(main())
    loop.close()
    forgotten = ref(loop)
    del loop
    gc.collect()
    assert forgotten() is None


def test_a_loop_without_attributes_lets_calls_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "get_running_loop", object)
    assert event_loop_fairness.running_gate() is None


def test_without_a_loop_nothing_happens() -> None:
    with pytest.raises(StopIteration):
        pass_through().send(None)


FUNCTIONS: dict[str, Callable[[Session], Any]] = {
    "synchronous": lambda session: session["arithmetic.add"].async_(X, X),
    "asynchronous": lambda session: session["asynchronous.two"].async_(X),
}


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_awaited_calls_pass_through(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop makes a round between two calls that take long."""
    monkeypatch.setattr(event_loop_fairness, "BREATH", 0.0000001)
    with Session(device, tier="fast") as session:
        session.load(ARITHMETIC, ASYNCHRONOUS)

        async def main() -> None:
            rounds = Rounds(Clock())
            results = await asyncio.gather(*(FUNCTIONS[name](session) for _ in range(30)))
            rounds.stop()
            assert len(rounds.times) > 30
            for result in results:
                same(result, 2 * X if name == "synchronous" else (2 * X, X * X))

        asyncio.run(main())


COUNTING = """
    %i1 = const.i32 1
    br ^loop
    ^loop:
    %i0 = sub.i32 %i0, %i1
    %i2 = cmp.nz.i32 %i0
    cond_br %i2, ^loop, ^done
    ^done:
    return [%i0]
"""


@pytest.mark.parametrize(("tier", "turns"), [("plain", 5_000), ("fast", 100_000), ("native", 100_000)])
def test_bytecode_that_takes_long_gives_way(tier: str, turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the loop when it is awaited, to other threads when it was submitted."""
    monkeypatch.setattr(machine, "PROMPT_TIME", 0)
    for module in (context, invocation):
        monkeypatch.setattr(module, "SUBMITTED", (PROMPT, 0))
    monkeypatch.setattr(handlers, "SLICE", turns // 100)
    with Session("local-sync", tier=tier) as session:
        count = session.load(Assembler("m").function("f", "0i_i", COUNTING).build()).f
        assert count(turns) == 0

        async def main() -> int:
            rounds = Rounds(Clock())
            assert await count.async_(turns) == 0
            rounds.stop()
            return len(rounds.times)

        assert asyncio.run(main()) > 50
        assert session.context.invoke(count.vm_function, [turns], invocation.SUBMITTED) == [0]
        assert count(turns) == 0


def test_a_call_that_ends_where_it_was_to_move_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine is the next call's, which ran the compiled function of the first one."""
    monkeypatch.setattr(machine, "PROMPT_TIME", 0)
    with Session("local-sync", tier="auto") as session:
        count = session.load(Assembler("m").function("f", "0i_i", COUNTING).build()).f
        chosen: Any = session.context.invoker.engine
        promote = chosen._promote

        def promote_and_cancel(running: machine.Machine, following: int) -> None:
            promote(running, following)
            task = asyncio.current_task()
            if running.state[STATE_WORDS.resume] and task is not None:
                task.cancel()

        monkeypatch.setattr(chosen, "_promote", promote_and_cancel)

        async def main() -> None:
            await count.async_(-1)  # 2**32 turns: as long as its machine code takes to be there, and more

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(main())
        monkeypatch.setattr(chosen, "_promote", promote)
        idle = session.context.invoker._idle
        assert idle and not any(used.state[STATE_WORDS.resume] for used in idle)
        add = session.load(ARITHMETIC).add
        same(add(X, X), 2 * X)


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_closing_ends_calls_that_wait_for_their_turn(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop_fairness, "BREATH", 0.0000001)
    with Session(device, tier="fast") as session:
        session.load(ARITHMETIC, ASYNCHRONOUS)

        async def main() -> list[Any]:
            calls = [asyncio.ensure_future(FUNCTIONS[name](session)) for _ in range(30)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            session.close()
            return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), TIMEOUT)

        results = asyncio.run(main())
        ends = [type(result) for result in results if isinstance(result, BaseException)]
        assert 0 < len(ends) < 30 and set(ends) <= {FailedPreconditionError, CancelledError}
        for result in results:
            if not isinstance(result, BaseException):
                same(result, 2 * X if name == "synchronous" else (2 * X, X * X))


def test_what_a_handler_raises_at_the_end_of_a_round_keeps_no_call(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop hears of it, and the calls that wait begin in a later round."""
    taken, heard = heapq.heappop, []

    def interrupted(waiting: Any) -> object:
        monkeypatch.setattr(heapq, "heappop", taken)
        raise TimeoutError

    async def run() -> tuple[int, float]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        monkeypatch.setattr(heapq, "heappop", interrupted)
        return await asyncio.wait_for(begin_all(clock, [0.01] * 8), TIMEOUT)

    asyncio.run(run())
    assert [type(context["exception"]) for context in heard] == [TimeoutError]


@pytest.mark.parametrize("place", range(1, 60))
def test_a_handler_raises_anywhere_in_the_end_of_a_round(clock: Clock, place: int) -> None:
    """Also before its first line, and where the loop is told of a call that may begin. The loop hears of
    nothing else."""
    heard = list[dict[str, Any]]()

    class Late(Exception):
        pass

    left = place

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        callers = (caller.f_code.co_name for caller, _ in walk_stack(frame))
        if event in ("call", "c_return") and any(name in ("_end_round", "wake") for name in callers):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise Late

    async def run() -> tuple[int, float]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        sys.setprofile(look)
        try:
            return await asyncio.wait_for(begin_all(clock, [0.01] * 4), TIMEOUT)
        finally:
            sys.setprofile(None)

    asyncio.run(run())
    assert all(isinstance(context["exception"], Late) for context in heard)


def test_a_call_that_has_gone_on_is_not_woken_again() -> None:
    """An interrupt leaves its turn in the gate, while its task awaits something else, or has ended."""

    async def run(ends: bool) -> list[object]:
        gate, errors = CallGate(), list[object]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        turn = _Turn(loop=asyncio.get_running_loop())

        async def call() -> None:
            turn.task = asyncio.current_task()
            await turn
            if not ends:
                await asyncio.sleep(0.01)

        task = asyncio.create_task(call())
        await asyncio.sleep(0)
        turn.set_result(None)
        await asyncio.sleep(0)
        gate._told.add(turn)
        gate._end_round(1)
        await task
        return errors

    assert asyncio.run(run(ends=True)) == asyncio.run(run(ends=False)) == []


def test_a_handler_raises_as_an_awaited_fence_is_reached() -> None:
    """No function of Python, at whose beginning that could be, tells the loop's future of it."""

    async def told(failure: BaseException | None, is_cancelled: bool) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        if is_cancelled:
            future.cancel()
        tell, *arguments = settling(future, 3, failure)
        assert isinstance(tell, BuiltinFunctionType)
        tell(*arguments)
        return future

    failure = CancelledError("mine")
    assert asyncio.run(told(None, False)).result() == 3
    assert asyncio.run(told(failure, False)).exception() is failure
    assert asyncio.run(told(None, True)).cancelled()
