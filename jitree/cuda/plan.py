"""Plans the kernel launches of a recorded command list.

The rows of lists are those of the local drivers, with device addresses. A plan depends on the rows only. All
that varies is one block of 64-bit words, as machine code fills them in (``submission.fill_words``): every
launch has its parameters there, one word each, and its grid in two, x and y in the first one. Two blocks of
one plan are compared to see what a graph must change.

A profile wants to say what kernels move, and CUPTI tells a kernel's name and grid, not its arguments. What is
launched with one name and grid is bound to as many bytes each time, except where dimensions are constants of
the dispatch (:class:`KernelSizes`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from jitree.base.finalizers import SharedWeakSet
from jitree.cuda.executable import CudaFunctionTable, CudaKernel, OwnKernel, OwnParameter
from jitree.cuda.kernels import THREADS
from jitree.errors import OutOfRangeError
from jitree.hal import command_layout
from jitree.hal.command_list import DIRECT, CommandList, warn_of_order
from jitree.hal.enums import WHOLE_BUFFER

if TYPE_CHECKING:
    from jitree.cuda.kernels import Kernels

_MAXIMUM_COUNT_Y: Final = 65535
_MAXIMUM_COUNT_X: Final = 2**31 - 1
"""Blocks of a grid on every architecture; z is the same as y, as the list checks."""

_NAMES_SHOWN: Final = 8
GRID_WORDS: Final = 2
"""Submission of a launch after its parameters."""

Kernel = tuple[str, tuple[int, int, int]]
"""Name and grid."""


class CudaCommandList(CommandList):
    """Commands in recording order; addresses are the device's."""

    __slots__ = ()

    def kernel(self, row: tuple[int, ...]) -> CudaKernel:
        """What a dispatch row launches as it was compiled."""
        return cast(CudaFunctionTable, self.kept[row[13]]).kernel_at(row[8])

    def own_kernel(self, row: tuple[int, ...]) -> OwnKernel | None:
        """What the user has put in its place."""
        return cast(CudaFunctionTable, self.kept[row[13]]).own_kernel_at(row[8])

    @property
    def tables(self) -> set[CudaFunctionTable]:
        """The tables of the executables in use."""
        return {kept for kept in self.kept if isinstance(kept, CudaFunctionTable)}


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


class Word(NamedTuple):
    """Is a parameter that a submission says: a word of its launch."""

    number: int


class OwnLaunch(NamedTuple):
    """Says what differs where the user's kernel is launched."""

    parameters: tuple[Word | int, ...]
    """Words of the launch, and numbers."""
    grid: tuple[int, int, int] | None
    """None: the list's."""
    kernel: OwnKernel


class Launch(NamedTuple):
    """Describes a kernel launch. Its parameters are ``parameter_count`` words of the block from ``first`` on,
    before those of its grid."""

    function: Any
    """CUfunction."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_memory: int
    first: int
    parameter_count: int
    waits: bool
    """Whether the kernel itself first waits for those that it depends on."""
    name: str
    bytes: int
    """Bytes of the memory that a dispatch is bound to; 0 where that is not known."""
    own: OwnLaunch | None = None

    @property
    def has_own_grid(self) -> bool:
        """Whether ``grid`` is not what lists say."""
        return self.own is not None and self.own.grid is not None


class PlanSegment(NamedTuple):
    """Groups launches between commands of other kinds. Groups are numbers of launches; each waits for the one
    before."""

    groups: tuple[tuple[int, ...], ...]


class IndirectDispatch(NamedTuple):
    """Launches a grid that device memory holds, at the address of operand ``counts``."""

    launch: int
    counts: int


class CollectiveStep(NamedTuple):
    """Lists collectives between two barriers. Beside their numbers in the list stands the first of two
    operands: what is sent and received."""

    operations: tuple[tuple[int, int], ...]


class CallStep(NamedTuple):
    """Calls a function of the user between launches."""

    launch: int
    """Whose words are the addresses and constants."""
    operands: tuple[int, ...]
    """Of all bindings."""
    counts: tuple[int, ...]
    """Of the bindings of each dispatch."""


Step = PlanSegment | IndirectDispatch | CollectiveStep | CallStep


class Submission(NamedTuple):
    """Is what varies between submissions of one plan."""

    words: array[int]
    addresses: Sequence[int]
    """Of the operands, and their lengths."""
    lengths: Sequence[int]
    key: bytes = b""
    """The words' bytes; empty for what is submitted once only."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LaunchPlan:
    """Describes the launches of lists of one shape. Plans are compared by identity."""

    launches: tuple[Launch, ...]
    steps: tuple[Step, ...]
    word_count: int

    @property
    def segment(self) -> PlanSegment | None:
        """The only step, when it is launches."""
        step = self.steps[0] if len(self.steps) == 1 else None
        return step if isinstance(step, PlanSegment) else None


