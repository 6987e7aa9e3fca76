"""Shares work among processes: images of a builder, items of copies of this process.

Which image a builder makes next is a word for each, in memory that its processes share with the process that
waits for them. Numba's front end uses one processor, so copies of a process share what it has to do.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, starmap
from mmap import mmap
from typing import Final, TypeVar

from jitree.base.finalizers import OwnedDescriptor
from jitree.base.platform.available_resources import available_processors
from jitree.base.platform.files import MEMORY_FILE
from jitree.base.platform.starting import place_after
from jitree.errors import InternalError

_WORD: Final = 4
_NUMBERS: Final = 3 * 8
_NOT: Final = 0
"""Of an image that a process has taken, or that is not wanted yet."""
_PUT_OFF, _ASIDE, _NEXT, _FIRST = range(1, 5)
IDLE: Final = 75
"""The exit code of a builder that has built nothing: another one builds the same, or no call has asked for an
image (``EX_TEMPFAIL``)."""
_KINDS: Final = 1 << 24
"""A word is so many times the kind, and a number below that, larger for what comes before others."""
_NICENESS_ASIDE: Final = 5
"""Of a process while no call ends sooner by what it makes: the program needs the processors more. When it
waits or sleeps, it leaves them all the same."""
_PAUSE: Final = 0.002
"""Seconds between two looks of a builder that has nothing to do yet."""
_HOLD: Final = 0.05
"""Seconds for which a program has the processors to itself: it says so again while it needs them."""
_PATIENCE: Final = 2.0
"""Seconds that it looks: a program that is not going to wait for it is to have its memory back."""


class WorkList:
    """Numbers of images. One process takes each, what is wanted first before others, then in their order.
    None is wanted before :meth:`order`."""

    def __init__(self, opened: OwnedDescriptor, count: int) -> None:
        """``opened`` begins with three numbers and so many words. The first is a time: until then the program
        holds what is put aside. The others are seconds that were taken here, and those that were stated."""
        self._opened = opened
        memory = memoryview(mmap(opened.number, _NUMBERS + _WORD * count))
        self._numbers, self._words = memory[:_NUMBERS].cast("d"), memory[_NUMBERS:].cast("I")

    @classmethod
    def create(cls, count: int) -> WorkList:
        """In a new file in memory, to which more can be written."""
        opened = OwnedDescriptor(MEMORY_FILE, "jitree-images")
        os.ftruncate(opened.number, _NUMBERS + _WORD * count)  # or OSError: where files may not grow
        return cls(opened, count)

    @property
    def descriptor(self) -> int:
        return self._opened.number

    @property
    def size(self) -> int:
        """Bytes at the beginning of the file."""
        return _NUMBERS + self._words.nbytes

    def close(self) -> None:
        """This process takes nothing from the list; what is first it still says."""
        self._opened.close()

    def order(self, numbers: Iterable[int]) -> None:
        """What is to be made, in this order."""
        for place, number in enumerate(numbers, 1):
            self._words[number] = (_NEXT + 1) * _KINDS - place

    @property
    def is_wanted(self) -> bool:
        """Whether any is."""
        return any(self._words)

    def wait(self, program: int) -> bool:
        """Whether any is wanted, once it is; False if the program, a process, has ended, or wants none for
        long."""
        end = time.monotonic() + _PATIENCE
        while not self.is_wanted:
            if os.getppid() != program or time.monotonic() > end:
                return False
            time.sleep(_PAUSE)
        return True

    def __iter__(self) -> Iterator[int]:
        """Numbers that no process has taken yet; which, is decided when one is asked for. A process gives way
        to the program while it has one that is put aside or off."""
        first, niceness = os.getpriority(os.PRIO_PROCESS, 0), 0
        while (taken := self._take()) is not None:
            number, kind = taken
            if kind == _NOT:
                time.sleep(_PAUSE)
                continue
            wanted = _NICENESS_ASIDE if kind in (_ASIDE, _PUT_OFF) else 0
            if wanted != niceness:
                niceness = wanted
                place_after(os.getpid(), first, niceness)
            yield number

    def _take(self) -> tuple[int, int] | None:
        with self._locked():
            words = self._words.tolist()
            word = max(words)
            if word == _NOT:
                return None
            if word // _KINDS <= _ASIDE and self.is_held:
                return 0, _NOT
            number = words.index(word)
            self._words[number] = _NOT
            return number, word // _KINDS

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._opened.number, fcntl.LOCK_EX)  # copies of a process do not share such a lock
        try:
            yield
        finally:
            fcntl.lockf(self._opened.number, fcntl.LOCK_UN)

    def also(self, numbers: Iterable[int], most: int, limit: int) -> list[int]:
        """Takes more images that no process has taken.

        Such of ``numbers`` as are to be made now, so many at most, none where those that are left are no
        more than ``limit``: a process each makes them.
        """
        taken = list[int]()
        with self._locked():
            left = sum(word != _NOT for word in self._words.tolist())
            is_held = self.is_held
            for number in numbers:
                if len(taken) == most or left - len(taken) <= limit:
                    break
                if self._words[number] // _KINDS > (_ASIDE if is_held else _NOT):
                    self._words[number] = _NOT
                    taken.append(number)
        return taken

    def note(self, seconds: float, stated: float) -> None:
        """Adds processor seconds that work has taken here: beside those stated of it."""
        with self._locked():
            self._numbers[1] += seconds
            self._numbers[2] += stated

    @property
    def pace(self) -> float | None:
        """How many times what was stated it has taken so far; None if nothing is known."""
        _, seconds, stated = self._numbers
        return seconds / stated if stated else None

    @property
    def progress(self) -> tuple[float, int]:
        """Something else whenever a process has taken an image or is done with one."""
        return self._numbers[2], sum(word == _NOT for word in self._words)

    def want(self, number: int) -> None:
        """One is waited for."""
        self._put(number, _FIRST)

    def bring(self, number: int) -> None:
        """A call ends sooner by one after all."""
        if self._words[number] // _KINDS < _NEXT:
            self._put(number, _NEXT)

    def put_aside(self, number: int) -> None:
        """No call ends sooner by one."""
        self._put(number, _ASIDE)

    @property
    def is_held(self) -> bool:
        """Whether the program has the processors to itself."""
        return time.monotonic() < self._numbers[0]

    def hold(self) -> None:
        """Keeps processes from what is put aside or off, for a moment."""
        self._numbers[0] = time.monotonic() + _HOLD

    def release(self) -> None:
        """Lets processes take it again."""
        self._numbers[0] = 0.0

    def put_off(self, number: int) -> None:
        """One can come after all others."""
        self._put(number, _PUT_OFF)

    def _put(self, number: int, kind: int) -> None:
        """Puts work back; a process may do it twice and find it."""
        word = self._words[number]
        if word != _NOT:
            self._words[number] = kind * _KINDS + word % _KINDS


_NUMBER: Final = 8
"""Bytes that a number takes in the file."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results of ``work`` for all items, in their order. Copies of this process share the items: a copy
    that is done with one takes the next. A process with several threads makes no copies, since a copy would
    have their locks and not the threads."""
    count = min(available_processors(), len(items))
    if count < 2 or threading.active_count() > 1:
        return [work(item) for item in items]
    with _Numbers(range(count, len(items))) as numbers, ExitStack() as copies:
        others = [
            copies.enter_context(_Copy(work, items, chain((first,), numbers))) for first in range(1, count)
        ]
        results = {number: work(items[number]) for number in chain((0,), numbers)}
        failures = []
        for other in others:  # what one has done is not lost by another that fails
            try:
                results.update(other.results())
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
    return [results[number] for number in range(len(items))]


class _Numbers:
    """The numbers of items that no process has taken yet. They lie in a file in memory whose descriptor the
    copies of this process share, and so its position."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._opened = OwnedDescriptor(MEMORY_FILE, "jitree-numbers")
        os.write(self._opened.number, array("q", numbers).tobytes())
        os.lseek(self._opened.number, 0, os.SEEK_SET)

    def __iter__(self) -> Iterator[int]:
        while number := os.read(self._opened.number, _NUMBER):
            yield int.from_bytes(number, sys.byteorder)

    def __enter__(self) -> _Numbers:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()


