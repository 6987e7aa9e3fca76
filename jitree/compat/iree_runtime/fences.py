"""Semaphores and fences. Times are nanoseconds; a deadline is a time of :func:`time.time_ns`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from jitree.compat.iree_runtime.enumerations import (
    ExternalTimepointFlags,
    ExternalTimepointType,
    SemaphoreCompatibility,
)
from jitree.compat.iree_runtime.references import Reference
from jitree.errors import (
    AbortedError,
    InvalidArgumentError,
    ResourceExhaustedError,
    StatusError,
    UnimplementedError,
)
from jitree.hal.fence import Fence
from jitree.hal.semaphore import Semaphore


def _seconds(timeout: int | None, deadline: int | None) -> float | None:
    if timeout is not None and deadline is not None:
        raise ValueError("timeout and deadline cannot both be set")
    if timeout is not None:
        return max(0, timeout) / 1e9
    if deadline is not None:
        return max(0, deadline - time.time_ns()) / 1e9
    return None


def _wait(raw: Any, what: str, wait: Any) -> bool:
    """RuntimeError with the failure, which says whether it was there before the wait."""
    when = "synchronous" if raw.failure is not None else "asynchronous"
    try:
        return bool(wait())
    except StatusError as error:
        raise RuntimeError(f"{when} {what} failure: {error}") from error


class HalSemaphore(Reference):
    """A timeline: a number that only grows."""

    __slots__ = ()
    wrapped = Semaphore

    def query(self) -> int:
        return int(self.raw.query())

    def signal(self, new_value: int) -> None:
        self.raw.signal(new_value)

    def fail(self, message: str) -> None:
        self.raw.fail(AbortedError(message))

    def wait(self, payload: int, timeout: int | None = None, deadline: int | None = None) -> bool:
        """Whether the payload is at least ``payload`` in time; RuntimeError if the semaphore fails."""
        seconds = _seconds(timeout, deadline)
        return _wait(self.raw, "semaphore", lambda: self.raw.wait(payload, seconds))

    def import_timepoint(self, value: int, timepoint: HalExternalTimepoint) -> None:
        """UNIMPLEMENTED: no device of jitree's takes events of other libraries."""
        raise UnimplementedError(
            "import_timepoint: semaphores take no events of other libraries; "
            "wait for the event and signal the semaphore"
        )

    def export_timepoint(self, value: int, type: Any, flags: Any, timepoint: HalExternalTimepoint) -> None:
        """UNIMPLEMENTED: no device of jitree's gives events to other libraries."""
        raise UnimplementedError(
            "export_timepoint: semaphores give no events to other libraries; use HalDeviceLoopBridge or wait"
        )


class HalExternalTimepoint:
    """An event of another library that takes the place of a point of a timeline."""

    def __init__(self) -> None:
        self.type = ExternalTimepointType.NONE
        self.flags = ExternalTimepointFlags.NONE
        self.compatibility = SemaphoreCompatibility.NONE
        self.cuda_event = 0
        self.hip_event = 0


class HalFence(Reference):
    """A set of points of timelines."""

    __slots__ = ("_capacity",)
    wrapped = Fence

    def __init__(self, capacity: int) -> None:
        self.raw = Fence()
        self._capacity = capacity

    @staticmethod
    def create_at(sem: HalSemaphore, value: int) -> HalFence:
        return HalFence.of(Fence(((sem.raw, value),)))

    @staticmethod
    def join(fences: Iterable[HalFence]) -> HalFence:
        return HalFence.of(Fence.join(fence.raw for fence in fences) or Fence())

    @property
    def timepoint_count(self) -> int:
        return len(self.raw.timepoints)

    def insert(self, sem: HalSemaphore, value: int) -> None:
        """The larger of two values of one semaphore stays. RESOURCE_EXHAUSTED beyond the capacity."""
        self._add(((sem.raw, value),))

    def extend(self, from_fence: HalFence) -> None:
        """Adds all points of another fence."""
        self._add(from_fence.raw.timepoints)

    def _add(self, points: Iterable[tuple[Semaphore, int]]) -> None:
        joined = Fence.join((self.raw, Fence(points)))
        assert joined is not None
        capacity = getattr(self, "_capacity", None)
        if capacity is not None and len(joined.timepoints) > capacity:
            raise ResourceExhaustedError(
                f"a fence with a capacity of {capacity} has no room for another point"
            )
        self.raw.timepoints = joined.timepoints

    def signal(self) -> None:
        self.raw.signal()

    def fail(self, message: str) -> None:
        self.raw.fail(AbortedError(message))

    def wait(self, timeout: int | None = None, deadline: int | None = None) -> bool:
        """Whether all points are reached in time; RuntimeError if one of them fails."""
        seconds = _seconds(timeout, deadline)
        return _wait(self.raw, "fence", lambda: not self.raw.wait(seconds))


def fence_of(points: Any, what: str) -> Fence:
    """A fence, or pairs of a semaphore and a value, as jitree's queues take them."""
    if isinstance(points, HalFence):
        return points.raw  # type: ignore[no-any-return]
    try:
        return Fence((semaphore.raw, int(value)) for semaphore, value in points)
    except (TypeError, ValueError, AttributeError):
        raise InvalidArgumentError(
            f"{what}: expected a HalFence or pairs of a HalSemaphore and a value but got {points!r}"
        ) from None
