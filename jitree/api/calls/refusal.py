"""Describes values that a parameter does not take, for messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.transfers import native_row
from jitree.base.arguments import NO_MASKS, described, is_a, is_masked, taken_apart
from jitree.errors import InvalidArgumentError
from jitree.types import format_shaped_type

T = TypeVar("T")


def refused(parameter: str, expected: str, value: object, why: str = "") -> InvalidArgumentError:
    why = NO_MASKS if is_masked(value) else why
    return InvalidArgumentError(f"{parameter}: expected {expected} but got {describe(value)}{why}")


def describe(value: Any) -> str:
    """A value for messages: type and shape of arrays, text and class of everything else."""
    if is_a(value, np.ndarray, Array):
        kind = "masked array" if is_masked(value) else "array"
        if is_a(value, np.ndarray):
            value = np.asarray(value)  # a subclass may say anything of itself
        row = native_row(value.dtype)
        if row is None:
            return f"an {kind} of dtype {value.dtype} and shape {value.shape}"
        return f"a {format_shaped_type(value.shape, row)} {kind}"
    return described(value)


def listed(name: str, what: str, values: Iterable[T], *classes: type) -> tuple[T, ...]:
    """The items of a list, of one of the classes if there are any; text is no list, though it could be taken
    apart."""
    if type(values) is tuple and not values:
        return values
    items = None if isinstance(values, (str, bytes)) else taken_apart(values)
    if items is not None and (not classes or all(issubclass(type(item), classes) for item in items)):
        return items
    raise InvalidArgumentError(f"{name}: expected a list of {what} but got {describe(values)}")
