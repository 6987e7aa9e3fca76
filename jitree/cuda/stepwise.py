"""Does steps of submissions in turn, for readers of each: no graphs or replays.

The stream's lock is not held while readers look: they may call programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from jitree.base.events import perform
from jitree.cuda import transfers
from jitree.cuda.plan import BoundSizes, describe, make_plan
from jitree.cuda.steps import PlanRunner
from jitree.hal.command_list import BoundCommands
from jitree.hal.stepwise import execute_stepwise, memory, transfer_step
from jitree.hal.transfers import Copy

if TYPE_CHECKING:
    from jitree.base.elements import Bytes
    from jitree.base.events import EventReader
    from jitree.cuda.command_buffer import Bound, CudaCommandBuffer
    from jitree.cuda.plan import CudaCommandList
    from jitree.cuda.queue import CudaQueue
    from jitree.hal.stepwise import Extent
    from jitree.hal.transfers import Transfer


def execute(
    queue: CudaQueue, readers: Sequence[EventReader], commands: CudaCommandBuffer, bound: Bound
) -> None:
    """Executes a command buffer."""
    whole = BoundCommands(commands.commands, *commands.commands.bind(bound.ranges), bound)
    execute_stepwise(partial(_execute_part, queue, commands.data), readers, whole, partial(_look, queue))


def move(queue: CudaQueue, readers: Sequence[EventReader], transfer: Transfer) -> None:
    """Does a transfer of the queue."""
    step = transfer_step(transfer, partial(_look, queue))
    if isinstance(transfer, Copy):
        sides = zip((transfer.source, transfer.target), step.operands, strict=True)
        on_host = [extent for buffer, extent in sides if transfers.is_on_host(buffer)]
        step.look = lambda extent: memory(extent) if extent in on_host else _look(queue, extent)
    act = partial(transfers.submit, queue.stream, transfer)
    perform(step, readers, partial(_finish, queue, step.name, act))


def _execute_part(queue: CudaQueue, data: int, bound: BoundCommands) -> None:
    """``data``: the address of the list's update bytes on the device."""
    stream, commands = queue.stream, cast("CudaCommandList", bound.commands)

    def submit() -> None:
        plan = make_plan(commands, stream.kernels, BoundSizes(commands))
        stream.note(partial(describe, plan))
        block = stream.share.block(commands, plan.word_count, bound.addresses, bound.lengths, data)
        PlanRunner(stream.context, plan, commands.collectives).run(stream, block)

    _finish(queue, "execute", submit)


def _finish(queue: CudaQueue, name: str, act: Callable[[], object]) -> None:
    """Submits work, and waits for the device."""

    def submit() -> None:
        queue.stream.flush()
        act()

    queue.perform(name, submit)
    queue.stream.synchronize()


def _look(queue: CudaQueue, extent: Extent) -> Bytes:
    """Copies device memory as it is after what has been submitted."""
    address, length = extent
    stream = queue.stream

    def download() -> Bytes:
        stream.flush()
        return transfers.copy_to_host(stream, address, length)

    data = queue.perform("look", download)
    stream.synchronize()
    return data
