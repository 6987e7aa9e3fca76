"""States the contract of tiers, which run the instructions of a call. Here are also calls that cannot
complete yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple, Protocol
from jitree.regs.machine import Machine

if TYPE_CHECKING:
    from jitree.regs.machine import Awaited


class EngineEntry(NamedTuple):
    """Enters machine code for callers that fill STATE and registers themselves."""

    run: Callable[[int], int]
    """(address of STATE) → EXIT_*"""
    attach: Callable[[Machine], None]
    """The caller calls it once for each machine, before its first run."""
    go_on: Callable[[Machine], None]
    """Does what ``run`` has returned for, and goes on like :meth:`Engine.run`."""


class Engine(Protocol):
    """A tier. Engines have no state; all of them run on the memory of a Machine."""

    name: str

    @property
    def entry(self) -> EngineEntry | None:
        """None as long as there is no machine code."""

    def run(self, machine: Machine) -> None:
        """Runs from ``machine.pc`` until the host's call is complete or has to wait (``machine.pending``).

        When an instruction fails its error is raised, with ``machine.pc`` at the instruction and the frames
        as they were.
        """


class Pending:
    """Stands for a host function's result that is not known yet.

    ``wait(timeout)`` blocks for at most so many seconds (None: as long as it takes) and tells whether it has
    happened; it may be called from any thread, without the context's lock. ``resume()`` then gives what the
    function would have returned (or another Pending). ``awaitable``, if given, returns something that asyncio
    can await in place of ``wait``.
    """

    __slots__ = ("awaitable", "resume", "wait")

    def __init__(
        self,
        wait: Callable[[float | None], bool],
        resume: Callable[[], object],
        awaitable: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.wait = wait
        self.resume = resume
        self.awaitable = awaitable


AGAIN: Final = 2
"""What the call of an import gives in place of whether it waits: machine code, which had given it up, is to
try again."""


def _nothing_to_wait_for(timeout: float | None) -> bool:
    return True


def _no_result() -> None:
    return None


YIELD: Final = Pending(_nothing_to_wait_for, _no_result)
"""The program gave way to others (``vm.yield``); it goes on as soon as it is asked to."""


async def happened(pending: Awaited) -> None:
    """Waits on the event loop."""
    import asyncio  # 17 ms, and only asynchronous programs need it

    if pending is YIELD:
        await asyncio.sleep(0)
    elif pending.awaitable is not None:
        await pending.awaitable()
    else:
        from contextvars import copy_context  # the thread's wait ends with the scope of the task

        await asyncio.get_running_loop().run_in_executor(None, copy_context().run, pending.wait, None)
