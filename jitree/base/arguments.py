"""Checks arguments of public functions.

INVALID_ARGUMENT names the argument and what it got.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf, isnan
from numbers import Real
from reprlib import Repr
from typing import Any, Final, TypeGuard

from jitree.errors import InvalidArgumentError, is_interruption, own_error, pass_interruption

_SHOWN: Final = 60
_MOST_DIMENSIONS: Final = 64
"""Of numpy's arrays."""
_MOST_BITS: Final = 1024
"""More than any size has, and few enough for an integer to have a text."""

_BEYOND: Final = 1 << 128
"""Larger than what any bound allows, and few enough bits for a text."""

_nested: Final = Repr()
"""Makes texts of lists, which may have the same list many times, and that one others."""
_nested.maxlevel = 3
_nested.maxlist = _nested.maxtuple = _nested.maxstring = _nested.maxother = _nested.maxlong = _SHOWN


def shown(value: object) -> str:
    """The text of a value for messages, shortened. A message is made in any case: integers of thousands of
    digits have no text, and objects of a program may raise anything."""
    try:
        text = _nested.repr(value) if type(value) in (list, tuple) else repr(value)
    except Exception as error:
        if is_interruption(error):
            raise
        text = f"({text_of(error)})"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def text_of(error: BaseException) -> str:
    """What an error says. Its class may have code for that, which may fail."""
    try:
        return str.__str__(str(error))  # also where it gives a string of a class of its own
    except Exception as failure:
        if is_interruption(failure):
            raise
        return f"it has no text: its class raises {type(failure).__name__}"


def said(error: BaseException) -> str:
    """The class of an error, and what it says."""
    return f"{type(error).__name__}: {text_of(error)}"


def described(value: object) -> str:
    """The text of a value, and its class."""
    return f"{shown(value)} of type {type(value).__name__}"


def number_of(digits: str, base: int = 10) -> int:
    """Reads an integer. One of thousands of digits, which Python refuses to read, is larger than any."""
    try:
        return int(digits, base)
    except ValueError as error:
        pass_interruption(error)
        return -_BEYOND if digits.startswith("-") else _BEYOND


def integer(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        pass_interruption(error)
        what = f"{name}: expected an integer but got {described(value)}"
        raise InvalidArgumentError(what) from own_error(error)
    if number.bit_length() > _MOST_BITS:
        raise InvalidArgumentError(f"{name}: an integer of {number.bit_length()} bits is no size")
    return number


def integers(name: str, value: Any) -> tuple[int, ...]:
    return tuple(integer(name, item) for item in items(name, value))


def items(name: str, value: Any) -> tuple[Any, ...]:
    """What a sequence has."""
    found = taken_apart(value)
    if found is None:
        raise InvalidArgumentError(f"{name}: expected a sequence but got {type(value).__name__}")
    return found


def taken_apart(value: Any) -> tuple[Any, ...] | None:
    """What a sequence has, None for what is none; memory that is released has nothing."""
    try:
        return None if is_released(value) else tuple(value)
    except (TypeError, OverflowError, MemoryError) as error:  # a length may be more than there can be
        pass_interruption(error)
        return None


def is_released(value: object) -> bool:
    """Whether it is a view of memory that its owner has given back: it raises ValueError for whatever is
    asked of it."""
    if type(value) is not memoryview:  # no class is derived from it
        return False
    try:
        return value.nbytes < 0
    except ValueError as error:
        pass_interruption(error)
        return True


def contents(name: str, value: Any) -> memoryview:
    """The bytes of an object with the buffer protocol, which lie in one piece."""
    try:
        view = memoryview(value)
        return view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError, BufferError) as error:
        pass_interruption(error)
        raise InvalidArgumentError(
            f"{name}: expected bytes in one piece but got {type(value).__name__}: {error}"
        ) from own_error(error)


def given(
    parameters: Iterable[Any], arguments: Iterable[object], named: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    """The arguments of a call with their names."""
    return chain(zip((parameter.name for parameter in parameters), arguments, strict=False), named.items())


def is_a(value: object, *kinds: Any) -> bool:
    """Whether a value is of one of the classes. What it says by ``__class__`` is not asked: a mock or a proxy
    need not have what the class has."""
    return issubclass(type(value), kinds)


def is_one_of(value: object, names: Container[str]) -> TypeGuard[str]:
    """Whether a value is one of some names. Other values may have no hash, and arrays are equal to nothing
    that has a truth."""
    return is_a(value, str) and value in names


def object_of(name: str, value: Any, *kinds: type) -> Any:
    """The value, if it is of one of the classes."""
    if not issubclass(type(value), kinds):  # as `is_a`
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidArgumentError(f"{name}: expected {expected} but got {type(value).__name__}")
    return value


def natural(name: str, value: Any) -> int:
    """An integer that counts something."""
    number = integer(name, value)
    if number < 0:
        raise InvalidArgumentError(f"{name}: expected an integer that is not negative but got {number}")
    return number


def seconds(name: str, value: Any) -> float:
    """How long something may take; infinity where there is no limit. Negative numbers are a mistake of the
    caller."""
    if not is_a(value, Real):
        raise InvalidArgumentError(f"{name}: expected a number of seconds but got {described(value)}")
    number: Any = value
    try:
        limit = float(number)
    except OverflowError as error:
        pass_interruption(error)
        limit = inf if number > 0 else -inf
    if isnan(limit) or limit < 0:
        raise InvalidArgumentError(f"{name}: expected a number of seconds from 0 on but got {shown(value)}")
    return limit


NO_MASKS: Final = (
    "; programs know no masks: pass array.filled(value), or array.data where no element is masked"
)


def is_masked(value: object) -> bool:
    """Tells whether it is a masked array, or a sequence with one in it: what a mask hides is not meant to be
    used."""
    masked = sys.modules.get("numpy.ma")  # there are no such arrays before it is imported
    try:
        return masked is not None and _has_masked(value, masked.MaskedArray)
    except RecursionError as error:
        pass_interruption(error)
        if not is_deep((value,)):
            raise
        raise InvalidArgumentError("a list with lists inside each other without end is no array") from None


def is_deep(values: tuple[object, ...]) -> bool:
    """Tells whether lists lie deeper inside each other than dimensions, or in a circle: that fills Python's
    stack, as code of the caller may, or may have before the call."""
    level: Sequence[object] = values
    for _ in range(_MOST_DIMENSIONS):
        lists = {id(value): value for value in level if isinstance(value, (list, tuple))}
        if not lists:
            return False
        level = [item for value in lists.values() for item in value]
    return True


def _has_masked(value: object, masked: type) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has_masked(item, masked) for item in value)
    return isinstance(value, masked)
