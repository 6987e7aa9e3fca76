"""Objects that stand for something outside of Python, and what happens when nothing refers to one any more:
at the right time, and in any case.

``__del__`` and callbacks of weak references come too early: of a circle the garbage collector finalizes every
object before it takes the first one apart, and what runs in between may use any of them. Memory that machine
code uses would be gone by then. And when they are interrupted (Ctrl-C), what they were to do is lost, and so
is the interrupt: Python drops what they raise.

An ending is an object that the garbage collector does not look at. It dies with what holds it: when nothing
can use that any more.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter, call
from typing import Any, Final, NoReturn, SupportsIndex

from jitree.errors import FailedPreconditionError, UnimplementedError


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

    def __copy__(self) -> NoReturn:
        raise UnimplementedError(
            f"a {type(self).__name__} of jitree cannot be copied: it stands for memory and state of this "
            "process; use the same object, or make another session. For other processes it can be pickled"
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        from importlib import import_module

        return import_module("jitree.api.program").remade(self)  # by name: it is made of such objects


_untrack: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyObject_GC_UnTrack", ctypes.pythonapi))


class Ending:
    """Calls ``action`` when it dies: a function in C, such as ``partial(deque.append, …)``, which no
    interrupt can come before, or what :func:`carefully` makes of one in Python.

    The garbage collector does not see what an ending refers to. So it must not refer to what holds it: that
    would never die. At exit of the interpreter nothing is called: a thread may still be in machine code, and
    the process gives back everything.
    """

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[], object] | None) -> None:
        self._action = action or _nothing
        _untrack(id(self))

    # Python looks `__del__` up in the class and calls what it gets: here the action itself, got by a property
    # in C. A function would be Python code, at whose beginning an interrupt may come.
    __del__: Any = property(attrgetter("_action"))

    def cancel(self) -> None:
        """Nothing happens at the end."""
        self._action = _nothing


_nothing: Final[Callable[[], object]] = bool


def object_at(address: int) -> Any:
    """The object with that ``id``, which must be alive: the caller knows that it is held."""
    return ctypes.cast(address, ctypes.py_object).value


class Borrowed:
    """Stands for the owner of what holds it, without keeping it: a weak reference may have been cleared while
    the owner is still used, by what a garbage collector runs. Only for what the owner alone uses."""

    __slots__ = ("_address",)

    def __init__(self, owner: object) -> None:
        self._address = id(owner)

    def __call__(self) -> Any:
        return object_at(self._address)

    def __getattr__(self, name: str) -> Any:
        return getattr(self(), name)


def carefully(action: Callable[[], object]) -> Callable[[], object]:
    """Makes an ending of an action in Python. An interrupt that comes as it begins is raised after it.

    The garbage collector does not see the generator in what this gives: in a circle it would close it before
    the object ends whose end it is."""
    steps = _steps(action)
    next(steps)
    step = partial(next, steps)
    _untrack(id(step))
    return step


class Ended:
    """What has ``end``, which is called when it dies, before what it refers to does: Ctrl-C that comes
    meanwhile is raised after it. It starts with :meth:`will_end`. At exit of the interpreter nothing ends."""

    __slots__ = ()
    _end: Callable[[], object] = bool
    __del__: Any = property(attrgetter("_end"))

    def will_end(self) -> None:
        self._end = carefully(partial(_end, Borrowed(self)))

    def end(self) -> None: ...


def _end(owner: Borrowed, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    if not is_finalizing():  # kept by the function: this module may have lost its names by now
        owner().end()


def _steps(action: Callable[[], object]) -> Iterator[None]:
    """A generator: it begins inside of ``try``, while a function could be interrupted before that."""
    try:
        yield
    except KeyboardInterrupt:
        action()
        again = map(call, (interrupt_main,))
        # Python looks for interrupts after calls and jumps, and would raise it here, where it is lost.
        _ = [*again]
        yield
    else:
        action()
        yield


def require_interpreter(is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """FAILED_PRECONDITION at exit of the interpreter: modules that calls need are gone, or on their way."""
    if is_finalizing():
        raise FailedPreconditionError("the interpreter is shutting down; make calls before the program ends")


def _end_nothing() -> None:
    del Ending.__del__


atexit.register(_end_nothing)
