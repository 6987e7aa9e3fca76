"""Decides whether to interpret kernels or to wait for their machine code.

What the rest of a command list costs is known after a few workgroups: those that are left, times what each
has taken; for a kernel that has not run its loops say how many instructions those are
(:mod:`jitree.loaders.vmvx.analysis`). What building costs is
estimated by the provider of the image, from the size of the kernels and what builds take on this machine.
A few kernels often take most of a call: those are built first, and where that saves more than it takes the
builder has as much of the processors as the program.
Both use all processors, so one of them has to give way: what follows from both is the *share* of its time in
which the program may interpret. The rest of it the threads sleep, and the builder has the processors. Beside
a first call that ends sooner a builder has the processors for which that has no thread. Where it has one for
each, none begins a kernel: it would have a quarter of a processor, and threads that wake would wait for it.
"""

from __future__ import annotations

import ctypes
import time
from array import array
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.codegen.image import processors
from jitree.codegen.record import layout_of, size_of, words_of
from jitree.hal.command_layout import (
    KIND_DISPATCH,
    Command,
    Job,
    KernelDispatch,
    KernelEntry,
    List,
    ThreadTeam,
)
from jitree.hal.local import interrupts
from jitree.hal.local.executor import native_executor

if TYPE_CHECKING:
    from jitree.codegen.image.batch import ImageBatch

_LIST: Final = words_of(List)
_JOB: Final = words_of(Job)
_TEAM: Final = words_of(ThreadTeam)

ALL: Final = 1.0
"""The share of a first call that ends before the build does: the builder gets what is left."""
LATER: Final = 0.03
"""The share of later calls while there is a build: their result is known to take many times as long as it
will then."""
EVEN: Final = 0.5
"""The share of later calls where a build has taken twice its estimate: other programs use the processors, so
its end is unknown. A call then takes at most twice as long as without a builder."""
NOTHING: Final = 0.0
SOONER: Final = 1.15
"""Times of a build that interpreting takes, at least, for a call to wait: guesses err, and a decision takes
time. A first call of PP-OCR cls, whose dearest kernel takes about as long as its build, took 1.22 of its
interpretation with 0.9 and takes 1.13; full speed comes as soon (local-sync, two processors)."""
ALONE: Final = 2.0
"""Until a kernel is there that a call waits for, times what it adds to building all: one process builds it,
after what it builds already, and the program's processors are not used meanwhile."""
OVERDUE: Final = 2.0
"""Times of its estimate that a build has had before later calls stop giving it nearly everything: of a model
of 88 kernels the second call took 17 s at a load of 11, interpreted 0.3 of a quiet processor's."""
STILL: Final = 0.25
"""A build is thought to take at least so many times longer than it has taken: others may use the machine."""
_PATIENCE: Final = 2.0
"""Times what interpreting a call takes that it waits at most for a builder that does not get on."""
_LEAST_PATIENCE: Final = 1.0
"""Seconds of that of later calls: on a busy machine an image takes ten times its tens of milliseconds."""
_SILENT: Final = 10.0
"""Seconds in which a builder that does not hang has got on, however busy the machine is: else it is told."""
_PACE: Final = 1e-9
"""Seconds that the VM takes for an instruction of a kernel, at least: 0.35 to 1 ns were seen, less where
threads share a dispatch, whose time then seems shorter than it is."""
_REFRESH: Final = 0.02
"""Seconds for which a look at the command list is good: it takes as long as some kernels."""
_LISTS: Final = 8
"""Command lists whose dispatches are remembered: to read a list takes as long as some kernels."""
_AGAIN: Final = 0.5
"""Part of the time of a kernel that lists before this one have taken, for it to be thought to take that once
more: programs with loops submit a list each time around, and estimates of one list err."""
_SAVED: Final = 0.1
"""Part of a call that building has to save, at least, to slow the program down meanwhile: guesses err."""
_SMALL_BUILD: Final = 0.3
"""Seconds of a build beside the program that begins as soon as it is known what the call takes; larger ones
begin later in proportion, when kernels have run for a fifteenth of what they take."""
_FEW: Final = 2
"""Processors of which the start of a builder takes a call that fills them a good part."""
_TOLD: Final = 1.0
"""Seconds of a build of which a terminal tells also where calls interpret beside it: they take long by it."""
_NANO: Final = 1e-9


