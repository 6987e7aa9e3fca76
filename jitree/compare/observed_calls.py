"""Calls of sides that are looked at, one or two of them at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import numpy as np

from jitree.compare.peers.base import Peer
from jitree.compare.sides import arrays_of, extents_of, shown_array
from jitree.errors import StatusError
from jitree.observe.makers import Makers

if TYPE_CHECKING:
    from jitree.api.function import Function
    from jitree.observe.observation import Onlooker

Results = list[np.ndarray[Any, Any]]


def observed(
    opened: Function | Peer,
    onlookers: Sequence[Onlooker],
    inputs: Sequence[Any],
    after: Callable[[], object] | None = None,
) -> Results:
    """Results of a call that onlookers look at; ``after`` is called at its end, however that is."""
    try:
        if isinstance(opened, Peer):
            return _observed_peer(opened, onlookers, inputs)
        with opened.session.looked_at(*onlookers):
            given = opened(*inputs)
            results = arrays_of(given)
        for onlooker in onlookers:
            if isinstance(onlooker, Makers):
                onlooker.results = [extent and onlooker.of(extent) for extent in extents_of(given)]
        return results
    finally:
        if after is not None:
            after()


def _observed_peer(peer: Peer, onlookers: Sequence[Onlooker], inputs: Sequence[Any]) -> Results:
    """What no dispatch makes has no makers."""
    others = [onlooker for onlooker in onlookers if not isinstance(onlooker, Makers)]
    if not others:
        return arrays_of(peer.call(inputs, None))
    from jitree.observe.shown import Shower

    shower = Shower(others)

    def show(name: str, value: Any) -> None:
        array = shown_array(value)
        if array is not None:
            shower(name, array)

    return arrays_of(peer.call(inputs, show))


Call = tuple[str, Callable[[], Results]]
"""With the name of what is called, for messages."""


def both(here: Call, elsewhere: Call) -> tuple[Results, Results]:
    """Makes two calls at the same time, one of them on another thread. What the first fails with comes
    first."""
    outcome: list[Results | BaseException] = []

    def work() -> None:
        try:
            outcome.append(elsewhere[1]())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=copy_context().run, args=(work,), name="jitree-diff")
    thread.start()
    try:
        first = here[1]()
    except StatusError as error:
        raise error.with_context(f"of {here[0]}") from error.__cause__
    finally:
        thread.join()
    second = outcome[0]
    if isinstance(second, StatusError):
        raise second.with_context(f"of {elsewhere[0]}")
    if isinstance(second, BaseException):
        raise second
    return first, second
