"""Calls the command executor: machine code runs a command list without the GIL."""

from __future__ import annotations

import ctypes
import time
from array import array
from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base.platform import C_LIBRARY, FUNCTIONS
from jitree.base.stop_word import STOP, count_by
from jitree.codegen.record import size_of, words_of
from jitree.errors import pass_interruption
from jitree.hal.command_layout import Functions, Job, Share
from jitree.regs.memory import address_of, local_memory

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.codegen.image import Image
    from jitree.hal.command_list import CommandList

_EXECUTE: Final = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_CLOCK: Final = ctypes.CFUNCTYPE(ctypes.c_int64)
_LOCAL_ALIGNMENT: Final = 64
_MAXIMUM_CONCURRENCY: Final = 255
"""The kernels' field is a byte."""

_JOB: Final = words_of(Job)
_NAMED: Final = words_of(Functions)
LOOK_IN, FIRST_LOOK, LOOK_TICKS = _NAMED.look_in, _NAMED.first_look, _NAMED.look_ticks
NOT_LOGGED: Final = (0, 0)
_MOMENTS: Final = 7
FIRST_LOOK_TICKS: Final = 1 << 22
"""A millisecond or more."""


def _library_functions() -> array[int]:
    """A Functions record."""
    names = (*tuple(vars(_NAMED))[:LOOK_IN], "labs")  # which does nothing, as for what the system lacks
    found = (getattr(C_LIBRARY, FUNCTIONS.get(name, name), C_LIBRARY.labs) for name in names)
    pointers = (ctypes.cast(function, ctypes.c_void_p) for function in found)
    return array("q", (*(pointer.value or 0 for pointer in pointers), 0, FIRST_LOOK_TICKS, STOP))


FUNCTION_TABLE: Final = _library_functions()
FUNCTION_TABLE_ADDRESS: Final[int] = FUNCTION_TABLE.buffer_info()[0]


