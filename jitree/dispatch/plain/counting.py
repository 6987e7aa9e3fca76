"""Runs the plain tier with a limit on instructions. Every one is counted, on all threads together.

The count is that of the program's bytecode and of its VMVX kernels, as compilers wrote it: a
superinstruction counts as what it is made of, a call of a host function as one. Machine code counts nothing
as exactly, so the programs of sessions with such a limit have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from operator import length_hint
from typing import Final

from jitree.base.finalizers import guard
from jitree.dispatch.engine import YIELD
from jitree.dispatch.plain.handlers import BY_CODE
from jitree.errors import ResourceExhaustedError
from jitree.regs.layout import PROMPT, STATE_WORDS
from jitree.regs.machine import Machine

SLICE: Final = 1000
"""Instructions, some milliseconds at most, after which the engine looks whether the call is to end."""


class CountingEngine:
    """Runs everything in Python until so many instructions are over. Contexts on several threads share it."""

    name = "plain"
    entry: Final = None

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = iter(range(limit))  # a step of it is one operation for all threads
        self._calls = 0
        self._lock = guard()

    def beside(self) -> CountingEngine:
        """For what has run before: another thread's part of a kernel begins as the first one did. It has the
        same limit for itself, else the count would be another one on each number of threads."""
        return CountingEngine(self._limit)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The limit is that of what runs inside; calls that overlap share it."""
        with self._lock:
            if not self._calls:
                self._left = iter(range(self._limit))
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1

    @property
    def executed(self) -> int:
        """Instructions of the calls in progress, or the last one."""
        return self._limit - length_hint(self._left)

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`. RESOURCE_EXHAUSTED in front of the first instruction
        that is too many."""
        handlers = BY_CODE
        pc = following = machine.pc
        try:
            while True:
                machine.require_running()
                pc = following
                if not machine.frame:  # of the host: it has fewer, the more threads share a dispatch
                    following = handlers[machine.code[pc]](machine, pc)
                    if following < 0:
                        return
                    continue
                for _ in islice(self._left, SLICE):
                    pc = following
                    following = handlers[machine.code[pc]](machine, pc)
                    if following < 0:
                        return
                    if not machine.frame:
                        break
                if not machine.frame:
                    continue
                pc = following
                if not length_hint(self._left):
                    raise ResourceExhaustedError(
                        f"{self._limit} instructions were executed and the call is not over (the limit on "
                        "instructions)"
                    )
                machine.note(following)
                if machine.state[STATE_WORDS.prompt] == PROMPT:
                    machine.pc = machine.resume_pc = following
                    machine.pending = YIELD
                    return
        except BaseException:
            machine.pc = pc
            raise
