"""Makes channels of devices that compute on the host's memory, with their transport."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base import cancel_scopes
from jitree.base.arguments import seconds
from jitree.base.finalizers import Unique
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    StatusError,
    UnavailableError,
    again,
    pass_interruption,
)
from jitree.hal import checks
from jitree.hal.groups.rendezvous import (
    LOOK_SECONDS,
    TIMEOUT_SECONDS,
    MpiTransport,
    TorchTransport,
    Transport,
    TransportProvider,
    environment_provider,
    wait_looking,
)
from jitree.hal.local.interrupts import is_to_end, require_going_on
from jitree.hal.objects import Channel

if TYPE_CHECKING:
    from jitree.hal.groups.rendezvous import Part
    from jitree.hal.objects import ChannelProvider

_HEADER: Final = struct.Struct("<QqqQ")
"""Channel, operation, element count, bytes."""
_SPLIT: Final = (-1, 0)
"""The operation and the count that stand for a split."""
_KEY: Final = struct.Struct("<qq")
_NAME: Final = struct.Struct("<QQq")


class MpiProvider(TransportProvider):
    """Provides the members of an mpi4py communicator. ``timeout``: seconds that another member may be
    late."""

    def __init__(self, communicator: Any, timeout: float = TIMEOUT_SECONDS) -> None:
        self._communicator = communicator
        self._timeout = seconds("timeout", timeout)

    def query_default_rank_and_count(self) -> tuple[int, int]:
        return self._communicator.Get_rank(), self._communicator.Get_size()

    def exchange_default_id(self, identifier: bytes) -> bytes:
        return bytes(self._communicator.bcast(identifier, root=0))

    def make_transport(self) -> Transport:
        return MpiTransport(self._communicator, self._timeout)


class TorchProvider(TransportProvider):
    """Provides the members of a group of torch.distributed, by default of all. The group stays torch's: local
    devices send through it, so torch must not use it at the same moment."""

    def __init__(self, group: Any = None, timeout: float = TIMEOUT_SECONDS) -> None:
        import torch.distributed

        self._group = torch.distributed.group.WORLD if group is None else group
        self._timeout = seconds("timeout", timeout)

    def query_default_rank_and_count(self) -> tuple[int, int]:
        return self._group.rank(), self._group.size()

    def exchange_default_id(self, identifier: bytes) -> bytes:
        import torch.distributed

        found = [identifier]
        broadcast = torch.distributed.broadcast_object_list
        wait_looking(partial(broadcast, found, group=self._group, group_src=0))
        return found[0]

    def make_transport(self) -> Transport:
        return TorchTransport(self._group, self._timeout)


def make_transport(provider: ChannelProvider | None) -> Transport:
    """Makes a transport by the provider, or what this process was started by. Waits for all members.

    UNAVAILABLE where neither mpi4py nor torch is installed.
    """
    provider = provider or _default_provider()
    if not isinstance(provider, TransportProvider):
        return _gloo(provider)
    return provider.make_transport()


def _default_provider() -> ChannelProvider:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        return TorchProvider()
    provider = environment_provider()
    provider.query_default_rank_and_count()
    if "RANK" not in os.environ:  # not torchrun
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # the latter where mpi4py finds no library of MPI
            pass_interruption(error)
            return provider
        if MPI.COMM_WORLD.Get_size() > 1:
            return MpiProvider(MPI.COMM_WORLD)
    return provider


def _gloo(provider: ChannelProvider, timeout: float = TIMEOUT_SECONDS) -> Transport:
    """A group of torch whose store is at member 0; the provider carries its address."""
    try:
        import torch.distributed as distributed
    except ImportError as error:
        raise UnavailableError(
            "channels of local devices need mpi4py (pip install 'jitree[mpi]', mpirun) and a library of MPI "
            "that it finds, or torch, and there is neither; or give the device a provider with a transport "
            "(replace_channel_provider)"
        ) from error
    import datetime

    seconds = datetime.timedelta(seconds=timeout)
    rank, count = provider.query_default_rank_and_count()
    try:
        if rank == 0:
            host = _own_address()
            store = distributed.TCPStore(host, 0, count, True, seconds, wait_for_workers=False)
            provider.exchange_default_id(f"{host}:{store.port}".encode())
        else:
            host, _, port = provider.exchange_default_id(b"").decode().rpartition(":")
            store = distributed.TCPStore(host, int(port), count, False, seconds, wait_for_workers=False)
        make_group = partial(distributed.ProcessGroupGloo, store, rank, count, seconds)
        return TorchTransport(wait_looking(make_group), timeout)
    except StatusError as error:  # which is a RuntimeError
        raise error.with_context(f"member {rank} of {count} joins a group") from None
    except (RuntimeError, TypeError, ValueError) as error:  # the latter of an id that is no address
        pass_interruption(error)
        raise UnavailableError(f"member {rank} of {count} could not join the group: {error}") from error


def _own_address() -> str:
    """What other machines know this one by; where its name is not known, there are no others."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        pass_interruption(error)
        return "127.0.0.1"