def share_of(kernel: float, build: float, is_first: bool) -> float:
    """In which part of the time the program may interpret.

    ``kernel``: seconds that what a call has left of a kernel takes by interpretation; ``build``: until that
    is built, where nothing else runs; ``is_first``: the program has no result yet.
    """
    if kernel >= SOONER * build:
        return NOTHING
    return ALL if is_first else LATER


def left(estimate: float, passed: float, interpreted: float) -> float:
    """Seconds of a build that are left: it had what the program did not take of all processors."""
    return max(estimate - max(passed - interpreted, 0.0), STILL * passed)


Sizes = Callable[[int], float]
"""Instructions of a workgroup, by kernel (:mod:`jitree.loaders.vmvx.analysis`)."""


class Running(NamedTuple):
    """Describes a span that a thread interprets."""

    dispatch: int
    """The address of the dispatch state."""
    nanoseconds: int
    """That it has taken of a processor so far."""
    first: int
    reached: int
    """The workgroups that it began with and is at."""
    last: int

    @property
    def job(self) -> int:
        """The address of the Job record."""
        return KernelDispatch(self.dispatch).failure - layout_of(Job)["failure"]


class LeftToDo(NamedTuple):
    """Estimates what interpreting the rest of a command list takes.

    Seconds are those of one processor.
    """

    kernel: float
    """Of the kernel that runs."""
    everything: float
    threads: int
    of_kernels: Mapping[int, float] = MappingProxyType({})
    """Of each kernel that is left."""


class ListedDispatch(NamedTuple):
    """Describes a dispatch of a list whose kernel is interpreted."""

    kernel: int
    workgroups: int
    begins: bool
    """Whether it is the one that runs."""


_INTS: Final = size_of(Command) // 4
_KIND, _OPERAND, _COUNT, _ENTRY = (
    layout_of(Command)[name] // 4 for name in ("kind", "operand", "count_x", "entry")
)
_ENTRY_WORDS: Final = size_of(KernelEntry) // 8
_ENTRY_POINT: Final = words_of(KernelEntry)


