"""Finalizes native resources after the last use, in collected cycles and during Ctrl-C too.

``__del__`` and callbacks of weak references come too early: of a circle the garbage collector finalizes every
object before it takes the first one apart, and what runs in between may use any of them. Memory that machine
code uses would be gone by then. And when they are interrupted (Ctrl-C), what they were to do is lost, and so
is the interrupt: Python drops what they raise.

What is forgotten ends wherever the garbage collector runs: in the middle of any function of Python, also one
that has a lock. An end that takes another lock there can wait for ever: two threads may each have the lock
that the end on the other one wants. So while its thread has a lock that :func:`guard` made, an end is put
off, and a new thread, which has no lock, does it.

A finalizer is an object that the garbage collector does not look at. It dies with what holds it: when nothing
can use that any more.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from _thread import LockType, RLock, get_ident, start_new_thread
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, SupportsIndex, TypeVar, cast
from weakref import ref

from jitree.errors import FailedPreconditionError, UnimplementedError, is_interruption, keep_as_interruption

if TYPE_CHECKING:
    import threading


class Unique:
    """Base of what owns memory, threads or state of a program. A copy would be a second owner, which gives
    back what the first one still uses; another process has nothing of it."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """``copy.copy``, ``copy.deepcopy`` and ``pickle`` come here. UNIMPLEMENTED, with what to do."""
        raise UnimplementedError(
            f"a {type(self).__name__} of jitree cannot be copied or pickled: it stands for memory and state "
            "of this process; use the same object, and where another one is needed, as in another process, "
            "make it again by Session and load"
        )


class Remade(Unique):
    """What another process makes again by what made it: a pickle says how. A copy in this one is refused."""

    __slots__ = ()
    reduced: ClassVar[Callable[[Any], Any]]
    """What ``__reduce_ex__`` gives; stated by the package of the classes."""

    def __copy__(self) -> NoReturn:
        raise UnimplementedError(
            f"a {type(self).__name__} of jitree cannot be copied: it stands for memory and state of this "
            "process; use the same object, or make another session. For other processes it can be pickled"
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return Remade.reduced(self)


Item = TypeVar("Item")

_untrack: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyObject_GC_UnTrack", ctypes.pythonapi))
_raise_in: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class Finalizer:
    """Calls ``action`` when it dies. That is a function in C, such as ``partial(deque.append, …)``, which no
    interrupt can come before, or what :func:`uninterrupted` makes of one in Python.

    The garbage collector does not see what a finalizer refers to. So it must not refer to what holds it: that
    would never die. At exit of the interpreter nothing is called: a thread may still be in machine code, and
    the process gives back everything.
    """

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object] | None) -> None:
        self.action = action or _nothing
        _untrack(id(self))

    # Python looks `__del__` up in the class and calls what it gets: here the action itself, got by a property
    # in C. A function would be Python code, at whose beginning an interrupt may come.
    __del__: Any = property(attrgetter("action"))

    def cancel(self) -> None:
        """Nothing happens at the end."""
        self.action = _nothing


_nothing: Final[Callable[[], object]] = bool


class OwnedDescriptor:
    """Opens a file, and closes it with the last use. All of that is in C: no interrupt comes in between,
    which would leave a descriptor that nothing closes."""

    __slots__ = ("_ending", "number")

    def __init__(self, make: Callable[..., int], *arguments: object) -> None:
        found: list[int] = []
        self._ending = Finalizer(partial(next, map(os.close, found), None))
        next(map(found.append, map(make, *((argument,) for argument in arguments))))
        self.number = found[0]

    def close(self) -> None:
        """Closes it now."""
        self._ending.action()

    def __enter__(self) -> OwnedDescriptor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def object_at(address: int) -> Any:
    """The object with that ``id``, which must be alive: the caller knows that it is held."""
    return ctypes.cast(address, ctypes.py_object).value


_LOOK_SECONDS: Final = 1.0
_MOST_ATTEMPTS: Final = 64  # of an end that is interrupted: signals can come faster than any step of it


class Borrowed:
    """Stands for the owner of what holds it, without keeping it. A weak reference may have been cleared while
    the owner is still used, by what a garbage collector runs. Only for what the owner alone uses."""

    __slots__ = ("shown",)

    def __init__(self, owner: object) -> None:
        self.shown: Any = ctypes.py_object.from_buffer(array("q", (id(owner),)))
        """Its ``value`` is the owner, got without a call."""

    def __call__(self) -> Any:
        return self.shown.value

    def __getattr__(self, name: str) -> Any:
        return getattr(self(), name)


def uninterrupted(action: Callable[[], object]) -> Callable[[], object]:
    """Makes a finalizer of an action in Python. What a signal's handler raises, as Ctrl-C does, is raised
    after it; if it comes as the action begins, the action is done before.

    The garbage collector does not see the generator in what this gives: in a circle it would close it before
    the object ends whose end it is."""
    return _attempted(action, 1, None)


def repeated(action: Callable[[], object]) -> Callable[[], object]:
    """Makes a finalizer of an action that begins again where it is interrupted.

    As :func:`uninterrupted`. Each of its steps is marked as done with it, or after it."""
    return _attempted(action, _MOST_ATTEMPTS, None)


def _attempted(action: Callable[[], object], attempts: int, owner: Borrowed | None) -> Callable[[], object]:
    steps = _steps(action, attempts, owner)
    next(steps)
    step = partial(next, steps)
    _untrack(id(step))
    return step


if sys.version_info < (3, 14):
    ReentrantLock = RLock
else:

    class ReentrantLock(RLock):
        """A lock of which ``with`` loses none to an interrupt.

        Python 3.14 looks for signals between an ``__enter__`` in C and the block (python/cpython#148874):
        what a handler raises there keeps a lock for good. It looks neither where one in Python returns, nor
        while an unpacking takes the lock."""

        def __enter__(self, blocking: bool = True, timeout: float = -1) -> bool:
            [is_taken] = map(self.acquire, (blocking,), (timeout,))
            return is_taken


_locks: Final[set[ref[RLock]]] = set()
_put_off: Final[deque[Callable[[], object]]] = deque()


def guard() -> RLock:
    """A lock for what several threads change. It is reentrant: what is small ends where it is forgotten."""
    lock = ReentrantLock()
    _locks.add(ref(lock, _locks.discard))
    return lock


_brief: Final[set[ref[RLock]]] = set()


def brief_guard() -> RLock:
    """As :func:`guard`, held for a few steps. Threads that others wait for take it."""
    lock = ReentrantLock()
    _locks.add(ref(lock, _locks.discard))
    _brief.add(ref(lock, _brief.discard))
    return lock


def require_no_brief_guard() -> None:
    """FAILED_PRECONDITION where the thread has such a lock. It is in a finalizer of the caller's, which the
    garbage collector runs there: what that waits for may itself wait for the lock."""
    if _has_one(_brief):
        raise FailedPreconditionError(
            "a finalizer (`__del__`) cannot wait for other threads where the garbage collector runs it in "
            "the midst of jitree's own work; leave what waits to another thread"
        )


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread. It begins also where this is interrupted.

    ``Thread.start`` is not for the thread that signals interrupt: an exception in it has the new thread die
    as it begins, or is lost in a KeyError. So a thread in between calls it. What is still noted of the new
    thread for Python's own tests calls Python code when it dies, which loses exceptions.
    """
    import threading
    from _queue import SimpleQueue

    getattr(threading, "_dangling", set[object]()).discard(thread)
    outcome: SimpleQueue[RuntimeError | MemoryError | None] = SimpleQueue()

    def start() -> None:
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # the system gives none
            outcome.put(error)
        else:
            outcome.put(None)

    if get_ident() == threading.main_thread().ident:
        start_new_thread(start, ())
    else:
        start()
    failure = outcome.get()
    if failure is not None:
        raise failure


def join(thread: threading.Thread) -> None:
    """Waits for the end of a thread; FAILED_PRECONDITION as above."""
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        if thread.is_alive():
            require_no_brief_guard()


def with_lock(lock: RLock | LockType, action: Callable[[], Item], seconds: float = 0.0) -> Item | None:
    """Does an action with a lock that is free within so many seconds; else None.

    Functions in C take the lock and note it: no interrupt comes in between, which would keep it for good.
    """
    taken: list[bool] = []
    try:
        next(map(taken.append, map(lock.acquire, (True,), (seconds,))))
        return action() if True in taken else None
    finally:
        if True in taken:
            lock.release()


def _renew() -> None:
    """In a forked child no other thread is left that has one."""
    for reference in _locks.copy():
        lock = reference()
        if lock is not None and not lock._is_owned():  # type: ignore[attr-defined]
            lock._at_fork_reinit()  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_renew)


