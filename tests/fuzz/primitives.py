"""Locks, threads, queues and clocks that :mod:`tests.fuzz.scheduler` knows, in place of those of Python.

Outside of a case they are as those of Python.
"""

from __future__ import annotations

import _queue
import _thread
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf
from types import ModuleType
from typing import Any, Final
from weakref import ref

from jitree.base import cancel_scopes, finalizers, stop_word
from jitree.base.platform import threads
from tests.fuzz import scheduler

_RLock: Final[Any] = _thread.RLock
_Lock: Final = _thread.allocate_lock
_LockType: Final = _thread.LockType


def _until(timeout: float | None) -> float:
    return inf if timeout is None or timeout < 0 else _now() + timeout


def _now() -> float:
    return time.monotonic() if scheduler.active is None else scheduler.active.now


class TurnRLock(_thread.RLock):  # type: ignore[misc]
    """A reentrant lock. Machine code calls its methods, as it does with any that is none of C."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> Any:
        turns = scheduler.active
        if turns is None:
            return _RLock.acquire(self, blocking, timeout)
        if not _RLock._is_owned(self):
            turns.point("lock")
        if _RLock.acquire(self, False):
            return True
        if not blocking or timeout == 0:
            return False
        turns.wait(self._is_free, _until(timeout), "a lock")
        return _RLock.acquire(self, False)

    __enter__ = acquire

    def __exit__(self, *exception: object) -> None:
        _RLock.release(self)

    def _is_free(self) -> bool:
        if _RLock._is_owned(self) or not _RLock.acquire(self, False):
            return False
        _RLock.release(self)
        return True

    def _acquire_restore(self, state: Any) -> None:
        if scheduler.active is not None and not _RLock.acquire(self, False):
            scheduler.active.wait(self._is_free, inf, "a lock")
        elif scheduler.active is not None:
            _RLock.release(self)
        _RLock._acquire_restore(self, state)


class TurnLock:
    """A lock that any thread may release."""

    def __init__(self) -> None:
        self._lock = _Lock()
        self.locked, self.release = self._lock.locked, self._lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        turns = scheduler.active
        if turns is None:
            return self._lock.acquire(blocking, timeout)
        turns.point("lock")
        if self._lock.acquire(False):
            return True
        if not blocking or timeout == 0:
            return False
        turns.wait(self._is_free, _until(timeout), "a lock")
        return self._lock.acquire(False)

    __enter__ = acquire

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def _is_free(self) -> bool:
        return not self._lock.locked()


class TurnThread(threading.Thread):
    """A thread that waits for its turns."""

    _actor: scheduler.Actor | None = None

    def start(self) -> None:
        turns = scheduler.active
        if turns is not None:
            if scheduler.is_asking(1) and turns.refuses_thread():
                raise RuntimeError("can't start new thread")
            self._turns, self._actor = turns, turns.adopt(self.name, self.daemon)
        super().start()
        if turns is not None and self._actor is not None:
            self._actor.thread = self
            turns.point("start")

    def run(self) -> None:
        if self._actor is None:
            super().run()
        else:
            self._turns.run(self._actor, super().run)

    def join(self, timeout: float | None = None) -> None:
        actor, turns = self._actor, scheduler.active
        if turns is None or actor is None:
            super().join(timeout)
        elif turns.wait(lambda: actor.is_done, _until(timeout), f"the end of {self.name}"):
            super().join()


def start_new_thread(function: Callable[..., object], arguments: tuple[object, ...]) -> int:
    thread = TurnThread(target=function, args=arguments, daemon=True, name=function.__name__)
    thread.start()
    return thread.ident or 0


class TurnQueue:
    """A queue that threads wait at."""

    def __init__(self) -> None:
        self._items = deque[Any]()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        turns = scheduler.active
        if turns is not None:
            turns.point("queue")
        if not self._items and block and turns is not None:
            turns.wait(self._items.__len__, _until(timeout), "an item of a queue")
        if not self._items:
            raise _queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class TurnEvent:
    """An event that threads wait for."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        turns = scheduler.active
        if turns is not None and not self._is_set:
            turns.wait(self.is_set, _until(timeout), "an event")
        return self._is_set


class TurnParking:
    """In place of :class:`jitree.base.platform.threads.Parking`."""

    def __init__(self) -> None:
        self._tokens = 0

    def wait(self) -> None:
        turns = scheduler.active
        assert turns is not None
        turns.wait(lambda: self._tokens, inf, "a token")
        self._tokens = 0

    def wake(self) -> None:
        self._tokens += 1


