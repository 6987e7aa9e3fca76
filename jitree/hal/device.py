"""Defines the device contract: what every driver's devices can do."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final, Self
from weakref import ref

import numpy as np

from jitree.base.arguments import integer, items, object_of
from jitree.base.finalizers import SharedWeakSet, Unique
from jitree.base.memory import require_listing
from jitree.errors import InvalidArgumentError, UnimplementedError
from jitree.hal import enums
from jitree.hal.buffer import Buffer, no_device
from jitree.hal.executable import Executable, ExecutableCache, ExecutableLoader
from jitree.hal.heap import HeapAllocator
from jitree.hal.operations import QueueOperations

if TYPE_CHECKING:
    from jitree.base.elements import Bytes
    from jitree.hal.allocator import Allocator
    from jitree.hal.device_memory import DeviceMemory
    from jitree.hal.exchange import ArrayExchange
    from jitree.hal.fence import Fence
    from jitree.hal.objects import Channel, ChannelProvider, Event, File, FileSource
    from jitree.hal.profiling import Profiler, ProfilingMode, Timings
    from jitree.hal.semaphore import Semaphore
    from jitree.hal.timeline_record import SharedTimeline
    from jitree.hal.waiting import SemaphoreCompatibility, WaitMode

_READ: Final = int(enums.MemoryAccess.READ)
_STAGING: Final = int(enums.MemoryType.HOST_LOCAL | enums.MemoryType.DEVICE_VISIBLE)
_STAGING_USAGE: Final = int(enums.BufferUsage.TRANSFER | enums.BufferUsage.MAPPING)
_ANY_QUEUE: Final = -1


def id_matches(pattern: str, device: str) -> bool:
    """Matches a device id with a pattern; ``*`` is any text, ``?`` any character."""
    at = place = mark = 0
    star = -1  # place in the pattern of the last star, which has been taken for the text up to ``mark``
    while place < len(device):
        if pattern[at : at + 1] == "*":
            star, mark = at, place
            at += 1
        elif pattern[at : at + 1] in ("?", device[place]):
            at += 1
            place += 1
        elif star >= 0:
            mark += 1
            at, place = star + 1, mark
        else:
            return False
    return not pattern[at:].strip("*")


def home_of(buffer: Buffer, devices: Sequence[Device]) -> Device:
    """Finds the device whose memory a buffer is in, else the first."""
    home = devices[0] if len(devices) == 1 else buffer.allocation.device()
    return next((device for device in devices if device is home), devices[0])


@cache
def semaphore_class() -> type[Semaphore]:
    """Imports the class of the host's semaphores, which machine code mostly makes."""
    from jitree.hal.semaphore import Semaphore

    return Semaphore


@cache
def fence_class() -> type[Fence]:
    """As :func:`semaphore_class`."""
    from jitree.hal.fence import Fence

    return Fence