def has_guard() -> bool:
    """Whether this thread has such a lock."""
    return _has_one(_locks)


def _has_one(locks: set[ref[RLock]]) -> bool:
    for reference in locks.copy():  # in one step
        lock = reference()
        if lock is not None and lock._is_owned():  # type: ignore[attr-defined]
            return True
    return False


def end_each(left: dict[Item, None], lock: RLock, end: Callable[[Item], object]) -> None:
    """Ends one after the other of what is left, until nothing is left. What is being ended when a signal's
    handler raises stays, for who does this again. Another error is raised after the last."""
    failure: BaseException | None = None
    while left:
        item: Item | None = None
        try:
            with lock:
                item = next(iter(left), None)
                if item is not None:
                    del left[item]
            if item is not None:
                end(item)
        except BaseException as error:
            if is_interruption(error):
                if item is not None:
                    left[item] = None
                raise
            failure = failure or error
    if failure is not None:
        raise failure


def without_guards(action: Callable[[], object]) -> None:
    """Does it here, or on another thread if this one has a lock.

    Where the system gives no thread the next one that is put off, or has no lock, takes it along."""
    if has_guard():
        _put_off.append(action)
        try:
            start_new_thread(_do_put_off, ())
        except RuntimeError:
            return
    else:
        action()
        if _put_off:
            _do_put_off()


