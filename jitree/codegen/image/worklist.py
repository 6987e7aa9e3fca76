"""Which of several images a builder makes next: a byte for each, in memory that its processes share with the
process that waits for them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from mmap import mmap
from typing import Final

from jitree.base.spawn import go_after

_TAKEN: Final = 0
_PUT_OFF, _ASIDE, _NEXT, _FIRST = (b"\1", b"\2", b"\3", b"\4")
_NICENESS_ASIDE: Final = 5
"""Of a process once no call ends sooner by what is left: the program needs the processors more. When it waits
or sleeps, it leaves them all the same."""


class WorkList:
    """Numbers of images. One process takes each, what is wanted first before others, then in their order."""

    def __init__(self, descriptor: int, count: int) -> None:
        """``descriptor``: of a file that begins with so many bytes."""
        self._descriptor = descriptor
        self._bytes = mmap(descriptor, count)

    @classmethod
    def create(cls, count: int) -> WorkList:
        """In a new file in memory, to which more can be written."""
        descriptor = os.memfd_create("jitree-images")
        os.write(descriptor, count * _NEXT)
        return cls(descriptor, count)

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """This process takes nothing from the list; what is first it still says."""
        os.close(self._descriptor)

    def __iter__(self) -> Iterator[int]:
        """Numbers that no process has taken yet; which, is decided when one is asked for. A process gives way
        to the program from the first one that is put aside or off."""
        has_given_way = False
        while (taken := self._take()) is not None:
            number, kind = taken
            if kind in (_ASIDE, _PUT_OFF) and not has_given_way:
                go_after(os.getpid(), _NICENESS_ASIDE)
                has_given_way = True
            yield number

    def _take(self) -> tuple[int, bytes] | None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)  # copies of a process do not share such a lock
        try:
            for kind in (_FIRST, _NEXT, _ASIDE, _PUT_OFF):
                number = self._bytes.find(kind)
                if number >= 0:
                    self._bytes[number] = _TAKEN
                    return number, kind
            return None
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def want(self, number: int) -> None:
        """One is waited for."""
        self._put(number, _FIRST)

    def put_aside(self, number: int) -> None:
        """No call ends sooner by one."""
        self._put(number, _ASIDE)

    def put_off(self, number: int) -> None:
        """One can come after all others."""
        self._put(number, _PUT_OFF)

    def _put(self, number: int, kind: bytes) -> None:
        """A process that takes the image in this moment may do so twice, and finds it there."""
        if self._bytes[number] != _TAKEN:
            self._bytes[number] = kind[0]
