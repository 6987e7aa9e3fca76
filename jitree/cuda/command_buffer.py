"""Records command buffers into flat lists and runs them as graphs."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from jitree.cuda.channel import check_channel
from jitree.cuda.executable import CudaExecutable, CudaFunctionTable
from jitree.cuda.graph import StreamGraphs, launch_each, make_graphs
from jitree.cuda.plan import (
    BoundSizes,
    CudaCommandList,
    FixedSizes,
    LaunchPlan,
    Submission,
    check_grid,
    describe,
    make_plan,
    make_shape_plan,
)
from jitree.cuda.steps import PlanRunner, measures_dispatches, run_profiled
from jitree.errors import InvalidArgumentError
from jitree.hal.buffer import Allocation
from jitree.hal.command_buffer import BindingTable, Collective, CommandBufferMode, Dispatch, Reference
from jitree.hal.command_list import DIRECT, NO_SLOT, ListCommandBuffer, Range, Slot
from jitree.hal.executable import Executable

if TYPE_CHECKING:
    from jitree.cuda.stream import Stream

_ONE_SHOT: Final = int(CommandBufferMode.ONE_SHOT)
_TABLES_KEPT: Final = 16
"""Blocks of parameters by binding table; programs alternate between a few."""


class Bound(NamedTuple):
    """Binds a command buffer for one submission."""

    ranges: tuple[Slot, ...]
    """Of the bindings."""
    plan: LaunchPlan
    block: Submission
    retained: tuple[object, ...]
    """Kept until the submission is done."""
    table: tuple[object, ...]
    """The bindings, kept until it has entered the stream, whose order keeps their memory from then on."""


class CudaCommandBuffer(ListCommandBuffer):
    """Records a :class:`CudaCommandList` for one stream's device."""

    commands: CudaCommandList

    def __init__(
        self, stream: Stream, modes: int, categories: int, queue_affinity: int, binding_capacity: int
    ) -> None:
        super().__init__(modes, categories, queue_affinity, binding_capacity)
        self.commands = CudaCommandList()
        self._stream = stream
        self._kept: set[int] = set()
        self._retained: list[object] = []
        """What the device may still use when nothing else keeps it: foreign memory, executables."""
        self._plan: LaunchPlan | None = None
        self._generation = 0
        """Of kernels (``CudaContext.generation``), when the plan was made."""
        self._runner: PlanRunner | None = None
        self.data = 0
        """The address of its update bytes on the device, once it has a plan."""
        self._blocks: OrderedDict[tuple[Slot, ...], Submission] = OrderedDict()

    @property
    def place(self) -> int:
        return self._stream.share.place

    @property
    def is_published(self) -> bool:
        """Whether machine code knows it. It does not where it is submitted once only, or memory of others has
        to be kept meanwhile."""
        return not self.modes & _ONE_SHOT and not self._retained

    def stream_graphs(self) -> StreamGraphs | None:
        """Makes what launches lists of this shape, None where launches alone do not. Their first use changes
        every parameter. The caller holds the stream's lock."""
        stream = self._stream
        stream.context.enter()
        self.made_plan()  # ends recording
        plan = make_shape_plan(self.commands, stream.kernels, FixedSizes(self.commands))
        return make_graphs(stream, plan, self.commands.tables)

    def bind(self, table: BindingTable) -> Bound:
        """Resolves the binding table of a submission; errors as ``CommandBuffer.check_table``."""
        entries = self.check_table(table)
        stream = self._stream
        retained = []
        ranges: list[Slot] = []
        for entry in entries:
            if entry is None:
                ranges.append(NO_SLOT)
                continue
            buffer, offset, length = entry
            ranges.append((stream.device_address(buffer) + offset, length, buffer.allowed_access))
            if not stream.orders(buffer.allocation):
                retained.append(buffer.allocation)
        with stream.lock:
            plan = self.made_plan()
            block = self._block(plan, tuple(ranges))
        return Bound(tuple(ranges), plan, block, (*self._retained, *retained), tuple(entries))

    def launch(self, stream: Stream, bound: Bound) -> None:
        """Submits what :meth:`bind` gave: launches of a one-shot one one after the other, or else graphs. The
        caller holds the stream's lock.

        Waits for the device only for workgroup counts that lie in its memory.
        """
        plan = bound.plan
        if bound.retained:
            stream.retain(bound.retained)
        if measures_dispatches(stream.measures):
            run_profiled(stream, plan, self.commands.collectives, bound.block)
        elif not bound.block.key and plan.segment is not None:
            launch_each(stream, plan, plan.segment, bound.block.words)
        else:
            self.runner.run(stream, bound.block)
        stream.note(partial(describe, plan))

    @property
    def plan(self) -> LaunchPlan:
        """What has been recorded, as launches; after :meth:`bind`."""
        assert self._plan is not None
        return self._plan

    @property
    def runner(self) -> PlanRunner:
        if self._runner is None:
            self._runner = PlanRunner(self._stream.context, self.plan, self.commands.collectives)
        return self._runner

    def made_plan(self) -> LaunchPlan:
        """The plan, made when it is first needed. The stream's lock is held."""
        if self._plan is None or self._generation != self._stream.context.generation:
            self._make_plan()
        return self.plan

    def keep_recorded(self, owner: object) -> None:
        """See :meth:`ListCommandBuffer.keep_recorded`."""
        if isinstance(owner, CudaExecutable):
            owner = owner.functions
        elif isinstance(owner, Allocation):
            self._kept.add(id(owner))
        super().keep_recorded(owner)

    def _make_plan(self) -> None:
        stream = self._stream
        stream.context.enter()
        commands = self.commands
        commands.address()  # ends recording
        sizes = FixedSizes(commands) if self.modes & _ONE_SHOT else BoundSizes(commands)
        plan = make_plan(commands, stream.kernels, sizes)
        if self._plan is None:
            if commands.data:
                self.data, keeper = stream.stage(bytes(commands.data))
                self._retained.append(keeper)
            self._retained.extend(commands.tables)
        stream.sizes.note(plan)
        self._plan, self._generation = plan, stream.context.generation
        self._runner = None

    def _block(self, plan: LaunchPlan, ranges: tuple[Slot, ...]) -> Submission:
        """What a submission varies; without a key where there is only one."""
        blocks = self._blocks
        known = blocks.get(ranges)
        if known is None:
            addresses, lengths, _ = self.commands.bind(ranges)
            known = self._stream.share.block(self.commands, plan.word_count, addresses, lengths, self.data)
            if self.modes & _ONE_SHOT:
                return known
            known = blocks[ranges] = known._replace(key=known.words.tobytes())
            if len(blocks) > _TABLES_KEPT:
                blocks.popitem(last=False)
        return known

    def _range(self, reference: Reference) -> Range:
        slot, buffer, offset, length = reference
        if buffer is None:
            return slot, offset, length, 0
        address = self._stream.device_address(buffer)
        allocation = buffer.allocation
        if id(allocation) not in self._kept:
            self._kept.add(id(allocation))
            self.commands.keep(allocation)
            if not self._stream.orders(allocation):
                self._retained.append(allocation)
        return DIRECT, address + offset, length, allocation.allowed_access

    def _record_dispatch(self, workgroups: tuple[int, int, int], dispatch: Dispatch) -> None:
        """OUT_OF_RANGE for grids that the device cannot launch."""
        check_grid(workgroups)
        super()._record_dispatch(workgroups, dispatch)

    def _record_collective(
        self, collective: Collective, send: Reference | None, receive: Reference | None
    ) -> None:
        check_channel(collective.channel, self._stream.context)
        self.commands.collective(collective, send and self._range(send), receive and self._range(receive))

    def _functions(self, executable: Executable) -> CudaFunctionTable:
        if not isinstance(executable, CudaExecutable) or executable.context is not self._stream.context:
            raise InvalidArgumentError(
                f"an executable of type {type(executable).__name__} that was not prepared for this device "
                "was dispatched on it; prepare it with the device's own executable cache"
            )
        return executable.functions
