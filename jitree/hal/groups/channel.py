"""Channels of devices that compute on the host's memory."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base import cancel_scopes
from jitree.base.endings import Unique
from jitree.errors import FailedPreconditionError, InvalidArgumentError, StatusError, again
from jitree.hal import checks
from jitree.hal.groups.providers import make_transport
from jitree.hal.groups.waiting import LOOK_SECONDS
from jitree.hal.local.interrupts import require_going_on, watch
from jitree.hal.objects import Channel

if TYPE_CHECKING:
    from jitree.hal.groups.transport import Part, Transport
    from jitree.hal.objects import ChannelProvider

_HEADER: Final = struct.Struct("<QqqQ")
"""Channel, operation, element count, bytes."""
_SPLIT: Final = (-1, 0)
"""The operation and the count that stand for a split."""
_KEY: Final = struct.Struct("<qq")
_NAME: Final = struct.Struct("<QQq")


class GroupTransport:
    """A transport and its failure: after one, members no longer agree on what comes next."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._failure: StatusError | None = None
        self._process = os.getpid()
        self.rank, self.count = transport.rank, transport.count

    def exchange(self, head: tuple[int, int, int], sent: Sequence[Part], received: Sequence[Part]) -> None:
        """Each part comes after a header with its length and ``head``, which both sides must agree on.
        FAILED_PRECONDITION in a forked child: it has no threads of the transport, and would wait forever."""
        if os.getpid() != self._process:
            raise FailedPreconditionError(
                "the process that joined this channel was forked; a child has to join another group"
            )
        while not self._lock.acquire(timeout=LOOK_SECONDS):
            require_going_on()
        try:
            if self._failure is not None:
                raise again(self._failure)
            self._failure = FailedPreconditionError("an earlier collective was ended here; join a new group")
            try:
                self._exchange(head, sent, received)
            except StatusError as error:
                error.with_context(f"member {self.rank} of {self.count} of a channel")
                if not watch()() and cancel_scopes.why_to_end() is None:
                    self._failure = error
                raise
            self._failure = None
        finally:
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
    """One member of a group: those of ``members`` of the transport, in this order."""

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
