"""Presents a GPU as a device of the HAL."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.arguments import object_of
from jitree.base.elements import Bytes
from jitree.base.finalizers import Finalized, SharedWeakSet, guard
from jitree.cuda import transfers
from jitree.cuda.allocator import CudaAllocator
from jitree.cuda.channel import USUAL_SECONDS, GroupWatch, create_channel
from jitree.cuda.command_buffer import Bound, CudaCommandBuffer
from jitree.cuda.completion import CompletionThread
from jitree.cuda.context import CudaContext
from jitree.cuda.executable import FORMAT, CudaExecutableLoader
from jitree.cuda.interop import CudaExchange
from jitree.cuda.nccl import release_abandoned
from jitree.cuda.programs import ProgramTable
from jitree.cuda.queue import CudaQueue, Stepwise, is_scheduled
from jitree.cuda.semaphore import CudaSemaphore
from jitree.cuda.stream import Stream
from jitree.errors import FailedPreconditionError, InvalidArgumentError, StatusError
from jitree.hal.allocator import Allocator
from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import BindingTable, CommandBuffer
from jitree.hal.device import Device
from jitree.hal.exchange import HostTransfers
from jitree.hal.fence import Fence
from jitree.hal.objects import Channel, ChannelProvider, KnownChannels
from jitree.hal.profiling import Profiler
from jitree.hal.semaphore import Semaphore
from jitree.hal.transfers import Transfer

if TYPE_CHECKING:
    from jitree.base.events import EventReader
    from jitree.cuda.timings import CudaTimings
    from jitree.hal.operations import Order
    from jitree.hal.profiling import Timings
    from jitree.regs.handles import HandleTable


class CudaDevice(Finalized, Device):
    """Executes on one GPU, by one in-order queue.

    Work whose waits the queue orders anyway is submitted by the calling thread before the call returns.
    """

    def __init__(
        self,
        driver: Any,
        ordinal: int,
        host_transfers: HostTransfers = HostTransfers.IMPLICIT,
        dependent_launch: bool = True,
        collective_timeout: float = USUAL_SECONDS,
    ) -> None:
        """``driver``: the bindings' module; ``ordinal``: of the GPU in this process; ``dependent_launch``: as
        of :class:`CudaContext`; ``collective_timeout``: seconds for which members of groups may be late."""
        self.context = CudaContext(driver, ordinal, dependent_launch)
        uri = self.context.api.name
        self._completion = CompletionThread(uri)
        profiler = Profiler()
        self.stream = Stream(self.context, self._completion, profiler)
        self._own_allocator = CudaAllocator(self.stream)
        super().__init__("cuda", uri, self._own_allocator, (CudaExecutableLoader(self.context),), profiler)
        self.stream.allocator = self._own_allocator
        self._exchange = CudaExchange(self.stream, self._own_allocator, host_transfers)
        self._queue = CudaQueue(self.stream, uri)
        self._groups = GroupWatch(self.stream, collective_timeout)
        self._channels: KnownChannels[Channel] = KnownChannels()
        self._timed: CudaTimings | None = None
        self._is_ended = False
        self._ending = guard()
        _devices.add(self)
        self.will_end()

    def __repr__(self) -> str:
        return f"<hal.device {self.uri}, {self.context.info.name}>"

    @classmethod
    def semaphore_type(cls) -> type[CudaSemaphore]:
        return CudaSemaphore

    @property
    def array_exchange(self) -> CudaExchange:
        return self._exchange

    def follows(self, fence: Fence) -> bool:
        return self.stream.follows(fence)

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """Shows machine code the Queue record."""
        table.set_extent(address, self.queue_record(), 0)

    def queue_record(self, queue_affinity: int = -1) -> int:
        return self.stream.share.record.address

    @property
    def shared_timeline(self) -> CudaDevice:
        return self

    def known_lists(self) -> ProgramTable:
        """See :meth:`~jitree.hal.timeline_record.SharedTimeline.known_lists`."""
        return ProgramTable(self.stream)

    def promised(self, tick: int) -> Semaphore:
        """See :meth:`~jitree.hal.timeline_record.SharedTimeline.promised`."""
        return self.stream.promised(tick)

    def await_owed(self) -> None:
        if self.stream.share.is_owed:
            self.stream.synchronize()

    def replace_device_allocator(self, allocator: Allocator) -> None:
        super().replace_device_allocator(allocator)
        for borrower in tuple(self._own_allocator.borrowers):
            if allocator is self._own_allocator:
                borrower.resume()
            else:
                borrower.stop()

    def trim(self) -> None:
        """Waits for the device, then gives back graphs, pooled and discarded memory."""
        self.stream.finish()
        with self.stream.lock:
            self.context.enter()
            self.stream.share.forget_programs()
            self.context.release_discarded()
        super().trim()

    def _query(self, category: str, key: str) -> int | None:
        """Executable formats, concurrency, compute capability."""
        if category == "hal.executable.format":
            return key == FORMAT
        if category == "hal.device" and key == "concurrency":
            return 1
        if category == "hal.dispatch" and key == "concurrency":
            return self.context.attribute("MULTIPROCESSOR_COUNT")
        if category == "cuda.device" and key == "compute_capability_major":
            return self.context.info.compute_capability[0]
        if category == "cuda.device" and key == "compute_capability_minor":
            return self.context.info.compute_capability[1]
        return None

    # Objects.

    def create_channel(
        self,
        queue_affinity: int,
        identifier: bytes | None,
        group: str | None,
        rank: int,
        count: int,
        flags: int = 0,
    ) -> Channel:
        """Joins a channel, once: programs ask for the same one in each call."""
        stated = queue_affinity, identifier, group, rank, count, flags
        make = partial(create_channel, self.context, self._groups, *stated, self.channel_provider)
        return self._channels.get(stated, make)

    def replace_channel_provider(self, provider: ChannelProvider | None) -> None:
        super().replace_channel_provider(provider)
        self._channels.clear()

    def create_command_buffer(
        self, modes: int, categories: int, queue_affinity: int = -1, binding_capacity: int = 0
    ) -> CommandBuffer:
        return CudaCommandBuffer(self.stream, modes, categories, queue_affinity, binding_capacity)

    def import_event(self, semaphore: Semaphore, value: int, event: int) -> None:
        """As :meth:`Device.import_event`: what is submitted from now on waits for the event as well."""
        signal = Fence(((semaphore, value),))
        self._queue.submit("import_event", None, signal, partial(self._await_event, event))

    def _await_event(self, event: int) -> None:
        self.stream.flush()
        self.stream.api.wait_for_event(self.stream.handle, event)

    def export_event(self, semaphore: Semaphore, value: int) -> int:
        """As :meth:`Device.export_event`: after everything submitted to the stream so far."""
        if not is_scheduled(Fence(((semaphore, value),))):
            raise FailedPreconditionError(f"export_event: nothing that was submitted reaches {value}")
        stream = (semaphore.stream if isinstance(semaphore, CudaSemaphore) else None) or self.stream
        event = stream.mark()
        weakref.finalize(semaphore, event.release)
        return int(event)

    # Queue operations.

    def _submit_barrier(self, order: Order, name: str) -> None:
        _, wait, signal = order
        self._queue.submit(name, wait, signal, None)

    def _submit_transfer(self, order: Order, transfer: Transfer) -> None:
        """A file has been written when the operation has been submitted."""
        _, wait, signal = order
        self._queue.submit(transfer.name, wait, signal, partial(transfers.submit, self.stream, transfer))

    def _submit_commands(
        self, order: Order, command_buffer: CommandBuffer, binding_table: BindingTable
    ) -> None:
        own, bound = self._bound(command_buffer, binding_table)
        _, wait, signal = order
        self._queue.submit("execute", wait, signal, partial(own.launch, self.stream, bound))

    def _bound(
        self, command_buffer: CommandBuffer, binding_table: BindingTable
    ) -> tuple[CudaCommandBuffer, Bound]:
        if type(command_buffer) is not CudaCommandBuffer:
            raise InvalidArgumentError(
                f"a command buffer of type {type(command_buffer).__name__} was not created by {self.uri}"
            )
        bound = command_buffer.bind(binding_table)
        command_buffer.mark_submitted()
        return command_buffer, bound

    is_observable = True

    def _submit_observed(
        self,
        order: Order,
        work: Transfer | CommandBuffer,
        binding_table: BindingTable,
        readers: Sequence[EventReader],
    ) -> None:
        from jitree.cuda import stepwise

        _, wait, signal = order
        if isinstance(work, CommandBuffer):
            name, own = "execute", self._bound(work, binding_table)
            act = partial(stepwise.execute, self._queue, readers, *own)
        else:
            name, act = work.name, partial(stepwise.move, self._queue, readers, work)
        self._queue.submit(name, wait, signal, Stepwise(act))

    def queue_flush(self, queue_affinity: int = -1) -> None:
        with self.stream.lock:
            self.context.enter()
            self.stream.flush()

    # Transfers of the host.

    def write_buffer(self, target: Buffer, data: Bytes) -> None:
        """As :meth:`Device.write_buffer`: submitted, not waited for."""
        object_of("target", target, Buffer).range(0, object_of("data", data, np.ndarray).nbytes)
        self._queue.perform("upload", lambda: transfers.upload(self.stream, target, data))

    def read_buffer(self, source: Buffer, wait: Fence | None = None) -> Bytes:
        """As :meth:`Device.read_buffer`, with one synchronisation for the fence and the copy."""
        if object_of("source", source, Buffer).host_address is not None:
            if wait is not None:
                wait.wait()
            else:  # as with memory of the device: after what has been submitted
                self.stream.synchronize()
            return source.host_array()
        if wait is not None and not self.stream.follows(wait):
            wait.wait()
        data = self._queue.perform("download", lambda: transfers.download(self.stream, source))
        self.stream.synchronize()
        return data

    def readers_changed(self) -> None:
        self.stream.share.record.readers_changed(bool(self.readers))

    # Profiling and the end.

    @property
    def measures(self) -> str:
        return "nothing yet" if self._timed is None else self._timed.describe()

    def _timings(self) -> Timings:
        from jitree.cuda.timings import CudaTimings

        self._timed = CudaTimings(self.stream)
        return self._timed

    def profiling_flush(self) -> None:
        self.stream.finish()
        super().profiling_flush()

    def close(self) -> None:
        """As :meth:`Device.close`; arrays that are still there keep their memory, but nothing computes."""
        self.end()
        self.host_allocator.trim()

    def end(self) -> None:
        """Ends what the device consists of, on one thread; others wait for that."""
        if self.stream.is_inherited:  # by a forked process: all of it is the parent's
            return
        with self._ending:
            if self._is_ended:
                return
            self._queue.close()
            self._groups.leave()
            self._channels.clear()
            with suppress(StatusError):  # a driver that has gone has nothing left to give back
                release_abandoned()
            with suppress(StatusError):
                self.stream.close()
                self._own_allocator.close()
            self._is_ended = True


_devices: Final[SharedWeakSet[CudaDevice]] = SharedWeakSet()


def _end_all() -> None:
    for device in _devices:
        device.end()


atexit.register(_end_all)