def _do_put_off() -> None:
    """Functions in C take one and note it; what an interrupt keeps from its end is put off again."""
    taken: deque[Callable[[], object]] = deque()
    take = iter(_put_off.popleft, None)
    try:
        while _put_off:
            with suppress(IndexError):  # another thread has taken the last one
                next(map(taken.append, take))
            while taken:
                taken[0]()
                del taken[0]
    except BaseException as error:
        put_off = _put_off
        if type(error) is RecursionError or is_interruption(error):  # there may be no stack for a call
            put_off += taken
        raise


class Finalized:
    """Calls ``end`` of an object when it dies, before what it refers to does. It starts with
    :meth:`will_end`. At exit of the interpreter nothing ends.

    What a signal's handler raises meanwhile is raised after it, and ``end`` called again until it is done:
    each of its steps is marked as done after it, not before. A thread that has a lock leaves the end to
    another one (:func:`guard`)."""

    __slots__ = ()
    _end: Callable[[], object] = bool
    __del__: Any = property(attrgetter("_end"))

    def will_end(self) -> None:
        """Has :meth:`end` called when nothing refers to the object any more."""
        owner = Borrowed(self)
        self._end = _attempted(partial(_end, owner), _MOST_ATTEMPTS, owner)

    def end(self) -> None: ...


