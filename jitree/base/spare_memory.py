"""Gives up spare memory where memory is short.

Spare memory makes programs faster, and they can do without it.
"""

from __future__ import annotations

from typing import Final, Protocol

from jitree.base.finalizers import SharedWeakSet
from jitree.errors import pass_interruption

SHARE: Final = 4
"""Spare memory may grow to the part ``1 / SHARE`` of what the system, or the cgroup, has left."""


class Spare(Protocol):
    """Has spare memory."""

    @property
    def kept(self) -> int:
        """Bytes that it has."""

    @property
    def most_kept(self) -> int:
        """Bytes that it may come to have."""

    @property
    def reserved(self) -> int:
        """Bytes of addresses that it has."""

    def give_up(self) -> None:
        """Frees what nothing reads at this moment, the rest as soon as nothing does; it takes no more."""


_spares: Final[SharedWeakSet[Spare]] = SharedWeakSet()


def add(spare: Spare) -> None:
    """From now on it is asked for its memory, as long as it lives."""
    _spares.add(spare)


def look() -> None:
    """Gives up all spare memory of this process if little is left beside it. Nothing happens where the system
    does not say how much that is."""
    spares = tuple(_spares)
    most = sum(spare.most_kept for spare in spares)
    left = _left() if most else None
    if left is not None and left < SHARE * most:
        _give_up(spares)


def give_up_for(size: int) -> bool:
    """Gives up all of it for an allocation of so many bytes that failed. False where nothing was freed by
    that; none is given up for an allocation that is too large all the same."""
    spares = tuple(_spares)
    reserved = _reserved(spares)
    left = _left() if reserved else None
    if left is not None and size > left + reserved:
        return False
    _give_up(spares)
    return _reserved(spares) < reserved


def _reserved(spares: tuple[Spare, ...]) -> int:
    return sum(spare.reserved for spare in spares)


def _give_up(spares: tuple[Spare, ...]) -> None:
    for spare in spares:
        spare.give_up()


def _left() -> int | None:
    from jitree.base.platform.available_resources import (
        available_memory,  # 2 ms to import: not for a first result
    )

    try:
        return available_memory()
    except OSError as error:  # a confined process reads no such files
        pass_interruption(error)
        return None
