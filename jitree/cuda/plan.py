"""Plans the kernel launches of a recorded command list.

The rows of lists are those of the local drivers, with device addresses. A plan depends on the rows only, so
lists that differ in addresses, lengths and constants share one, and the next one-shot list of the same shape
finds its plan made (:class:`PlanCache`). All that varies is one *block* of 64-bit words: every launch has its
parameters there, one word each, and after those of a transfer the number of its thread blocks. Two blocks of
one plan are compared to see what a graph must change.

A profile wants to say what kernels move, and CUPTI tells a kernel's name and grid, not its arguments. What is
launched with one name and grid is bound to as many bytes each time, except where dimensions are constants of
the dispatch (:class:`KernelSizes`).
"""

from __future__ import annotations

import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from jitree.base.weak_sets import SharedWeakSet
from jitree.codegen.record import layout_of, size_of
from jitree.cuda.executable import CudaFunctionTable, CudaKernel
from jitree.cuda.kernels import THREADS, block_count
from jitree.errors import OutOfRangeError
from jitree.hal import command_layout
from jitree.hal.command_layout import Command
from jitree.hal.command_list import DIRECT, CommandList
from jitree.hal.enums import WHOLE_BUFFER

if TYPE_CHECKING:
    from jitree.cuda.kernels import Kernels

_MAXIMUM_COUNT_Y: Final = 65535
_MAXIMUM_COUNT_X: Final = 2**31 - 1
"""Blocks of a grid on every architecture; z is the same as y, as the list checks."""
_ROW_WORDS: Final = size_of(Command) // 8
_OBJECT_WORD: Final = layout_of(Command)["data_length"] // 8
"""Holds, beside the length of an update, the position of the executable among the kept objects, which
depends on what was recorded before."""

_NAMES_SHOWN: Final = 8

Kernel = tuple[str, tuple[int, int, int]]
"""Name and grid."""

_KEPT: Final = 256
"""Plans; the ones used longest ago go."""


