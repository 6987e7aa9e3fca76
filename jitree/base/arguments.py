"""Arguments of public functions that are none: INVALID_ARGUMENT names the argument and what it got."""

from __future__ import annotations

import operator
from typing import Any

from jitree.errors import InvalidArgumentError


def integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        kind = type(value).__name__
        raise InvalidArgumentError(f"{name}: expected an integer but got {value!r} of type {kind}") from None


def natural(name: str, value: Any) -> int:
    """An integer that counts something."""
    number = integer(name, value)
    if number < 0:
        raise InvalidArgumentError(f"{name}: expected an integer that is not negative but got {number}")
    return number
