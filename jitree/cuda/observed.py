"""Performs submissions step by step, with observers of each: no graphs.

The stream's lock is not held while observers look: they may call programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from jitree.cuda import transfers
from jitree.cuda.graph import LaunchParameters, launch_one
from jitree.cuda.plan import CollectiveStep, CudaCommandList, IndirectDispatch
from jitree.cuda.queue import Stepwise
from jitree.cuda.steps import run_collective_step, run_indirect
from jitree.cuda.transfers import copy_to_host
from jitree.hal.command_layout import KIND_BARRIER, KIND_DISPATCH, KIND_DISPATCH_INDIRECT
from jitree.hal.command_list import KIND_COLLECTIVE
from jitree.hal.local.observed import step_of, transfer_step
from jitree.hal.observing import DISPATCH, DeviceStep, Extent, Observer, memory, perform
from jitree.hal.transfers import Copy

if TYPE_CHECKING:
    from jitree.base.elements import Bytes
    from jitree.cuda.command_buffer import Bound
    from jitree.cuda.executable import CudaFunctionTable
    from jitree.cuda.queue import CudaQueue
    from jitree.hal.transfers import Transfer


class _ObservedWork(Stepwise):
    def __init__(self, queue: CudaQueue, observers: Sequence[Observer]) -> None:
        self._queue = queue
        self._stream = queue.stream
        self._observers = observers

    def _look(self, extent: Extent) -> Bytes:
        """A copy of memory of the device, as it is after what has been submitted."""
        address, length = extent
        stream = self._stream

        def download() -> Bytes:
            stream.flush()
            return copy_to_host(stream, address, length)

        data = self._queue.perform("look", download)
        stream.synchronize()
        return data

    def _perform(self, steps: Sequence[DeviceStep], action: Callable[[], object]) -> None:
        """One after the other, or what the device does at once."""

        def submit() -> None:
            self._stream.flush()
            self._stream.note(partial(" and ".join, [step.name for step in steps]))
            action()

        def work() -> None:
            self._queue.perform(steps[0].name, submit)
            self._stream.synchronize()

        for step in steps:
            work = partial(perform, step, self._observers, work)
        work()


class ObservedTransfer(_ObservedWork):
    """Performs a transfer of a queue before observers."""

    def __init__(self, queue: CudaQueue, observers: Sequence[Observer], transfer: Transfer) -> None:
        super().__init__(queue, observers)
        self._transfer = transfer

    def __call__(self) -> None:
        transfer = self._transfer
        step = transfer_step(transfer, self._look)
        if isinstance(transfer, Copy):
            sides = zip((transfer.source, transfer.target), step.operands, strict=True)
            on_host = [extent for buffer, extent in sides if transfers.is_on_host(buffer)]
            step.look = lambda extent: memory(extent) if extent in on_host else self._look(extent)
        self._perform([step], partial(transfers.submit, self._stream, transfer))


class ObservedCommands(_ObservedWork):
    """Performs a command buffer before observers."""

    def __init__(
        self, queue: CudaQueue, observers: Sequence[Observer], commands: CudaCommandList, bound: Bound
    ) -> None:
        super().__init__(queue, observers)
        self._commands = commands
        self._bound = bound
        """The bound commands, which keep the memory of the steps."""
        plan = bound.plan
        self._launches = iter(plan.launches)
        self._indirect = (step for step in plan.steps if isinstance(step, IndirectDispatch))
        self._together = (step for step in plan.steps if isinstance(step, CollectiveStep))

    def __call__(self) -> None:
        commands = self._commands
        addresses, lengths, _ = commands.bind(self._bound.ranges)
        ranges = list(zip(addresses, lengths, strict=True))
        dispatches, collectives = 0, list[DeviceStep]()
        for number, row in enumerate(commands.decoded_rows()):
            kind, first = row[:2]
            if kind == KIND_COLLECTIVE:
                collectives.append(DeviceStep("collective", ranges[first : first + 2], look=self._look))
            elif kind == KIND_BARRIER:
                self._run_together(collectives)
            else:
                step = step_of(commands, number, row, ranges, dispatches, self._look)
                step.executable = step.executable and cast("CudaFunctionTable", step.executable).owner()
                dispatches += step.kind == DISPATCH
                self._perform([step], self._action(kind, step))
        self._run_together(collectives)

    def _action(self, kind: int, step: DeviceStep) -> Callable[[], object]:
        """What submits a row that is no collective. Launches of the plan are in the order of the rows."""
        stream, block = self._stream, self._bound.block
        if kind == KIND_DISPATCH and 0 in step.workgroups:
            return _nothing
        launch = next(self._launches)
        if kind == KIND_DISPATCH_INDIRECT:
            return partial(run_indirect, stream, self._bound.plan, next(self._indirect), block)
        return partial(launch_one, stream, launch, LaunchParameters(block), block)

    def _run_together(self, steps: list[DeviceStep]) -> None:
        """Collectives between two barriers: members may wait for each other in any order."""
        if steps:
            together, known = next(self._together), self._commands.collectives
            work = partial(run_collective_step, self._stream, known, together, self._bound.block)
            self._perform(steps[:], work)
            steps.clear()


def _nothing() -> None:
    """A dispatch without workgroups."""
