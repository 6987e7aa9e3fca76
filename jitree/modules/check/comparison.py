"""What makes an expectation fail, in words; None when it holds."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.base.elements import float_text, is_float, is_integer
from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError
from jitree.modules.check.tensor import CheckedTensor
from jitree.types import CLASS_BOOLEAN, ElementType, element_type

_COMPLEX: Final = 0x23
_SMALL_TOLERANCE: Final = 1e-3
_TOLERANCE: Final = 1e-4
"""Absolute, for types below 32 bits and the others: what compilers up to 3.2 left to the runtime."""

Mask = npt.NDArray[np.bool_]


class Tolerance(NamedTuple):
    atol: float
    rtol: float
    """Relative to the right-hand side."""


def default_tolerance(code: int) -> float:
    """The absolute tolerance for elements of a type, by its number, when the program states none."""
    return _SMALL_TOLERANCE if element_type(code).bits < 32 else _TOLERANCE


def nonzero(tensor: CheckedTensor) -> str | None:
    """Every element is different from zero. INVALID_ARGUMENT for opaque elements."""
    _require(_has_zero(tensor.row), "expect_all_true", tensor.row)
    zeros: Mask = tensor.values() == 0
    if not zeros.any():
        return None
    return (
        f"Expected all elements to be nonzero; {_how_many(zeros)} zero, the first at "
        f"{_position(zeros, tensor.shape)}.\n  operand:\n    {tensor.text}"
    )


def equal(lhs: CheckedTensor, rhs: CheckedTensor) -> str | None:
    """Type, shape and every byte are the same."""
    reasons = _mismatches(lhs, rhs)
    if not reasons:
        if np.array_equal(lhs.data, rhs.data):
            return None
        texts = np.array(lhs.element_texts(), object), np.array(rhs.element_texts(), object)
        different: Mask = _differing_bytes(lhs, rhs)
        reasons = ["Contents do not match.", _first(different, lhs.shape, *texts)]
    return _comparison("Expected equality of these values.", reasons, lhs, rhs)


def almost_equal(lhs: CheckedTensor, rhs: CheckedTensor, tolerance: Tolerance) -> str | None:
    """Type and shape are the same and elements differ by at most atol + rtol * abs(right); NaN equals NaN.

    INVALID_ARGUMENT for elements that are no floating-point numbers.
    """
    _require(is_float(lhs.row), "expect_almost_eq", lhs.row)
    title = (
        f"Expected near equality of these values with atol={float_text(tolerance.atol)}, "
        f"rtol={float_text(tolerance.rtol)}."
    )
    reasons = _mismatches(lhs, rhs)
    if not reasons:
        left, right = lhs.values(), rhs.values()
        far = _far_apart(left.astype(np.float64), right.astype(np.float64), tolerance)
        if not far.any():
            return None
        index = int(far.argmax())
        with np.errstate(invalid="ignore"):
            difference = abs(float(left[index]) - float(right[index]))
        reasons = [
            "Contents do not match.",
            f"{_first(far, lhs.shape, left, right)} (difference {float_text(difference)}).",
        ]
    return _comparison(title, reasons, lhs, rhs)


def _far_apart(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64], tolerance: Tolerance) -> Mask:
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(left - right) <= tolerance.atol + tolerance.rtol * np.abs(right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    far: Mask = ~(same | near & np.isfinite(right))
    return far


def _mismatches(lhs: CheckedTensor, rhs: CheckedTensor) -> list[str]:
    reasons = []
    if lhs.row.code != rhs.row.code:
        reasons.append("Element types do not match.")
    if lhs.shape != rhs.shape:
        reasons.append("Shapes do not match.")
    return reasons


def _differing_bytes(lhs: CheckedTensor, rhs: CheckedTensor) -> Mask:
    """Which elements have other bits."""
    bits = lhs.row.bits
    if bits % 8:
        return np.asarray(lhs.values() != rhs.values())
    size = bits // 8
    different = (lhs.data != rhs.data).reshape(-1, size)
    mask: Mask = different.any(axis=1)
    return mask


def _first(mask: Mask, shape: tuple[int, ...], left: npt.NDArray[Any], right: npt.NDArray[Any]) -> str:
    index = int(mask.argmax())
    values = f"lhs {_text(left[index])}, rhs {_text(right[index])}"
    return f"{_how_many(mask)} different, the first at {_position(mask, shape)}: {values}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else float_text(float(value))  # type: ignore[arg-type]


def _how_many(mask: Mask) -> str:
    count = int(mask.sum())
    return f"{count} of {mask.size} elements {'is' if count == 1 else 'are'}"


def _position(mask: Mask, shape: tuple[int, ...]) -> str:
    return str([int(index) for index in np.unravel_index(int(mask.argmax()), shape)])


def _comparison(title: str, reasons: list[str], lhs: CheckedTensor, rhs: CheckedTensor) -> str:
    head = " ".join([title, *reasons])
    return f"{head}\n  lhs:\n    {lhs.text}\n  rhs:\n    {rhs.text}"


def _has_zero(row: ElementType) -> bool:
    return is_float(row) or is_integer(row) or row.numerical_class in (CLASS_BOOLEAN, _COMPLEX)


def _require(condition: bool, function: str, row: ElementType) -> None:
    if not condition:
        raise InvalidArgumentError(
            f"check.{function} of elements of type {row.name}, which it cannot compare"
        )