class GroupTransport:
    """Keeps a transport's failure: members no longer agree on what comes next."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._failure: StatusError | None = None
        self._process = os.getpid()
        self.rank, self.count = transport.rank, transport.count

    def exchange(self, head: tuple[int, int, int], sent: Sequence[Part], received: Sequence[Part]) -> None:
        """Exchanges parts after headers on which both sides must agree. A header has the part's length and
        ``head``. FAILED_PRECONDITION in a forked child: it has no threads of the transport, and would wait
        forever."""
        if os.getpid() != self._process:
            raise FailedPreconditionError(
                "the process that joined this channel was forked; a child has to join another group"
            )
        taken: list[bool] = []  # by functions in C: no interrupt comes before it is known
        try:
            while True not in taken:
                if taken:
                    require_going_on()
                next(map(taken.append, map(self._lock.acquire, (True,), (LOOK_SECONDS,))))
            if self._failure is not None:
                raise again(self._failure)
            self._failure = FailedPreconditionError("an earlier collective was ended here; join a new group")
            try:
                self._exchange(head, sent, received)
            except StatusError as error:
                error.with_context(f"member {self.rank} of {self.count} of a channel")
                if not is_to_end() and cancel_scopes.why_to_end() is None:
                    self._failure = error
                raise
            self._failure = None
        finally:
            if True in taken:
                self._lock.release()

    def _exchange(self, head: tuple[int, int, int], sent: Sequence[Part], received: Sequence[Part]) -> None:
        here = [data for peer, data in sent if peer == self.rank]
        there = [data for peer, data in received if peer == self.rank]
        if [data.size for data in here] != [data.size for data in there]:
            raise InvalidArgumentError("a member sends itself other bytes than it receives")
        for source, target in zip(here, there, strict=True):
            target[...] = source
        sent = [part for part in sent if part[0] != self.rank]
        received = [part for part in received if part[0] != self.rank]
        heads = [(peer, np.empty(_HEADER.size, np.uint8)) for peer, _ in received]
        packed = [
            (peer, np.frombuffer(bytearray(_HEADER.pack(*head, data.size)), np.uint8)) for peer, data in sent
        ]
        self._transport.exchange(packed, heads)
        for (peer, data), (_, head_there) in zip(received, heads, strict=True):
            other = _HEADER.unpack(head_there.tobytes())
            if other != (*head, data.size):
                raise FailedPreconditionError(
                    f"member {peer} does another collective: (channel, operation, elements, bytes) are "
                    f"{other} there, {(*head, data.size)} here; all members must call the same functions in "
                    "one order"
                )
        received = [part for part in received if part[1].size]
        found = [(peer, np.empty_like(data)) for peer, data in received]  # what ends early writes there only
        self._transport.exchange([part for part in sent if part[1].size], found)
        for (_, target), (_, source) in zip(received, found, strict=True):
            target[...] = source


class LocalChannel(Unique, Channel):
    """Joins ``members`` of a transport, in this order, as one of them."""

    def __init__(self, transport: GroupTransport, members: Sequence[int], name: int) -> None:
        self._transport = transport
        self._members = members
        self._name = name
        self._splits = 0
        self._rank = members.index(transport.rank)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def count(self) -> int:
        return len(self._members)

    def check_member(self, rank: int, count: int) -> None:
        """INVALID_ARGUMENT when the program states others than the group has; -1: it does not."""
        if rank not in (-1, self.rank) or count not in (-1, self.count):
            raise InvalidArgumentError(
                f"the program is member {rank} of {count}, but its group says {self.rank} of {self.count}"
            )

    def exchange(self, what: tuple[int, int], sent: Sequence[Part], received: Sequence[Part]) -> None:
        """Sends and receives at one time. ``what``: operation and count, on which members must agree."""
        members = self._members
        self._transport.exchange(
            (self._name, *what),
            [(members[peer], data) for peer, data in sent],
            [(members[peer], data) for peer, data in received],
        )

    def split(self, color: int, key: int, flags: int = 0) -> LocalChannel | None:
        """As ``Channel.split``; members with equal keys stay in their order. Waits for all members."""
        checks.check_flags("channel.split", flags)
        found = np.empty((self.count, 2), np.int64)
        mine = np.frombuffer(bytearray(_KEY.pack(color, key)), np.uint8)
        rows = found.view(np.uint8)
        everyone = range(self.count)
        self.exchange(_SPLIT, [(peer, mine) for peer in everyone], [(peer, rows[peer]) for peer in everyone])
        self._splits += 1
        if color < 0:
            return None
        chosen = sorted((int(key), member) for member, (own, key) in enumerate(found) if own == color)
        name = blake2b(_NAME.pack(self._name, self._splits, color), digest_size=8)  # the same everywhere
        members = [self._members[member] for _, member in chosen]
        return LocalChannel(self._transport, members, int.from_bytes(name.digest(), "little"))


def create_channel(identifier: bytes | None, flags: int, provider: ChannelProvider | None) -> LocalChannel:
    """Joins a group; waits for all its members. INVALID_ARGUMENT when the program states an id: groups of
    local devices are made by their providers."""
    checks.check_flags("channel.create", flags)
    if identifier is not None:
        raise InvalidArgumentError("channels of local devices take no id from the program; give it none")
    transport = make_transport(provider)
    return LocalChannel(GroupTransport(transport), range(transport.count), 0)
