"""``--expected_output=``: results against expected values, and texts that name the first difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from jitree.base import elements
from jitree.base.elements import Mask, near
from jitree.tools import host_values as hv
from jitree.tools import printing

SUCCESS: Final = "[SUCCESS] all function outputs matched their expected values.\n"
_SIGNLESS: Final = 0x10


class Tolerances(NamedTuple):
    """``abs(a - e) <= absolute[type] + relative * abs(e)``; types not listed compare their bytes."""

    absolute: dict[str, float]
    relative: float


EXACT: Final = Tolerances({}, 0.0)
"""Every type compares its bytes."""


def compare(
    results: Sequence[hv.HostValue],
    expected: Sequence[hv.HostValue],
    tolerances: Tolerances,
    max_element_count: int,
) -> list[str]:
    """One text (ending in a newline) for every result that differs; empty when all match."""
    if len(results) != len(expected):
        return [f"[FAILED] expected {len(expected)} list elements but {len(results)} provided\n"]
    failures = []
    for index, (actual, wanted) in enumerate(zip(results, expected, strict=True)):
        difference = _compare_value(actual, wanted, tolerances, max_element_count)
        if difference is not None:
            failures.append(f"[FAILED] result[{index}]: {difference}")
    return failures


def _compare_value(
    actual: hv.HostValue, wanted: hv.HostValue, tolerances: Tolerances, max_element_count: int
) -> str | None:
    match actual, wanted:
        case _, hv.Ignored():
            return None
        case hv.Null(), hv.Null():
            return None
        case hv.Scalar(), hv.Scalar() if actual.type_name == wanted.type_name:
            return _compare_scalars(actual, wanted, tolerances)
        case hv.HostTensor(), hv.HostTensor():
            return _compare_tensors(actual, wanted, tolerances, max_element_count)
        case hv.HostBuffer(), hv.HostBuffer() if actual.type_name == wanted.type_name:
            return _compare_buffers(actual, wanted)
    return f"variant types mismatch; expected {_variant_type(wanted)} but got {_variant_type(actual)}\n"


def _variant_type(value: hv.HostValue) -> str:
    return "empty" if isinstance(value, hv.Null) else printing.type_text(value)


def _compare_scalars(actual: hv.Scalar, wanted: hv.Scalar, tolerances: Tolerances) -> str | None:
    if actual.value == wanted.value:
        return None
    absolute = tolerances.absolute.get(actual.type_name)
    values = np.array(actual.value), np.array(wanted.value)
    if absolute is not None and near(*values, absolute, tolerances.relative):
        return None
    return (
        f"{actual.type_name} values differ\n"
        f"  expected: {printing.scalar_text(wanted)}\n  actual: {printing.scalar_text(actual)}\n"
    )


def _compare_buffers(actual: hv.HostBuffer, wanted: hv.HostBuffer) -> str | None:
    if np.array_equal(actual.data, wanted.data):
        return None
    return (
        f"{actual.type_name} contents differ\n  expected: {len(wanted.data)} bytes\n"
        f"  actual: {len(actual.data)} bytes\n"
    )


def _compare_tensors(
    actual: hv.HostTensor, wanted: hv.HostTensor, tolerances: Tolerances, max_element_count: int
) -> str | None:
    tail = f"expected that the view is equal to contents of a view of {wanted.shaped_type}\n"
    blocks = f"  expected:\n{wanted.text(max_element_count)}\n  actual:\n{actual.text(max_element_count)}\n"
    if actual.shape != wanted.shape or not _same_type(actual, wanted):
        head = f"metadata is {actual.shaped_type}; expected that the view matches {wanted.shaped_type}; "
        return head + tail + blocks
    differing = np.flatnonzero(~_matching(actual, wanted, tolerances))
    if not len(differing):
        return None
    first = int(differing[0])
    return (
        f"element at index {first} ({actual.element_text(first)}) does not match the expected "
        f"({wanted.element_text(first)}); {tail}{blocks}{_summary(actual, wanted, differing)}"
    )


def _same_type(actual: hv.HostTensor, wanted: hv.HostTensor) -> bool:
    """Equal types; a signless integer (which numpy files cannot state) goes with both signednesses."""
    given, asked = actual.element_type, wanted.element_type
    if given.code == asked.code:
        return True
    integers = elements.is_integer(given) and elements.is_integer(asked) and given.bits == asked.bits
    return integers and _SIGNLESS in (given.numerical_class, asked.numerical_class)


def _matching(actual: hv.HostTensor, wanted: hv.HostTensor, tolerances: Tolerances) -> Mask:
    """Per element: whether it matches."""
    absolute = tolerances.absolute.get(actual.element_type.name)
    if absolute is None:
        return actual.has_bits_of(wanted)
    return near(actual.values, wanted.values, absolute, tolerances.relative)


def _summary(actual: hv.HostTensor, wanted: hv.HostTensor, differing: npt.NDArray[np.intp]) -> str:
    text = f"  {len(differing)} of {actual.element_count} elements differ"
    if not (elements.is_integer(actual.element_type) or elements.is_float(actual.element_type)):
        return text + "\n"
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(_wide(actual)[differing] - _wide(wanted)[differing])
    distance = np.where(np.isnan(distance), -1.0, distance)
    worst = int(np.argmax(distance))
    if distance[worst] < 0:
        return text + "\n"
    position = np.unravel_index(int(differing[worst]), actual.shape) if actual.shape else ()
    where = ",".join(str(int(axis)) for axis in position)
    return f"{text}; largest |a-e| = {distance[worst]:g} at [{where}]\n"


def _wide(tensor: hv.HostTensor) -> npt.NDArray[np.float64]:
    return tensor.values.astype(np.float64)
