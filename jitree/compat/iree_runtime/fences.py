"""Semaphores and fences.

Times are nanoseconds; a deadline is a time of :func:`time.time_ns`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from jitree import errors
from jitree.base.arguments import shown
from jitree.compat.iree_runtime.arguments import (
    Kind,
    Reference,
    a,
    i64,
    integer,
    of,
    optional,
    size,
    takes,
    text,
)
from jitree.compat.iree_runtime.dtypes import (
    ExternalTimepointType,
    SemaphoreCompatibility,
)
from jitree.hal.fence import Fence
from jitree.hal.semaphore import Semaphore

if TYPE_CHECKING:
    from jitree.hal.device import Device

_CAUGHT: Final = (ValueError, IndexError, NotImplementedError, RuntimeError)


def _seconds(timeout: int | None, deadline: int | None) -> float | None:
    if timeout is not None and deadline is not None:
        raise ValueError("timeout and deadline cannot both be set")
    if timeout is not None:
        return max(0, timeout) / 1e9
    if deadline is not None:
        return max(0, deadline - time.time_ns()) / 1e9
    return None


def _wait(raw: Any, what: str, wait: Any) -> bool:
    """The failure, as the class of its status: it says whether it was there before the wait."""
    when = "synchronous" if raw.failure is not None else "asynchronous"
    try:
        return bool(wait())
    except errors.StatusError as error:
        kind = next(kind for kind in _CAUGHT if isinstance(error, kind))
        raise kind(f"{when} {what} failure: {error}") from error


def _field(slot: str, kind: Kind) -> Any:
    """A property of numbers of a kind."""
    return property(attrgetter(slot), lambda self, value: setattr(self, slot, kind(value)))


class HalExternalTimepoint:
    """Stands for a point of a timeline: an event of another library."""

    __slots__ = ("_compatibility", "_flags", "_handle", "_type")

    def __init__(self) -> None:
        self._type = self._flags = self._compatibility = self._handle = 0

    type = _field("_type", integer(0, 3))
    flags = _field("_flags", integer(0, 2**32 - 1))
    compatibility = _field("_compatibility", integer(0, 2**32 - 1))
    cuda_event = hip_event = _field("_handle", size)
    """The driver's handle, whatever the type."""


class HalSemaphore(Reference):
    """A timeline: a number that only grows."""

    __slots__ = ("_device",)
    wrapped = Semaphore
    _device: Device

    @classmethod
    def on(cls, device: Device, initial_value: int) -> HalSemaphore:
        made = cls.of(device.create_semaphore(initial_value))
        made._device = device
        return made

    def query(self) -> int:
        return int(self.raw.query())

    @takes(size)
    def signal(self, new_value: int, /) -> None:
        self.raw.signal(new_value)

    @takes(text)
    def fail(self, message: str) -> None:
        self.raw.fail(errors.UnknownError(message))

    @takes(size, optional(i64), optional(i64))
    def wait(self, payload: int, timeout: int | None = None, deadline: int | None = None) -> bool:
        """Whether the payload is at least ``payload`` in time; RuntimeError if the semaphore fails."""
        seconds = _seconds(timeout, deadline)
        return _wait(self.raw, "semaphore", lambda: self.raw.wait(payload, seconds))

    @takes(size, a(HalExternalTimepoint))
    def import_timepoint(self, value: int, external_timepoint: HalExternalTimepoint) -> None:
        """The semaphore reaches ``value`` when the event has happened.

        UNIMPLEMENTED for kinds of events that the semaphore's device does not know.
        """
        self._require_cuda("import_timepoint", external_timepoint.type)
        self._device.import_event(self.raw, value, external_timepoint.cuda_event)

    @takes(size, a(ExternalTimepointType), integer(0, 2**32 - 1), a(HalExternalTimepoint))
    def export_timepoint(
        self,
        value: int,
        requested_type: ExternalTimepointType,
        requested_flags: int,
        out_external_timepoint: HalExternalTimepoint,
    ) -> None:
        """An event that happens when the semaphore reaches ``value``."""
        self._require_cuda("export_timepoint", requested_type)
        out_external_timepoint.cuda_event = self._device.export_event(self.raw, value)
        out_external_timepoint.type = requested_type
        out_external_timepoint.compatibility = SemaphoreCompatibility.ALL

    def _require_cuda(self, what: str, kind: int) -> None:
        if kind != ExternalTimepointType.CUDA_EVENT:
            name = ExternalTimepointType(kind).name
            raise errors.UnimplementedError(f"{what}: timepoints are of type CUDA_EVENT, not {name}")


def _fences(value: Any) -> list[HalFence]:
    return [of(Fence)(item) for item in a(Sequence)(value)]


class HalFence(Reference):
    """A set of points of timelines."""

    __slots__ = ("_capacity",)
    wrapped = Fence

    @takes(size)
    def __init__(self, capacity: int) -> None:
        self.raw = Fence()
        self._capacity = capacity

    @staticmethod
    @takes(of(Semaphore), size)
    def create_at(sem: HalSemaphore, value: int) -> HalFence:
        return HalFence.of(Fence(((sem.raw, value),)))

    @staticmethod
    @takes(_fences)
    def join(fences: Sequence[HalFence]) -> HalFence:
        return HalFence.of(Fence.join(fence.raw for fence in fences) or Fence())

    @property
    def timepoint_count(self) -> int:
        return len(self.raw.timepoints)

    @takes(of(Semaphore), size)
    def insert(self, sem: HalSemaphore, value: int) -> None:
        """The larger of two values of one semaphore stays. RESOURCE_EXHAUSTED beyond the capacity."""
        self._add(((sem.raw, value),))

    @takes(of(Fence))
    def extend(self, from_fence: HalFence) -> None:
        """Adds all points of another fence."""
        self._add(from_fence.raw.timepoints)

    def _add(self, points: Iterable[tuple[Semaphore, int]]) -> None:
        joined = Fence.join((self.raw, Fence(points)))
        assert joined is not None
        capacity = getattr(self, "_capacity", None)
        if capacity is not None and len(joined.timepoints) > capacity:
            raise errors.ResourceExhaustedError(
                f"a fence with a capacity of {capacity} has no room for another point"
            )
        self.raw.timepoints = joined.timepoints

    def signal(self) -> None:
        """INVALID_ARGUMENT for a point that has been reached."""
        for semaphore, value in self.raw.timepoints:
            semaphore.signal(value)

    @takes(text)
    def fail(self, message: str) -> None:
        self.raw.fail(errors.UnknownError(message))

    @takes(optional(i64), optional(i64))
    def wait(self, timeout: int | None = None, deadline: int | None = None) -> bool:
        """Whether all points are reached in time; RuntimeError if one of them fails."""
        seconds = _seconds(timeout, deadline)
        return _wait(self.raw, "fence", lambda: not self.raw.wait(seconds))


def fence_of(points: Any, what: str) -> Fence:
    """Makes a fence of one, or of pairs of a semaphore and a value."""
    if isinstance(points, HalFence):
        return points.raw  # type: ignore[no-any-return]
    a(Sequence)(points)
    try:
        return Fence((of(Semaphore)(semaphore).raw, size(value)) for semaphore, value in points)
    except (TypeError, ValueError) as error:
        errors.pass_interruption(error)
        raise errors.InvalidArgumentError(
            f"{what}: expected a HalFence or pairs of a HalSemaphore and a value but got {shown(points)}"
        ) from None
