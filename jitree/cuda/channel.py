"""Joins groups of GPUs by NCCL, and ends collectives whose members are missing.

On the GPU a collective waits for its members without end, and so do threads that wait for the GPU. So a
thread of the device looks at the collectives in progress: at what its communicators know of the group, and at
the time.
When a member is missing, it aborts the device's communicators, which lets the GPU go on. What the GPU
computes from there on is not what the program means: the device takes no more work, and all that was to come
fails.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from jitree import errors
from jitree.base import cancel_scopes
from jitree.base.finalizers import Finalizer, SharedWeakSet, guard
from jitree.base.platform.threads import thread_refusals
from jitree.cuda import nccl
from jitree.cuda.nccl import ABANDONED, Communicator, release_abandoned
from jitree.hal import checks
from jitree.hal.groups.rendezvous import environment_provider
from jitree.hal.local.queue_record import LOST
from jitree.hal.objects import Channel, ChannelProvider

if TYPE_CHECKING:
    from jitree.cuda.context import CudaContext, PooledEvent
    from jitree.cuda.stream import Stream

_UNSTATED: Final = -1
"""As rank or count: what the provider says."""

USUAL_SECONDS: Final = 25.0
"""For which a member may be late."""
LOOK_SECONDS: Final = 0.05


class CudaChannel(Channel):
    """Joins a group as one member of it."""

    def __init__(self, library: nccl.Nccl, context: CudaContext, watch: GroupWatch) -> None:
        """Of no group before :meth:`join`."""
        self.library = library
        self.context = context
        self.watch = watch
        self.joined = Communicator(library, context)
        self._ending = Finalizer(partial(ABANDONED.setdefault, self.joined))
        self._rank = self._count = 0

    def join(
        self, connect: Callable[[ctypes.c_void_p], None], require_members: Callable[[], object] = bool
    ) -> bool:
        """As :meth:`Communicator.join`."""
        if not self.joined.join(self.watch.stream, connect, self.watch.seconds, require_members):
            return False
        self._rank = self.library.query("ncclCommUserRank", self.joined.handle)
        self._count = self.library.query("ncclCommCount", self.joined.handle)
        self.watch.add(self.joined)
        return True

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def count(self) -> int:
        return self._count

    def split(self, color: int, key: int, flags: int = 0) -> CudaChannel | None:
        """As ``Channel.split``; None for a negative color. Waits for all members of this channel, and fails
        the device when they do not come."""
        checks.check_flags("channel.split", flags)
        self.check()

        def split(made: ctypes.c_void_p) -> None:
            part = ctypes.c_void_p()  # while it is being made, the end of the channel ends it
            self.library.split(part, self.joined.handle, color, key)
            made.value = part.value

        part = CudaChannel(self.library, self.context, self.watch)
        self.joined.begin("ncclCommSplit")
        try:
            return part if part.join(split, self.joined.require_members) else None
        except errors.StatusError as error:
            failure = self.joined.named(error)
            self.watch.fail(failure.with_context("other members of a channel have not come to split it"))
            self.watch.require_whole()
            raise

    def check(self) -> None:
        """Raises what happened to the group, such as another member's end."""
        self.watch.require_whole()
        self.joined.require_members()


def create_channel(
    context: CudaContext,
    watch: GroupWatch,
    queue_affinity: int,
    identifier: bytes | None,
    group: str | None,
    rank: int,
    count: int,
    flags: int,
    provider: ChannelProvider | None,
) -> CudaChannel:
    """Joins a group of ``count`` members as number ``rank``. Waits for all of them, as long as ``watch``
    says.

    What is not given (-1, None) comes from the provider, by default the environment of a launcher such as
    torchrun or mpirun. Members in one process must join from a thread each. INVALID_ARGUMENT for an
    identifier of another length than 128 bytes and an impossible rank, FAILED_PRECONDITION when none knows
    rank and count, UNAVAILABLE without NCCL. Groups of several names are told apart by the order of their
    making.
    """
    checks.check_flags("channel.create", flags)
    library = nccl.library()
    release_abandoned()
    if rank == _UNSTATED or count == _UNSTATED or identifier is None:
        provider = provider or environment_provider()
    if provider is not None and (rank == _UNSTATED or count == _UNSTATED):
        default_rank, default_count = provider.query_default_rank_and_count()
        rank = default_rank if rank == _UNSTATED else rank
        count = default_count if count == _UNSTATED else count
    if not 0 <= rank < count:
        raise errors.InvalidArgumentError(f"a channel cannot have member {rank} of {count}")
    if identifier is None:
        identifier = b"" if count > 1 and rank else library.new_identifier()
        if count > 1 and provider is not None:
            with cancel_scopes.deadline(watch.seconds if watch.has_joined else None):  # all have come once
                identifier = provider.exchange_default_id(identifier)
    if len(identifier) != nccl.IDENTIFIER_SIZE:
        raise errors.InvalidArgumentError(
            f"the id of a channel has {len(identifier)} bytes; ids of NCCL have {nccl.IDENTIFIER_SIZE}"
        )
    watch.require_whole()
    channel = CudaChannel(library, context, watch)
    try:
        channel.join(lambda made: library.join(made, count, identifier, rank))
    except errors.StatusError as error:
        error.with_context(f"member {rank} of {count} joins the group of a channel on {context.api.name}")
        raise
    return channel


