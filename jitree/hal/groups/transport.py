"""Carries bytes between members of a group by MPI or torch (Gloo).

Waits for other members end with the call: by its deadline, or when it is cancelled.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from math import inf
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jitree.errors import DeadlineExceededError, UnavailableError, pass_interruption
from jitree.hal.local.interrupts import require_going_on
from jitree.hal.objects import ChannelProvider

if TYPE_CHECKING:
    from jitree.base.elements import Bytes

T = TypeVar("T")
LOOK_SECONDS: Final = 0.02
"""Between two looks of a waiting thread whether the call is to end."""

TIMEOUT_SECONDS: Final = 25.0
"""Seconds that another member may be late."""
_FIRST_PAUSE_SECONDS: Final = 0.00002
_LONGEST_PAUSE_SECONDS: Final = 0.005

Part = tuple[int, "Bytes"]
"""A member, and the bytes that go to it or come from it; at least one."""


def wait_looking(
    function: Callable[[], T], seconds: float = inf, require_members: Callable[[], object] = bool
) -> T:
    """Returns what a function returns that may wait for long. Another thread calls it, while this one looks
    whether the call is to end, or ``require_members`` raises what has happened to others; if so, or after so
    many seconds (DEADLINE_EXCEEDED), this thread stops waiting for the other."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="jitree waits for a group", daemon=True).start()
    until = time.monotonic() + seconds
    while not wait([future], LOOK_SECONDS).done:
        require_going_on()
        require_members()
        if time.monotonic() >= until:
            raise DeadlineExceededError(f"other members have not come within {seconds:g} s")
    return future.result()


class Transport(abc.ABC):
    """Carries bytes between members numbered from 0; this is member ``rank``."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank = rank
        self.count = count

    @abc.abstractmethod
    def exchange(self, sent: Sequence[Part], received: Sequence[Part]) -> None:
        """Sends and receives everything at one time, between two members in order.

        DEADLINE_EXCEEDED when a member is too late, UNAVAILABLE when one has ended. Nothing is exchanged
        after that.
        """


class TransportProvider(ChannelProvider):
    """Provides members, and how bytes go between them."""

    @abc.abstractmethod
    def make_transport(self) -> Transport:
        """Makes a transport for one more channel. Waits for all members."""


class MpiTransport(Transport):
    """Carries bytes by a duplicate of a communicator of mpi4py."""

    def __init__(self, communicator: Any, timeout: float = TIMEOUT_SECONDS) -> None:
        self._communicator = communicator.Dup()
        self._timeout = timeout
        super().__init__(communicator.Get_rank(), communicator.Get_size())

    def exchange(self, sent: Sequence[Part], received: Sequence[Part]) -> None:
        from mpi4py import MPI

        requests = []
        try:
            requests += [self._communicator.Irecv([data, MPI.BYTE], peer) for peer, data in received]
            requests += [self._communicator.Isend([data, MPI.BYTE], peer) for peer, data in sent]
            self._wait(MPI.Request, requests)
        except MPI.Exception as error:
            raise UnavailableError(f"a member of the group has failed; MPI says: {error}") from error

    def _wait(self, kind: Any, requests: list[Any]) -> None:
        """Waits by asking: MPI's own waits end in no time."""
        deadline, pause = time.monotonic() + self._timeout, _FIRST_PAUSE_SECONDS
        try:
            while not kind.Testall(requests):
                require_going_on()
                if time.monotonic() > deadline:
                    raise late(self._timeout)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except BaseException:
            _ABANDONED.append(requests)
            raise


_ABANDONED: Final[list[object]] = []
"""Requests that MPI may still serve, with their memory."""


class TorchTransport(Transport):
    """Carries bytes by a group of torch.distributed. Its backend moves memory of the host, such as Gloo."""

    def __init__(self, group: Any, timeout: float = TIMEOUT_SECONDS) -> None:
        self._group = group
        self._timeout = timeout
        super().__init__(group.rank(), group.size())

    def exchange(self, sent: Sequence[Part], received: Sequence[Part]) -> None:
        wait_looking(partial(self._exchange, sent, received))

    def _exchange(self, sent: Sequence[Part], received: Sequence[Part]) -> None:
        import datetime

        import torch

        end = time.monotonic() + self._timeout
        try:
            works = [self._group.recv([torch.from_numpy(data)], peer, 0) for peer, data in received]
            works += [self._group.send([torch.from_numpy(data)], peer, 0) for peer, data in sent]
            for work in works:
                work.wait(datetime.timedelta(seconds=max(0.001, end - time.monotonic())))
        except RuntimeError as error:
            pass_interruption(error)
            if time.monotonic() >= end:
                raise late(self._timeout) from error
            raise UnavailableError(f"a member of the group has ended; torch says: {error}") from error


def late(timeout: float) -> DeadlineExceededError:
    return DeadlineExceededError(f"another member of the group has not come within {timeout:g} s")
