"""Indices of arrays: what they have in common with numpy's, and what is said of those that are none."""

from __future__ import annotations

import operator
from typing import Any, Final

import numpy as np

from jitree.base.arguments import shown
from jitree.errors import pass_interruption

_COUNTED: Final = 63
"""Bits of the largest number that numpy counts to."""


def basic(index: Any) -> tuple[Any, ...] | None:
    """Integers, slices, Ellipsis and None, with Ellipsis at least at the end; None for any other index."""
    items = []
    for item in index if isinstance(index, tuple) else (index,):
        if item is not None and item is not Ellipsis and not isinstance(item, slice):
            if isinstance(item, (bool, np.bool_)):
                return None
            try:
                item = operator.index(item)
            except TypeError as error:
                pass_interruption(error)
                return None
        items.append(item)
    return tuple(items) if any(item is Ellipsis for item in items) else (*items, Ellipsis)


def explained(error: Exception, shape: tuple[int, ...], index: Any) -> Exception:
    """What numpy raised for an index. It takes integers beyond 64 bits for no integers: they are outside."""
    items = [item for item in basic(index) or () if item is not None]
    for place, item in enumerate(items):
        if not isinstance(item, int) or item.bit_length() <= _COUNTED:
            continue
        rank, count = len(shape), len(items) - 1
        if count > rank:
            return IndexError(
                f"too many indices for array: array is {rank}-dimensional, but {count} were indexed"
            )
        axis = place if Ellipsis not in items[:place] else rank - len(items) + place
        return IndexError(f"index {shown(item)} is out of bounds for axis {axis} with size {shape[axis]}")
    return error
