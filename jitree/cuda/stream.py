"""Orders the work of a device in one stream, and knows what is done.

Submissions are numbered by ``tick``. Nothing is recorded on the device for them: the host learns that they
are done by synchronising or asking for the whole stream, which costs least, and only for callbacks and other
streams by an event.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from jitree import errors
from jitree.base.finalizers import guard, with_lock
from jitree.cuda import stream_share
from jitree.cuda.api import Handle
from jitree.cuda.context import EventPool, PooledEvent
from jitree.cuda.plan import KernelSizes
from jitree.cuda.semaphore import CudaSemaphore, Promise, settle
from jitree.cuda.stream_share import CudaAllocation, OrderedAllocation, StreamShare, StreamUsers
from jitree.errors import FailedPreconditionError, InternalError, PermissionDeniedError, StatusError, again
from jitree.hal.enums import BufferUsage, MemoryType
from jitree.hal.local.queue_record import LOST
from jitree.hal.semaphore import Semaphore
from jitree.hal.timeline_record import DEFAULT_ORDER

if TYPE_CHECKING:
    from jitree.cuda.context import CudaContext
    from jitree.cuda.kernels import Kernels
    from jitree.hal.buffer import Allocation, Buffer
    from jitree.hal.fence import Fence
    from jitree.hal.profiling import Profiler

_STAGING: Final = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
_STAGING_USAGE: Final = int(BufferUsage.TRANSFER | BufferUsage.MAPPING)
_BLOCKING: Final = 0x0
"""A blocking stream: the driver orders its work with that of the legacy default stream."""
_THREAD_STREAM: Final = 2
"""The default stream of a thread, by a number that is always valid."""
_MOMENT: Final = 20e-3
"""Seconds that a thread asks for the stream in a loop. After that it is called back, which takes 50 us more,
and hears of signals, deadlines and ``cancel`` meanwhile."""
_SHORTEST_PATIENCE: Final = 1e-3
"""Seconds that a wait without time has for a thread that is just submitting."""
_SUSPECTS: Final = 3
"""Submissions that the error of a lost device names."""
_OPEN_PROMISES: Final = 1024
"""So many submissions were not waited for: time to ask what is done."""


class CompletionWatcher(Protocol):
    """Retires work when an event is reached."""

    def watch(self, stream: Stream, tick: int, event: PooledEvent) -> None:
        """When ``event`` is reached, everything up to ``tick`` is done. Takes over the event."""

    def close(self) -> None: ...


class StagingAllocator(Protocol):
    """Allocates memory for staging."""

    @property
    def has_pinned_room(self) -> bool: ...
    def allocate(self, memory_type: int, usage: int, size: int) -> Buffer: ...


class Stream:
    """Orders the work of a device. Methods may be called from any thread."""

    def __init__(self, context: CudaContext, completion: CompletionWatcher, profiler: Profiler) -> None:
        self.context = context
        self.api = context.api
        self.profiler = profiler
        self.measures = 0
        """The mode of a profile for which Python measures what is submitted."""
        self.sizes = KernelSizes()
        self.lock = guard()
        """Held by the thread that submits."""
        context.enter()
        self._owned = context.make("cuStreamCreate", (_BLOCKING,), "cuStreamDestroy")
        self.handle: Handle = self._owned.handle
        self.events = EventPool(context)
        try:
            self._producer_event = self.events.permanent()  # one taken for each use is lost by an interrupt
            self.share = StreamShare(context, self.handle, self.events.permanent().handle)
        except StatusError:
            self.events.close()
            self._owned.close()
            raise
        self.allocator: StagingAllocator | None = None
        """The allocator of staging memory, once there is one."""
        self._kernels: Kernels | None = None
        self.users = StreamUsers(self.share, self._owned.close)
        """Asked by who uses the stream without the lock."""
        self._failed = (0, 0, StatusError(""))
        """At the last failure: the newest submission that was done, the newest that failed, and why."""
        self._completion = completion
        self._watched = 0
        self._given_back: deque[tuple[object, int]] = deque()
        self._closed = False
        self._begun = 0
        """The tick of a submission that is counted and has not entered the stream yet."""
        self.is_inherited = False
        """Whether it belongs to the process that this one was forked from."""
        self._recent: deque[tuple[int, Callable[[], str]]] = deque(maxlen=_SUSPECTS)
        self._promises: deque[Promise] = deque()
        self._kept: deque[tuple[int, Any]] = deque()
        stream_share.watch(self)

    @property
    def tick(self) -> int:
        """Number of the newest submission."""
        return self.share.tick

    @property
    def completed(self) -> int:
        """Everything up to here is done on the device."""
        return self.share.completed

    @property
    def kernels(self) -> Kernels:
        """Our own kernels, loaded when first used."""
        if self._kernels is None:
            from jitree.cuda.kernels import Kernels

            self._kernels = Kernels(self.context)
        return self._kernels

    # Submitting; the caller holds the lock.

    def begin(self) -> int:
        """Counts one more submission and makes its context current. Raises what lost the device."""
        if self._closed:
            self.check_open()
        self.api.check_alive()
        self.context.enter()
        self.share.take()
        self._settle_refused()
        tick, begun = self.share.count(), self._begun
        self._begun = begun or tick
        if self._given_back:  # counted with this, which runs after the consumers' work
            try:
                self._take_back()
            except BaseException:
                self._begun = begun
                raise
        return tick

    def end(self) -> None:
        """What has begun has been submitted, or failed. The caller still holds the lock."""
        self._begun = 0
        self.share.hand_over()

    def check_open(self) -> None:
        """FAILED_PRECONDITION when the device has been closed."""
        if self._closed:
            raise FailedPreconditionError(f"the device {self.api.name} has been closed")

    def flush(self) -> None:
        """Submits what machine code holds back, before anything else. Raises what lost the device: that the
        driver refused it."""
        self.share.launch_held()
        if 0 < self.share.refused <= self.tick:
            self._settle_refused()

    def _settle_refused(self) -> None:
        """Raises INTERNAL if the driver has refused what machine code has launched. Some of it may run: it
        must not be made again. If it was counted, the device is lost: what comes after it has come before."""
        refused = self.share.refused
        if not refused:
            return
        self.share.forget_refused()
        error = InternalError("the driver refused a launch in the middle of a command list")
        if refused > self.tick:
            raise error
        if self.api.lost is None:
            self.api.lost = error
        raise self.fail(error)

    def promise(self, semaphore: Semaphore, value: int) -> None:
        """The semaphore reaches the value when everything submitted so far is done."""
        if self.tick == self.completed:
            semaphore.advance(value)
            return
        self._promises.append((self.tick, semaphore, value))
        if isinstance(semaphore, CudaSemaphore):
            semaphore.promise(value, self)
        else:
            self.watch()
        if not len(self._promises) % _OPEN_PROMISES:
            self.poll()

    def promised(self, tick: int) -> Semaphore:
        """Makes a point that a submission of machine code reaches, or fails."""
        semaphore = CudaSemaphore()
        with self.lock:
            survived, failed, failure = self._failed
            if survived < tick <= failed:
                semaphore.fail(again(failure))
            elif tick <= self.completed:
                semaphore.advance(1)
            else:
                insort(self._promises, (tick, semaphore, 1), key=itemgetter(0))
                semaphore.promise(1, self)
        if self._promises and not len(self._promises) % _OPEN_PROMISES:
            self.poll()
        return semaphore

    def retain(self, value: object) -> None:
        """Keeps an object until everything submitted so far is done."""
        if self.tick != self.completed:
            self._kept.append((self.tick, value))

    def orders(self, allocation: Allocation) -> bool:
        """Whether memory is only used in the order of this stream."""
        return type(allocation) is OrderedAllocation and allocation.stream is self

    def device_address(self, buffer: Buffer) -> int:
        """Where a buffer begins for this device. PERMISSION_DENIED for memory that it cannot reach."""
        allocation = buffer.allocation
        if not isinstance(allocation, CudaAllocation):
            raise PermissionDeniedError(
                f"{buffer!r} lies in memory that {self.api.name} cannot reach; copy it to the device first"
            )
        if allocation.stream is not self and buffer.host_address is None:  # else pinned for all devices
            self.context.enable_peer(allocation.stream.context)
            allocation.stream.share.expose()
        return buffer.address

    def follows(self, fence: Fence) -> bool:
        """Whether later submissions here run after what the fence stands for."""
        for semaphore, value in fence.timepoints:
            if not semaphore.is_reached(value) and not (
                isinstance(semaphore, CudaSemaphore)
                and semaphore.stream is self
                and semaphore.promised >= value
                and semaphore.failure is None
            ):
                return False
        return True

    def allocate(self, memory_type: int, usage: int, size: int) -> Buffer:
        """Memory of the device's allocator."""
        if self.allocator is None:
            raise InternalError("a stream without an allocator has no memory")
        return self.allocator.allocate(memory_type, usage, size)

    def pinned(self, size: int) -> Buffer:
        """Pinned memory. When it is dropped, the host may reuse it once what has been submitted is done."""
        return self.allocate(_STAGING, _STAGING_USAGE, size)

    @property
    def has_pinned_room(self) -> bool:
        """Whether results should be read into pinned memory: the system needs the rest."""
        return self.allocator is not None and self.allocator.has_pinned_room

    def stage(self, data: memoryview | bytes) -> tuple[int, object]:
        """Copies bytes to pinned memory for work to come. Gives its device address, and what keeps it."""
        view = memoryview(data)
        buffer = self.pinned(view.nbytes)
        if view.nbytes:
            buffer.host_view()[:] = view.cast("B")
        return buffer.address, buffer

    def note(self, describe: Callable[[], str]) -> None:
        """Names what has just been submitted, for the error of a lost device."""
        self._recent.append((self.tick, describe))

    def wait_for(self, event: PooledEvent) -> None:
        """What is submitted here from now on waits for an event of another stream."""
        self.check_open()
        self.context.enter()
        self.flush()
        self.api.wait_for_event(self.handle, event.handle)

    # Memory that other libraries use on their streams.

    def order_after(self, producer: int) -> None:
        """Orders later submissions after what another stream, by number, has now.

        The caller holds the lock, has entered the context and flushed.
        """
        self.check_open()
        self.api.record_event(self._producer_event.handle, producer)
        self.api.wait_for_event(self.handle, self._producer_event.handle)

    def give_back(self, allocation: object, consumer: int) -> None:
        """Takes memory back that a consumer has done with. It is kept until the consumer's stream has been
        waited for. Touches no driver, so that any finalizer may call it."""
        if not self._closed:  # then it is the driver that waits when the memory goes back
            self._given_back.append((allocation, consumer))

    def reclaim(self) -> None:
        """Takes back what consumers have done with, for the memory's next user. The caller holds the lock.
        A stream that it keeps from machine code stays so."""
        if self._given_back and not self._closed:
            begun = self._begun  # memory is asked for in the middle of a submission
            try:
                with self.share.taken():
                    self.begin()
            finally:
                self._begun = begun

    def _take_back(self) -> None:
        """Each stays until its consumer's work is waited for, whatever comes in between."""
        while self._given_back:
            consumer = self._given_back[0][1]
            if consumer == _THREAD_STREAM:
                self.order_after(consumer)
            elif consumer not in (DEFAULT_ORDER, int(self.handle)):  # one that may have been destroyed since
                self.api.call("cuCtxSynchronize")
            self._given_back.popleft()

    # Completion.

    def mark(self) -> PooledEvent:
        """An event after everything submitted so far.

        Takes the lock: a thread that holds another stream's may not ask, or two streams could
        wait for each other.
        """
        with self.lock:
            self.check_open()
            self.context.enter()
            self.flush()
            event = self.events.acquire()
            self.api.record_event(event.handle, self.handle)
            return event

    def watch(self) -> None:
        """Has the completion thread retire what is submitted so far, once done."""
        with self.lock:
            tick = self.tick
            if tick != self.completed:
                self._watch(tick)
                return
        self.retire(tick)  # machine code has waited

    def synchronize(self) -> None:
        """Waits on this thread for everything submitted so far; the GIL is released meanwhile.

        Raises what lost the device, why the work of this thread is to end, and what a signal handler raises;
        the device goes on then.
        """
        tick = self._before_wait()
        if tick == self.completed or self.users.are_over:
            self.api.check_alive()
            self.retire(tick)  # machine code may have waited
            return
        if not self.share.is_done_in_a_moment(tick):
            self.promised(tick).wait(1)
        self.api.check_alive()  # groups lose a device that works
        self.retire(tick)
        self.context.release_discarded()

    def finish(self) -> None:
        """Waits as :meth:`synchronize`, uninterrupted: to give back used memory, or where other ways failed.
        A failure is not raised, but fails the semaphores that were promised."""
        try:
            with self.lock:
                self.context.enter()
                with suppress(StatusError):  # who lost the device may have given it work
                    self.flush()
                tick = self.tick
            self.users.ask(partial(self._await_driver, tick))
            self.api.check_alive()
            self.retire(tick)
            self.context.release_discarded()
        except StatusError as error:
            self.fail(error)

    def wait(self, deadline: float | None) -> None:
        """Waits a moment for everything submitted so far, but not beyond ``deadline`` of ``time.monotonic``.

        A failure is not raised here: one that loses the device fails the semaphores that were promised, after
        another one the completion thread waits, for all who do.
        """
        try:
            self._wait_a_moment(deadline)
        except StatusError as error:
            if self.api.lost is None:
                with_lock(self.lock, self.watch, _SHORTEST_PATIENCE)
            else:
                self.fail(error)

    def poll(self) -> None:
        """Retires what is done by now; failures as :meth:`wait`."""
        self.wait(0.0)

    def retire(self, tick: int) -> None:
        """Retires what was promised and kept up to ``tick``: signals, lets go. A lost device fails all of it.
        While this thread submits something, which looks for memory, what is before that: it is not done."""
        begun = self._begun if self.lock._is_owned() else 0  # type: ignore[attr-defined]
        if self.api.lost is not None:
            if not begun:
                self.fail(self.api.lost)
            return
        if begun:
            tick = min(tick, begun - 1)
        dropped = list[tuple[int, Any]]()
        with self.lock:
            self.share.completed = max(self.completed, tick)
            kept = self._kept
            while kept and kept[0][0] <= tick:
                dropped.append(kept.popleft())
        settle(self.lock, self._promises, tick, lambda semaphore, value: semaphore.advance(value))

    def fail(self, error: StatusError) -> StatusError:
        """Fails everything that was promised and is not done. Returns what to raise. Only a lost
        device lets go of its buffers: another one works on, and its work does not count as done."""
        dropped: deque[tuple[int, Any]] = deque()
        with self.lock:
            error = self._explained(error)
            self.share.record.hold(LOST)
            if self.api.lost is not None:
                dropped, self._kept = self._kept, dropped
            if self.completed < self.tick:
                self._failed = self.completed, self.tick, error
        kept = again(error)
        settle(self.lock, self._promises, inf, lambda semaphore, _: semaphore.fail(kept))
        dropped.clear()
        return again(error)

    def close(self) -> None:
        """Waits for the device and ends the stream. Once more, where that was interrupted."""
        with self.lock:
            with suppress(StatusError):
                self.reclaim()
            self._closed = True
            self.share.end()
        self.finish()
        self._completion.close()  # which no thread gives events any more
        self._given_back.clear()
        self._recent.clear()
        self.context.enter()
        if self._kernels is not None:
            self._kernels.close()
        self.context.release_discarded()
        self.events.close()
        self.users.end()

    def _explained(self, error: StatusError) -> StatusError:
        """The failure with what the device may have been doing; the one that is kept says so too."""
        lost = self.api.lost
        if lost is None:
            kept = again(error)
            kept.__cause__ = None  # frames in its traceback have buffers, whose ends have the stream
            return kept
        names = [describe() for tick, describe in self._recent if tick > self.completed]
        self._recent.clear()
        if names:
            lost.message += f"; it was last given: {'; '.join(names)}"
        return lost

    def _before_wait(self) -> int:
        with self.lock:
            self.context.enter()
            self._flush_quietly()
            return self.tick

    def _await_all(self) -> int:
        tick = self.share.awaited = self._before_wait()
        return tick

    def _flush_quietly(self) -> None:
        """As :meth:`flush` for a thread that only waits: what could not be launched has failed its promises,
        and everything else is still under way. Raises what lost the device."""
        try:
            self.flush()
        except StatusError:
            self.api.check_alive()

    def _watch(self, tick: int) -> None:
        if self._watched == tick:
            return
        try:
            self._watched = tick
            self.context.enter()
            self._flush_quietly()
            self._completion.watch(self, tick, self.mark())
        except StatusError:
            self._watched = 0
            self.finish()  # the work goes on, unless the device is lost: this thread waits
        except BaseException as error:
            self._watched = 0
            if errors.is_interruption(error):  # other threads' callbacks wait for this; twice does no harm
                self._watch(tick)
            raise

    def _wait_a_moment(self, deadline: float | None) -> None:
        """The thread that holds the lock may be waiting for the device without end."""
        now = time.monotonic()
        until = now + _MOMENT if deadline is None else min(deadline, now + _MOMENT)
        tick = with_lock(self.lock, self._await_all, max(until - now, _SHORTEST_PATIENCE))
        if tick is not None and self.users.ask(partial(self._is_done_by, until, until > now, tick)):
            self.retire(tick)

    def _is_done_by(self, until: float, has_time: bool, tick: int, may_ask: bool) -> bool:
        """Whether the stream has come to a submission, asked until a time."""
        is_done = may_ask and tick <= self.completed
        while may_ask and not is_done:
            is_done = has_time and self.share.is_done_in_a_moment(tick)
            is_done = is_done or self.api.stream_is_idle(self.handle)
            if time.monotonic() >= until:
                break
            time.sleep(0)
        return is_done

    def _await_driver(self, tick: int, may_ask: bool) -> None:
        if may_ask and tick != self.completed:
            self.api.synchronize_stream(self.handle)
