"""Starts builder processes, waits for them and limits what they take.

A process starts one in the middle of a call, which does not wait for it, and before it is known what it is to
build. So this imports little and takes little: ``subprocess`` and ``tempfile`` would take ten times as long.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import sys
import time
from contextlib import suppress
from math import ceil
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

from jitree.base import private_files
from jitree.base.finalizers import Unique, guard
from jitree.base.platform.starting import place, priority_of, spawn
from jitree.base.platform.threads import place_process
from jitree.codegen.image import cache
from jitree.codegen.image.flat import OUTPUT, Recipe, parts_of, to_json
from jitree.codegen.image.keys import folders_of
from jitree.codegen.image.worklist import IDLE, WorkList
from jitree.errors import ignored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_PROGRAM: Final = Path(__file__).with_name("builder_process.py")
_ISOLATED: Final = ("-I", "-S")
"""Without what the environment, the current folder and the files of installed packages would add."""
_PAUSE: Final = 0.001
"""Seconds for which a thread that starts a builder lets others have the interpreter, before and halfway: it
takes two milliseconds of Python, as long as some kernels, and no call is to wait for all of it."""
_HELD_PAUSE: Final = 0.01
"""Seconds between two looks whether the program still needs all processors."""
_PACKAGES: Final = ("jitree", "numpy", "ml_dtypes", "numba", "llvmlite", "elftools")
"""This one and what is installed with it: what generators may import."""

_NOT_STARTED: Final = range(126, 128)
"""Codes of shells, and of the system's linker, for a program that cannot be started."""

SPARE_SECONDS: Final = 10
"""Seconds of a processor that each process of a builder may take beside the limit: to start takes one."""
SPARE_MEMORY: Final = 1 << 30
"""Bytes of address space, the same way."""


class Builder:
    """A builder process that this process started. Its messages go to a file beside the image."""

    def __init__(self, process: int, log: Path) -> None:
        self._process = process
        self._log = log
        self._code: int | None = None
        self._is_limited = False
        _running.add(self)

    def has_ended(self) -> bool:
        with _looking:  # the system tells the status once, to one thread
            if self._code is None:
                try:
                    ended, status = os.waitpid(self._process, os.WNOHANG)
                except ChildProcessError:  # the program has taken its status
                    ended, status = self._process, 0
                if ended:
                    self._code = os.waitstatus_to_exitcode(status)
                    _running.discard(self)
        return self._code is not None

    def _change(self, change: Callable[[int], object]) -> None:
        """Calls a function of its process's number, while that is its own: the system gives it away once a
        thread has asked for the status."""
        with _looking:
            if not self.has_ended():
                with ignored(ProcessLookupError):  # the program has taken its status
                    change(self._process)

    def limit(self, limit: Callable[[int], None]) -> None:
        """Has its process limited by a function of the number of that."""
        self._is_limited = True
        self._change(limit)

    def end(self) -> None:
        """Ends the process and those that it has made: it leads a session."""
        import signal

        self._change(lambda process: os.killpg(process, signal.SIGKILL))

    def has_built_nothing(self) -> bool:
        """Whether it has ended without an image: another builder makes it, or no call has asked for it."""
        return self.has_ended() and self._code == IDLE

    def has_built(self) -> bool:
        """Whether it has left an image, as far as its end tells."""
        return self.has_ended() and self._code == 0

    def failure(self) -> str:
        """What went wrong; of a builder that has ended without leaving an image."""
        code = self._code or 0
        lines = (cache.read(self._log.name) or b"").decode(errors="backslashreplace").strip().splitlines()
        silent = f"{sys.executable} could not be started" if code in _NOT_STARTED else "it printed nothing"
        reason = lines[-1] if lines else silent
        if code in errno.errorcode and 1 < code < _NOT_STARTED.start:  # on a full disk texts are cut off
            reason = os.strerror(code)
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        limited = ", within the limits of its session on load time and memory" if self._is_limited else ""
        return f"the builder process {ended}{limited}: {reason}{OUTPUT}{self._log})"


_running: Final[set[Builder]] = set()
"""Those that have not been seen to end: the system keeps a process until that."""
_looking: Final = guard()


def look_for_ended() -> None:
    """Sees which have ended."""
    for builder in tuple(_running):
        builder.has_ended()


def give_way() -> None:
    time.sleep(_PAUSE)


def start_builder(
    recipes: Sequence[Recipe], keys: Sequence[bytes], key: bytes, work: WorkList, target: Path
) -> Builder | None:
    """Starts a builder, which outlives this process once it has something to build; None when another process
    is building or has built. ``key`` and ``target`` are the builder's own, a path in the cache is the latter;
    ``work`` is the list that it takes images from.

    OSError if the cache folder is not writable or no process can be started.
    """
    import json  # in the thread, where no call waits for it

    look_for_ended()
    folder, log_path = str(target.parent), target.with_suffix(cache.LOG_SUFFIX)
    packages = {*_PACKAGES, *(recipe.generator.partition(".")[0] for recipe in recipes)}
    folders = json.dumps({package: folders_of(package) for package in packages})
    give_way()
    with open(work.descriptor, "wb", closefd=False) as file:
        file.seek(work.size)
        parts = parts_of(recipes)
        file.writelines((*keys, to_json(recipes, parts), b"\n", *parts))
    private_files.make_folder(folder)
    with private_files.opened(folder) as directory:
        lock = private_files.lockable(directory, target.with_suffix(cache.LOCK_SUFFIX).name)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if all(map(cache.load, recipes, keys)):  # the other one has just finished
                return None
            with private_files.replace(directory, log_path.name) as log:
                process = _start(folders, len(recipes), key, folder, lock, log.fileno(), work.descriptor)
            if not work.is_wanted:  # others may build the same before this one is to
                fcntl.flock(lock, fcntl.LOCK_UN)
        finally:
            os.close(lock)  # the builder's copy keeps the lock
    with ignored(OSError):  # it has those of the thread that started it, which may be a single one
        place_process(process)
    own, group = priority_of(os.getpid())  # from its first moment: what this process does now goes first
    place(process, (own + work.niceness, group + work.niceness))
    return Builder(process, log_path)


