"""Shares work among threads: ``local-task``.

What is known to be small runs at once on the submitting thread when its waits are met: waking a worker costs
more. Everything else is handed to the workers of the queue that the affinity selects, and the call returns; a
thread that then waits for it does it itself if no worker has come for it yet.
"""

from __future__ import annotations

from array import array
from typing import Final

from jitree.base.finalizers import guard
from jitree.base.platform.available_resources import available_processors
from jitree.errors import FailedPreconditionError, ResourceExhaustedError, StatusError
from jitree.hal.command_list import BoundCommands, CommandList
from jitree.hal.driver import DeviceOptions
from jitree.hal.executable import ExecutableCache
from jitree.hal.local.command_buffer import LocalCommandBuffer
from jitree.hal.local.device import LocalDevice, LocalDriver
from jitree.hal.local.operation import Operation
from jitree.hal.local.queue import LocalQueue, run_on_this_thread
from jitree.hal.local.queue_record import UNKNOWN_COST, QueueRecord
from jitree.hal.local.thread_team import InlineLimits, Team
from jitree.hal.local.topology import (
    TaskParameters,
    Topology,
    check_threads,
    parse_parameters,
    unpinned,
)
from jitree.hal.local.workers import WorkerPool

INLINE_COST: Final = 60_000
"""Nanoseconds up to which work does not repay waking a parked worker (measured: 60 to 100 us)."""
IMMEDIATE_COST: Final = 280_000
"""Nanoseconds that a call which must not be held up may spend on work itself, with a team that is free: for
Python to submit it takes the caller's thread and a worker as much processor time (measured: 280 us)."""
INLINE_DEFERRED_COST: Final = 10_000
"""Nanoseconds that a thread which only signals a fence may be held up for; a hand-over costs it as much."""

INLINE_LIMIT: Final = 2_000_000
"""Nanoseconds for which a call may keep threads that wait for its session by working itself; what takes
longer goes through Python, which costs some 300 us."""
INLINE_BYTES: Final = 16 * 1024
"""Operand bytes of a command buffer up to which its cost is taken to be small before it has been measured:
what machine code can do with so little takes microseconds."""

_ESTIMATE_INTERVAL: Final = 256
"""Submissions of a command buffer after which its cost is estimated anew; before that at powers of two."""


class WorkerExecutor:
    """Runs small operations where they become ready, others on workers. A thread that waits for one does it,
    too."""

    def __init__(self, pool: WorkerPool, team: Team) -> None:
        """``team``: whose helpers machine code expects, from the first operation on."""
        self.pool = pool
        self._team = team

    def start(self, operation: Operation) -> StatusError | None:
        self._team.start()
        if operation.work is None or 0 <= operation.cost <= INLINE_COST:
            return operation.execute()
        operation.post = self.pool
        operation.announce()
        try:
            self.pool.post(operation)
        except StatusError:
            operation.settle()
            raise
        return None

    def start_deferred(self, operation: Operation) -> None:
        if operation.work is None or 0 <= operation.cost <= INLINE_DEFERRED_COST:
            run_on_this_thread(operation)
            return
        operation.post = self.pool
        try:
            self.pool.post_next(operation)
        except StatusError as error:
            operation.cancel(error)


class TaskDevice(LocalDevice):
    """Has a pool and a team of threads per queue. The pool runs operations, the team helps it with large
    ones."""

    def __init__(self, options: DeviceOptions) -> None:
        self.parameters: TaskParameters = parse_parameters(options.parameters)
        spin = self.parameters.spin_microseconds if available_processors() > 1 else 0
        limits = InlineLimits(IMMEDIATE_COST, INLINE_LIMIT)
        self._resizing = guard()
        self._pools: list[WorkerPool] = []
        self._teams: list[Team] = []
        self._executors: dict[QueueRecord, WorkerExecutor] = {}
        for index, topology in enumerate(self.parameters.topologies):
            pool = WorkerPool(f"jitree-queue-{index}", topology)
            record = QueueRecord()
            record.limit_local_memory(self.parameters.local_memory)
            team = Team(f"jitree-worker-{index}", topology, spin, record, limits)
            self._pools.append(pool)
            self._teams.append(team)
            self._executors[record] = WorkerExecutor(pool, team)
        super().__init__("local-task", tuple(self._executors), options.loaders)
        self._let_machine_code_execute()

    def _make_queue(self, record: QueueRecord) -> LocalQueue:
        return LocalQueue(self._executors[record], self.profiler, record)

    @property
    def topologies(self) -> tuple[Topology, ...]:
        """One per queue."""
        return tuple(team.topology for team in self._teams)

    @property
    def thread_count(self) -> int:
        return self._pools[0].worker_count

    def create_executable_cache(self, identifier: str = "") -> ExecutableCache:
        """Starts the helpers: dispatches will come, and the first one finds them there."""
        for team in self._teams:
            team.start()
        return super().create_executable_cache(identifier)

    def set_threads(self, count: int) -> None:
        """As :meth:`LocalDevice.set_threads`. FAILED_PRECONDITION for threads that are pinned one by one."""
        if self.parameters.pinned:
            raise FailedPreconditionError(
                "the threads of this device are those of its cpu_ids or nodes; create another for others"
            )
        topology = unpinned(check_threads(count))
        with self._resizing:
            for pool, team in zip(self._pools, self._teams, strict=True):
                pool.resize(topology)
                team.resize(topology)

    def close(self) -> None:
        super().close()
        for pool in self._pools:
            pool.close()
        for team in self._teams:
            team.close()
        self.trim()

    def _cost(self, queue_affinity: int, command_buffer: LocalCommandBuffer, lengths: array[int]) -> int:
        count = command_buffer.submissions
        command_buffer.submissions = count + 1  # a lost step of a racing thread does not matter
        if command_buffer.cost >= 0 and count & (count - 1) and count % _ESTIMATE_INTERVAL:
            return command_buffer.cost
        self._check_local_memory(command_buffer.commands)
        cost = self._team(queue_affinity).estimate(command_buffer.commands, lengths)
        if cost == UNKNOWN_COST and sum(lengths) <= INLINE_BYTES and not self._interprets():
            return 0
        command_buffer.cost = cost
        return cost

    def _check_local_memory(self, commands: CommandList) -> None:
        limit = self.parameters.local_memory
        if limit and commands.most_local_memory > limit:
            raise ResourceExhaustedError(
                f"a dispatch needs {commands.most_local_memory} bytes of workgroup-local memory; the device "
                f"was created with {limit} (local_memory, --task_worker_local_memory)"
            )

    def _team(self, queue_affinity: int) -> Team:
        return self._teams[self._queue_index(queue_affinity)]

    def _execute(self, queue_affinity: int, bound: BoundCommands) -> None:
        team = self._team(queue_affinity)
        team.execute(bound.commands, bound.addresses, bound.lengths, bound.accesses, self._profile_log())


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