class _Job:
    """A Job record with the memory that an execution needs; reused by later ones."""

    __slots__ = ("_shares", "address", "words")

    def __init__(self) -> None:
        self.words = array("q", bytes(size_of(Job)))
        self.words[_JOB.functions] = FUNCTION_TABLE_ADDRESS
        self.address: int = self.words.buffer_info()[0]
        self._shares = array("q")

    def provide_local_memory(self, size: int, threads: int) -> npt.NDArray[np.uint8]:
        """Gives one execution zero memory: other programs use the job, too, and see nothing of its."""
        stride = -(-size // _LOCAL_ALIGNMENT) * _LOCAL_ALIGNMENT
        made = local_memory(stride * threads)
        self.words[_JOB.local_memory], self.words[_JOB.local_stride] = address_of(made), stride
        return made

    def provide_shares(self, rows: int) -> None:
        size = (rows + 1) * size_of(Share)
        if len(self._shares) * 8 < size:
            self._shares = array("q", bytes(size))
            self.words[_JOB.shares] = self._shares.buffer_info()[0]


class CommandExecutor:
    """Executes command lists on the calling thread."""

    def __init__(self, execute: Callable[[int], int]) -> None:
        """``execute`` gets the address of a Job record."""
        self._execute = execute
        self._jobs: list[_Job] = []

    def execute(
        self,
        commands: CommandList,
        addresses: array[int],
        lengths: array[int],
        accesses: array[int],
        team: int = 0,
        threads: int = 1,
        logged: tuple[int, int] = NOT_LOGGED,
    ) -> None:
        """Runs every command; ``addresses``, ``lengths`` and ``accesses`` are what :meth:`CommandList.bind`
        gave.

        ``team`` is the address of a ThreadTeam record of ``threads`` threads with this one; 0 = this one.
        ``logged``: the address of a Log record and the number of the submission.
        INTERNAL when a function fails, OUT_OF_RANGE for impossible counts of an indirect dispatch.
        """
        job = self._take_job()
        words = job.words
        words[_JOB.list] = commands.address()
        words[_JOB.addresses] = addresses.buffer_info()[0]
        words[_JOB.lengths] = lengths.buffer_info()[0]
        words[_JOB.accesses] = accesses.buffer_info()[0]
        words[_JOB.team] = team
        words[_JOB.concurrency] = min(threads, _MAXIMUM_CONCURRENCY)
        words[_JOB.failure] = 0
        words[_JOB.log], words[_JOB.origin] = logged
        size = commands.most_local_memory
        kept = job.provide_local_memory(size, threads) if size else None
        if team:
            job.provide_shares(commands.row_count)
        failure = self._execute(job.address)
        del kept
        self._jobs.append(job)
        if failure:
            from jitree.hal.local.failure import Failure

            Failure(failure, *words[_JOB.failed_row : _JOB.failed_x + 3]).raise_error(commands)

    def _take_job(self) -> _Job:
        try:
            return self._jobs.pop()
        except IndexError as error:
            pass_interruption(error)
            return _Job()


class NativeExecutor(CommandExecutor):
    """Calls the functions of the image."""

    def __init__(self, image: Image) -> None:
        super().__init__(_EXECUTE(image.addresses["execute"]))
        self._image = image
        self.execute_address: int = image.addresses["execute"]
        """``i64 (job)`` for machine code, as ``estimate_address``; ``clock_address`` is ``i64 ()``."""
        self.estimate_address: int = image.addresses["estimate"]
        self.clock_address: int = image.addresses["clock"]
        self._estimate = _EXECUTE(image.addresses["estimate"])
        self._clock = _CLOCK(self.clock_address)
        count_by(self._clock)
        self._begun = self.moment()

    @cached_property
    def serve(self) -> Callable[[int, int], None]:
        """Gives a worker thread's function: (address of a ThreadTeam record, worker's number from 1)."""
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self._image.addresses["serve"])

    @cached_property
    def dismiss(self) -> Callable[[int], None]:
        """(address of a ThreadTeam record): lets its worker threads end."""
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._image.addresses["dismiss"])

    def estimate(self, commands: CommandList, lengths: array[int]) -> int:
        """Estimates ticks of a list on one thread; -1 before functions have run."""
        job = self._take_job()
        words = job.words
        words[_JOB.list] = commands.address()
        words[_JOB.addresses] = commands.addresses.buffer_info()[0]
        words[_JOB.lengths] = lengths.buffer_info()[0]
        words[_JOB.team] = 0
        ticks: int = self._estimate(job.address)
        self._jobs.append(job)
        return ticks

    def moment(self) -> tuple[int, int]:
        """Ticks, and nanoseconds of ``time.perf_counter_ns`` at that moment."""
        tries = ((self._clock(), time.perf_counter_ns(), self._clock()) for _ in range(_MOMENTS))
        begun, nanoseconds, ended = min(tries, key=lambda moment: moment[2] - moment[0])
        return (begun + ended) // 2, nanoseconds

    @cached_property
    def ticks_per_microsecond(self) -> float:
        """Measured once, over a millisecond."""
        while (elapsed := time.perf_counter_ns() - self._begun[1]) < 1_000_000:
            time.sleep(0.001 - elapsed * 1e-9)
        return max(1000 / self.nanoseconds_per_tick(self.moment()), 1.0)

    def nanoseconds_per_tick(self, now: tuple[int, int]) -> float:
        """Measures a tick from when this was made until a moment. The longer that is, the less it matters how
        long both clocks were read."""
        (ticks, begun), (last_ticks, ended) = self._begun, now
        return (ended - begun) / max(1, last_ticks - ticks)


@cache
def executor_in_python() -> CommandExecutor:
    """Executes lists by the same functions, not compiled: it needs neither numba nor llvmlite. A workgroup
    takes it some microseconds."""
    from jitree.hal.command_layout import Job
    from jitree.hal.local.executor.command_lists import execute

    return CommandExecutor(lambda job: execute(Job(job)))