def _end(owner: Borrowed, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    if not is_finalizing():  # kept by the function: this module may have lost its names by now
        without_guards(owner().end)


def _steps(action: Callable[[], object], attempts: int, owner: Borrowed | None) -> Iterator[None]:
    """A generator: it begins inside of ``try``, while a function could be interrupted before that.

    Where Python's stack is full another thread does the action, with an ``owner`` that lives until then."""
    interruption: BaseException | None = None
    # Python looks for an interrupt after each call, also after these.
    left, later = iter(range(2 * _MOST_ATTEMPTS)), cast("Iterator[int]", iter(()))
    try:
        yield
    except GeneratorExit as error:
        if error.__traceback__.tb_next is None and not error.__dict__:  # type: ignore[union-attr]
            # Closed as it waits; another raises it in a function, or marks it to raise it later.
            # A call here would have Python look for signals.
            return
        interruption = error
    except BaseException as error:
        interruption = error
    failed: BaseException | None = None
    for _ in left:
        try:  # in here is all that calls something: signals may come faster than it is done
            if failed is not None:
                if not is_interruption(failed):
                    break
                interruption, failed = interruption or failed, None
            if attempts:
                attempts -= 1
                action()
                attempts = 0
            if interruption is not None:
                later = raised_later(interruption)
            break
        except BaseException as error:
            failed = error
    if failed.__class__ is RecursionError:  # no call: neither is there a stack for one, nor may a signal come
        failed, put_off = None, _put_off  # frames of the error have the owner, which would live as long
        put_off += (action if owner is None else owner.shown.value.end,)
        try:
            start_new_thread(_do_put_off, ())
        except RuntimeError:  # the next end takes it along
            failed = None
    elif failed is not None:
        raise failed
    # Python looks for it after calls and jumps, and would raise it here, where it is lost.
    _ = [*later]
    yield


def raised_later(interruption: BaseException) -> Iterator[int]:
    """Has this thread raise an error after its next call or jump in Python. It starts when this is iterated
    on."""
    return map(_raise_in, (get_ident(),), (_class_of(interruption),))


def _class_of(error: BaseException) -> type[BaseException]:
    """What gives that error when Python makes one of it: it takes no object to be raised in a thread. Where a
    function traces, Python makes it again, with the error as argument: its class is another one."""
    keep_as_interruption(error)
    kind = type(error)
    return type(kind.__name__, (kind,), {"__new__": lambda cls, *_: error, "__module__": kind.__module__})


def require_interpreter(is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """FAILED_PRECONDITION at exit of the interpreter: modules that calls need are gone, or on their way."""
    if is_finalizing():
        raise FailedPreconditionError("the interpreter is shutting down; make calls before the program ends")


def _end_nothing(kind: type[Finalizer] = Finalizer) -> None:
    del kind.__del__  # that of this module: one that is loaded anew has a class of its own


atexit.register(_end_nothing)

# -- Weak collections ------------------------------------------------------------------------------------
#
# They hold objects as long as these live; threads look at all while others add some.
#
# Those of Python's ``weakref`` call Python code as an item dies. If a signal's handler raises in that code,
# Python loses the exception, as no caller waits for it. Here the callback is a C function, where Python
# runs no handler.


Key = TypeVar("Key")


class SharedWeakSet(Generic[Item]):
    """Holds objects weakly, while other threads add. A ``WeakSet`` raises RuntimeError before Python 3.14
    where one thread adds while another iterates."""

    __slots__ = ("__weakref__", "_references")

    def __init__(self) -> None:
        self._references: set[ref[Item]] = set()

    def add(self, item: Item) -> None:
        self._references.add(ref(item, self._references.discard))

    def __iter__(self) -> Iterator[Item]:
        for reference in self._references.copy():  # in one step, unlike a tuple of it
            item = reference()
            if item is not None:
                yield item

    def __contains__(self, item: Item) -> bool:
        return ref(item) in self._references

    # How many there may be. As Finalizer.__del__, got by a property in C.
    __len__: Any = property(attrgetter("_references.__len__"))


class SharedWeakValues(Generic[Key, Item]):
    """As a ``WeakValueDictionary``."""

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references: dict[Key, ref[Item]] = {}

    def __setitem__(self, key: Key, item: Item) -> None:
        # It is called with the reference, which `pop` takes for what to give where the key is not there.
        self._references[key] = ref(item, partial(self._references.pop, key))

    def update(self, items: Iterable[tuple[Key, Item]]) -> None:
        pop = self._references.pop
        self._references.update((key, ref(item, partial(pop, key))) for key, item in items)

    def get(self, key: Key) -> Item | None:
        reference = self._references.get(key)
        return None if reference is None else reference()

    def pop(self, key: Key, default: None = None) -> Item | None:
        reference = self._references.pop(key, None)
        return default if reference is None else reference()

    def items(self) -> list[tuple[Key, Item]]:
        found = [(key, reference()) for key, reference in self._references.copy().items()]
        return [(key, item) for key, item in found if item is not None]

    def values(self) -> list[Item]:
        return [item for _, item in self.items()]

    def __iter__(self) -> Iterator[Key]:
        return iter([key for key, _ in self.items()])


class SharedWeakKeys(Generic[Key, Item]):
    """Serves as a ``WeakKeyDictionary``, for tables that stay. What it holds is freed by a garbage
    collection."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[ref[Key], Item] = {}

    def __setitem__(self, key: Key, item: Item) -> None:
        self._items[ref(key, self._items.pop)] = item

    def __getitem__(self, key: Key) -> Item:
        return self._items[ref(key)]

    def get(self, key: Key) -> Item | None:
        return self._items.get(ref(key))

    def setdefault(self, key: Key, item: Item) -> Item:
        return self._items.setdefault(ref(key, self._items.pop), item)
