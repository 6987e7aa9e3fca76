"""The contract of tiers: who runs the instructions of a call."""

from __future__ import annotations

from collections.abc import Callable

from jitree.base.records import NamedTuple, Protocol
from jitree.regs.machine import Machine


class EngineEntry(NamedTuple):
    """The way into machine code for callers that fill STATE and the host's registers by themselves."""

    run: Callable[[int], int]
    """(address of STATE) → LEFT_*"""
    attach: Callable[[Machine], None]
    """To be called once for each machine before its first run."""
    go_on: Callable[[Machine], None]
    """After ``run`` has left with something to do: does it and goes on like :meth:`Engine.run`."""


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
