"""Converts elements, and Python numbers, to those that a parameter takes."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.api.calls.refusal import refused
from jitree.base.copying import copy_into, copy_of, parts_of, ranges, room_for
from jitree.errors import InvalidArgumentError, pass_interruption
from jitree.modules.hal.buffer_view import compatible_elements
from jitree.types import (
    CLASS_BOOLEAN,
    CLASS_INTEGER,
    CLASS_OPAQUE,
    CLASS_SIGNED,
    CLASS_UNSIGNED,
    INTEGER_CLASSES,
    ElementType,
    element_type,
)

if TYPE_CHECKING:
    import numpy.typing as npt

_MOST_AXES: Final = 64
"""Of arrays of numpy."""
_TOGETHER: Final = 1 << 18
"""Numbers of a list that become elements at once."""
_BITS: Final = 0xFF
"""The bits of an element type's code that have the size of an element."""
_LISTS: Final = (list, tuple, range)
_ALL_TRIED: Final = 16
"""Bits of the widest floats of which every value is tried."""

_ASTYPE_OF: Final = {
    "torch": " (of torch x.to(torch.{}))",
    "polars": ' (of polars x.to_numpy().astype("{}"))',
}
"""What is called otherwise in libraries, where a process has them."""


def holds(expected: int, actual: int) -> bool:
    """Whether a parameter takes arrays of an element type: one of integers without a sign those of any sign,
    as they have the same bits, others their own. Numpy's signed integers have none here. Elements of unknown
    type need the size."""
    if not compatible_elements(actual, expected) or actual & _BITS != expected & _BITS:
        return False
    kind = actual >> 24
    wanted = expected >> 24
    if wanted == CLASS_SIGNED:
        return kind in (CLASS_OPAQUE, CLASS_INTEGER, CLASS_SIGNED)
    return wanted not in (CLASS_UNSIGNED, CLASS_BOOLEAN) or kind in (CLASS_OPAQUE, wanted)


@cache
def has_every_value(given: int, declared: int) -> bool:
    """Tells whether each value of one element type is a value of another: also infinities, NaN and -0.

    It is tried out. Floats that have the ends of a range of integers exactly have all between. What numpy
    cannot cast is none.
    """
    try:
        return _has_every_value(given, declared)
    except TypeError as error:
        pass_interruption(error)
        return False


def _has_every_value(given: int, declared: int) -> bool:
    narrow, wide = element_type(given), element_type(declared)
    if CLASS_OPAQUE in (narrow.numerical_class, wide.numerical_class):
        return False
    if narrow.numerical_class in INTEGER_CLASSES:
        ends = _ends(narrow)
        if wide.numerical_class in INTEGER_CLASSES:
            low, high = _ends(wide)
            return low <= ends[0] and ends[1] <= high
        with np.errstate(all="ignore"):
            reached = np.array(ends, narrow.dtype).astype(wide.dtype).astype(np.complex128)
        return bool(reached.tolist() == ends)
    if wide.numerical_class in INTEGER_CLASSES or (narrow.dtype.kind == "c" and wide.dtype.kind != "c"):
        return False
    with np.errstate(all="ignore"):
        values = _floats(narrow)
        before, after = values.astype(np.complex128), values.astype(wide.dtype).astype(np.complex128)
        same = (before == after) & (np.signbit(before.real) == np.signbit(after.real))
    return bool(np.all(same | (np.isnan(before) & np.isnan(after))))


def _ends(row: ElementType) -> list[int]:
    """The least and the largest integer of a type."""
    if row.numerical_class == CLASS_BOOLEAN:
        return [0, 1]
    if row.numerical_class == CLASS_UNSIGNED:
        return [0, (1 << row.bits) - 1]
    return [-1 << row.bits - 1, (1 << row.bits - 1) - 1]


def _floats(row: ElementType) -> npt.NDArray[Any]:
    """Lists all values of narrow floats, of wide ones those that others may lack."""
    if row.bits <= _ALL_TRIED:
        return np.arange(1 << row.bits, dtype=f"u{row.bits // 8}").view(row.dtype)
    limits = np.finfo(row.dtype)
    values = [limits.max, limits.smallest_subnormal, 1 + limits.eps, -0.0, np.inf, np.nan]
    return np.array(values, row.dtype)


