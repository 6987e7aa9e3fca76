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


def integers(name: str, value: Any) -> tuple[int, ...]:
    return tuple(integer(name, item) for item in items(name, value))


def items(name: str, value: Any) -> tuple[Any, ...]:
    """What a sequence has."""
    try:
        return tuple(value)
    except TypeError:
        raise InvalidArgumentError(f"{name}: expected a sequence but got {type(value).__name__}") from None


def object_of(name: str, value: Any, *kinds: type) -> Any:
    """The value, if it is of one of the classes."""
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidArgumentError(f"{name}: expected {expected} but got {type(value).__name__}")
    return value


def natural(name: str, value: Any) -> int:
    """An integer that counts something."""
    number = integer(name, value)
    if number < 0:
        raise InvalidArgumentError(f"{name}: expected an integer that is not negative but got {number}")
    return number
