"""What the system refuses: each Nth mapping, allocation, file, process or thread of an action fails once.

The action ends in a status or in its result, leaves no descriptor, thread or temporary file, and the next one
is right. ``failing`` patches the few functions by which the package asks the system.
"""

from __future__ import annotations

import _posixsubprocess
import _thread
import builtins
import errno
import gc
import os
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import numpy as np

import jitree
from jitree.api.calls.native import handle_owners
from jitree.api.process import worker
from jitree.base import finalizers, platform, stop_word
from jitree.codegen.image import cache as image_cache
from jitree.errors import StatusError
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, STATE
from tests.fuzz.archives import wholes
from tests.fuzz.campaign import CASES, Campaign, Result
from tests.fuzz.interruptions import resources
from tests.params.archives import content, load, write_irpa
from tests.security.programs import VMVX

_N: Final = np.arange(64, dtype=np.float32)
_X: Final = np.arange(4, dtype=np.float32)
_THREADED: Final = "local-task://?threads=2"


def _system(number: int) -> Callable[[], OSError]:
    return lambda: OSError(number, os.strerror(number))


class Place(NamedTuple):
    """Functions by which the system is asked for something, and how it refuses."""

    functions: tuple[tuple[Any, str], ...]
    refusal: Callable[[], Exception]


_OPEN: Final = builtins.open
_WRITE: Final = os.write
_STARTERS: Final = (_thread, finalizers, handle_owners, stop_word, worker)
"""Modules that have the function under its name."""
_OPENING: Final = ((os, "open"), (builtins, "open"))
PLACES: Final = {
    "mapping": Place(((platform, "_mapped"),), _system(errno.ENOMEM)),
    "allocation": Place(((np, "empty"), (np, "zeros")), MemoryError),
    "file, too many": Place(_OPENING, _system(errno.EMFILE)),
    "file, no permission": Place(_OPENING, _system(errno.EACCES)),
    "disk, full": Place(
        ((os, "write"), (os, "replace"), (os, "mkdir"), (os, "link"), (os, "ftruncate")),
        _system(errno.ENOSPC),
    ),
    "disk, read-only": Place(((os, "replace"), (os, "mkdir"), (os, "unlink")), _system(errno.EROFS)),
    "process": Place(((_posixsubprocess, "fork_exec"), (os, "fork")), _system(errno.EAGAIN)),
    "pipe": Place(((os, "pipe"), (os, "pipe2"), (os, "dup")), _system(errno.EMFILE)),
    "thread": Place(
        ((threading, "_start_new_thread"), *((owner, "start_new_thread") for owner in _STARTERS)),
        lambda: RuntimeError("can't start new thread"),
    ),
}


@dataclass
class Asked:
    """How often the system has been asked."""

    times: int = 0


@contextmanager
def failing(place: Place, nth: int) -> Iterator[Asked]:
    """Refuses what is asked for the ``nth`` time at a place; 0: nothing, but counts."""
    asked = Asked()

    def through(function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any, **named: Any) -> Any:
            counts = _may_refuse(function, arguments)
            asked.times += counts
            if asked.times == nth and counts:
                raise place.refusal()
            return function(*arguments, **named)

        return ask

    with ExitStack() as stack:
        for owner, name in place.functions:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, through(getattr(owner, name))))
        yield asked