def _start(folders: str, count: int, key: bytes, folder: str, lock: int, log: int, work: int) -> int:
    kept = max(lock, work, log) + 1
    arguments = folders, str(count), str(kept), key.hex(), str(os.getpid())
    return spawn(
        [sys.executable, *_ISOLATED, str(_PROGRAM), *arguments],
        os.environ | {"JITREE_CACHE_DIR": folder},
        {1: log, 2: log, kept: work, kept + 1: lock},
    )


class BuilderThread(Thread):
    """Starts a builder process, and is then that: no call waits for it. The process imports what it needs,
    and builds nothing before :meth:`begin`."""

    def __init__(
        self,
        recipes: Sequence[Recipe],
        keys: Sequence[bytes],
        key: bytes,
        niceness: int,
        builds: BuilderLimits | None,
    ) -> None:
        """``key`` is that of the builder, of which there is one at a time; ``niceness`` is what it has until
        it begins; ``builds`` limits the process."""
        super().__init__(name=f"jitree-builder-{recipes[0].name}")
        self.work = WorkList.create(len(recipes))
        self.work.niceness = niceness
        self._numbers = {key: number for number, key in enumerate(keys)}
        target = cache.path_of(recipes[0], key)  # now: the folder may be another one when the thread runs
        self._folder = target.parent
        self._arguments = recipes, keys, key, self.work, target
        self._builds = builds
        self.is_waiting = True
        """Whether it has not been said yet what to build."""
        self.is_ended = False
        """Whether :meth:`end` was called."""
        self._builder: Builder | None = None
        self._error: BaseException | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether it leaves images in a folder that is another one by now."""
        return self._folder != cache.directory()

    def run(self) -> None:
        try:
            give_way()
            while self.work.is_held:  # of one processor a process that starts has a good part
                if self.is_ended:
                    return
                time.sleep(_HELD_PAUSE)
            self._builder = start_builder(*self._arguments)
            if self._builder is not None and self._builds is not None and self._builds.is_limit:
                self._builder.limit(self._builds.limit)
            if self.is_ended:
                self.end()
        except BaseException as error:
            self._error = error
        finally:
            self.work.close()

    def is_at_work_on(self, recipe: Recipe, key: bytes) -> bool:
        """Whether it has neither left an image nor ended."""
        return not (os.path.exists(cache.place_of(str(self._folder), recipe, key)) or self.has_ended())

    def begin(self, keys: Iterable[bytes], niceness: int) -> None:
        """Has these images built, in this order."""
        self.work.niceness = niceness
        self.work.order(map(self.number, keys))
        self.is_waiting = False

    def number(self, key: bytes) -> int:
        """Which of the images in the list it is."""
        return self._numbers[key]

    def end(self) -> None:
        """Ends the builder, also one that is not there yet; its image is not built."""
        self.is_ended = True
        if self._builder is not None:
            self._builder.end()

    def has_ended(self) -> bool:
        return not self.is_alive() and (self._builder is None or self._builder.has_ended())

    def has_built(self) -> bool:
        """As :meth:`Builder.has_built`; False if another process is building."""
        return self._builder is not None and self._builder.has_built()

    def failure(self) -> str | None:
        """As :meth:`Builder.failure`; None if another process is building, or none was wanted in time."""
        if self._error is not None:
            return f"the builder process cannot be started: {self._error}"
        if self._builder is None or self._builder.has_built_nothing():
            return None
        return self._builder.failure()


class BuilderLimits(Unique):
    """Limits builders, which the system ends above or with their process. What they build is kept in the
    cache like any other image."""

    def __init__(self, seconds: float | None, memory: int | None) -> None:
        """``seconds``: of processor time; ``memory``: bytes of address space. None limits nothing."""
        self.is_limit = seconds is not None or memory is not None
        """Whether it limits anything; builders without a limit go on when their session ends."""
        self._limits: list[tuple[int, int]] = [(resource.RLIMIT_CORE, 0)]
        if seconds is not None:
            self._limits.append((resource.RLIMIT_CPU, ceil(seconds) + SPARE_SECONDS))
        if memory is not None:
            self._limits.append((resource.RLIMIT_AS, memory + SPARE_MEMORY))
        self._lock = guard()  # a forgotten sandbox ends wherever the garbage collector runs
        self._building: set[BuilderThread] = set()

    def add(self, building: BuilderThread) -> None:
        """A builder that :meth:`end` is to end."""
        with self._lock:
            self._building.add(building)
            for item in list(self._building):
                if item.ident is not None and item.has_ended():
                    self._building.discard(item)

    def limit(self, process: int) -> None:
        """Limits a process and those that it makes from now on; a lower limit that it has already stays."""
        with suppress(ProcessLookupError):  # it has ended
            for kind, most in self._limits:
                _, hard = resource.prlimit(process, kind)
                most = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.prlimit(process, kind, (most, most))

    def end(self) -> None:
        """Ends the builders that are at work, if it limits them."""
        if not self.is_limit:
            return
        with self._lock:
            ended, self._building = self._building, set()
        for building in ended:
            building.end()


UNLIMITED: Final = BuilderLimits(None, None)
"""Of sandboxes without limits: they share images, and take none out of packs, which are for others."""
