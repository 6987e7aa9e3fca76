"""``check``: a failed expectation is recorded, the program goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jitree.base.elements import HostTensor
from jitree.errors import OutOfRangeError
from jitree.hal.buffer import BufferView
from jitree.hal.device import Device
from jitree.modules.check.comparison import almost_equal, default_tolerance, equal, nonzero
from jitree.modules.hal.module import RowModule
from jitree.types import element_type

if TYPE_CHECKING:
    from jitree.dispatch.host_module import ModuleContext

FailureSink = Callable[[str], None]
"""Gets the text of each expectation that failed, when it fails."""


class CheckModule(RowModule):
    """A ``sink``, if there is one, is told of failed expectations; without one, the call in which they failed
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
