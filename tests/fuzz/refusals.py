"""What the system refuses in a case of :mod:`tests.fuzz.turns`: the Nth thing that the package asks it for.

These are memory of devices, mappings, what handle tables and pools grow by, and threads, by the functions
that :mod:`tests.fuzz.faults` has for them. What comes before the first turn, and what tests ask for, is not
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.fuzz.faults import PLACES, Place
from tests.fuzz.scheduler import Scheduler, is_asking


@contextmanager
def refused(turns: Scheduler) -> Iterator[None]:
    """Refuses what the schedule says while the block runs."""
    with ExitStack() as stack:
        if turns.schedule.refused:
            for place in (PLACES["mapping"], PLACES["allocation"]):
                for owner, name in place.functions:
                    asking = _asking(turns, place, getattr(owner, name))
                    stack.enter_context(patch.object(owner, name, asking))
        yield


def _asking(turns: Scheduler, place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*arguments: Any, **named: Any) -> Any:
        if is_asking(1) and turns.refuses():
            raise place.refusal()
        return function(*arguments, **named)

    return ask