def _words(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_int64 * (size // 8)).from_address(address)).cast("B").cast("q")


def rest_of(
    running: Running,
    ordinal: int,
    entries: array[int],
    sizes: Sizes,
    compiled: Container[int],
    spent: Sequence[float],
) -> LeftToDo:
    """What is left to interpret of a span's list, and of lists like it.

    ``entries`` are the ENTRY_POINT records of the executable, ``compiled`` those of its kernels that are not
    interpreted, ``spent`` seconds that each has been in this call.
    """
    dispatch = KernelDispatch(running.dispatch)
    job = _words(running.job, size_of(Job))
    commands = _words(job[_JOB.list], size_of(List))
    executor = native_executor()
    tick = 1e-6 / executor.ticks_per_microsecond / 1024 if executor is not None else 0.0
    costs = {
        kernel: tick * entries[kernel * _ENTRY_WORDS + _ENTRY_POINT.cost]
        for kernel in range(len(entries) // _ENTRY_WORDS)
        if entries[kernel * _ENTRY_WORDS + _ENTRY_POINT.cost]
    }
    done = running.reached - running.first
    own = _NANO * running.nanoseconds / max(done, 1)
    if done:
        costs[ordinal] = max(own, costs.get(ordinal, 0.0))
    operand = (dispatch.addresses - job[_JOB.addresses]) // 8
    dispatches = _dispatches(commands, operand, ordinal, entries, compiled)
    ahead, threads = _ahead(job, running, dispatch), max(job[_JOB.concurrency], 1)
    guessed = _guessed(dispatches, costs, sizes)
    guessed[ordinal] = max(guessed.get(ordinal, 0.0), own)
    earlier = {kernel: seconds for kernel, seconds in enumerate(spent) if kernel not in compiled}
    return estimate(dispatches, guessed, ahead, min(threads, processors()), earlier)


def _guessed(
    dispatches: Sequence[ListedDispatch], costs: Mapping[int, float], sizes: Sizes
) -> dict[int, float]:
    """Seconds of a workgroup of each kernel: as measured, or its instructions at the pace of those."""
    sized = {item.kernel: sizes(item.kernel) for item in dispatches}
    known = [(item.kernel, item.workgroups) for item in dispatches if item.kernel in costs]
    seconds = sum(costs[kernel] * count for kernel, count in known)
    instructions = sum(sized[kernel] * count for kernel, count in known)
    pace = max(seconds / instructions, _PACE) if instructions else _PACE
    return {kernel: costs.get(kernel, pace * size) for kernel, size in sized.items()}


def estimate(
    dispatches: Sequence[ListedDispatch],
    costs: Mapping[int, float],
    ahead: float,
    threads: int,
    spent: Mapping[int, float] = MappingProxyType({}),
) -> LeftToDo:
    """``costs``: seconds of a workgroup of each kernel; ``ahead``: workgroups of the dispatch that runs that
    are left; ``spent``: seconds that the call has interpreted kernels, in other lists, too."""
    start = next((place for place, item in enumerate(dispatches) if item.begins), len(dispatches))
    workgroups, of_kernels, done = 0.0, dict[int, float](), dict[int, float]()
    for place, (kernel, count, _) in enumerate(dispatches):
        rest = 0 if place < start else ahead if place == start else count
        done[kernel] = done.get(kernel, 0.0) + costs[kernel] * (count - rest)
        if place >= start:
            workgroups += rest
            of_kernels[kernel] = of_kernels.get(kernel, 0.0) + costs[kernel] * rest
    for number, seconds in spent.items() if of_kernels else ():
        earlier = seconds - done.get(number, 0.0)
        if earlier > _AGAIN * seconds:
            of_kernels[number] = of_kernels.get(number, 0.0) + earlier
    running = sum(of_kernels[item.kernel] for item in dispatches[start : start + 1])
    threads = max(1, min(threads, round(workgroups)))
    return LeftToDo(running, sum(of_kernels.values()), threads, of_kernels)


def saved(rest: LeftToDo, builds: Sequence[float]) -> dict[int, float]:
    """Lists seconds a call that machine code saves, the most first. ``builds``: what building each takes,
    where nothing else runs."""
    gains = {kernel: (seconds / rest.threads) - builds[kernel] for kernel, seconds in rest.of_kernels.items()}
    return dict(sorted(gains.items(), key=lambda item: -item[1]))


def _dispatches(
    commands: memoryview, operand: int, ordinal: int, entries: array[int], compiled: Container[int]
) -> list[ListedDispatch]:
    rows = ctypes.string_at(commands[_LIST.rows], commands[_LIST.row_count] * size_of(Command))
    listed = _listed(rows, entries.buffer_info()[0], len(entries) // _ENTRY_WORDS)
    begun = next((item for item, place in listed if place == operand and item.kernel == ordinal), None)
    return [
        item._replace(begins=True) if item is begun else item
        for item, _ in listed
        if item.kernel not in compiled
    ]


@lru_cache(_LISTS)
def _listed(rows: bytes, first: int, kernels: int) -> list[tuple[ListedDispatch, int]]:
    """Lists the dispatches in the rows of a list, and the operand of each.

    ``first`` is the address of the executable's first entry of so many; how many workgroups an indirect
    dispatch has is not known yet.
    """
    words, size, found = memoryview(rows).cast("i"), size_of(KernelEntry), []
    for row in range(0, len(words), _INTS):
        if words[row + _KIND] == KIND_DISPATCH:
            address = words[row + _ENTRY] & 0xFFFFFFFF | words[row + _ENTRY + 1] << 32
            kernel, rest = divmod(address - first, size)
            if not rest and 0 <= kernel < kernels:
                x, y, z = (words[row + _COUNT + axis] & 0xFFFFFFFF for axis in range(3))
                found.append((ListedDispatch(kernel, x * y * z, False), words[row + _OPERAND]))
    return found


def _ahead(job: memoryview, running: Running, dispatch: KernelDispatch) -> float:
    """Workgroups that are left of the dispatch that runs."""
    parts = max(dispatch.parts, 1)
    own = running.last - running.reached
    count = dispatch.count_x * dispatch.count_y * dispatch.count_z * parts
    team = job[_JOB.team]
    if running.first == 0 or not team:  # what a thread begins with, before others are asked
        return (own + count - running.last) / parts
    words = _words(team, size_of(ThreadTeam))
    claimed, limit = words[_TEAM.claimed], words[_TEAM.limit]
    chunks = limit & 0xFFFFFFFF
    free = max(chunks - (claimed & 0xFFFFFFFF), 0) if claimed >> 32 == limit >> 32 else 0
    return (own + count * free / max(chunks, 1)) / parts


def fills_few(running: Running) -> bool:
    """Whether the program has a thread for each of few processors."""
    return 1 < processors() <= min(_FEW, _words(running.job, size_of(Job))[_JOB.concurrency])


class WaitingPolicy:
    """Decides how long one executable's program interprets while kernels are built."""

    def __init__(self, everything: ImageBatch, count: int) -> None:
        """``everything``: the images of its kernels, of which there are so many."""
        self._everything = everything
        self.spent = [0.0] * count
        """Seconds of processors that each kernel has been interpreted."""
        self._call = 0
        self._before = [0.0] * count
        """How many calls had ended when the present one first ran a kernel; what had been spent by then."""
        self._ended: int | None = None
        """How many calls of this process had ended when kernels were first seen to take long."""
        self._since = (0.0, 0.0)
        """When the first of these has ended, and what had been spent by then."""
        self._at_begin: float | None = None
        """What had been spent when the build began."""
        self._progress: tuple[int, float] | None = None
        self._progress_at = (0.0, 0.0)
        """When the builder was seen to get on, and what had been spent by then."""
        self._rest = LeftToDo(0.0, 0.0, 1)
        """What the last look at a command list says."""
        self._next = 0.0
        """When that is no longer good."""
        self._kernel: int | None = None
        """The kernel that was decided about."""
        self._threads = 1
        self.share = ALL
        self.builds = False
        """Whether kernels are to be built while the call goes on, with full priority."""
        self.holds = False
        """Whether builders are to leave all processors to a first call: it ends sooner than they do."""
        self.fills = False
        """Whether the program has a thread for each processor."""
        self.kernel = 0.0
        """Seconds that interpreting what is left of the kernel that runs takes."""

    def spend(self, kernel: int, nanoseconds: int) -> None:
        self._notice_call()
        self.spent[kernel] += _NANO * nanoseconds

    def spent_by_call(self) -> list[float]:
        """Seconds of processors that each kernel has been interpreted in the present call."""
        self._notice_call()
        return [now - before for now, before in zip(self.spent, self._before, strict=True)]

    def _notice_call(self) -> None:
        ended = interrupts.calls_ended()
        if ended != self._call:
            self._call, self._before = ended, list(self.spent)

    def dearest(self) -> list[int]:
        """Kernels that have been interpreted, the one that has taken most first."""
        spent = [(-seconds, kernel) for kernel, seconds in enumerate(self.spent) if seconds]
        return [kernel for _, kernel in sorted(spent)]

    def worth(self, first: float, nanoseconds: int) -> bool:
        """Whether enough has been seen to tell what the call takes."""
        return sum(self.spent) + _NANO * nanoseconds >= _NANO * first

    def worth_aside(self, first: float, nanoseconds: int) -> bool:
        """Whether it is time for a build that the call does not want: a larger one is begun later."""
        return self.worth(first * max(1.0, self._everything.estimate / _SMALL_BUILD), nanoseconds)

    def is_over(self) -> bool:
        """Whether the last look at a command list is no longer good."""
        return time.monotonic() >= self._next

    def is_due(self, kernel: int) -> bool:
        """Whether it is time to decide again, or it is another kernel that runs.

        Where the call ends sooner than builds, that holds for all of its kernels.
        """
        if not self.is_over() and (kernel == self._kernel or self.holds):
            return False
        self._kernel = kernel
        return True

    def left_to_do(self, kernel: int, look: Callable[[], LeftToDo]) -> LeftToDo:
        """What is left while a kernel runs: as the last look says, if that is good and knows the kernel."""
        now = time.monotonic()
        seconds = self._rest.of_kernels.get(kernel)
        if now < self._next and seconds is not None:
            return self._rest._replace(kernel=seconds)
        self._rest, self._next = look(), now + _REFRESH
        return self._rest

    def decide(self, running: Running, rest: LeftToDo, own: float, gain: float) -> None:
        """``own``: seconds in which the builder has built the kernel that runs, if that is next; ``gain``:
        seconds that the call ends sooner if it builds what is worth it."""
        everything, now = self._everything, time.monotonic()
        running_spent = _NANO * running.nanoseconds
        spent = sum(self.spent) + running_spent
        is_first = self._is_first(now, spent)
        build = estimate = everything.estimate
        count, is_overdue = processors(), False
        self.fills = self.fills or count <= rest.threads
        begun = everything.begun
        if begun is not None:
            if self._at_begin is None:
                self._at_begin = spent
            passed, interpreted = now - begun, (spent - self._at_begin) / count
            is_overdue = passed - interpreted >= OVERDUE * build
            build = left(build, passed, interpreted)
        call = rest.everything / rest.threads
        self.kernel = rest.kernel / rest.threads
        if spent / rest.threads >= estimate:  # who knows how many lists come
            call = self.kernel = inf
        self._threads = rest.threads
        silence = self._silence(now, spent / count)
        if silence >= _SILENT:
            everything.tell_silence(silence)
        whole = (rest.everything + sum(self.spent_by_call()) + running_spent) / rest.threads
        self.share = share_of(self.kernel, own, is_first)
        if silence > max(_PATIENCE * whole, 0.0 if is_first else _LEAST_PATIENCE):
            self.share = ALL
        elif self.share == LATER and is_overdue:
            self.share = EVEN
        self.builds = self.share == NOTHING or call >= SOONER * build or gain >= _SAVED * call
        self.holds = is_first and self.fills and not self.builds

    @property
    def is_shown(self) -> bool:
        """Whether a terminal is to show that the call waits."""
        return self.share == NOTHING or self._everything.estimate >= _TOLD

    def _silence(self, now: float, spent: float) -> float:
        """Seconds since the builder got on: without those that the program interpreted."""
        progress = self._everything.progress
        if self._everything.begun is None or progress != self._progress:
            self._progress, self._progress_at = progress, (now, spent)
        since, before = self._progress_at
        return now - since - (spent - before)

    def _is_first(self, now: float, spent: float) -> bool:
        ended = interrupts.calls_ended()
        if self._ended is None:
            self._ended = ended
        if ended != self._ended and self._since == (0.0, 0.0):
            self._since = (now, spent)
        return ended == self._ended

    def may_go_on(self, running: Running) -> bool:
        """Whether the program has had no more than its share yet."""
        if self.share in (ALL, NOTHING):
            return self.share == ALL
        since, before = self._since
        spent = sum(self.spent) + _NANO * running.nanoseconds - before
        return spent / self._threads <= self.share * (time.monotonic() - since)