def _may_refuse(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """A descriptor becomes a file without the system, and what wakes a thread is not on a disk."""
    if function is _WRITE:
        return stat.S_ISREG(os.fstat(arguments[0]).st_mode)
    return function is not _OPEN or not (arguments and isinstance(arguments[0], int))


# -- actions ---------------------------------------------------------------------------------------------


def _calls(device: str, **options: Any) -> None:
    with jitree.Session(device, **options) as session:
        session.load(ARITHMETIC, ASYNCHRONOUS, STATE)
        for _ in range(4):
            _same(session["arithmetic.add"](_X, _X), 2 * _X)
        add = session["asynchronous.add"]
        _same(add(add.submit(_N, _N), _N), 3 * _N)
        _same(session["state.increment"](), 11)


def _confined() -> None:
    with jitree.Session("local-sync", sandbox="process") as session:
        module = session.load(VMVX)
        assert list(module)


def _arrays() -> None:
    with jitree.Session("local-sync") as session:
        array = session.to_device(_N)
        _same(array.copy(), _N)
        _same(np.from_dlpack(array), _N)
        _same(session.empty((4,)).shape, (4,))


def _parameters() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind, data in wholes().items():
            path = Path(folder) / f"a{kind}"
            path.write_bytes(data)
            for entry in load(path).values():
                assert len(content(entry)) == entry.length


def _archive() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.irpa"
        try:
            write_irpa(path, {"w": _N})
        except StatusError:
            if os.listdir(folder) not in ([], [path.name]):
                raise WrongError(f"{os.listdir(folder)} are left") from None
            if path.exists():  # then all of it is there
                _same(np.frombuffer(content(load(path)["w"]), np.float32), _N)
            raise
        _same(np.frombuffer(content(load(path)["w"]), np.float32), _N)


def _cached() -> None:
    with tempfile.TemporaryDirectory() as folder, image_cache.kept_in(folder):
        try:
            image_cache.write("a.image", b"bytes")
        except OSError:  # which those who store take for no cache
            if [name for _, _, names in os.walk(folder) for name in names]:
                raise WrongError("a part of a file is left in the cache") from None
            return
        if image_cache.read("a.image") not in (b"bytes", None):
            raise WrongError("the cache has other bytes")


class WrongError(Exception):
    """A result is wrong, or something is left."""


def _same(outcome: object, expected: object) -> None:
    if not np.array_equal(np.asarray(outcome), np.asarray(expected)):
        raise WrongError(f"{outcome!r}, not {expected!r}")


def _first_confined() -> None:
    """With the process that starts others."""
    worker._end()
    _confined()


ACTIONS: Final[dict[str, Callable[[], None]]] = {
    "calls": lambda: _calls("local-sync", tier="fast"),
    "calls, plain": lambda: _calls("local-sync", tier="plain"),
    "calls, threads": lambda: _calls(_THREADED, tier="fast"),
    "arrays": _arrays,
    "parameters": _parameters,
    "an archive": _archive,
    "the cache": _cached,
    "a confined process": _confined,
    "the first confined process": _first_confined,
}


class Case(NamedTuple):
    place: str
    action: str
    nth: int


@cache
def cases() -> list[tuple[str, str]]:
    return [(place, action) for action in ACTIONS for place in PLACES]


def generate(number: int) -> Case:
    place, action = cases()[number % len(cases())]
    return Case(place, action, number // len(cases()) + 1)


@cache
def _warm(action: str) -> bool:
    """What a process makes once has been made."""
    for _ in range(2):
        ACTIONS[action]()
    return True


def run(case: Case) -> Result:
    """One refusal. A case whose place is asked less often says nothing and is not counted."""
    _warm(case.action)
    gc.collect()
    before = resources()
    action, place = ACTIONS[case.action], PLACES[case.place]
    counts: Counter[str] = Counter()
    found: list[str] = []
    with failing(place, case.nth) as asked:
        try:
            action()
            end = "a result"
        except StatusError as error:
            end = error.code.name
        except Exception as error:
            end = "another error"
            if not _is_own(error):
                found.append(f"{case}: {error!r}")
    if asked.times < case.nth:
        return [], counts
    counts.update({CASES: 1, f"{case.place}: {end}": 1})
    try:
        action()
    except Exception as error:
        found.append(f"{case}, the next time: {error!r}")
    after = resources()
    if after[0] > before[0] or after[1] - before[1]:
        found.append(f"{case}: threads and descriptors {after}, {before} before")
    return found, counts


def _is_own(error: BaseException) -> bool:
    """Tells whether the refusal hit the action and not the package: no frame of the package is in it."""
    trace = error.__traceback__
    package = os.path.dirname(jitree.__file__)
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(package):
            return False
        trace = trace.tb_next
    return not isinstance(error, WrongError)


CAMPAIGN: Final = Campaign(
    "refusals of the system", generate, run, batch=16, seconds=60, prepare=lambda: None
)
