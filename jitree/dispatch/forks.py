"""Contexts in forked children, which have no thread but the one that forked.

A call that another thread was making will never end there, and it may have been anywhere: nothing that it
has touched can be used. All other contexts go on as they are.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    import threading

    class ContextCaller(Protocol):
        """The invoker of a context."""

        lock: threading.RLock

        def lose(self) -> None: ...


_invokers: WeakSet[ContextCaller] = WeakSet()


def attend(invoker: ContextCaller) -> None:
    """From now on forked children are told of calls of the context that they have lost."""
    _invokers.add(invoker)


def _after_fork() -> None:
    lost = [invoker for invoker in _invokers if not _is_free(invoker)]
    for invoker in lost:
        invoker.lock._at_fork_reinit()  # type: ignore[attr-defined]
        invoker.lose()


def _is_free(invoker: ContextCaller) -> bool:
    """Whether no other thread had the context."""
    if not invoker.lock.acquire(blocking=False):
        return False
    invoker.lock.release()
    return True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
