"""Spreads the beginnings of awaited calls over rounds of their event loop.

What a call does before it waits for the first time, it does at once: a loop that was given a hundred calls
would look at nothing else until the last of them waits. So when those of one round have taken a while, the
next ones wait for a later round.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from contextvars import Context
from time import monotonic
from typing import Any, Final

BREATH: Final = 0.001
"""Seconds of a loop's round in which calls begin."""
REST: Final = 3
"""Rounds without calls after one that was longer: a task that sleeps wakes up in the second one."""


class _Turn(asyncio.Future[None]):
    """What a call waits for. An interrupt of the loop, as that is told of the result, would have the call
    wait for ever, so who sets it notes what wakes the call."""

    task: asyncio.Task[Any] | None = None
    wakers: Sequence[tuple[Callable[[Any], object], Context]] = ()

    def is_awaited(self) -> bool:
        """Whether the call's task has still to be woken."""
        return self.done() and getattr(self.task, "_fut_waiter", None) is self

    def wake(self) -> None:
        """Wakes the call's task, if it still waits: else it would take that for another result."""
        if self.is_awaited():
            for waker, context in self.wakers:
                context.run(waker, self)


class CallGate:
    """The calls of one event loop. Used by its thread only."""

    __slots__ = (
        "_begun",
        "_end",
        "_is_scheduled",
        "_passed",
        "_rest",
        "_round",
        "_tickets",
        "_told",
        "_waiting",
    )

    def __init__(self) -> None:
        self._end: float | None = None
        """When no more calls begin in this round; None: none has begun."""
        self._is_scheduled = False
        """Whether :meth:`_end_round` is called in the next round. It is as long as a call waits."""
        self._round = self._begun = 0
        """The last round that was scheduled, and the last whose end began: an interrupt may come before."""
        self._passed = 0
        """Calls that have begun in this round."""
        self._rest = 0
        """Rounds to come without calls."""
        self._tickets = 0
        self._waiting: list[tuple[int, int, _Turn]] = []
        """A heap: the first that came is first. An interrupt may leave two turns of one call."""
        self._told: set[_Turn] = set()
        """Turns that have come, of calls that have not woken up yet. They do before the round ends."""

    def is_open(self) -> bool:
        """Whether a call may begin now, as it mostly may; it has begun then."""
        return not self._waiting and self._has_time()

    async def pass_through(self) -> None:
        """Waits until a call may begin, after those that wait already."""
        self._tickets += 1
        ticket = self._tickets
        while True:
            turn = _Turn(loop=asyncio.get_running_loop())
            turn.task = asyncio.current_task()
            heapq.heappush(self._waiting, (ticket, id(turn), turn))
            self._schedule()
            try:
                await turn
            finally:
                self._told.discard(turn)
            if self._has_time():
                return

    def _has_time(self) -> bool:
        """Whether a call may begin in this round."""
        now = monotonic()
        if self._end is None:
            self._end = now + BREATH
            self._schedule()
        if now >= self._end:
            self._rest = REST
            return False
        self._passed += 1
        return True

    def _schedule(self) -> None:
        if not self._is_scheduled:
            loop = asyncio.get_running_loop()
            self._round += 1
            loop.call_soon(self._end_round, self._round)
            loop.call_soon(self._make_up, self._round)
            self._is_scheduled = True

    def _make_up(self, number: int) -> None:
        """Does what an interrupt kept :meth:`_end_round` from, at its beginning or its end."""
        if self._begun < number:
            self._end_round(number)
        elif self._waiting or self._told or self._end is not None:
            self._schedule()

    def _end_round(self, number: int) -> None:
        """Lets the next ones try: some more than fitted into the last round, since calls differ. What a
        signal's handler raises here goes to the loop, and the next round does what is left."""
        try:
            self._begun = number
            for turn in tuple(self._told):
                if turn.is_awaited():  # told before an interrupt; what wakes it may be on its way
                    turn.get_loop().call_soon(turn.wake)
                else:
                    self._told.discard(turn)
            if self._rest:
                self._rest -= 1
                return
            self._end = None
            count, self._passed = 1 + 2 * self._passed, 0
            while self._waiting and count:
                turn = self._waiting[0][-1]
                if not turn.done():  # cancelled, or told before an interrupt
                    turn.wakers = turn._callbacks  # in C, as is their being told
                    self._told.add(turn)
                    turn.set_result(None)
                    count -= 1
                heapq.heappop(self._waiting)
        finally:
            self._is_scheduled = False
            if self._waiting or self._told or self._end is not None:
                self._schedule()


_GATE: Final = "_jitree_gate"
"""The attribute of an event loop that has it."""


def running_gate() -> CallGate | None:
    """That of the event loop that runs. None outside of asyncio's, and of one that takes no attributes.

    The loop has it: all that waits there refers to the loop, which a table of the process would keep for
    good, with what its tasks refer to."""
    try:
        attributes = asyncio.get_running_loop().__dict__
    except (RuntimeError, AttributeError):
        return None
    gate: CallGate | None = attributes.get(_GATE)
    return gate or attributes.setdefault(_GATE, CallGate())
