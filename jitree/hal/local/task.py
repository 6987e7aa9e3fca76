"""``local-task``: worker threads share the work.

What is known to be small runs at once on the submitting thread when its waits are met: waking a worker costs
more. Everything else is handed to the workers of the queue that the affinity selects, and the call returns.
"""

from __future__ import annotations

from array import array
from typing import Final

from jitree.errors import StatusError
from jitree.hal.driver import DeviceOptions
from jitree.hal.local.commands import CommandList
from jitree.hal.local.device import LocalDevice
from jitree.hal.local.driver import LocalDriver
from jitree.hal.local.queue import UNKNOWN_COST, Operation, Queue, run_on_this_thread
from jitree.hal.local.topology import TaskParameters, Topology, parse_parameters
from jitree.hal.local.workers import WorkerPool
from jitree.hal.profiling import Profiler

INLINE_COST: Final = 60_000
"""Nanoseconds up to which work does not repay waking a parked worker (measured: 60 to 100 us)."""
INLINE_DEFERRED_COST: Final = 10_000
"""Nanoseconds that a thread which only signals a fence may be held up for; a hand-over costs it as much."""


class WorkerExecutor:
    """Small operations run where they become ready, others on the workers."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool

    def start(self, operation: Operation) -> StatusError | None:
        if operation.work is None or 0 <= operation.cost <= INLINE_COST:
            return operation.execute()
        self.pool.post(operation)
        return None

    def start_deferred(self, operation: Operation) -> None:
        if operation.work is None or 0 <= operation.cost <= INLINE_DEFERRED_COST:
            run_on_this_thread(operation)
        else:
            self.pool.post(operation)


class TaskDevice(LocalDevice):
    def __init__(self, options: DeviceOptions) -> None:
        self.parameters: TaskParameters = parse_parameters(options.parameters)
        self._pools = tuple(
            WorkerPool(f"jitree-worker-{index}", topology)
            for index, topology in enumerate(self.parameters.topologies)
        )
        profiler = Profiler()
        super().__init__(
            "local-task", [Queue(WorkerExecutor(pool), profiler) for pool in self._pools], options.loaders
        )

    @property
    def topologies(self) -> tuple[Topology, ...]:
        """One per queue."""
        return self.parameters.topologies

    @property
    def worker_count(self) -> int:
        return self._pools[0].worker_count

    def close(self) -> None:
        super().close()
        for pool in self._pools:
            pool.close()

    def _cost(self, commands: CommandList, lengths: array[int]) -> int:
        return UNKNOWN_COST

    def _execute(
        self,
        queue_affinity: int,
        commands: CommandList,
        addresses: array[int],
        lengths: array[int],
        kept: tuple[object, ...],
    ) -> None:
        from jitree.hal.local import walk

        walk.execute(commands, addresses, lengths)


class TaskDriver(LocalDriver):
    name = "local-task"
    description = "Runs on worker threads of this process"

    def dump_device_info(self, device_id: int) -> str:
        topologies = parse_parameters({}).topologies
        return super().dump_device_info(device_id) + "".join(
            topology.format(index) for index, topology in enumerate(topologies)
        )

    def _create(self, options: DeviceOptions) -> TaskDevice:
        return TaskDevice(options)
