"""Where a channel of a local device gets its transport."""

from __future__ import annotations

import os
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from jitree.base.arguments import seconds
from jitree.errors import StatusError, UnavailableError, pass_interruption
from jitree.hal.groups.rendezvous import environment_provider
from jitree.hal.groups.transport import (
    TIMEOUT_SECONDS,
    MpiTransport,
    TorchTransport,
    Transport,
    TransportProvider,
)
from jitree.hal.groups.waiting import wait_looking

if TYPE_CHECKING:
    from jitree.hal.objects import ChannelProvider


class MpiProvider(TransportProvider):
    """The members of an mpi4py communicator. ``timeout``: seconds that another member may be late."""

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
    """The members of a group of torch.distributed, by default of all. The group stays torch's: local devices
    send through it, so torch must not use it at the same moment."""

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
    except RuntimeError as error:
        pass_interruption(error)
        raise UnavailableError(f"member {rank} of {count} could not join the group: {error}") from error


def _own_address() -> str:
    """What other machines know this one by; where its name is not known, there are no others."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        pass_interruption(error)
        return "127.0.0.1"
