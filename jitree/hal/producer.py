"""Work that will signal a semaphore, and threads that do it instead of sleeping until it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jitree.errors import StatusError


class Producer(Protocol):
    """Work that has been submitted and has not ended. Threads that wait for it look here for something to
    do."""

    def run_here(self, deadline: float | None) -> bool:
        """Does the work on the calling thread, if nothing else does it or holds it up, and if it will have
        ended by ``deadline`` (``time.monotonic``; None = any time). False when it did nothing."""

    def prerequisites(self) -> Sequence[Producer]:
        """The work that it waits for."""

    def is_held_up(self) -> bool:
        """Whether it also waits for something that no submitted work brings about."""

    def interrupt(self, failure: StatusError) -> None:
        """No caller wants it any more: it fails as soon as it can, and with that."""

    def describe(self) -> str:
        """What it is and what holds it up, in a line."""


def help_with(pending: Callable[[], Sequence[Producer]], deadline: float | None) -> None:
    """Does work on this thread until nothing is ``pending`` or none of it, nor of what it waits for, can be
    done here: it is running elsewhere, or waits for something that has not been submitted.

    Prerequisites come first, found once each, so that a chain of any length takes one walk along it.
    """
    worked = True
    while worked and (deadline is None or time.monotonic() < deadline):
        worked = False
        found = list(pending())
        seen = set(found)
        while found:
            producer = found[-1]
            if producer.run_here(deadline):
                worked = True
                found.pop()
                if not pending():
                    return
                continue
            earlier = [one for one in producer.prerequisites() if one not in seen]
            seen.update(earlier)
            if earlier:
                found += earlier
            else:
                found.pop()


def interrupt_all(producers: Sequence[Producer], failure: StatusError, kept: Sequence[Producer] = ()) -> None:
    """Interrupts work and what it waits for, but nothing that is ``kept``, nor what that waits for."""
    seen = set(kept)
    found = list(producers)
    while found:
        producer = found.pop()
        if producer not in seen:
            seen.add(producer)
            found += producer.prerequisites()
            producer.interrupt(failure)
