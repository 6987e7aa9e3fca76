"""A transport for tests: processes, or threads, that are joined by sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from jitree.base.elements import Bytes
from jitree.errors import UnavailableError
from jitree.hal.groups.rendezvous import Part, Transport, TransportProvider, late, wait_looking


class SocketTransport(Transport):
    def __init__(self, rank: int, sockets: Sequence[socket.socket | None], timeout: float) -> None:
        super().__init__(rank, len(sockets))
        self._sockets = sockets
        self.timeout = timeout

    def exchange(self, sent: Sequence[Part], received: Sequence[Part]) -> None:
        end = time.monotonic() + self.timeout
        works = [(peer, data, True) for peer, data in sent] + [(peer, data, False) for peer, data in received]
        lanes: dict[tuple[int, bool], list[Bytes]] = {}
        for peer, data, sends in works:
            lanes.setdefault((peer, sends), []).append(data)
        if not lanes:
            return
        wait_looking(partial(self._move_all, lanes, end))

    def _move_all(self, lanes: dict[tuple[int, bool], list[Bytes]], end: float) -> None:
        with ThreadPoolExecutor(len(lanes)) as threads:
            futures = [threads.submit(self._move, *lane, parts, end) for lane, parts in lanes.items()]
        for future in futures:
            future.result()

    def _move(self, peer: int, sends: bool, parts: Sequence[Bytes], end: float) -> None:
        connection = self._sockets[peer]
        assert connection is not None
        for part in parts:
            view, done = part.data.cast("B"), 0
            while done < len(view):
                connection.settimeout(max(0.001, end - time.monotonic()))
                try:
                    step = connection.send(view[done:]) if sends else connection.recv_into(view[done:])
                except TimeoutError:
                    raise late(self.timeout) from None
                except OSError as error:
                    raise UnavailableError(f"member {peer} has ended: {error}") from error
                if not step:
                    raise UnavailableError(f"member {peer} has ended")
                done += step


class SocketProvider(TransportProvider):
    def __init__(self, rank: int, sockets: Sequence[socket.socket | None], timeout: float = 60.0) -> None:
        self._rank = rank
        self._sockets = sockets
        self.timeout = timeout
        self.transport: SocketTransport | None = None

    def query_default_rank_and_count(self) -> tuple[int, int]:
        return self._rank, len(self._sockets)

    def exchange_default_id(self, identifier: bytes) -> bytes:
        raise NotImplementedError

    def make_transport(self) -> Transport:
        self.transport = SocketTransport(self._rank, self._sockets, self.timeout)
        return self.transport


def sockets_of(count: int) -> list[list[socket.socket | None]]:
    """For each member its socket to each other one."""
    table: list[list[socket.socket | None]] = [[None] * count for _ in range(count)]
    for low in range(count):
        for high in range(low + 1, count):
            table[low][high], table[high][low] = socket.socketpair()
    return table
