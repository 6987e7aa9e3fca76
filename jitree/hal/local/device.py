"""Implements what local devices share, and ``local-sync``.

Subclasses differ in the choice of threads only. On ``local-sync`` everything runs on the thread that submits
it, or that reaches its wait fence.
"""

from __future__ import annotations

import abc
import os
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final
from weakref import ref

from jitree.base.finalizers import SharedWeakSet
from jitree.base.platform import UNAME
from jitree.errors import InvalidArgumentError, NotFoundError
from jitree.hal import watchdog
from jitree.hal.device import Device
from jitree.hal.driver import DEFAULT_OPTIONS, DeviceInfo, DeviceOptions, Driver
from jitree.hal.executable import ExecutableCache
from jitree.hal.heap import HeapAllocator
from jitree.hal.local import executor
from jitree.hal.local.executor.calling import NOT_LOGGED
from jitree.hal.local.queue_record import CLOSED, UNSUPPORTED, WAITS, WATCHED, QueueRecord

if TYPE_CHECKING:
    from jitree.base.callbacks import Callback
    from jitree.base.events import EventReader
    from jitree.hal.allocator import Allocator, Charge
    from jitree.hal.command_buffer import BindingTable, CommandBuffer
    from jitree.hal.command_list import BoundCommands
    from jitree.hal.executable import Executable, ExecutableLoader
    from jitree.hal.fence import Fence
    from jitree.hal.groups.channel import LocalChannel
    from jitree.hal.local.command_buffer import LocalCommandBuffer
    from jitree.hal.local.event_log import EventLog
    from jitree.hal.local.queue import LocalQueue
    from jitree.hal.objects import Channel, ChannelProvider, KnownChannels
    from jitree.hal.operations import Order
    from jitree.hal.profiling import Timings
    from jitree.hal.transfers import Transfer
    from jitree.regs.handles import HandleTable


class LocalDriver(Driver):
    name: ClassVar[str]
    description: ClassVar[str]

    def query_available_devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(0, "", "default")]

    def dump_device_info(self, device_id: int) -> str:
        from jitree.base.platform.available_resources import available_processors

        self._check(device_id)
        return (
            f"  {self.description}\n  architecture: {UNAME}\n"
            f"  processors available to this process: {available_processors()}\n"
        )

    def create_device_by_id(self, device_id: int, options: DeviceOptions = DEFAULT_OPTIONS) -> Device:
        self._check(device_id)
        return self._create(options)

    @abc.abstractmethod
    def _create(self, options: DeviceOptions) -> Device: ...

    def _check(self, device_id: int) -> None:
        if device_id not in (self.DEFAULT_ID, 0):
            raise NotFoundError(f"driver '{self.name}' has no device {device_id}; there is one, with id 0")


