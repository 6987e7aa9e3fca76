"""Hold up programs that submit operations too far ahead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from jitree.dispatch.engine import Pending
from jitree.errors import CancelledError, ResourceExhaustedError, StatusCode, pass_interruption
from jitree.hal.buffer import Buffer
from jitree.hal.fence import COMES_AFTER, OrderingFence

if TYPE_CHECKING:
    from jitree.hal.device import Device
    from jitree.hal.fence import Fence


def submit(operation: Callable[[], object], device: Device, wait: Fence) -> object:
    """Submits an operation that waits for a fence, for an import. A call that is far ahead of what it has
    submitted gets it when the fence is reached. Memory that there is not may be there then."""
    try:
        result = operation()
    except ResourceExhaustedError as error:
        pass_interruption(error)
        if COMES_AFTER.get() is None and not device.can_be_awaited(wait):
            raise
        return _after(wait, operation, device)
    size = result.byte_length if isinstance(result, Buffer) else 0
    return _after(wait, partial(_given, result), device) if device.is_far_ahead(wait, size) else result


def _given(result: object) -> object:
    return result


def _after(wait: Fence, resume: Callable[[], object], device: Device) -> Pending:
    """Goes on when a fence is reached or has failed. Failure is a matter of what waits for it."""
    end = OrderingFence(wait.timepoints)
    return Pending(partial(_is_there, end, device), resume, partial(_await, end))


def _is_there(end: OrderingFence, device: Device, timeout: float | None) -> bool:
    """Whether a fence is there, without holding up the host. A call inside an awaited one keeps the thread
    from what the host has still to do, and goes on."""
    if COMES_AFTER.get() is not None and not device.can_be_awaited(end):
        return True
    return end.wait(timeout) == StatusCode.OK


async def _await(end: OrderingFence) -> None:
    import asyncio

    try:
        await end
    except asyncio.CancelledError:
        end.interrupt(CancelledError("the wait for it was cancelled"), COMES_AFTER.get())
        raise
