"""Shares work among processes: images of a builder, items of copies of this process.

Which image a builder makes next is a word for each, in memory that its processes share with the process that
waits for them. Numba's front end uses one processor, so copies of a process share what it has to do.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from itertools import chain, starmap
from mmap import mmap
from typing import Final, TypeVar

from jitree.base.finalizers import OwnedDescriptor
from jitree.base.platform.available_resources import available_processors
from jitree.base.platform.files import MEMORY_FILE
from jitree.base.platform.starting import Priority, place, priority_of
from jitree.codegen.image.flat import ASIDE, MOST, NEXT
from jitree.errors import InternalError

_WORD: Final = 4
_NUMBERS: Final = 5 * 8
_HELD, _SECONDS, _STATED, _NICENESS, _URGENT = range(5)
_NOT: Final = 0
"""Of an image that a process has taken, or that is not wanted yet."""
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

    def __init__(self, opened: OwnedDescriptor, count: int, program: int) -> None:
        """``opened`` begins with five numbers and so many words. The first is a time: until then the program,
        a process, holds what is put aside. The others are seconds that were taken here, those that were
        stated, how far the builder is to be behind the program, and how many processes make what is not put
        aside."""
        self._opened = opened
        self._program = program
        memory = memoryview(mmap(opened.number, _NUMBERS + _WORD * count))
        self._numbers, self._words = memory[:_NUMBERS].cast("d"), memory[_NUMBERS:].cast("I")

    @classmethod
    def create(cls, count: int) -> WorkList:
        """In a new file in memory, to which more can be written."""
        opened = OwnedDescriptor(MEMORY_FILE, "jitree-images")
        os.ftruncate(opened.number, _NUMBERS + _WORD * count)  # or OSError: where files may not grow
        return cls(opened, count, os.getpid())

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
        """What is to be made, in this order. A reader finds all of it, or what is first: not the end of a
        list of which the rest is still to be written."""
        words = array("I", self._words)
        for position, number in enumerate(numbers, 1):
            words[number] = (NEXT + 1) * _KINDS - position
        self._words[:] = memoryview(words)

    @property
    def niceness(self) -> int:
        """How far the builder is to be behind the program; its processes go by it with their next image."""
        return round(self._numbers[_NICENESS])

    @niceness.setter
    def niceness(self, niceness: int) -> None:
        self._numbers[_NICENESS] = niceness

    @cached_property
    def _first(self) -> Priority:
        """The program's, which copies of a process know from it."""
        return priority_of(self._program)

    @property
    def is_wanted(self) -> bool:
        """Whether any is."""
        return any(self._words)

    def wait(self) -> bool:
        """Whether any is wanted, once it is; False if the program has ended, or wants none for long."""
        self._place(False)
        end = time.monotonic() + _PATIENCE
        while not self.is_wanted:
            if os.getppid() != self._program or time.monotonic() > end:
                return False
            time.sleep(_PAUSE)
        return True

    def __iter__(self) -> Iterator[int]:
        """Numbers that no process has taken yet; which, is decided when one is asked for. A process gives way
        to the program while it has one that is put aside or off; their group, which is that of all of them,
        while each of them has."""
        is_urgent = False
        while (taken := self._take(is_urgent)) is not None:
            number, kind = taken
            is_urgent = kind >= NEXT
            if kind == _NOT:
                time.sleep(_PAUSE)
                continue
            self._place(not is_urgent)
            yield number

    def _place(self, gives_way: bool) -> None:
        usual, (own, group) = self.niceness, self._first
        aside = max(usual, _NICENESS_ASIDE)
        is_aside = gives_way and not self._numbers[_URGENT]
        place(os.getpid(), (own + (aside if gives_way else usual), group + (aside if is_aside else usual)))

    def _take(self, was_urgent: bool) -> tuple[int, int] | None:
        """A number and its kind; None at the end. ``was_urgent``: what this process has made so far was not
        put aside."""
        with self._locked():
            self._numbers[_URGENT] -= was_urgent
            words = self._words.tolist()
            word = max(words)
            if word == _NOT:
                return None
            if word // _KINDS <= ASIDE and self.is_held:
                return 0, _NOT
            number = words.index(word)
            self._words[number] = _NOT
            self._numbers[_URGENT] += word // _KINDS >= NEXT
            return number, word // _KINDS

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """A block in one process at a time. A process that is stopped in it, for microseconds of an image's
        tens of milliseconds, stops all others: no call waits long for a builder that does not get on."""
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
                if self._words[number] // _KINDS > (ASIDE if is_held else _NOT):
                    self._words[number] = _NOT
                    taken.append(number)
        return taken

    def note(self, seconds: float, stated: float) -> None:
        """Adds processor seconds that work has taken here: beside those stated of it."""
        with self._locked():
            self._numbers[_SECONDS] += seconds
            self._numbers[_STATED] += stated

    @property
    def pace(self) -> float | None:
        """How many times what was stated it has taken so far; None if nothing is known.

        Clocks of processors jump, too, where a machine is moved: no number is beyond all machines.
        """
        stated = self.stated
        return min(max(self._numbers[_SECONDS] / stated, 1 / MOST), MOST) if stated else None

    @property
    def stated(self) -> float:
        """Seconds that were stated of what is done: it grows with each image."""
        return self._numbers[_STATED]

    def put(self, number: int, kind: int) -> None:
        """Says when one is to be made, where no process has taken it: one may take it twice so, and find it.
        What a call waits for stays first."""
        word = self._words[number]
        if word != _NOT and (kind != NEXT or word // _KINDS < NEXT):
            self._words[number] = kind * _KINDS + word % _KINDS

    @property
    def is_held(self) -> bool:
        """Whether the program has the processors to itself."""
        return time.monotonic() < self._numbers[_HELD]

    def hold(self) -> None:
        """Keeps processes from what is put aside or off, for a moment."""
        self._numbers[_HELD] = time.monotonic() + _HOLD

    def release(self) -> None:
        """Lets processes take it again."""
        self._numbers[_HELD] = 0.0


Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results of ``work`` for all items, in their order. Copies of this process share the items: a copy
    that is done with one takes the next. A process with several threads makes no copies, since a copy would
    have their locks and not the threads."""
    count = min(available_processors(), len(items))
    if count < 2 or threading.active_count() > 1:
        return [work(item) for item in items]
    left = WorkList.create(len(items))
    left.order(range(count, len(items)))
    with closing(left), ExitStack() as copies:
        others = [
            copies.enter_context(_Copy(work, items, chain((first,), left))) for first in range(1, count)
        ]
        results = {number: work(items[number]) for number in chain((0,), left)}
        failures = []
        for other in others:  # what one has done is not lost by another that fails
            try:
                results.update(other.results())
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
    return [results[number] for number in range(len(items))]


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