class LocalDevice(Device):
    """Computes with this machine's processors on host memory.

    Of its queues there are the records at first, which are enough for machine code. What takes operations of
    Python is made for the first one.
    """

    def __init__(
        self,
        identifier: str,
        records: Sequence[QueueRecord],
        loaders: Sequence[ExecutableLoader],
        allocator: Allocator | None = None,
    ) -> None:
        """``records``: of its queues."""
        self._records = tuple(records)
        self._queues: tuple[LocalQueue, ...] = ()
        """Made by :meth:`_make_queues`."""
        self._is_closed = False
        super().__init__(identifier, f"{identifier}://", allocator or HeapAllocator(), loaders)
        self._log: EventLog | None = None
        self._told: Callback | None = None
        """What machine code calls to tell readers."""
        self._charge: Charge | None = None
        """Counts memory of the host that programs have by what they record and submit."""
        watchdog.start_from_environment()
        if watchdog.current is not None:
            for record in self._records:
                record.hold(WATCHED)
        _devices.add(self)

    @abc.abstractmethod
    def _make_queue(self, record: QueueRecord) -> LocalQueue:
        """What takes operations of one queue."""

    def _make_queues(self) -> tuple[LocalQueue, ...]:
        """Makes what takes operations, all at once; threads that come at the same time get the same."""
        made = tuple(self._make_queue(record) for record in self._records)
        queues: tuple[LocalQueue, ...] = self.__dict__.setdefault("_made_queues", made)
        self._queues = queues
        for queue in queues:  # what has changed meanwhile
            queue.charge = self._charge
            if self._is_closed:
                queue.close()
        return queues

    def replace_device_allocator(self, allocator: Allocator) -> None:
        if isinstance(self.device_allocator, HeapAllocator):
            for borrower in self.device_allocator.borrowers:
                borrower.stop()
        super().replace_device_allocator(allocator)
        self._charge = allocator.limited_charge
        for queue in self._queues:
            queue.charge = self._charge
        if isinstance(allocator, HeapAllocator):
            for borrower in allocator.borrowers:
                borrower.resume()

    def _query(self, category: str, key: str) -> int | None:
        """Executable formats, concurrency, features."""
        if category == "hal.executable.format":
            return any(loader.query_support(key) for loader in self.loaders)
        if key == "concurrency" and category == "hal.device":
            return len(self._records)
        if key == "concurrency" and category == "hal.dispatch":
            return self.thread_count
        values = (loader.query_i64(category, key) for loader in self.loaders)
        return next((value for value in values if value is not None), None)

    # Objects.

    def create_command_buffer(
        self, modes: int, categories: int, queue_affinity: int = -1, binding_capacity: int = 0
    ) -> CommandBuffer:
        from jitree.hal.local.command_buffer import LocalCommandBuffer  # most are made by machine code

        return LocalCommandBuffer(modes, categories, queue_affinity, binding_capacity, self._charge)

    def create_channel(
        self,
        queue_affinity: int,
        identifier: bytes | None,
        group: str | None,
        rank: int,
        count: int,
        flags: int = 0,
    ) -> Channel:
        """See :func:`jitree.hal.groups.channel.create_channel`. Programs make a channel in each call, so
        there is one of each name."""
        from jitree.hal.groups.channel import create_channel

        make = partial(create_channel, identifier, flags, self.channel_provider)
        known = self._channels().get(group, make)
        known.check_member(rank, count)
        return known

    def replace_channel_provider(self, provider: ChannelProvider | None) -> None:
        super().replace_channel_provider(provider)
        self._channels().clear()

    def _channels(self) -> KnownChannels[LocalChannel]:
        """Loaded when first used: few programs have channels."""
        from jitree.hal.objects import KnownChannels

        known: KnownChannels[LocalChannel] = self.__dict__.setdefault("_known_channels", KnownChannels())
        return known

    # Queue operations.

    def _submit_barrier(self, order: Order, name: str) -> None:
        queue_affinity, wait, signal = order
        self._queue(queue_affinity).submit(name, wait, signal, None)

    def _submit_transfer(self, order: Order, transfer: Transfer) -> None:
        from jitree.hal.local.transfer import work_of

        queue_affinity, wait, signal = order
        work, cost = work_of(transfer)
        self._queue(queue_affinity).submit(transfer.name, wait, signal, work, cost)

    def _submit_commands(
        self, order: Order, command_buffer: CommandBuffer, binding_table: BindingTable
    ) -> None:
        self._submit_list(order, command_buffer, binding_table, partial(self._run, order[0]))

    def _submit_observed(
        self,
        order: Order,
        work: Transfer | CommandBuffer,
        binding_table: BindingTable,
        readers: Sequence[EventReader],
    ) -> None:
        from jitree.base.events import perform
        from jitree.hal.command_buffer import CommandBuffer
        from jitree.hal.local.transfer import work_of
        from jitree.hal.stepwise import execute_stepwise, transfer_step

        queue_affinity, wait, signal = order
        if isinstance(work, CommandBuffer):
            execute = partial(execute_stepwise, partial(self._run, queue_affinity), readers)
            self._submit_list(order, work, binding_table, execute)
            return
        move, cost = work_of(work)
        told = partial(perform, transfer_step(work), readers, move)
        self._queue(queue_affinity).submit(work.name, wait, signal, told, cost)

    def _submit_list(
        self,
        order: Order,
        command_buffer: CommandBuffer,
        binding_table: BindingTable,
        execute: Callable[[BoundCommands], None],
    ) -> None:
        """``execute`` is :meth:`_run` on the queue, or does more."""
        from jitree.hal.command_list import BoundCommands
        from jitree.hal.local.command_buffer import LocalCommandBuffer

        if type(command_buffer) is not LocalCommandBuffer:
            raise InvalidArgumentError(
                f"a command buffer of type {type(command_buffer).__name__} was not created by {self.id}"
            )
        queue_affinity, wait, signal = order
        table, kept = command_buffer.bind(binding_table)
        commands = command_buffer.commands
        operands = commands.bind(table)
        command_buffer.mark_submitted()
        work = partial(execute, BoundCommands(commands, *operands, kept))
        cost = WAITS if commands.collectives else self._cost(queue_affinity, command_buffer, operands[1])
        self._queue(queue_affinity).submit("execute", wait, signal, work, cost)

    def queue_failed(self, queue_affinity: int, signal: Fence | None, fail: Callable[[], None]) -> None:
        self._queue(queue_affinity).submit("execute", None, signal, fail)

    def queue_flush(self, queue_affinity: int = -1) -> None:
        """There is no launch batch."""

    is_observable = True

    def readers_changed(self) -> None:
        if self.readers and self._told is None:
            from jitree.hal.stepwise import Teller

            self._told = Teller(ref(self)).callback()
        for record in self._records:
            record.tell_readers(self.told_address if self.readers else 0)

    @property
    def told_address(self) -> int:
        """Of the C function that tells readers; it is there as long as the device."""
        return 0 if self._told is None else self._told.address

    def finish_submitted(self) -> None:
        for queue in self._queues:
            queue.finish()

    def is_far_ahead(self, wait: Fence, size: int = 0) -> bool:
        from jitree.hal.local.queue import is_far_ahead

        return is_far_ahead(wait, size)

    def can_be_awaited(self, wait: Fence) -> bool:
        from jitree.hal.local.queue import comes_by_itself

        return comes_by_itself(wait)

    # Profiling and the end.

    @property
    def measures(self) -> str:
        return "each command by the clock of the threads that do it"

    def _timings(self) -> Timings:
        from jitree.hal.local.event_log import EventLog

        self._log = EventLog(self.profiler, self._records)
        return self._log

    def close(self) -> None:
        self._is_closed = True
        for record in self._records:
            record.hold(CLOSED)
        for queue in self._queues:
            queue.close()
        self.trim()
        for allocator in (self.host_allocator, self.device_allocator):
            if isinstance(allocator, HeapAllocator):
                allocator.keep_nothing()

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """Shows machine code the Queue record, if there is only one."""
        if len(self._records) == 1:
            table.set_extent(address, self.queue_record(), 0)

    def queue_record(self, queue_affinity: int = -1) -> int:
        """As :meth:`Device.queue_record`, for the queue that an affinity selects; it lasts as the device."""
        return self._records[self._queue_index(queue_affinity)].address

    def after_fork(self) -> None:
        """In a forked child no other thread is left that holds a lock."""
        for record in self._records:
            record.after_fork()
        if self._profiler is not None:
            self._profiler.after_fork()

    # For the devices.

    def _let_machine_code_execute(self) -> None:
        """The device runs command lists in no other way than the native executor does."""
        for record in self._records:
            record.release(UNSUPPORTED)

    def _queue(self, affinity: int) -> LocalQueue:
        """The queue of the lowest bit of the affinity."""
        queues = self._queues or self._make_queues()
        return queues[0] if len(queues) == 1 else queues[self._queue_index(affinity)]

    def _queue_index(self, affinity: int) -> int:
        return lowest_queue(affinity) % len(self._records)

    def _cost(self, queue_affinity: int, command_buffer: LocalCommandBuffer, lengths: array[int]) -> int:
        """Estimates the nanoseconds of a command buffer, as far as the device wants them."""
        return 0

    def _interprets(self) -> bool:
        """Whether kernels may run in Python, which is what no event loop waits for."""
        return any(loader.runs_in_python for loader in self.loaders)

    def _run(self, queue_affinity: int, bound: BoundCommands) -> None:
        """Runs a command list, which may have collectives."""
        if not bound.commands.collectives:
            self._execute(queue_affinity, bound)
            return
        from jitree.hal.groups.collectives import execute_with_collectives

        execute_with_collectives(self._execute, queue_affinity, bound)

    def _execute(self, queue_affinity: int, bound: BoundCommands) -> None:
        """Runs a command list on the calling thread, and on workers, if any."""
        executor.execute(bound.commands, bound.addresses, bound.lengths, bound.accesses, self._profile_log())

    def _profile_log(self) -> tuple[int, int]:
        """What the executor is told of a profile: the address of the log, and the number of the operation."""
        if self._log is None or not self.profiler.mode:
            return NOT_LOGGED
        return self._log.address, self.profiler.number


