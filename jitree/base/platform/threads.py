"""Says where threads may run, places them and parks them.

macOS places no threads: they may run on all processors there. It has no futex either, and what it has since
14.4 (``os_sync_wait_on_address``) takes other arguments, so that no helpers wait there: the thread that
submits work does it alone (:data:`CAN_PARK`).
"""

from __future__ import annotations

import ctypes
import os
import sys
from _thread import get_ident
from collections.abc import Iterable
from functools import cache, partial
from typing import Final

from jitree.base.finalizers import Finalizer, OwnedDescriptor, guard
from jitree.base.platform import MACHINE, SYSTEM, map_code
from jitree.errors import FailedPreconditionError, ResourceExhaustedError, StatusError, pass_interruption

CAN_PARK: Final = SYSTEM == "linux"
"""Whether machine code may have a thread wait for a word, and wake it."""
PARKING_CALL: Final = {"x86_64": 202}.get(MACHINE, 98)
"""The number of the system call futex(2); the second one everywhere else."""
PARK: Final = 128
WAKE: Final = 129
"""Operations of it on memory of one process (FUTEX_PRIVATE_FLAG): FUTEX_WAIT and FUTEX_WAKE.

A thread that parks has the word compared and is put to sleep in one step, as the kernel's lock orders it: no
wake between is lost. They order no other memory, which the words of a team do themselves
(jitree/hal/README.md).
"""

_ONE: Final = (1).to_bytes(8, sys.byteorder)
_MOST_WAKES: Final = 4096


class Parking:
    """Parks a thread of Python until it is woken, by eventfd or pipe."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._opened = [OwnedDescriptor(os.eventfd, 0, os.EFD_CLOEXEC)]
            self._out = self._in = self._opened[0].number
        else:
            self._out, self._in = os.pipe()
            self._endings = [Finalizer(partial(os.close, file)) for file in (self._out, self._in)]

    def wait(self) -> None:
        """Waits until :meth:`wake`, which may have been called before."""
        os.read(self._out, _MOST_WAKES)

    def wake(self) -> None:
        os.write(self._in, _ONE)


_PLACE: Final = "/proc/thread-self/stat"
_RUNNING_ON: Final = 38
"""The word of that file that is the processor."""


_ordering: Final = guard()


def order_stores() -> None:
    """Has threads see what this one stored before what comes later.

    Python's stores are plain, and aarch64 may show them in any order to machine code, which takes no GIL. To
    give a lock back is to release what was stored before; to take it again is to acquire that, and nothing
    later comes before it.
    """
    for _ in ("give it back", "take it again"):
        with _ordering:
            pass


@cache
def _to_pointer() -> int | None:
    """The way from a thread's identifier to its pointer, the same for all threads.

    On aarch64 the C library's record of the thread is in between. None where that is not known."""
    if SYSTEM != "linux" or MACHINE not in ("x86_64", "aarch64"):
        return None
    if MACHINE == "x86_64":
        return 0
    code = map_code(bytes.fromhex("40d03bd5c0035fd6"))  # mrs x0, TPIDR_EL0; ret
    pointer: int = ctypes.CFUNCTYPE(ctypes.c_int64)(code.address)()
    return pointer - get_ident()


def thread_pointer(identifier: int) -> int:
    """Where a register leads machine code of a thread: FS, or TPIDR_EL0.

    0 where the system keeps something else there."""
    way = _to_pointer()
    return 0 if way is None else identifier + way


def allowed_processors(thread: int = 0) -> set[int]:
    """The processors that a thread (0: this one) may run on; all where the system places none."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(thread)
    return set(range(os.cpu_count() or 1))


def place_thread(processors: Iterable[int], thread: int = 0) -> None:
    """Has a thread (0: this one) run on these processors alone; on any where the system places none."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(thread, processors)


def place_process(process: int) -> None:
    """Has a process run wherever this one may, not where one thread may.

    OSError if it is not there."""
    place_thread(allowed_processors(os.getpid()), process)


def running_on() -> int | None:
    """The number of the processor that this thread runs on; None where the system does not say."""
    try:
        with open(_PLACE, encoding="ascii", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[_RUNNING_ON - 2])
    except OSError as error:
        pass_interruption(error)
        return None


class thread_refusals:
    """Raises RESOURCE_EXHAUSTED, with what the thread is for, where the system starts none.
    At the end of the interpreter it is FAILED_PRECONDITION."""

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, RuntimeError | MemoryError) and not isinstance(error, StatusError):
            pass_interruption(error)
            if "interpreter shutdown" in str(error):
                raise FailedPreconditionError(
                    f"{self._purpose}: Python starts no threads as the interpreter shuts down; do it before "
                    "the program ends"
                ) from error
            raise ResourceExhaustedError(
                f"{self._purpose}: cannot start a thread: {error}; the limit on threads and processes is "
                "reached (`ulimit -u`, the pids of a container): raise it, or end others"
            ) from error
