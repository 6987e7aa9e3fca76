"""Which of several images a builder makes next: a word for each, in memory that its processes share with the
process that waits for them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from mmap import mmap
from typing import Final

from jitree.base.spawn import go_after

_WORD: Final = 4
_TIME: Final = 8
_NOT: Final = 0
"""Of an image that a process has taken, or that is not wanted yet."""
_PUT_OFF, _ASIDE, _NEXT, _FIRST = range(1, 5)
IDLE: Final = 75
"""The exit code of a builder that has built nothing: another one builds the same, or no call has asked for an
image (``EX_TEMPFAIL``)."""
_KINDS: Final = 1 << 24
"""A word is so many times the kind, and a number below that, larger for what comes before others."""
_NICENESS_ASIDE: Final = 5
"""Of a process once no call ends sooner by what is left: the program needs the processors more. When it waits
or sleeps, it leaves them all the same."""
_PAUSE: Final = 0.002
"""Seconds between two looks of a builder that has nothing to do yet."""
_HOLD: Final = 0.05
"""Seconds for which a program has the processors to itself: it says so again while it needs them."""
_PATIENCE: Final = 2.0
"""Seconds that it looks: a program that is not going to wait for it is to have its memory back."""


class WorkList:
    """Numbers of images. One process takes each, what is wanted first before others, then in their order.
    None is wanted before :meth:`order`."""

    def __init__(self, descriptor: int, count: int) -> None:
        """``descriptor``: of a file that begins with the time until which the program holds what is put
        aside, and so many words."""
        self._descriptor = descriptor
        memory = memoryview(mmap(descriptor, _TIME + _WORD * count))
        self._held, self._words = memory[:_TIME].cast("d"), memory[_TIME:].cast("I")

    @classmethod
    def create(cls, count: int) -> WorkList:
        """In a new file in memory, to which more can be written."""
        descriptor = os.memfd_create("jitree-images")
        os.write(descriptor, bytes(_TIME + _WORD * count))
        return cls(descriptor, count)

    @property
    def descriptor(self) -> int:
        return self._descriptor

    @property
    def size(self) -> int:
        """Bytes at the beginning of the file."""
        return _TIME + self._words.nbytes

    def close(self) -> None:
        """This process takes nothing from the list; what is first it still says."""
        os.close(self._descriptor)

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
        to the program from the first one that is put aside or off."""
        has_given_way = False
        while (taken := self._take()) is not None:
            number, kind = taken
            if kind == _NOT:
                time.sleep(_PAUSE)
                continue
            if kind in (_ASIDE, _PUT_OFF) and not has_given_way:
                go_after(os.getpid(), _NICENESS_ASIDE)
                has_given_way = True
            yield number

    def _take(self) -> tuple[int, int] | None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)  # copies of a process do not share such a lock
        try:
            words = self._words.tolist()
            word = max(words)
            if word == _NOT:
                return None
            if word // _KINDS <= _ASIDE and time.monotonic() < self._held[0]:
                return 0, _NOT
            number = words.index(word)
            self._words[number] = _NOT
            return number, word // _KINDS
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def want(self, number: int) -> None:
        """One is waited for."""
        self._put(number, _FIRST)

    def put_aside(self, number: int) -> None:
        """No call ends sooner by one."""
        self._put(number, _ASIDE)

    def hold(self) -> None:
        """Keeps processes from what is put aside or off, for a moment."""
        self._held[0] = time.monotonic() + _HOLD

    def put_off(self, number: int) -> None:
        """One can come after all others."""
        self._put(number, _PUT_OFF)

    def _put(self, number: int, kind: int) -> None:
        """A process that takes the image in this moment may do so twice, and finds it there."""
        word = self._words[number]
        if word != _NOT:
            self._words[number] = kind * _KINDS + word % _KINDS