_devices: Final[SharedWeakSet[LocalDevice]] = SharedWeakSet()


def _after_fork() -> None:
    """In a forked child no thread holds a lock, whatever it says."""
    for device in _devices:
        device.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def lowest_queue(affinity: int) -> int:
    """Finds the lowest queue in a set; 0 for the empty set."""
    return max(0, (affinity & -affinity).bit_length() - 1)


class SyncDevice(LocalDevice):
    def __init__(self, options: DeviceOptions) -> None:
        if options.parameters:
            raise InvalidArgumentError(
                f"local-sync has no parameters, but {', '.join(options.parameters)} was given"
            )
        super().__init__("local-sync", (QueueRecord(),), options.loaders)
        self._let_machine_code_execute()

    def create_executable_cache(self, identifier: str = "") -> ExecutableCache:
        return ExecutableCache(identifier, self.loaders, self._note_prepared)

    def _note_prepared(self, executable: Executable) -> None:
        """Has Python make calls that interpreted kernels would hold up (:meth:`_cost`)."""
        self.executables.add(executable)
        if self._interprets():
            for record in self._records:
                record.share(0, 0, 0)

    def _cost(self, queue_affinity: int, command_buffer: LocalCommandBuffer, lengths: array[int]) -> int:
        return WAITS if self._interprets() else 0

    def _make_queue(self, record: QueueRecord) -> LocalQueue:
        from jitree.hal.local.queue import CallerExecutor, LocalQueue

        return LocalQueue(CallerExecutor(), self.profiler, record)


class SyncDriver(LocalDriver):
    name = "local-sync"
    description = "Runs on the calling thread"

    def _create(self, options: DeviceOptions) -> SyncDevice:
        return SyncDevice(options)
