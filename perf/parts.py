"""What it costs to run VMVX dispatches in parts, measured on one thread, and how well they could be shared.

    python perf/parts.py [--threads 2 4 16] [--only REGEX] [--folder DIRECTORY] [--rows 5]

The models are those of trained.py, which compiles them into the folder. Each dispatch of a call runs as a
whole, and then in as many parts as a team of so many threads would cut it into, one after the other, some
times over; of each the shortest time counts. `cost` is the time of all parts over that of the whole. `shared`
is how much sooner the call would end if each thread always took the next part, for which 2 us a dispatch are
counted: what an idle machine could reach, but for caches and memory; in brackets, if workgroups stayed whole.
With `--rows`, the longest dispatches.
"""

from __future__ import annotations

import argparse
import ctypes
import heapq
import re
import sys
import time
from array import array
from pathlib import Path
from typing import NamedTuple

from trained import MODELS, argument, of_jitree

import jitree
from jitree.base.events import DISPATCH, EventReader
from jitree.codegen.record import atomic_load, size_of
from jitree.hal.command_layout import CHUNKS_PER_THREAD, KernelDispatch, KernelEntry, Workgroup
from jitree.hal.enums import MemoryAccess
from jitree.hal.executable import LocalExecutable
from jitree.hal.local.executor.command_lists import even_parts, even_size
from jitree.hal.stepwise import DeviceStep
from jitree.tools.cache import warm

LEAST = 2000
"""Nanoseconds that each thread has to do at least."""
SHARED_FROM = 6000
"""Nanoseconds of a dispatch that is shared."""
SHARING = 2000
"""Nanoseconds that sharing takes."""
REPEATED = 5
_CODE = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)


class Measured(NamedTuple):
    """One dispatch."""

    name: str
    workgroups: int
    whole: float
    """Nanoseconds."""
    parts: dict[int, list[float]]
    """Of each chunk, by number of threads."""
    uncut: dict[int, list[float]]
    """Of whole workgroups."""


class Dispatch:
    """A dispatch that can run once more, a part at a time."""

    def __init__(self, step: DeviceStep) -> None:
        assert isinstance(step.executable, LocalExecutable)
        self._step = step
        self._entry = KernelEntry(step.executable.entry_point(step.function))
        x, y, z = step.workgroups
        self.count = x * y * z
        operands = [(*extent, MemoryAccess.ALL) for extent in step.operands]
        self._tables = [array("q", column) for column in zip(*operands, strict=True)]
        self._constants = array("I", (word & 0xFFFFFFFF for word in step.constants))
        self._failure = array("q", (0,))
        self._records = array("q", bytes(size_of(KernelDispatch))), array("q", bytes(size_of(Workgroup)))
        state = self._state = KernelDispatch(self._records[0].buffer_info()[0])
        self._group = Workgroup(self._records[1].buffer_info()[0])
        state.size_x = state.size_y = state.size_z = state.concurrency = 1
        state.count_x, state.count_y, state.count_z = x, y, z
        state.constant_count, state.constants = len(self._constants), self._constants.buffer_info()[0]
        state.binding_count = len(step.operands)
        state.addresses, state.lengths, state.accesses = (table.buffer_info()[0] for table in self._tables)
        state.failure = self._failure.buffer_info()[0]

    def measured(self, threads: list[int]) -> Measured:
        (whole,) = self._times(1, self.count)
        cut, uncut = (
            {number: self._chunks(whole, number, most) for number in threads}
            for most in (int(self._entry.parts), 1)
        )
        return Measured(self._step.name, self.count, whole, cut, uncut)

    def _chunks(self, whole: float, threads: int, most: int) -> list[float]:
        """As the executor divides it."""
        if whole < SHARED_FROM:
            return [whole]
        threads, cost = min(threads, int(whole / LEAST)), whole / self.count
        parts = 1
        if self.count < threads * CHUNKS_PER_THREAD and most > 1:
            parts = even_parts(self.count, most, threads, int(cost / LEAST))
        return self._times(parts, even_size(self.count * parts, threads, max(int(LEAST * parts / cost), 1)))

    def _times(self, parts: int, size: int) -> list[float]:
        """Of chunks of so many parts."""
        self._state.parts = parts
        starts = range(0, self.count * parts, size)
        best, called = [float("inf")] * len(starts), float("inf")
        for _ in range(REPEATED):
            called = min(called, self._time(0, 0))
            for number, first in enumerate(starts):
                best[number] = min(best[number], self._time(first, min(first + size, self.count * parts)))
        return [spent - called for spent in best]

    def _time(self, first: int, last: int) -> float:
        addresses = [record.buffer_info()[0] for record in self._records]
        self._group.first, self._group.last = first, last
        begun = time.perf_counter_ns()
        failed = _CODE(atomic_load(self._entry.code))(self._entry.environment, *addresses)
        assert not failed
        return time.perf_counter_ns() - begun


class Measuring(EventReader):
    """Measures all dispatches that compiled kernels run."""

    def __init__(self, threads: list[int]) -> None:
        self._threads = threads
        self.found: list[Measured] = []

    def submitted(self, work: object) -> EventReader:
        return self

    def ends(self, step: DeviceStep) -> None:
        if step.kind == DISPATCH:
            self.found.append(Dispatch(step).measured(self._threads))


def shared(times: list[float], threads: int) -> float:
    """When the last thread ends."""
    if len(times) == 1:
        return times[0]
    ends = [0.0] * threads
    for spent in times:
        heapq.heapreplace(ends, ends[0] + spent)
    return max(ends) + SHARING


def report(name: str, found: list[Measured], threads: list[int], rows: int) -> None:
    whole = sum(item.whole for item in found)
    line = f"{name:12s} {whole / 1e6:7.2f} ms"
    for number in threads:
        cost = sum(sum(item.parts[number]) for item in found) / whole
        end, uncut = (
            sum(shared(times[number], number) for times in column)
            for column in ([item.parts for item in found], [item.uncut for item in found])
        )
        line += f"  {number} threads: cost {cost:.2f} shared {whole / end:5.2f}x ({whole / uncut:.2f}x)"
    print(line, flush=True)
    for item in sorted(found, key=lambda item: -item.whole)[:rows]:
        line = f"  {item.whole / 1e3:7.1f} us {item.workgroups:4d} workgroups"
        for number in threads:
            times = item.parts[number]
            cost, end = sum(times) / item.whole, shared(times, number)
            line += f"  {number}: {len(times)} of cost {cost:.2f}, {item.whole / end:.2f}x"
        print(f"{line}  {item.name}")


def main() -> int:
    parser = argparse.ArgumentParser(description="times parts of dispatches")
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 4, 16])
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path, default=Path("trained-models"))
    parser.add_argument("--rows", type=int, default=0)
    options = parser.parse_args()
    for name, model in MODELS.items():
        module = (options.folder / re.sub(r"\W+", "_", name)).with_suffix(".vmvx.vmfb")
        if not module.exists() or not re.search(options.only, name):
            continue
        warm([str(module)])
        with jitree.Session("local-sync", tier="native") as session:
            call = of_jitree(session, module, argument(model.shape, name))
            call()
            measuring = Measuring(options.threads)
            session.device.listen(measuring)
            call()
            report(name, measuring.found, options.threads, options.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
