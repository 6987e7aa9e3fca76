"""Channels: groups of devices, here or on other machines, joined by NCCL for collective operations."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Final

from jitree.base import cancel_scopes
from jitree.base.endings import Ending
from jitree.cuda import nccl
from jitree.cuda.communicator import ABANDONED, Communicator, join, release_abandoned
from jitree.errors import FailedPreconditionError, InvalidArgumentError, StatusError
from jitree.hal import checks
from jitree.hal.groups.rendezvous import environment_provider
from jitree.hal.objects import Channel, ChannelProvider

if TYPE_CHECKING:
    from jitree.cuda.context import CudaContext
    from jitree.cuda.group_watch import GroupWatch

_UNSTATED: Final = -1
"""As rank or count: what the provider says."""


class CudaChannel(Channel):
    """One member of a group."""

    def __init__(
        self, library: nccl.Nccl, context: CudaContext, watch: GroupWatch, communicator: Communicator
    ) -> None:
        """Takes over the communicator."""
        self.library = library
        self.context = context
        self.watch = watch
        self.joined = communicator
        self._ending = Ending(partial(ABANDONED.append, communicator))
        self._rank = library.query("ncclCommUserRank", communicator.handle)
        self._count = library.query("ncclCommCount", communicator.handle)
        watch.add(self.joined)

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

        self.joined.begin("ncclCommSplit")
        seconds, require_members = self.watch.seconds, self.joined.require_members
        try:
            part = join(self.library, self.watch.stream, split, seconds, require_members)
        except StatusError as error:
            failure = self.joined.named(error)
            self.watch.fail(failure.with_context("other members of a channel have not come to split it"))
            self.watch.require_whole()
            raise
        return None if part is None else CudaChannel(self.library, self.context, self.watch, part)

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
    """Joins a group of ``count`` members as number ``rank``; waits for all of them, as long as ``watch``
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
        raise InvalidArgumentError(f"a channel cannot have member {rank} of {count}")
    if identifier is None:
        identifier = b"" if count > 1 and rank else library.new_identifier()
        if count > 1 and provider is not None:
            with cancel_scopes.deadline(watch.seconds if watch.has_joined else None):  # all have come once
                identifier = provider.exchange_default_id(identifier)
    if len(identifier) != nccl.IDENTIFIER_SIZE:
        raise InvalidArgumentError(
            f"the id of a channel has {len(identifier)} bytes; ids of NCCL have {nccl.IDENTIFIER_SIZE}"
        )
    watch.require_whole()
    try:
        joined = join(
            library,
            watch.stream,
            lambda made: library.join(made, count, identifier, rank),
            watch.seconds,
        )
    except StatusError as error:
        error.with_context(f"member {rank} of {count} joins the group of a channel on {context.api.name}")
        raise
    assert joined is not None
    return CudaChannel(library, context, watch, joined)


def check_channel(channel: Channel, context: CudaContext) -> CudaChannel:
    """The channel, if its collectives can run in a context. INVALID_ARGUMENT for another device's."""
    if not isinstance(channel, CudaChannel):
        raise InvalidArgumentError(
            f"a channel of type {type(channel).__name__} cannot be used by a cuda device"
        )
    if channel.context is not context:
        raise FailedPreconditionError(
            f"a channel of device cuda://{channel.context.ordinal} was used by device "
            f"cuda://{context.ordinal}"
        )
    return channel