def widened(array: npt.NDArray[Any], declared: ElementType) -> npt.NDArray[Any]:
    """Elements as ones of a type that has each value of theirs."""
    try:
        return copy_of(array, declared.dtype)
    except (FloatingPointError, RuntimeWarning):  # a signalling NaN, where numpy is told to raise
        with np.errstate(invalid="ignore"):
            return copy_of(array, declared.dtype)


def mismatch(name: str, given: int, declared: ElementType) -> InvalidArgumentError:
    """The refusal of elements of another type, with what to do."""
    row, wanted = element_type(given), declared.dtype.name
    text = types_differ(name, given, declared)
    if CLASS_OPAQUE in (row.numerical_class, declared.numerical_class):
        return InvalidArgumentError(f'{text}; say what the bytes are: pass x.view("{wanted}")')
    if has_every_value(given, declared.code):
        return InvalidArgumentError(f"{text}; the program uses its memory, so it must have that type already")
    others = (how.format(wanted) for library, how in _ASTYPE_OF.items() if library in sys.modules)
    return InvalidArgumentError(
        f"{text}; {declared.name} does not have every value of {row.name}, so nothing is converted unasked: "
        + "".join([f'pass x.astype("{wanted}")', *others])
    )


def types_differ(name: str, given: int, declared: ElementType) -> str:
    """Names two types, each as programs and as numpy do."""
    have = _named(element_type(given))
    return f"{name} element type mismatch; expected {_named(declared)} but have {have}"


def _named(row: ElementType) -> str:
    return f"{row.name} ({row.dtype.name})"


def convert_exactly(
    given: npt.NDArray[Any], dtype: np.dtype[Any], name: str, expected: str, value: object
) -> npt.NDArray[Any]:
    """Numbers as another type, which must hold their values; floats may be rounded to narrower floats."""
    if given.dtype == dtype:
        return given
    if given.dtype.kind == "c" and dtype.kind != "c":
        raise refused(name, expected, value)
    with room_for(given):
        converted = np.empty(given.shape, dtype)
    for place in parts_of(given):
        try:
            with np.errstate(all="ignore"):
                converted[place] = given[place].astype(dtype)
                is_kept = bool(np.all(_kept(given[place], converted[place])))
        except (TypeError, ValueError, OverflowError) as error:  # raw bytes are read as digits
            pass_interruption(error)
            raise refused(name, expected, value) from None
        if not is_kept:
            raise refused(name, expected, value, "; its elements cannot be converted without loss")
    return converted


def _kept(given: npt.NDArray[Any], converted: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which numbers have the value that they had."""
    if not native_float(converted.dtype):
        kept = converted.astype(given.dtype) == given
        if given.dtype.kind in "iu" and converted.dtype != np.bool_:  # the same bits may be of another sign
            kept &= (converted < 0) == (given < 0)
        return np.asarray(kept)
    wide = converted.astype(np.complex128)
    if given.dtype.kind in "fc":
        return np.asarray(np.isfinite(wide) | ~np.isfinite(given))
    return np.asarray(np.isfinite(wide) & (wide.real.astype(given.dtype) == given))  # some types have no zero


def numbers_of(value: Any) -> npt.NDArray[Any]:
    """Makes an array of numbers, of long lists in parts: between them the thread may end."""
    row, item = 1, value
    for _ in range(_MOST_AXES):  # a list may be in itself
        if not isinstance(item, _LISTS) or not item:
            break
        item = item[0]
        row *= len(item) if isinstance(item, _LISTS) else 1
    if not isinstance(value, _LISTS) or row * len(value) <= _TOGETHER:
        return np.asarray(value)
    if (
        isinstance(value, (list, tuple)) and type(value) not in _LISTS
    ):  # what a class says of its items, numpy does not ask either
        value = list(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value))
    parts = [np.asarray(value[place]) for place in ranges(len(value), max(_TOGETHER // max(row, 1), 1))]
    if any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        return np.asarray(value)
    length = sum(map(len, parts))  # another thread may have taken items away
    numbers = np.empty((length, *parts[0].shape[1:]), np.result_type(*parts))
    first = 0
    for part in parts:
        copy_into(numbers[first : first + len(part)], part)
        first += len(part)
    return numbers


def native_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype holds fractions: those of numpy and those that ml_dtypes adds."""
    return dtype.kind in "fc" or (dtype.kind == "V" and "float" in dtype.name)
