"""Work that is done by copies of this process: Numba's front end uses one processor."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import IO, TypeVar

from jitree.errors import InternalError

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """``work`` of every item, in order. In a process with several threads it is done here: a copy would have
    their locks, and not them."""
    count = min(len(os.sched_getaffinity(0)), len(items))
    if count < 2 or threading.active_count() > 1:
        return [work(item) for item in items]
    with ExitStack() as copies:
        others = [copies.enter_context(_Copy(work, items[start::count])) for start in range(1, count)]
        results: list[list[Result]] = [[work(item) for item in items[::count]]]
        results += [other.results() for other in others]
    return [results[number % count][number // count] for number in range(len(items))]


class _Copy:
    """A copy of this process that works on some items. It ends with the block that it is used in, also where
    other work fails: its results, which are not asked for then, do not fit into a pipe."""

    def __init__(self, work: Callable[[Item], object], items: Sequence[Item]) -> None:
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
                output.write(pickle.dumps(_outcome(work, items)))
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

    def results(self) -> list[Result]:
        """What came of the items; raises what the work raised."""
        data = self._output.read()
        _, self._status = os.waitpid(self._process, 0)
        if self._status:
            raise InternalError("a copy of the process that writes machine code has failed; see its output")
        results, failure = pickle.loads(data)
        if failure is not None:
            raise failure
        return results  # type: ignore[no-any-return]


def _outcome(work: Callable[[Item], object], items: Sequence[Item]) -> tuple[list[object], Exception | None]:
    try:
        return [work(item) for item in items], None
    except Exception as error:
        return [], error
