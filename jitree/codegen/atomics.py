"""Numbers in records that several threads change: ``atomic_add(team.finished, 1)``.

Loads, additions and replacements are in one order for all threads; a store comes after what its thread did
before it. In Python they are ordinary ones: there, only one thread may use them at a time.
"""

from __future__ import annotations

import ctypes

from jitree.codegen.record import MemoryRecord, place_of


class Atomic(MemoryRecord):
    """A field of 64 bits, at a multiple of 8."""

    embedded = True


def atomic_load(word: Atomic) -> int:
    return ctypes.c_int64.from_address(place_of(word)).value


def atomic_store(word: Atomic, value: int) -> None:
    ctypes.c_int64.from_address(place_of(word)).value = value


def atomic_add(word: Atomic, amount: int) -> int:
    """What the number was before."""
    before = atomic_load(word)
    atomic_store(word, before + amount)
    return before


def atomic_replace(word: Atomic, expected: int, value: int) -> bool:
    """Sets the number if it is as expected; whether it was."""
    found = atomic_load(word) == expected
    if found:
        atomic_store(word, value)
    return found
