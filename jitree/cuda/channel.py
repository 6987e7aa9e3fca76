"""Channels: groups of devices, here or on other machines, joined by NCCL for collective operations."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from jitree.base.endings import Ending
from jitree.cuda import nccl
from jitree.errors import FailedPreconditionError, InvalidArgumentError
from jitree.hal import checks
from jitree.hal.groups.rendezvous import environment_provider
from jitree.hal.objects import Channel, ChannelProvider

if TYPE_CHECKING:
    from jitree.cuda.context import CudaContext

_UNSTATED: Final = -1
"""As rank or count: what the provider says."""

_abandoned: Final[deque[tuple[nccl.Nccl, CudaContext, int]]] = deque()
"""Communicators of channels that nothing refers to; finalizers run anywhere, so they only note them."""


class CudaChannel(Channel):
    """One member of a group."""

    def __init__(self, library: nccl.Nccl, context: CudaContext, communicator: int) -> None:
        """Takes over the communicator."""
        self.library = library
        self.context = context
        self.communicator = communicator
        self._ending = Ending(partial(_abandoned.append, (library, context, communicator)))
        self._rank = library.query("ncclCommUserRank", communicator)
        self._count = library.query("ncclCommCount", communicator)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def count(self) -> int:
        return self._count

    def split(self, color: int, key: int, flags: int = 0) -> CudaChannel | None:
        """As ``Channel.split``; None for a negative color. Waits for all members of this channel."""
        checks.check_flags("channel.split", flags)
        self.context.enter()
        part = self.library.split(self.communicator, color, key)
        return CudaChannel(self.library, self.context, part) if part else None

    def check(self) -> None:
        """Raises what happened to the group, such as another member's end."""
        failure = self.library.failure_of(self.communicator)
        if failure is not None:
            raise failure


def create_channel(
    context: CudaContext,
    queue_affinity: int,
    identifier: bytes | None,
    group: str | None,
    rank: int,
    count: int,
    flags: int,
    provider: ChannelProvider | None,
) -> CudaChannel:
    """Joins a group of ``count`` members as number ``rank``; waits for all of them.

    What is not given (-1, None) comes from the provider, by default the environment of a launcher such as
    torchrun or mpirun. Members in one process must join from a thread each. INVALID_ARGUMENT for an
    identifier of another length than 128 bytes and an impossible rank, FAILED_PRECONDITION when none knows
    rank and count, UNAVAILABLE without NCCL. Groups of several names are told apart by the order of their
    making.
    """
    checks.check_flags("channel.create", flags)
    library = nccl.library()
    release_channels()
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
            identifier = provider.exchange_default_id(identifier)
    if len(identifier) != nccl.IDENTIFIER_SIZE:
        raise InvalidArgumentError(
            f"the id of a channel has {len(identifier)} bytes; ids of NCCL have {nccl.IDENTIFIER_SIZE}"
        )
    context.enter()
    return CudaChannel(library, context, library.join(count, identifier, rank))


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


def release_channels() -> None:
    """Gives back the communicators of channels that are no longer used; their work must be done."""
    while _abandoned:
        try:
            library, context, communicator = _abandoned.popleft()
        except IndexError:  # another thread was quicker
            return
        context.enter()
        library.attempt("ncclCommDestroy", communicator)
