"""Answer ``hal.fence.*``: make, join, fail and wait for fences."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Final

from jitree import errors
from jitree.dispatch.engine import Pending
from jitree.hal.fence import Fence, wait_fences
from jitree.modules.hal.module import HalState

MAXIMUM_AWAITED: Final = 32
_FEW: Final = 16
_TIMEPOINT: Final = 96
"""Bytes of one of those that a fence consists of, where it has more than a few."""
_STATUS_MASK: Final = 0x1F
_OK: Final = int(errors.StatusCode.OK)
_DEADLINE_EXCEEDED: Final = int(errors.StatusCode.DEADLINE_EXCEEDED)
_FOREVER: Final = 0xFFFFFFFF
"""Milliseconds; -1 as the program writes it."""


def fail(state: HalState, fence: Fence, status: int) -> None:
    code = status & _STATUS_MASK
    if code == _OK:
        raise errors.InvalidArgumentError("fence.fail needs the status code of a failure, not 0")
    fence.fail(errors.status_error(code, "the program failed the fence"))


def join(state: HalState, fences: Sequence[Fence | None]) -> Fence | None:
    joined = Fence.join(fences)
    if joined is not None and len(joined.timepoints) > _FEW:
        joined.memory = state.host_memory()
        joined.memory.reach(_TIMEPOINT * len(joined.timepoints))
    return joined


def await_(timeout_millis: int, fences: Sequence[Fence | None]) -> int | Pending:
    """0 when all are reached, 4 when the time ran out first. A failed fence fails the call."""
    if len(fences) > MAXIMUM_AWAITED:
        raise errors.ResourceExhaustedError(f"waiting for {len(fences)} fences; at most {MAXIMUM_AWAITED}")
    for fence in fences:
        if fence is not None and not fence.is_reached():
            break
    else:
        return _OK
    wait = FenceWait(fences, timeout_millis & 0xFFFFFFFF)
    if wait.wait(0):
        return wait.resume()
    return Pending(wait.wait, wait.resume, wait.awaitable)


class FenceWait:
    """Waits for fences in the host's slices, until the program's deadline."""

    def __init__(self, fences: Sequence[Fence | None], timeout_millis: int) -> None:
        self._fences = [fence for fence in fences if fence is not None]
        self._deadline = None if timeout_millis == _FOREVER else time.monotonic() + timeout_millis / 1000
        self._status = _DEADLINE_EXCEEDED
        self._failure: errors.StatusError | None = None

    def wait(self, timeout: float | None) -> bool:
        """Whether the fences are reached, failed, or the deadline passed."""
        remaining = self._remaining()
        if remaining is not None and (timeout is None or remaining <= timeout):
            self._wait(remaining)
            return True
        return self._wait(timeout)

    def resume(self) -> int:
        """The status for the program."""
        if self._failure is not None:
            raise errors.again(self._failure)
        return self._status

    def awaitable(self) -> Awaitable[None]:
        return self._await()

    async def _await(self) -> None:
        import asyncio

        fence = Fence.join(self._fences)
        if fence is None:
            self._status = _OK
            return
        try:
            await asyncio.wait_for(_reached(fence), self._remaining())
            self._status = _OK
        except errors.StatusError as error:
            self._fail(error)
        except TimeoutError as error:
            errors.pass_interruption(error)
        except asyncio.CancelledError:
            fence.interrupt(errors.CancelledError("the wait for it was cancelled"))
            raise

    def _fail(self, failure: errors.StatusError) -> None:
        """Keeps a failure without its frames, which refer to this wait."""
        self._failure = failure.with_traceback(None)

    def _remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _wait(self, timeout: float | None) -> bool:
        try:
            reached = wait_fences(self._fences, timeout) == errors.StatusCode.OK
        except errors.StatusError as error:
            self._fail(error)
            return True
        if reached:
            self._status = _OK
        return reached


async def _reached(fence: Fence) -> None:
    await fence