class CudaCommandList(CommandList):
    """Commands in recording order; addresses are the device's."""

    __slots__ = ()

    def kernel(self, row: tuple[int, ...]) -> CudaKernel:
        """What a dispatch row launches."""
        return cast(CudaFunctionTable, self.kept[row[13]]).kernel_at(row[8])

    @property
    def tables(self) -> set[CudaFunctionTable]:
        """The tables of the executables in use."""
        return {kept for kept in self.kept if isinstance(kept, CudaFunctionTable)}

    def shape(self) -> bytes:
        """Equal for lists that have a plan in common."""
        words = self.rows[:]
        words[_OBJECT_WORD::_ROW_WORDS] = array("q", bytes(8 * (len(words) // _ROW_WORDS)))
        return words.tobytes()


def check_grid(counts: tuple[int, int, int]) -> None:
    """OUT_OF_RANGE for workgroup counts that no device can launch."""
    x, y, z = counts
    if x > _MAXIMUM_COUNT_X or max(y, z) > _MAXIMUM_COUNT_Y:
        raise OutOfRangeError(
            f"a dispatch of {x} x {y} x {z} workgroups: a GPU runs at most {_MAXIMUM_COUNT_X} x "
            f"{_MAXIMUM_COUNT_Y} x "
            f"{_MAXIMUM_COUNT_Y}"
        )


class BoundSizes:
    """Sums what the dispatches of one command list are bound to."""

    def __init__(self, commands: CudaCommandList) -> None:
        self._operands = list(zip(repeat(DIRECT), commands.addresses, commands.lengths, strict=False))
        fields = iter(commands.patches)
        for operand, slot, offset, length, _ in zip(fields, fields, fields, fields, fields, strict=True):
            self._operands[operand] = slot, offset, length

    def of(self, row: tuple[int, ...]) -> int:
        """Bytes of the ranges of a row; of those that overlap the largest. 0 if the list does not say it."""
        _, first, count = row[:3]
        total, ranges = 0, self._operands[first : first + count]
        if any(length == WHOLE_BUFFER for *_, length in ranges):
            return 0
        for number, (slot, begin, length) in enumerate(ranges):
            overlaps = (
                min(size, length)
                for other, start, size in ranges[:number]
                if other == slot and start < begin + length and begin < start + size
            )
            total += length - next(overlaps, 0)
        return total


class FixedSizes(BoundSizes):
    """Knows the sizes of a list whose plan others share. Dispatches with constants may have other lengths in
    those."""

    def of(self, row: tuple[int, ...]) -> int:
        """As :meth:`BoundSizes.of`."""
        return 0 if row[4] else super().of(row)


class Launch(NamedTuple):
    """Describes a kernel launch. Its parameters are ``parameter_count`` words of the block from ``first``
    on."""

    function: Any
    """CUfunction."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_memory: int
    first: int
    parameter_count: int
    varying_grid: bool
    """A transfer: the grid's x is the word after the parameters."""
    waits: bool
    """Whether the kernel itself first waits for those that it depends on."""
    name: str
    bytes: int
    """Bytes of the memory that a dispatch is bound to; 0 where that is not known."""


class PlanSegment(NamedTuple):
    """Groups launches between commands of other kinds. Groups are numbers of launches; each waits for the one
    before."""

    groups: tuple[tuple[int, ...], ...]


class IndirectDispatch(NamedTuple):
    """Launches a grid that device memory holds, at the address in word ``counts``."""

    launch: int
    counts: int


class CollectiveStep(NamedTuple):
    """Lists collectives between two barriers. Beside their numbers in the list stands the first of four
    words: addresses of what is sent and received, and their lengths."""

    operations: tuple[tuple[int, int], ...]


Step = PlanSegment | IndirectDispatch | CollectiveStep


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LaunchPlan:
    """Describes the launches of lists of one shape. Plans are compared by identity."""

    launches: tuple[Launch, ...]
    steps: tuple[Step, ...]
    batch: Callable[[Sequence[int]], tuple[int, ...]]
    """Picks the words of a block from addresses, lengths, constants and literals after each other."""
    literals: tuple[int, ...]
    updates: tuple[tuple[int, int], ...]
    """(word that is a source address, offset of the bytes in the list's data)"""
    transfers: tuple[int, ...]
    """Words that hold a transfer's length; the number of thread blocks is ``distance`` words further."""
    distances: tuple[int, ...]
    addresses: tuple[int, ...]
    """Words that are addresses of operands."""
    written: tuple[int, ...]
    """Those among them where commands may write."""

    @property
    def segment(self) -> PlanSegment | None:
        """The only step, when it is launches."""
        step = self.steps[0] if len(self.steps) == 1 else None
        return step if isinstance(step, PlanSegment) else None

    def block(
        self, commands: CudaCommandList, addresses: Sequence[int], lengths: Sequence[int], data: int
    ) -> array[int]:
        """Makes the words of one run. ``data`` is the device address of the list's update bytes."""
        words = array("q", self.batch([*addresses, *lengths, *commands.constants, *self.literals]))
        for word, offset in self.updates:
            words[word] = data + offset
        for word, distance in zip(self.transfers, self.distances, strict=True):
            words[word + distance] = block_count(words[word])
        return words


class _PlanBuilder:
    """The state of going through a list's rows once."""

    def __init__(self, commands: CudaCommandList, kernels: Kernels, sizes: BoundSizes) -> None:
        self._commands = commands
        self._kernels = kernels
        self._sizes = sizes
        self._lengths = len(commands.addresses)
        self._constants = 2 * self._lengths
        self._literals_start = self._constants + len(commands.constants)
        self.literals: list[int] = [0]
        self.launches: list[Launch] = []
        self.steps: list[Step] = []
        self.sources: list[int] = []
        self.updates: list[tuple[int, int]] = []
        self.transfers: list[int] = []
        self.distances: list[int] = []
        self.written: list[int] = []
        self._groups: list[tuple[int, ...]] = []
        self._group: list[int] = []
        self._collectives: list[tuple[int, int]] = []

    def build(self) -> LaunchPlan:
        for row in self._commands.decoded_rows():
            self._add(row)
        self._end_segment()
        self._end_collectives()
        addresses = [word for word, source in enumerate(self.sources) if source < self._lengths]
        # itemgetter of one item gives no tuple, so the zero in the literals is always picked as well.
        sources = [*self.sources, self._literals_start]
        if len(sources) == 1:
            sources.append(self._literals_start)
        return LaunchPlan(
            tuple(self.launches), tuple(self.steps), itemgetter(*sources), tuple(self.literals),
            tuple(self.updates), tuple(self.transfers), tuple(self.distances), tuple(addresses),
            tuple(self.written),
        )  # fmt: skip

    def _add(self, row: tuple[int, ...]) -> None:
        kind, operand = row[0], row[1]
        if kind == command_layout.KIND_BARRIER:
            self._end_group()
            self._end_collectives()
        elif kind == command_layout.KIND_FILL:
            self._transfer(self._kernels.fill_function, "fill", (
                operand, self._lengths + operand, self._literal(row[9]),
            ), 1)  # fmt: skip
        elif kind == command_layout.KIND_COPY:
            self._transfer(self._kernels.copy_function, "copy", (
                operand + 1, operand, self._lengths + operand,
            ), 2)  # fmt: skip
        elif kind == command_layout.KIND_UPDATE:
            self.updates.append((len(self.sources) + 1, row[11]))
            self._transfer(self._kernels.copy_function, "update", (
                operand, self._literals_start, self._lengths + operand,
            ), 2)  # fmt: skip
        elif kind == command_layout.KIND_DISPATCH:
            grid = (row[5] & 0xFFFFFFFF, row[6] & 0xFFFFFFFF, row[7])
            if 0 not in grid:  # nothing to do, which the driver would refuse
                self._group.append(self._dispatch(row, grid))
        elif kind == command_layout.KIND_DISPATCH_INDIRECT:
            self._end_segment()
            launch = self._dispatch(row, (0, 0, 0))
            self.steps.append(IndirectDispatch(launch, len(self.sources)))
            self.sources.append(operand + row[2])
        else:
            self._end_segment()
            self._collectives.append((row[11], len(self.sources)))
            lengths = self._lengths + operand
            self.sources.extend((operand, operand + 1, lengths, lengths + 1))

    def _literal(self, value: int) -> int:
        self.literals.append(value)
        return self._literals_start + len(self.literals) - 1

    def _transfer(self, function: Any, name: str, sources: Sequence[int], length: int) -> None:
        """``sources[length]`` is the length."""
        first = len(self.sources)
        self.written.append(first)
        self.sources.extend((*sources, self._literals_start))
        self.transfers.append(first + length)
        self.distances.append(3 - length)
        self._group.append(len(self.launches))
        self.launches.append(
            Launch(function, (1, 1, 1), (THREADS, 1, 1), 0, first, 3, True, self._kernels.wait, name, 0)
        )

    def _dispatch(self, row: tuple[int, ...], grid: tuple[int, int, int]) -> int:
        _, operand, operand_count, constant, constant_count = row[:5]
        kernel = self._commands.kernel(row)
        first = len(self.sources)
        self.written.extend(first + n for n in range(operand_count) if not kernel.export.reads_only(n))
        self.sources.extend(range(operand, operand + operand_count))
        constants = self._constants + constant
        self.sources.extend(range(constants, constants + constant_count))
        self.launches.append(Launch(
            kernel.function, grid, kernel.block, kernel.shared_memory, first, operand_count + constant_count,
            False, kernel.image.waits, kernel.export.name, self._sizes.of(row),
        ))  # fmt: skip
        return len(self.launches) - 1

    def _end_group(self) -> None:
        if self._group:
            self._groups.append(tuple(self._group))
            self._group = []

    def _end_segment(self) -> None:
        self._end_group()
        if self._groups:
            self.steps.append(PlanSegment(tuple(self._groups)))
            self._groups = []

    def _end_collectives(self) -> None:
        if self._collectives:
            self.steps.append(CollectiveStep(tuple(self._collectives)))
            self._collectives = []


def make_plan(commands: CudaCommandList, kernels: Kernels, sizes: BoundSizes) -> LaunchPlan:
    """The plan of a finished list."""
    return _PlanBuilder(commands, kernels, sizes).build()


def describe(plan: LaunchPlan) -> str:
    """Names of the kernels, for the error of a lost device."""
    found = list(dict.fromkeys(launch.name for launch in plan.launches))
    return ", ".join(found[:_NAMES_SHOWN]) + (", …" if len(found) > _NAMES_SHOWN else "")


class KernelSizes:
    """Bytes of the kernels that a stream launches. The caller holds the stream's lock."""

    def __init__(self) -> None:
        self._plans: SharedWeakSet[LaunchPlan] = SharedWeakSet()
        self._found: dict[Kernel, int] | None = None

    def note(self, plan: LaunchPlan) -> None:
        """A plan has been made."""
        self._plans.add(plan)
        if self._found is not None:
            self._find(plan)

    def begin(self) -> None:
        """A profile begins; plans may be gone when it ends."""
        self._found = {}
        for plan in list(self._plans):
            self._find(plan)

    def end(self) -> dict[Kernel, int]:
        """Sums the bytes of all plans' kernels since the beginning; unknown ones are 0."""
        found, self._found = self._found, None
        return found or {}

    def _find(self, plan: LaunchPlan) -> None:
        assert self._found is not None
        for launch in plan.launches:
            if self._found.setdefault((launch.name, launch.grid), launch.bytes) != launch.bytes:
                self._found[launch.name, launch.grid] = 0


class _CachedPlan(NamedTuple):
    plan: LaunchPlan
    tables: tuple[weakref.ref[CudaFunctionTable], ...]
    """Tables of the executables in use; a shape has their addresses and means nothing without them."""


class PlanCache:
    """Keeps plans by the shapes of lists. The caller holds the stream's lock."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, _CachedPlan] = OrderedDict()
        self._gone: deque[bytes] = deque()

    def plan(self, commands: CudaCommandList, kernels: Kernels) -> LaunchPlan:
        """The plan of a finished list."""
        gone, entries = self._gone, self._entries
        while gone:
            entries.pop(gone.popleft(), None)
        shape = commands.shape()
        entry = entries.get(shape)
        if entry is not None:
            entries.move_to_end(shape)
            return entry.plan
        plan = make_plan(commands, kernels, FixedSizes(commands))
        # The callback may run anywhere, so it only notes the shape.
        forget = partial(_note, gone, shape)
        entries[shape] = _CachedPlan(plan, tuple(weakref.ref(table, forget) for table in commands.tables))
        if len(entries) > _KEPT:
            entries.popitem(last=False)
        return plan

    def clear(self) -> None:
        self._entries.clear()


def _note(gone: deque[bytes], shape: bytes, reference: weakref.ref[CudaFunctionTable]) -> None:
    gone.append(shape)