class _PlanBuilder:
    """The state of going through a list's rows once."""

    def __init__(self, commands: CudaCommandList, kernels: Kernels, sizes: BoundSizes) -> None:
        self._commands = commands
        self._kernels = kernels
        self._sizes = sizes
        self.launches: list[Launch] = []
        self.steps: list[Step] = []
        self._words = 0
        self._groups: list[tuple[int, ...]] = []
        self._group: list[int] = []
        self._collectives: list[tuple[int, int]] = []
        self._run: list[tuple[int, ...]] = []
        """Rows of a run that one kernel of the user does, until its last one."""

    def build(self) -> LaunchPlan:
        rows = list(self._commands.decoded_rows())
        for number, row in enumerate(rows):
            self._add(row, rows[number:])
        self._end_segment()
        self._end_collectives()
        return LaunchPlan(tuple(self.launches), tuple(self.steps), self._words)

    def _add(self, row: tuple[int, ...], following: Sequence[tuple[int, ...]]) -> None:
        """``following``: the rows from this one on."""
        kind, operand = row[0], row[1]
        if kind == command_layout.KIND_BARRIER:
            self._end_group()
            self._end_collectives()
        elif kind == command_layout.KIND_FILL:
            self._transfer(self._kernels.fill_function, "fill")
        elif kind == command_layout.KIND_COPY:
            self._transfer(self._kernels.copy_function, "copy")
        elif kind == command_layout.KIND_UPDATE:
            self._transfer(self._kernels.copy_function, "update")
        elif kind == command_layout.KIND_DISPATCH:
            self._begin_run(row, following)
            if self._run and row is not self._run[-1]:
                return
            grid, rows = self._grid(row), self._run or [row]
            launch = self._dispatch(row, grid)
            own = self.launches[launch].own
            if own is not None and own.kernel.call is not None:
                self._end_segment()
                operands = (n for each in rows for n in range(each[1], each[1] + each[2]))
                self.steps.append(CallStep(launch, tuple(operands), tuple([each[2] for each in rows])))
            elif 0 not in grid:  # nothing to do, which the driver would refuse
                self._group.append(launch)
        elif kind == command_layout.KIND_DISPATCH_INDIRECT:
            self._end_segment()
            launch = self._dispatch(row, (0, 0, 0))
            self.steps.append(IndirectDispatch(launch, operand + row[2]))
        else:
            self._end_segment()
            self._collectives.append((row[11], operand))

    def _grid(self, row: tuple[int, ...]) -> tuple[int, int, int]:
        return row[5] & 0xFFFFFFFF, row[6] & 0xFFFFFFFF, row[7]

    def _transfer(self, function: Any, name: str) -> None:
        launch = Launch(function, (1, 1, 1), (THREADS, 1, 1), 0, self._words, 3, self._kernels.wait, name, 0)
        self._group.append(self._launch(launch))

    def _dispatch(self, row: tuple[int, ...], grid: tuple[int, int, int]) -> int:
        kernel, count = self._commands.kernel(row), row[2] + row[4]
        own, rows = self._commands.own_kernel(row), self._run or [row]
        self._run = []
        if own is not None and len(own.run) == len(rows):
            return self._launch(
                _own_launch(own, rows, grid, self._words, sum([self._sizes.of(each) for each in rows]))
            )
        return self._launch(Launch(
            kernel.function, grid, kernel.block, kernel.shared_memory, self._words, count,
            kernel.image.waits, kernel.export.name, self._sizes.of(row),
        ))  # fmt: skip

    def _begin_run(self, row: tuple[int, ...], following: Sequence[tuple[int, ...]]) -> None:
        """Finds whether a run begins with a dispatch: those that follow are the other ones."""
        own = None if self._run else self._commands.own_kernel(row)
        if own is None or len(own.run) == 1:
            return
        rows = [each for each in following if each[0] != command_layout.KIND_BARRIER][: len(own.run)]
        if tuple(each[8] for each in rows if each[0] == command_layout.KIND_DISPATCH) == own.run:
            self._run = rows
        else:
            warn_of_order(own.run, following, lambda each: self._commands.kernel(each).export.name)

    def _launch(self, launch: Launch) -> int:
        """The number of a launch, which has the next words."""
        self._words += launch.parameter_count + GRID_WORDS
        self.launches.append(launch)
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


def _own_launch(
    own: OwnKernel, rows: Sequence[tuple[int, ...]], grid: tuple[int, int, int], first: int, size: int
) -> Launch:
    """Launches the user's kernel, with the words of all rows of its run."""
    firsts, count = [], -GRID_WORDS
    for row in rows:
        firsts.append(count + GRID_WORDS)
        count += row[2] + row[4] + GRID_WORDS

    def parameter(wanted: OwnParameter | int) -> Word | int:
        if isinstance(wanted, int):
            return wanted
        begin = rows[wanted.dispatch][2] if wanted.is_constant else 0
        return Word(firsts[wanted.dispatch] + begin + wanted.number)

    launch = OwnLaunch(tuple([parameter(each) for each in own.parameters]), own.grid, own)
    return Launch(
        own.function, own.grid or grid, own.block, own.shared_memory, first, count, own.waits, own.name,
        size, launch,
    )  # fmt: skip


class _ShapeBuilder(_PlanBuilder):
    """For all lists of one shape, whose grids are others."""

    def _grid(self, row: tuple[int, ...]) -> tuple[int, int, int]:
        """Gives a dispatch that launches nothing a grid, so that it has a launch."""
        x, y, z = super()._grid(row)
        return max(x, 1), max(y, 1), max(z, 1)


def make_shape_plan(commands: CudaCommandList, kernels: Kernels, sizes: BoundSizes) -> LaunchPlan:
    """Plans lists of a shape, with a launch a row where possible."""
    return _ShapeBuilder(commands, kernels, sizes).build()


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
