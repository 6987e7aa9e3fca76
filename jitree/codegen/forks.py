"""Work that is done by copies of this process: Numba's front end uses one processor."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import IO, Final, TypeVar

from jitree.base.available_resources import available_processors
from jitree.errors import InternalError

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
        self._file = os.memfd_create("numbers")
        os.write(self._file, array("q", numbers).tobytes())
        os.lseek(self._file, 0, os.SEEK_SET)

    def __iter__(self) -> Iterator[int]:
        while number := os.read(self._file, _NUMBER):
            yield int.from_bytes(number, sys.byteorder)

    def __enter__(self) -> _Numbers:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._file)


class _Copy:
    """A copy of this process that works on some items. It ends with the block that it is used in, also where
    other work fails: its results, which are not asked for then, do not fit into a pipe."""

    def __init__(self, work: Callable[[Item], object], items: Sequence[Item], numbers: Iterable[int]) -> None:
        source, drain = os.pipe()
        self._status: int | None = None
        self._process = os.fork()
        if self._process:
            os.close(drain)
            self._output: IO[bytes] = open(source, "rb")
            return
        os.close(source)  # while any process has it, writing to a pipe of which the reader has died waits
        code = 1
        try:
            with open(drain, "wb") as output:
                output.write(pickle.dumps(_outcome(work, items, numbers)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def __enter__(self) -> _Copy:
        return self

    def __exit__(self, *exception: object) -> None:
        self._output.close()
        if self._status is None:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)

    def results(self) -> dict[int, Result]:
        """What came of the items, by their numbers; raises what the work raised."""
        data = self._output.read()
        _, self._status = os.waitpid(self._process, 0)
        if self._status:
            raise InternalError("a copy of the process that writes machine code has failed; see its output")
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
