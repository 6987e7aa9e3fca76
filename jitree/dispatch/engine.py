"""Tiers: who runs the instructions of a call."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Protocol

from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError
from jitree.regs.machine import Machine

TIERS: Final = ("plain", "fast", "native", "auto")
"""``auto`` is plain until the fast tier's loop is there, and native where functions run for long."""
WAITING_TIERS: Final = ("fast", "native")
"""Asked for by name, they run nothing before their machine code is there."""
TIER_VARIABLE: Final = "JITREE_TIER"


class Entry(NamedTuple):
    """The way into machine code for callers that fill STATE and the host's registers by themselves."""

    run: Callable[[int], int]
    """(address of STATE) → LEFT_*"""
    attach: Callable[[Machine], None]
    """To be called once for each machine before its first run."""
    go_on: Callable[[Machine], None]
    """After ``run`` has left with something to do: does it and goes on like :meth:`Engine.run`."""


class Engine(Protocol):
    """A tier. Engines have no state of their own; all of them run on the memory of a Machine."""

    name: str

    @property
    def entry(self) -> Entry | None:
        """None as long as there is no machine code."""

    def run(self, machine: Machine) -> None:
        """Runs from ``machine.pc`` until the host's call is complete or has to wait (``machine.pending``).

        When an instruction fails its error is raised, with ``machine.pc`` at the instruction and the frames
        as they were.
        """


def default_tier() -> str:
    """The tier that the environment variable JITREE_TIER names, else ``auto``."""
    return os.environ.get(TIER_VARIABLE) or "auto"


def create_engine(tier: str | None = None) -> Engine:
    """The engine of a tier; None for the default. INVALID_ARGUMENT for an unknown name.

    A tier that has to be compiled first is waited for when it is asked for by name.
    """
    name = default_tier() if tier is None else tier
    if name == "plain":
        from jitree.dispatch.plain.engine import PlainEngine

        return PlainEngine()
    if name == "fast":
        from jitree.dispatch.fast.engine import FastEngine

        return FastEngine()
    if name in ("native", "auto"):
        from jitree.dispatch.native.engine import AutoEngine, NativeEngine

        return NativeEngine() if name == "native" else AutoEngine()
    raise InvalidArgumentError(f"tier '{name}' is unknown; the tiers are {', '.join(TIERS)}")