def check_channel(channel: Channel, context: CudaContext) -> CudaChannel:
    """The channel, if its collectives can run in a context. INVALID_ARGUMENT for another device's."""
    if not isinstance(channel, CudaChannel):
        raise errors.InvalidArgumentError(
            f"a channel of type {type(channel).__name__} cannot be used by a cuda device"
        )
    if channel.context is not context:
        raise errors.FailedPreconditionError(
            f"a channel of device cuda://{channel.context.ordinal} was used by device "
            f"cuda://{context.ordinal}"
        )
    return channel


class _Flight:
    """Collectives that were submitted at one time."""

    __slots__ = ("begin", "communicators", "end", "since")

    def __init__(self, begin: PooledEvent, communicators: frozenset[Communicator]) -> None:
        self.begin = begin
        """An event that happens before the collectives begin."""
        self.end: PooledEvent | None = None
        """An event after them; None while they are being submitted."""
        self.communicators = communicators
        self.since: float | None = None
        """When they were first seen to wait for others."""


class GroupWatch:
    """Watches the groups that a device is in."""

    def __init__(self, stream: Stream, seconds: float = USUAL_SECONDS) -> None:
        """``seconds``: for which a member may be late."""
        self.seconds = seconds
        self.stream = stream
        self._lock = guard()
        self._communicators: SharedWeakSet[Communicator] = SharedWeakSet()
        self._flights: deque[_Flight] = deque()
        self._is_watching = False
        self._failure: errors.StatusError | None = None
        self.has_joined = False
        """Whether the members of a group have found each other."""

    def add(self, communicator: Communicator) -> None:
        """The device has joined a group."""
        with self._lock:
            self._communicators.add(communicator)
            self.has_joined = True

    def require_whole(self) -> None:
        """Raises what happened to a group of the device."""
        if self._failure is not None:
            raise errors.again(self._failure)

    @contextmanager
    def watched(self, communicators: frozenset[Communicator]) -> Iterator[None]:
        """What is submitted in the block are collectives. The caller holds the stream's lock."""
        if not communicators:  # a group of one waits for no member
            yield
            return
        stream = self.stream
        flight = _Flight(stream.events.acquire(), communicators)
        stream.api.record_event(flight.begin.handle, stream.handle)
        try:
            self._begin(flight)
        except BaseException:
            self._take_back(flight)
            raise
        try:
            yield
            end = stream.events.acquire()
            stream.api.record_event(end.handle, stream.handle)
            flight.end = end
        except errors.StatusError as error:  # others may have begun what this member has not
            self.fail(error)
            self.require_whole()
        except BaseException as error:
            self.fail(errors.CancelledError(f"a collective was ended by {type(error).__name__}"))
            raise

    def _begin(self, flight: _Flight) -> None:
        """Collectives are about to be submitted."""
        with self._lock:
            self.require_whole()
            self._flights.append(flight)
            self.stream.share.refuse_waits()
            if not self._is_watching:
                name = f"{self.stream.api.name} groups"
                with thread_refusals(name):
                    threading.Thread(target=self._watch, name=name, daemon=True).start()

    def _take_back(self, flight: _Flight) -> None:
        """They are not submitted."""
        with self._lock:
            with suppress(ValueError):
                self._flights.remove(flight)
            if not self._flights and not self._is_watching and self._failure is None:
                self.stream.share.allow_waits()

    def leave(self) -> None:
        """Tells the other members that the device begins nothing more."""
        with self._lock:
            communicators = tuple(self._communicators)
        for communicator in communicators:
            communicator.leave()

    def fail(self, error: errors.StatusError) -> None:
        """The device's groups do not go on, nor does the device. Only the first failure counts."""
        api = self.stream.api
        failure = errors.again(error).with_context(
            f"{api.name} takes no more work: open the device again, as in a new session, and join a new group"
        )
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure
            communicators = tuple(self._communicators)
        if api.lost is None:
            api.lost = failure  # before the GPU goes on: what it does then is no result
        self.stream.share.record.hold(LOST)
        for communicator in communicators:
            communicator.abort(str(error))
        self.stream.fail(failure)

    def _watch(self) -> None:
        """Runs on a thread, as long as collectives are in progress. What was interrupted when it started one
        starts another: only the first of them watches."""
        with self._lock:
            if self._is_watching:
                return
            self._is_watching = True
        while True:
            with self._lock:
                if not self._flights:
                    if self._failure is None:
                        self.stream.share.allow_waits()
                    self._is_watching = False
                    return
            failure = self._look()
            if failure is not None:
                self.fail(failure)
                self._flights.clear()
            elif self._flights:
                time.sleep(LOOK_SECONDS)

    def _look(self) -> errors.StatusError | None:
        """Forgets what is done; what is wrong with the oldest collectives in progress."""
        stream = self.stream
        try:
            stream.context.enter()
            while self._flights:
                flight = self._flights[0]
                if flight.end is None or not stream.api.event_is_reached(flight.end.handle):
                    return self._missing(flight)
                self._flights.popleft()
                flight.begin.release()
                flight.end.release()
        except errors.StatusError as error:  # the device is lost
            return error
        return self._failure

    def _missing(self, flight: _Flight) -> errors.StatusError | None:
        for communicator in flight.communicators:
            failure = communicator.failure()
            if failure is not None:
                return failure
        now = time.monotonic()
        if flight.since is None:
            if self.stream.api.event_is_reached(flight.begin.handle):
                flight.since = now
        elif now - flight.since >= self.seconds:
            return self.late("other members of a group have not come to a collective")
        return self._failure

    def late(self, what: str) -> errors.StatusError:
        """The error for members that are late."""
        return errors.DeadlineExceededError(
            f"{what} within {self.seconds:g} s (the device {self.stream.api.name} may state another "
            "collective_timeout)"
        )
