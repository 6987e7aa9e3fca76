"""Waits for a call's work, until cancelled or late."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from jitree.base.cancel_scopes import Scope
from jitree.errors import CancelledError, StatusError, is_interruption

if TYPE_CHECKING:
    from jitree.dispatch.invocation import Invoker
    from jitree.hal.fence import Fence


class Begun:
    """What is to be awaited of a call that has begun. Its steps have begun, too: an interrupt as the caller
    gets them or awaits them, or a caller that does not, ends them where they see to what is to end with them.
    """

    __slots__ = ("_give",)

    def __init__(self, steps: Generator[Any, Any, Any]) -> None:
        try:
            next(steps)
            self._give = partial(iter, steps)
        except BaseException:
            steps.close()
            raise

    # Python calls what it gets here, a function in C: an interrupt would come before one in Python, and leave
    # the steps to whoever drops the error.
    __await__: Any = property(attrgetter("_give"))


def give_up(error: BaseException, signal: Fence, after: Fence | None = None) -> None:
    """Ends the work of a call whose caller gets an exception instead. That is of a signal's handler, or of
    the end of its task; but not what it comes ``after``."""
    if is_interruption(error):
        signal.interrupt(CancelledError("the call was interrupted"), after)


def await_work(invoker: Invoker, begun: int, signal: Fence, after: Fence | None = None) -> None:
    """Waits for the work of a call, which began with those cancellations. If the call is to end, its work
    ends first, but not what it comes ``after``."""
    if signal.is_reached():
        return
    with Scope() as scope:
        try:
            invoker.is_ended_by(scope, begun)
            signal.wait()
        except StatusError as error:
            signal.stop(error, after)
            raise
        finally:
            invoker.waiting.pop(scope, None)


async def await_work_async(invoker: Invoker, begun: int, signal: Fence, after: Fence | None = None) -> None:
    """As :func:`await_work`, on an event loop."""
    with Scope() as scope:
        try:
            await invoker.is_ended_by(scope, begun).watched(signal)
        except StatusError as error:
            await signal.stop_async(error, after)
            raise
        except BaseException as error:
            give_up(error, signal, after)
            raise
        finally:
            invoker.waiting.pop(scope, None)