class _Copy:
    """A copy of this process that works on some items. It ends with the block that it is used in, also where
    other work fails. Its results lie in a file in memory."""

    def __init__(self, work: Callable[[Item], object], items: Sequence[Item], numbers: Iterable[int]) -> None:
        import pickle  # not for a list of work, which programs have

        self._opened = OwnedDescriptor(MEMORY_FILE, "jitree-results")
        self._status: int | None = None
        self._processes: list[int] = []
        code = 1
        try:
            next(map(self._processes.append, starmap(os.fork, ((),))))  # in C: an interrupt comes after it
            if self._processes == [0]:
                with open(self._opened.number, "wb", closefd=False) as output:
                    output.write(pickle.dumps(_outcome(work, items, numbers)))
                code = 0
        except BaseException:
            if self._processes != [0]:
                self.__exit__()
                raise
            import traceback

            traceback.print_exc()
        finally:
            if self._processes == [0]:
                os._exit(code)

    def __enter__(self) -> _Copy:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()
        if self._status is None:
            import signal

            for process in self._processes:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)

    def results(self) -> dict[int, Result]:
        """What came of the items, by their numbers; raises what the work raised."""
        _, self._status = os.waitpid(self._processes[0], 0)
        with open(self._opened.number, "rb", closefd=False) as output:
            output.seek(0)
            data = output.read()
        if self._status:
            raise InternalError("a copy of the process that writes machine code has failed; see its output")
        import pickle

        results, failure = pickle.loads(data)
        if failure is not None:
            raise failure
        return results  # type: ignore[no-any-return]


def _outcome(
    work: Callable[[Item], object], items: Sequence[Item], numbers: Iterable[int]
) -> tuple[dict[int, object], Exception | None]:
    try:
        return {number: work(items[number]) for number in numbers}, None
    except Exception as error:
        return {}, error
