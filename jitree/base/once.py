"""Things that a process makes once and keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def once(make: Callable[[], T]) -> Callable[[], T]:
    """A function that gives what ``make`` makes when it is first called.

    For what machine code refers to by its address. Threads that come at the same time get the same object;
    :func:`functools.cache` gives each of them its own and keeps one, so the memory of the others goes while
    their addresses are used.
    """
    made: dict[None, T] = {}

    def first() -> T:
        try:
            return made[None]
        except KeyError:
            return made.setdefault(None, make())  # one step: the interpreter does not change threads inside

    return first