class _Clock(ModuleType):
    """``time``, with the clock of the case."""

    def __init__(self) -> None:
        super().__init__("time")
        self.__dict__.update({name: value for name, value in vars(time).items() if name[0] != "_"})
        self.monotonic = self.perf_counter = monotonic
        self.monotonic_ns = self.perf_counter_ns = monotonic_ns
        self.sleep = sleep


def monotonic() -> float:
    turns = scheduler.active
    if turns is None:
        return time.monotonic()
    turns.now += scheduler._READING
    return turns.now


def monotonic_ns() -> int:
    return int(monotonic() * 1e9)


def sleep(seconds: float) -> None:
    turns = scheduler.active
    if turns is None:
        time.sleep(seconds)
    elif seconds:
        turns.sleep(seconds)
    else:
        turns.now += turns.moment
        turns.lose_turn("sleep")


class _Threading(ModuleType):
    def __init__(self) -> None:
        super().__init__("threading")
        self.__dict__.update({name: value for name, value in vars(threading).items() if name[0] != "_"})
        self.Thread, self.Event, self.Lock, self.RLock = TurnThread, TurnEvent, TurnLock, TurnRLock


class _OrderedSet(dict[Any, None]):
    """For sets of weak references: these are told apart by addresses, whose order no seed gives."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def copy(self) -> list[Any]:  # type: ignore[override]
        return [*self]


def _init(weak_set: Any) -> None:
    weak_set._references = _OrderedSet()


class _NoTicks(type(stop_word._stop)):  # type: ignore[misc]
    """Machine code looks when it is told to, and never by its own clock."""

    @property
    def _clock(self) -> None:
        return None

    @_clock.setter
    def _clock(self, clock: object) -> None:
        return


_clock, _threading = _Clock(), _Threading()
_REPLACED: Final[list[tuple[Any, Any]]] = [
    (_thread.RLock, TurnRLock), (_thread.allocate_lock, TurnLock), (threading.Thread, TurnThread),
    (threading.Event, TurnEvent), (threading.RLock, TurnRLock),
    (_thread.start_new_thread, start_new_thread), (_queue.SimpleQueue, TurnQueue), (time, _clock),
    (threading, _threading), (time.monotonic, monotonic), (time.perf_counter, monotonic),
    (time.perf_counter_ns, monotonic_ns), (threads.Parking, TurnParking),
]  # fmt: skip
_by_id: Final = {id(value): replacement for value, replacement in _REPLACED}
_seen: Final[set[str]] = set()
_own: Final[list[tuple[Any, str, Callable[[], Any]]]] = []
"""Locks of modules and classes: where they are, and what makes them."""


def install() -> None:
    """Puts them in the place of Python's in all modules of the package."""
    _queue.SimpleQueue = TurnQueue  # type: ignore[misc,assignment]  # functions import it
    finalizers.SharedWeakSet.__init__ = _init  # type: ignore[method-assign,assignment]
    stop_word._stop.__dict__.pop("_clock", None)
    stop_word._stop.__class__ = _NoTicks
    replace()
    renew()
    scheduler.UNMANAGED[:] = [
        lock
        for reference in finalizers._locks
        if (lock := reference()) is not None and not isinstance(lock, TurnRLock)
    ]


def replace() -> None:
    """Looks at modules that are new."""
    for name, module in tuple(sys.modules.items()):
        if name.startswith("jitree.") and name not in _seen and module is not None:
            _seen.add(name)
            _replace(module)


def _replace(module: Any) -> None:
    for name, value in tuple(vars(module).items()):
        replacement = _by_id.get(id(value))
        if replacement is not None and name[:2] != "__":
            setattr(module, name, replacement)
        _find_lock(module, name, value)
        if isinstance(value, type) and value.__module__ == module.__name__:
            for attribute, lock in tuple(vars(value).items()):
                _find_lock(value, attribute, lock)


def _find_lock(owner: Any, name: str, value: object) -> None:
    if isinstance(value, _RLock):
        _own.append((owner, name, finalizers.guard))
    elif isinstance(value, _LockType):
        _own.append((owner, name, TurnLock))


def renew() -> None:
    """Makes what a process has once as new: a case that has stopped may have left it in any state."""
    replace()
    for owner, name, make in _own:
        setattr(owner, name, make())
    stop = stop_word._stop
    stop._earlier, stop._until, stop._due = None, inf, inf
    stop._armed.clear()
    finalizers._put_off.clear()
    cancel_scopes._ended.clear()
    for caller in tuple(cancel_scopes.cancelled):
        cancel_scopes.cancelled._references.discard(ref(caller))
