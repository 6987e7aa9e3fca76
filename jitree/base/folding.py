"""Folds tracebacks to lines of the user, and warns of such lines.

They end at the line of the user that called, and go on where the user's code is called.

``JITREE_TRACEBACK=full`` leaves them whole.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice
from types import TracebackType
from typing import Any, Final

_VARIABLE: Final = "JITREE_TRACEBACK"
_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_COMMAND: Final = f"{os.sep}jitree"
"""The script that installers make of the command line."""
_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep
_PACKAGES_OF_USERS: Final = ("site-packages", "dist-packages")
_TYPED: Final = frozenset(("<stdin>", "<string>"))
"""Files of what was typed in or given on a command line."""


def is_of_user(file: str) -> bool:
    """Whether code is neither ours nor made by us or by Python."""
    if file.startswith((_PACKAGE, "<")) or file.endswith(_COMMAND):
        return file in _TYPED or file.startswith("<ipython")
    return True


@lru_cache(1024)
def is_caller(file: str) -> bool:
    """Whether users know lines of a file as those that call: not ours, nor those of the standard library,
    whose threads and event loops make calls for them."""
    return is_of_user(file) and not is_library(file)


def warn(text: str, kind: type[Warning] = RuntimeWarning) -> None:
    """Warns, at the line of the user that calls: one of ours says nothing to who reads it."""
    level, frame = 1, sys._getframe()
    while frame is not None and not is_caller(file := frame.f_code.co_filename):
        level += not ("importlib" in file and "_bootstrap" in file)  # these Python does not count
        frame = frame.f_back  # type: ignore[assignment]
    warnings.warn(text, kind, stacklevel=level)


def keep_tracebacks() -> None:
    """This process shows where in the package an error was raised."""
    os.environ.setdefault(_VARIABLE, "full")


def fold_tracebacks(error: BaseException) -> None:
    """Takes our frames out of the tracebacks of an error and its causes."""
    if os.environ.get(_VARIABLE) == "full":
        return
    pending, seen = [error], set[int]()
    while pending:
        one = pending.pop()
        seen.add(id(one))
        one.__traceback__ = _of_user(one.__traceback__)
        cause = one.__cause__
        if cause is not None and _of_user(cause.__traceback__) is None and str(one).startswith(str(cause)):
            cause.__traceback__ = None  # frames keep what a call used
            one.__cause__ = cause.__cause__  # a kept failure that is raised again says the same twice
        pending += [e for e in (one.__cause__, one.__context__) if e is not None and id(e) not in seen]


def _of_user(trace: TracebackType | None) -> TracebackType | None:
    """Leaves out our frames, and those of the standard library that they call."""
    kept, is_ours = [], False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not is_of_user(file):
            is_ours = is_ours or file.startswith(_PACKAGE)
        elif not (is_ours and is_library(file)):
            is_ours = False
            kept.append(trace)
        trace = trace.tb_next
    found: TracebackType | None = None
    for one in reversed(kept):
        found = TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return found


_MOST_LOOKED_AT: Final = 10_000
"""Items of an argument that are asked for their class."""


def false_class(
    error: BaseException,
    given: Iterable[tuple[str, object]],
    pass_interruption: Callable[[BaseException], None],
) -> str:
    """Says which argument lacks what the class has that it names; empty for none.

    Mocks name another class than theirs, and proxies of what is no more. The last function is that of
    :mod:`jitree.errors`, which imports this.
    """
    if isinstance(error, (AttributeError, ReferenceError, TypeError)) and _is_raised_by_us(error):
        for name, value in given:
            for item in islice(_items(value), _MOST_LOOKED_AT):
                if _has_false_class(item, pass_interruption):
                    kind = type(item).__name__
                    return f"{name}: a {kind} says that it is of another class, and is not: {error}"
    return ""


def _has_false_class(value: object, pass_interruption: Callable[[BaseException], None]) -> bool:
    try:
        return getattr(value, "__class__", None) is not type(value)
    except Exception as error:  # a proxy of what is no more raises anything
        pass_interruption(error)
        return True


def _is_raised_by_us(error: BaseException) -> bool:
    """Or by a function of the standard library that we call."""
    place, is_ours = error.__traceback__, False
    while place is not None:
        file = place.tb_frame.f_code.co_filename
        is_ours = file.startswith(_PACKAGE) or (is_ours and (is_library(file) or not is_of_user(file)))
        place = place.tb_next
    return is_ours


def _items(value: Any, levels: int = 3) -> Iterator[Any]:
    """The value, the items of a list, tuple or dictionary, and theirs. Each is looked at when it is asked
    for: a list that is in another many times has any number of items."""
    yield value
    if levels > 1 and type(value) in (list, tuple, dict):
        others = value.values() if type(value) is dict else ()
        for item in chain(value, others):
            yield from _items(item, levels - 1)


def is_library(file: str) -> bool:
    """Whether code is of Python's standard library."""
    return file.startswith(_LIBRARY) and not file[len(_LIBRARY) :].startswith(_PACKAGES_OF_USERS)