class Threads(int):
    """How many threads a device has."""

    _device: Device

    @classmethod
    def of(cls, device: Device) -> Threads:
        made = cls(device.thread_count)
        made._device = device
        return made

    @contextmanager
    def __call__(self, count: int) -> Iterator[None]:
        """Has that many in a ``with`` block, and afterwards as many as before it. Errors as of
        :meth:`Device.set_threads`."""
        before = self._device.thread_count
        self._device.set_threads(count)
        try:
            yield
        finally:
            self._device.set_threads(before)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class Device(Unique, QueueOperations):
    """Executes what is submitted to it. Made by sessions and :meth:`Instance.create_device`.

    All methods may be called from any thread. :attr:`id` and :attr:`uri` name it, :attr:`threads` and
    :meth:`memory` say what it has. After :meth:`close` they fail with FAILED_PRECONDITION.

    >>> device = jitree.Session("local-task").device
    >>> device.id, device.uri
    ('local-task', 'local-task://')
    """

    VM_TYPE: Final = "hal.device"
    """The type by which programs refer to it."""

    def __init__(
        self,
        identifier: str,
        uri: str,
        allocator: Allocator,
        loaders: Iterable[ExecutableLoader],
        profiler: Profiler | None = None,
    ) -> None:
        """``profiler``: what the driver tells times already; one is made for the first profile else."""
        require_listing()
        self.id = identifier
        """The driver's name for it, as programs ask for in ``hal.device.id``: ``local-task``."""
        self.uri = uri
        """What creates it again: ``local-task://``."""
        self._own(allocator)
        self.device_allocator = allocator
        """Allocates memory that the device uses."""
        self._host_allocators: list[Allocator] = []
        """The first one counts: threads may make some at the same time."""
        self.usual_channel_provider: ChannelProvider | None = None
        """Where programs learn of their group unless the host says it; None: what started the process."""
        self.channel_provider: ChannelProvider | None = None
        """What channels ask for their group; None: what started the process."""
        self.loaders = list(loaders)
        """Asked in this order; loaders may be added, for caches created later."""
        self._profiler = profiler
        self.executables: SharedWeakSet[Executable] = SharedWeakSet()
        """Those that its caches have prepared and that are still there."""

    def __repr__(self) -> str:
        return f"<hal.device {self.uri}>"

    def _repr_html_(self) -> str:
        from jitree.base.tables import bytes_text, html_table

        memory = self.memory()
        rows = [
            ("threads", self.threads),
            ("used", bytes_text(memory.live)),
            ("used at most", bytes_text(memory.peak)),
        ]
        return html_table(f"jitree.Device {self.uri}", (), rows)

    @property
    def host_allocator(self) -> Allocator:
        """Allocates host memory for objects that the device itself does not touch."""
        if not self._host_allocators:
            self._host_allocators.append(HeapAllocator())
        return self._host_allocators[0]

    @host_allocator.setter
    def host_allocator(self, allocator: Allocator) -> None:
        self._host_allocators = [allocator]

    @property
    def array_exchange(self) -> ArrayExchange | None:
        """Exchanges arrays with other libraries; None where arrays lie on the host."""
        return None

    def follows(self, fence: Fence) -> bool:
        """Tells whether what is submitted next follows ``fence`` without a wait. It raises nothing."""
        return False

    def replace_device_allocator(self, allocator: Allocator) -> None:
        """Allocates with ``allocator`` from now on; existing buffers keep theirs.

        AttributeError for what is no allocator.
        """
        self._own(allocator)
        self.device_allocator = allocator

    def _own(self, allocator: Allocator) -> None:
        if allocator.device is no_device:
            allocator.device = ref(self)

    def replace_channel_provider(self, provider: ChannelProvider | None) -> None:
        """Asks another provider for channels that are made from now on.

        ``provider``: a ``ChannelProvider``; None: the usual one. It raises nothing, and has no effect on
        devices without channels.
        """
        self.channel_provider = self.usual_channel_provider if provider is None else provider

    def trim(self) -> None:
        """Gives back all memory that is only kept for reuse."""
        self.host_allocator.trim()
        self.device_allocator.trim()

    @property
    def thread_count(self) -> int:
        """How many threads of this process share the work of one command buffer: 1 to 64."""
        return 1

    @property
    def threads(self) -> Threads:
        """How many threads share one command buffer; a number that is called for another one.

        ``with device.threads(1):`` has that many for a while, as :meth:`set_threads`; for the whole device,
        whatever other threads do.

        >>> device = jitree.Session("local-task://?threads=2").device
        >>> with device.threads(1):
        ...     print(device.threads)
        1
        >>> print(device.threads)
        2
        """
        return Threads.of(self)

    def set_threads(self, count: int) -> None:
        """Changes how many threads share one command buffer, from the next on.

        ``count``: 1 to 64; results do not depend on it. It may be called at any time from any thread.
        OUT_OF_RANGE for other counts, UNIMPLEMENTED for more than one on devices without threads.
        """
        if integer("count", count) != 1:
            raise UnimplementedError(f"{self.id} has no threads to share work with; local-task has")

    def queue_record(self, queue_affinity: int = -1) -> int:
        """Gives the address by which machine code executes command buffers, or 0.

        ``queue_affinity``: of the queues that it is for, -1 for any. It raises nothing. See
        :mod:`jitree.hal.local.queue_record`.
        """
        return 0

    @property
    def shared_timeline(self) -> SharedTimeline | None:
        """The order in which it works by itself on what machine code submits; None where it does not."""
        return None

    def await_owed(self) -> None:
        """Waits for what machine code's calls have left to the host. A program that looks itself at memory of
        the host, which such a call may have the device write to, calls it before."""

    def queue_failed(self, queue_affinity: int, signal: Fence | None, fail: Callable[[], None]) -> None:
        """Ends an execution by machine code that failed: ``fail`` raises why.

        ``queue_affinity`` and ``signal`` are those of the execution; the fence fails with what ``fail``
        raises. UNIMPLEMENTED for devices that machine code executes nothing on.
        """
        raise UnimplementedError(f"machine code executes nothing on {self.id}")

    def query_i64(self, category: str, key: str) -> tuple[bool, int]:
        """Asks the device for a number, as programs do; gives whether it is known, and the number.

        ``category`` and ``key`` are texts: ``("hal.device.id", "local-*")`` matches its id,
        ``("hal.executable.format", …)`` a format. INVALID_ARGUMENT for what is no text.

        >>> jitree.Session("local-sync").device.query_i64("hal.device.id", "local-*")
        (True, 1)
        """
        object_of("category", category, str)
        object_of("key", key, str)
        value = id_matches(key, self.id) if category == "hal.device.id" else self._query(category, key)
        return value is not None, int(value or 0)

    @abc.abstractmethod
    def _query(self, category: str, key: str) -> int | None:
        """The value of a query but for the id; None if it is not known."""

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
        """Makes a channel for collectives among devices.

        ``queue_affinity``: the queues that use it. ``identifier``, ``group``, ``rank`` and ``count`` name the
        channel and its members; None, and -1 for numbers, are asked of the provider. ``flags`` are reserved.

        FAILED_PRECONDITION where the provider does not know them, UNIMPLEMENTED for devices that have no
        others to communicate with.
        """
        raise UnimplementedError(f"{self.id} has no channels; cuda and local devices have")

    def create_event(self, queue_affinity: int = -1, flags: int = 0) -> Event:
        """Makes an event for command buffers of this device.

        ``queue_affinity`` and ``flags`` are kept with it. It raises nothing.
        """
        from jitree.hal.objects import Event

        return Event(queue_affinity, flags)

    def create_executable_cache(self, identifier: str = "") -> ExecutableCache:
        """Makes what prepares executables for this device, with its loaders.

        ``identifier`` is for messages. Preparing says what is wrong; this raises nothing.
        """
        return ExecutableCache(identifier, self.loaders, self.executables.add)

    def import_file(
        self,
        queue_affinity: int,
        access: int,
        source: FileSource,
        offset: int = 0,
        length: int = -1,
        flags: int = 0,
    ) -> File:
        """Makes host bytes or a path a file for :meth:`queue_read` and :meth:`queue_write`.

        ``access``: bits, 1 to read and 2 to write. ``source``: a buffer of bytes or a path. ``offset`` and
        ``length``: its bytes; -1 means to the end. ``queue_affinity``: the queues that use it. ``flags`` must
        be 0.

        NOT_FOUND for a missing file, OUT_OF_RANGE for bytes outside, PERMISSION_DENIED for what may not be
        written, INVALID_ARGUMENT for other flags.
        """
        from jitree.hal.checks import check_flags
        from jitree.hal.objects import open_file

        check_flags("import_file", flags)
        return open_file(source, access, offset, length)

    @classmethod
    def semaphore_type(cls) -> type[Semaphore]:
        """Class of the semaphores that it can wait for and signal itself."""
        return semaphore_class()

    def create_semaphore(self, initial_value: int = 0, flags: int = 0) -> Semaphore:
        """Makes a timeline semaphore, whose payload is ``initial_value`` at first.

        ``flags`` are reserved. INVALID_ARGUMENT for what is no integer.
        """
        return self.semaphore_type()(integer("initial_value", initial_value))

    def import_event(self, semaphore: Semaphore, value: int, event: int) -> None:
        """Signals a semaphore when an event of the driver has happened.

        ``semaphore`` gets the payload ``value``; ``event`` is the driver's handle. UNIMPLEMENTED for devices
        whose driver has no events.
        """
        raise UnimplementedError(f"{self.id} knows no events; wait for them, then signal the semaphore")

    def export_event(self, semaphore: Semaphore, value: int) -> int:
        """Makes an event that happens when ``semaphore`` reaches ``value``, and gives its handle.

        It lives as long as the semaphore. FAILED_PRECONDITION for a value that nothing submitted so far
        reaches, UNIMPLEMENTED for devices whose driver has no events.
        """
        raise UnimplementedError(f"{self.id} has no events for other libraries; wait for the semaphore")

    def query_semaphore_compatibility(self, semaphore: Semaphore) -> SemaphoreCompatibility:
        """Says who waits for and signals ``semaphore``: the device its own, the host all. Nothing fails."""
        from jitree.hal.waiting import SemaphoreCompatibility

        is_own = type(semaphore) is self.semaphore_type()
        return SemaphoreCompatibility.ALL if is_own else SemaphoreCompatibility.HOST_ONLY

    def wait_semaphores(
        self, mode: WaitMode, points: Sequence[tuple[Semaphore, int]], timeout: float | None = None
    ) -> bool:
        """Waits for all or any of some points; False when the time is over.

        ``mode``: 0 for all, 1 for any. ``points``: pairs of a semaphore and a value. ``timeout``: seconds;
        None: as long as it takes. INVALID_ARGUMENT for what are no such pairs; else it raises what a
        semaphore failed with.
        """
        from jitree.hal.semaphore import Semaphore
        from jitree.hal.waiting import wait_for

        pairs = [items("points", point) for point in items("points", points)]
        if any(len(pair) != 2 for pair in pairs):
            raise InvalidArgumentError("points: expected pairs of a semaphore and a value")
        return wait_for(
            [
                (object_of("points", semaphore, Semaphore), integer("points", value))
                for semaphore, value in pairs
            ],
            mode,
            timeout,
        )

    # Transfers of the host.

    def write_buffer(self, target: Buffer, data: Bytes) -> None:
        """Copies bytes of the host to the beginning of a buffer.

        ``target``: a ``Buffer``. ``data``: a numpy array of bytes of rank 1, which may be changed as soon as
        the call returns. What is submitted to the device afterwards sees them. OUT_OF_RANGE for more bytes
        than the buffer has, INVALID_ARGUMENT for others.
        """
        length = object_of("target", target, Buffer).range(0, object_of("data", data, np.ndarray).nbytes)
        if target.host_address is not None:
            from jitree.base.copying import copy_into

            copy_into(target.host_array()[:length], data)
            return
        from jitree.hal.fence import Fence

        file = self.import_file(_ANY_QUEUE, _READ, data.data)
        done = Fence.create(self)
        self.queue_read(_ANY_QUEUE, None, done, file, 0, target, 0, len(data))
        done.wait()

    def finish_submitted(self) -> None:
        """Waits for all submitted work, before the host writes to memory it sees.

        It waits whatever becomes of that.
        """

    def read_buffer(self, source: Buffer, wait: Fence | None = None) -> Bytes:
        """Reads a buffer's bytes, a numpy array of rank 1, once ``wait`` is reached.

        ``source``: a ``Buffer``. The bytes are its own memory where the host can see it, else a copy.
        INVALID_ARGUMENT for what is no buffer; the failure of ``wait``.
        """
        if object_of("source", source, Buffer).host_address is not None:
            if wait is not None:
                from jitree.hal.fence import Fence

                object_of("wait", wait, Fence).wait()
            return source.host_array()
        from jitree.hal.fence import Fence

        staging = self.device_allocator.allocate(_STAGING, _STAGING_USAGE, source.byte_length)
        done = Fence.create(self)
        self.queue_copy(_ANY_QUEUE, wait, done, source, 0, staging, 0, source.byte_length)
        done.wait()
        return staging.host_array()

    def memory(self) -> DeviceMemory:
        """Says what is allocated now, in bytes.

        In a ``with`` block, where calls take longer, also by which functions and lines, and what of it is
        still used.

        >>> session = jitree.Session("local-sync")
        >>> with session.device.memory() as memory:
        ...     array = session.empty((4, 4), np.float32)
        >>> memory.live >= array.nbytes
        True
        """
        from jitree.hal.device_memory import DeviceMemory

        return DeviceMemory(self)

    # Profiling and the end.

    @property
    def profiler(self) -> Profiler:
        """Measures its operations while it is told to."""
        found = self._profiler
        if found is None:
            from jitree.hal.profiling import Profiler

            found = self._profiler = self.__dict__.setdefault("_own_profiler", Profiler())
        return found

    @property
    def measures(self) -> str:
        """What a profile knows of the device, in words."""
        return "operations of its queues; it does not tell of single dispatches"

    def profiling_begin(self, mode: ProfilingMode, path: str | None = None) -> None:
        """Starts to measure queue operations.

        ``mode``: bits, 1 for operations, 2 for dispatches. ``path``: a file for what is measured.
        FAILED_PRECONDITION while it measures. :meth:`Session.profile` does all this.
        """
        if self.profiler.timings is None:
            self.profiler.timings = self._timings()
        self.profiler.begin(mode, path)

    def profiling_flush(self) -> None:
        """Writes what has been measured so far to the path given at the beginning."""
        self.profiler.flush()

    def profiling_end(self) -> None:
        """Flushes and stops; without a beginning nothing happens."""
        self.profiler.end()

    def _timings(self) -> Timings | None:
        """What times the driver's work, made for the first profile; None where its queues tell all."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the device's threads. Work still queued fails with CANCELLED, further calls with
        FAILED_PRECONDITION."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
