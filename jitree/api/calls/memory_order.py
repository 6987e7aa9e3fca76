"""Orders calls after the pending ones that use the same memory (:mod:`jitree.hal.memory_order`).

A device whose memory the host does not see does its work in order, without this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from jitree.errors import CancelledError, is_return
from jitree.hal import memory_order
from jitree.hal.buffer import PENDING
from jitree.hal.fence import Fence
from jitree.hal.memory_order import NOTHING_EARLIER, Earlier, Extent, Use, extents
from jitree.hal.semaphore import Semaphore

if TYPE_CHECKING:
    from jitree.api.calls.declaration import Parameter
    from jitree.hal.device import Device


class Uses(NamedTuple):
    """The memory of a call."""

    read: Sequence[Extent]
    written: Sequence[Extent]


def are_ordered(device: Device) -> bool:
    """Whether calls on a device are ordered here."""
    return device.array_exchange is None


def uses_of(parameters: Sequence[Parameter], packed: Sequence[object]) -> Uses:
    """What a call with these values may read and write."""
    pairs = tuple(zip(parameters, packed, strict=False))
    return Uses(
        extents(value for parameter, value in pairs if not parameter.overwritten),
        extents(value for parameter, value in pairs if parameter.overwritten),
    )


def wait_for_turn(parameters: Sequence[Parameter], packed: Sequence[object]) -> None:
    """Waits for pending calls that this call's values come after."""
    memory_order.wait_for(memory_order.before(*uses_of(parameters, packed)))


def calls_before(device: Device, parameters: Sequence[Parameter], packed: Sequence[object]) -> Earlier:
    """What a call with these values has to come after."""
    if not PENDING[0] or not are_ordered(device):
        return NOTHING_EARLIER
    return Earlier(memory_order.before(*uses_of(parameters, packed)))


def awaited_use(
    device: Device,
    parameters: Sequence[Parameter],
    packed: Sequence[object],
    signal: Fence | None = None,
    earlier: Earlier = NOTHING_EARLIER,
) -> AwaitedUse:
    """The memory of an awaited call with these values, which comes after ``earlier`` ones; none on a device
    that does its work in order."""
    find = partial(uses_of, parameters, packed) if are_ordered(device) else _no_uses
    return AwaitedUse(find, signal, earlier)


def _no_uses() -> Uses:
    return Uses((), ())


class AwaitedUse:
    """Keeps the memory of an awaited call for it. It does from where the call first waits to its end, as the
    event loop makes other calls meanwhile. The ``with`` block is the part of the call that the event loop
    goes on with."""

    __slots__ = ("_earlier", "_end", "_find", "_signal", "_use")

    def __init__(
        self, find: Callable[[], Uses], signal: Fence | None, earlier: Earlier = NOTHING_EARLIER
    ) -> None:
        """``signal``: what devices reach at the end of the call, None if that is the end of the block."""
        self._find = find
        self._signal = signal
        self._earlier = earlier
        self._end = signal
        self._use: Use | None = None

    def begin(self) -> None:
        """Others come after it from now on."""
        if self._use is None:
            self._end = self._signal or Fence(((Semaphore(), 1),))
            self._use = memory_order.begin_here(self._end, *self._find(), self._earlier)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if self._use is None or self._end is None:
            return
        if kind is not None:
            self._end.fail(CancelledError("the call failed"))
        elif self._signal is None:
            self._end.signal()
        memory_order.leave_to_devices(self._use, self._earlier)

    async def come_after(self, uses: Sequence[Use]) -> None:
        """Waits for ends of pending calls, before all that begin later."""
        if not uses:
            return
        self._earlier = Earlier((*self._earlier.uses, *uses))
        self.begin()
        for use in uses:
            for end in use.ends:
                await end

    async def take_turn(self) -> None:
        """Comes after all pending calls that are in the way."""
        if PENDING[0]:
            await self.come_after(memory_order.before_both(*self._find()))

    async def take_turn_here(self) -> None:
        """Comes after those of them that this event loop goes on with."""
        if PENDING[0]:
            await self.come_after(memory_order.before_here(*self._find()))

    @coroutine
    def whenever_it_waits(self, call: Awaitable[Any]) -> Generator[Any, Any, Any]:
        """As the call; it is pending from where it first waits."""
        steps = call.__await__()
        step = partial(next, steps)
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                if not is_return(end):
                    raise
                return end.value
            self.begin()
            try:
                yield waits_for
            except BaseException as error:
                step = partial(steps.throw, error)
            else:
                step = partial(next, steps)
