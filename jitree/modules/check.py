"""The host module ``check``: expectations of self-checking programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base.elements import HostTensor, Mask, float_text, is_float, is_integer, near
from jitree.errors import InvalidArgumentError, OutOfRangeError
from jitree.hal.buffer import BufferView
from jitree.hal.device import Device
from jitree.modules.hal.module import RowModule
from jitree.types import CLASS_BOOLEAN, ElementType, element_type

if TYPE_CHECKING:
    from jitree.dispatch.host_module import ModuleContext

_COMPLEX: Final = 0x23
_SMALL_TOLERANCE: Final = 1e-3
_TOLERANCE: Final = 1e-4
"""Absolute, for types below 32 bits and the others: what compilers up to 3.2 left to the runtime."""
_CONTENTS: Final = "Contents does not match"
"""In the words of IREE's module, which programs and scripts look for."""

FailureSink = Callable[[str], None]
"""Gets the text of each expectation that failed, when it fails."""


def default_tolerance(code: int) -> float:
    """Gives the absolute tolerance of a type, by its number, when none is stated."""
    return _SMALL_TOLERANCE if element_type(code).bits < 32 else _TOLERANCE


def nonzero(tensor: HostTensor) -> str | None:
    """Every element is different from zero. INVALID_ARGUMENT for opaque elements."""
    _require(_has_zero(tensor.element_type), "expect_all_true", tensor.element_type)
    zeros: Mask = tensor.values == 0
    if not zeros.any():
        return None
    return (
        f"Expected all elements to be nonzero; {_how_many(zeros)} zero, the first at "
        f"{_position(zeros, tensor.shape)}.\n  operand:\n    {tensor.text()}"
    )


def equal(lhs: HostTensor, rhs: HostTensor) -> str | None:
    """Type, shape and every byte are the same."""
    reasons = _mismatches(lhs, rhs)
    if not reasons:
        different = ~lhs.has_bits_of(rhs)
        if not different.any():
            return None
        index = int(different.argmax())
        first = f"lhs {lhs.element_text(index)}, rhs {rhs.element_text(index)}"
        place = f"the first at {_position(different, lhs.shape)}"
        reasons = [f"{_CONTENTS}.", f"{_how_many(different)} different, {place}: {first}"]
    return _comparison("Expected equality of these values.", reasons, lhs, rhs)


def almost_equal(lhs: HostTensor, rhs: HostTensor, atol: float, rtol: float) -> str | None:
    """Compares types, shapes and elements within atol + rtol * abs(right); NaN equals NaN.

    INVALID_ARGUMENT for elements that are no floating-point numbers.
    """
    _require(is_float(lhs.element_type), "expect_almost_eq", lhs.element_type)
    reasons = _mismatches(lhs, rhs)
    if not reasons:
        far = ~near(lhs.values, rhs.values, atol, rtol)
        if not far.any():
            return None
        left, right = (float(tensor.values[far.argmax()]) for tensor in (lhs, rhs))
        with np.errstate(invalid="ignore"):
            apart = float(np.subtract(right, left))
        reasons = [
            f"{_CONTENTS} to tolerance parameters atol={_number(atol)}, rtol={_number(rtol)}.",
            f"The first failure occurs at index {int(far.argmax())} as the lhs value {_number(left)} differs "
            f"from the rhs value {_number(right)} by {apart:.3e}.",
        ]
    return _comparison("Expected near equality of these values.", reasons, lhs, rhs)


def _mismatches(lhs: HostTensor, rhs: HostTensor) -> list[str]:
    reasons = []
    if lhs.element_type.code != rhs.element_type.code:
        reasons.append("Element types do not match.")
    if lhs.shape != rhs.shape:
        reasons.append("Shapes do not match.")
    return reasons


def _number(value: float) -> str:
    """As C++ streams write it: ``1e+10``, ``nan``, ``-inf``."""
    return float_text(value).lower()


def _how_many(mask: Mask) -> str:
    count = int(mask.sum())
    return f"{count} of {mask.size} elements {'is' if count == 1 else 'are'}"


def _position(mask: Mask, shape: tuple[int, ...]) -> str:
    return str([int(index) for index in np.unravel_index(int(mask.argmax()), shape)])


def _comparison(title: str, reasons: list[str], lhs: HostTensor, rhs: HostTensor) -> str:
    head = " ".join([title, *reasons])
    return f"{head}\n  lhs:\n    {lhs.text()}\n  rhs:\n    {rhs.text()}"


def _has_zero(row: ElementType) -> bool:
    return is_float(row) or is_integer(row) or row.numerical_class in (CLASS_BOOLEAN, _COMPLEX)


def _require(condition: bool, function: str, row: ElementType) -> None:
    if not condition:
        raise InvalidArgumentError(
            f"check.{function} of elements of type {row.name}, which it cannot compare"
        )


class CheckModule(RowModule):
    """Tells a ``sink``, if there is one, of failed expectations. Without one, the call in which they failed
    raises them all when it ends."""

    name = "check"
    version = 0

    def __init__(self, sink: FailureSink | None = None) -> None:
        self.sink = sink

    def create_state(self, context: ModuleContext) -> FailureSink:
        return context.fail_at_end if self.sink is None else self.sink


def expect_true(report: FailureSink, value: int) -> None:
    if value == 0:
        report(f"Expected {value} to be nonzero.")


def expect_false(report: FailureSink, value: int) -> None:
    if value != 0:
        report(f"Expected {value} to be zero.")


def expect_all_true(report: FailureSink, device: Device, view: BufferView) -> None:
    """INVALID_ARGUMENT for elements without a zero."""
    _report(report, nonzero(read(view, device)))


def expect_eq(report: FailureSink, device: Device, lhs: BufferView, rhs: BufferView) -> None:
    _report(report, equal(read(lhs, device), read(rhs, device)))


def expect_almost_eq(
    report: FailureSink, device: Device, lhs: BufferView, rhs: BufferView, atol: float, rtol: float
) -> None:
    """INVALID_ARGUMENT for elements that are no floating-point numbers."""
    _report(report, almost_equal(read(lhs, device), read(rhs, device), atol, rtol))


def expect_almost_eq_default(report: FailureSink, device: Device, lhs: BufferView, rhs: BufferView) -> None:
    expect_almost_eq(report, device, lhs, rhs, default_tolerance(lhs.element_type), 0.0)


def read(view: BufferView, device: Device) -> HostTensor:
    """The contents of a view. OUT_OF_RANGE when the buffer is shorter than the shape needs."""
    row = element_type(view.element_type)
    length = row.byte_length(view.shape)
    data = device.read_buffer(view.buffer)
    if len(data) < length:
        raise OutOfRangeError(f"a tensor of {length} bytes in a buffer of {len(data)} bytes")
    return HostTensor(row, view.shape, data[:length])


def _report(report: FailureSink, failure: str | None) -> None:
    if failure is not None:
        report(failure)


__all__ = ["CheckModule", "FailureSink"]
