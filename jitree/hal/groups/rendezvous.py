"""Agrees on a channel between processes: ranks from launchers, ids by socket or store.

The launcher gives rank and count. The id goes over a socket, or through a store of keys: of torch
(``TCPStore``), of Ray, or a folder.

Providers for other ways are any objects with the two methods of ``ChannelProvider``: :class:`FixedProvider`
for what a program passes to its workers itself (Ray), those of :mod:`jitree.hal.groups.channel` for MPI and
torch.
"""

from __future__ import annotations

import abc
import os
import socket
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import cache, partial
from math import inf
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from jitree import errors
from jitree.base.arguments import seconds
from jitree.base.platform.threads import thread_refusals
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

    with thread_refusals("waiting for a group"):
        Thread(target=run, name="jitree waits for a group", daemon=True).start()
    until = time.monotonic() + seconds
    while not wait([future], LOOK_SECONDS).done:
        require_going_on()
        require_members()
        if time.monotonic() >= until:
            raise errors.DeadlineExceededError(f"other members have not come within {seconds:g} s")
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
            raise errors.UnavailableError(f"a member of the group has failed; MPI says: {error}") from error

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
            errors.pass_interruption(error)
            if time.monotonic() >= end:
                raise late(self._timeout) from error
            raise errors.UnavailableError(f"a member of the group has ended; torch says: {error}") from error


def late(timeout: float) -> errors.DeadlineExceededError:
    return errors.DeadlineExceededError(f"another member of the group has not come within {timeout:g} s")


# -- Transports ------------------------------------------------------------------------------------------
#
# Waits for other members end with the call: by its deadline, or when it is cancelled.


_LAUNCHERS: Final = (
    ("RANK", "WORLD_SIZE"),  # torchrun, and launchers that follow it
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # mpirun of Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # mpiexec of MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_NTASKS"),  # srun
)
_JOBS: Final = ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_JOBID", "SLURM_JOB_ID")
"""What tells jobs on one machine apart."""
_HOSTS: Final = ("MASTER_ADDR", "SLURM_LAUNCH_NODE_IPADDR")
ADDRESS_VARIABLE: Final = "JITREE_RENDEZVOUS"
"""``host:port`` of rank 0, where the launcher's variables do not say."""
_FIRST_PORT: Final = 20000
_PORTS: Final = 10000
_PORT_DISTANCE: Final = 17
"""How far the port is from MASTER_PORT, which torchrun uses itself."""
_PORT_COUNT: Final = 1 << 16
_MOST_MEMBERS: Final = 1 << 31
_TIMEOUT_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 0.05
_GREETING: Final = struct.Struct("<8sII")
"""Magic, number of the exchange, rank."""
_MAGIC: Final = b"jitreeID"

_STORE_RETRY_SECONDS: Final = 0.02


class EnvironmentProvider(ChannelProvider):
    """Serves programs started by torchrun, mpirun, mpiexec or srun.

    The id goes from rank 0 to the others through a socket at ``JITREE_RENDEZVOUS``, else at MASTER_ADDR and
    after MASTER_PORT, else (jobs on one machine) at a local port that follows from the job's id.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, timeout: float = _TIMEOUT_SECONDS
    ) -> None:
        """``timeout``: seconds that the others may take to come."""
        self._environment = os.environ if environment is None else environment
        self._timeout = seconds("timeout", timeout)
        self._exchanges = 0

    def query_default_rank_and_count(self) -> tuple[int, int]:
        """FAILED_PRECONDITION when no launcher's variables are there, INVALID_ARGUMENT for ones that lie."""
        environment = self._environment
        for rank, count in _LAUNCHERS:
            if rank in environment and count in environment:
                return _numbers(environment, rank, count)
        raise errors.FailedPreconditionError(
            "rank and count of a channel are not known: start the program by torchrun, mpirun or srun, or "
            "give the "
            "device a channel provider (replace_channel_provider), or state them in the program"
        )

    def exchange_default_id(self, identifier: bytes) -> bytes:
        """Rank 0 gives its id to all others. Call it in the same order everywhere. DEADLINE_EXCEEDED when
        not all come in time."""
        rank, count = self.query_default_rank_and_count()
        address = self._address()
        self._exchanges += 1
        return exchange(address, self._exchanges, rank, count, identifier, self._timeout)

    def _address(self) -> tuple[str, int]:
        environment = self._environment
        stated = environment.get(ADDRESS_VARIABLE)
        if stated is not None:
            host, _, port = stated.rpartition(":")
            found = _number(port, _PORT_COUNT)
            if not host or found is None:
                raise errors.InvalidArgumentError(f"{ADDRESS_VARIABLE} is '{stated}'; expected host:port")
            return host, found
        host = next((environment[name] for name in _HOSTS if name in environment), "127.0.0.1")
        master = environment.get("MASTER_PORT", "")
        if master.isdecimal():
            found = _number(master, _PORT_COUNT - _PORT_DISTANCE)
            if found is None:
                raise errors.InvalidArgumentError(
                    f"MASTER_PORT is {master}, after which there is no port {_PORT_DISTANCE} further on; "
                    f"state a free one for all members as {ADDRESS_VARIABLE}=host:port"
                )
            return host, found + _PORT_DISTANCE
        job = "/".join(environment[name] for name in _JOBS if name in environment)
        return host, _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS


@cache
def environment_provider() -> EnvironmentProvider:
    """Makes the provider of this process's environment. It counts the exchanges, which must be the same
    everywhere."""
    return EnvironmentProvider()


class FixedProvider(ChannelProvider):
    """Provides rank, count and id that the program passed on itself. A channel has one id."""

    def __init__(self, rank: int, count: int, identifier: bytes) -> None:
        self._rank = rank
        self._count = count
        self._identifier = identifier

    def query_default_rank_and_count(self) -> tuple[int, int]:
        return self._rank, self._count

    def exchange_default_id(self, identifier: bytes) -> bytes:
        return self._identifier


def _numbers(environment: Mapping[str, str], rank: str, count: str) -> tuple[int, int]:
    texts = environment[rank], environment[count]
    members = _number(texts[1], _MOST_MEMBERS)
    number = _number(texts[0], members or 0)
    if number is None or members is None:
        raise errors.InvalidArgumentError(f"the environment has {rank}={texts[0]} and {count}={texts[1]}")
    return number, members


def _number(text: str, end: int) -> int | None:
    """What decimal digits say, if that is below ``end``. Python raises ValueError for some thousand."""
    digits = text.lstrip("0") or "0"
    is_short = text.isdecimal() and len(digits) <= len(str(end))
    return int(digits) if is_short and int(digits) < end else None


def exchange(
    address: tuple[str, int], number: int, rank: int, count: int, identifier: bytes, timeout: float
) -> bytes:
    """Rank 0's ``identifier`` at every rank. DEADLINE_EXCEEDED when the others do not come within ``timeout``
    seconds.

    ``number`` counts the exchanges at an address: members that are ahead are not mistaken for late ones.
    """
    deadline = time.monotonic() + timeout
    if rank == 0:
        _serve(address, number, count, identifier, deadline)
        return identifier
    return _fetch(address, number, rank, deadline)


def _serve(address: tuple[str, int], number: int, count: int, identifier: bytes, deadline: float) -> None:
    missing = set(range(1, count))
    try:
        server = socket.create_server(("", address[1]), backlog=count)
    except OSError as error:
        errors.pass_interruption(error)
        raise errors.UnavailableError(
            f"member 0 of a channel cannot wait for the others at port {address[1]}: {error}; state a free "
            f"one for all members as {ADDRESS_VARIABLE}=host:port"
        ) from error
    with server:
        while missing:
            left = _left(deadline, f"members {sorted(missing)} of {count} have not come")
            server.settimeout(min(left, _RETRY_SECONDS))
            try:
                connection, _ = server.accept()
            except TimeoutError as error:
                errors.pass_interruption(error)
                continue
            with connection:
                rank = _greet(connection, number)
                if rank in missing:
                    try:
                        connection.sendall(struct.pack("<I", len(identifier)) + identifier)
                        missing.discard(rank)
                    except OSError as error:  # it went away and will come again
                        errors.pass_interruption(error)


def _greet(connection: socket.socket, number: int) -> int:
    """The rank of a member that is here for this exchange, else -1."""
    connection.settimeout(5.0)
    try:
        magic, found, rank = _GREETING.unpack(_receive(connection, _GREETING.size))
    except (OSError, EOFError) as error:
        errors.pass_interruption(error)
        return -1
    return rank if magic == _MAGIC and found == number else -1


def _fetch(address: tuple[str, int], number: int, rank: int, deadline: float) -> bytes:
    while True:
        left = _left(deadline, f"member 0 does not answer at {address[0]}:{address[1]}")
        try:
            with socket.create_connection(address, min(left, 5.0)) as connection:
                connection.sendall(_GREETING.pack(_MAGIC, number, rank))
                (size,) = struct.unpack("<I", _receive(connection, 4))
                return _receive(connection, size)
        except UnicodeError as error:
            why = f"member 0 of a channel cannot be at '{address[0]}', which is no name of a machine"
            raise errors.InvalidArgumentError(why) from error
        except (OSError, EOFError) as error:  # not there yet, or at another exchange
            errors.pass_interruption(error)
            time.sleep(_RETRY_SECONDS)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _left(deadline: float, what: str) -> float:
    """Seconds. Raises why the call is to end, too."""
    require_going_on()
    left = deadline - time.monotonic()
    if left <= 0:
        raise errors.DeadlineExceededError(f"the members of a channel could not exchange its id: {what}")
    return left


class KeyStore(Protocol):
    """Shares keys and values among the members of a job."""

    def set(self, key: str, value: bytes, /) -> None: ...

    def get(self, key: str, /) -> bytes:
        """Waits until another has set it, or raises after too long."""


@runtime_checkable
class CountingStore(KeyStore, Protocol):
    """Stores of torch, whose ``set`` also replaces what an earlier exchange has set."""

    def add(self, key: str, amount: int, /) -> int:
        """Counts, and gives the sum: one more at each call, of whatever object."""


class StoreProvider(ChannelProvider):
    """Members that share a store: ``StoreProvider(TCPStore(host, port, …), rank, count)``. A member that does
    not come in the time of the store is an error of all others. Groups of other members take a store each:
    ``torch.distributed.PrefixStore(name, store)``, another folder, another job of Ray."""

    def __init__(self, store: KeyStore, rank: int, count: int) -> None:
        self._store = store
        self._rank = rank
        self._count = count
        self._exchanges = 0

    def query_default_rank_and_count(self) -> tuple[int, int]:
        return self._rank, self._count

    def exchange_default_id(self, identifier: bytes) -> bytes:
        """Gives rank 0's id to all others, who go on together. DEADLINE_EXCEEDED or UNAVAILABLE when one does
        not come. Call it in the same order everywhere."""
        name = f"jitree/channel/{self._next()}"
        if self._rank == 0:
            self._store.set(f"{name}/id", identifier)
            for rank in range(1, self._count):
                self._get(f"{name}/{rank}", f"member {rank} of {self._count} has not come")
            self._store.set(f"{name}/all", b"1")
            return identifier
        found = self._get(f"{name}/id", "member 0 has not given it")
        self._store.set(f"{name}/{self._rank}", b"1")
        self._get(f"{name}/all", "not all members have come")
        return found

    def _next(self) -> int:
        """The number of an exchange. A store that counts knows those of other providers of this member, such
        as that of another session."""
        if isinstance(self._store, CountingStore):
            return self._store.add(f"jitree/exchanges/{self._rank}", 1)
        self._exchanges += 1
        return self._exchanges

    def _get(self, key: str, failure: str) -> bytes:
        try:
            return bytes(wait_looking(partial(self._store.get, key)))
        except errors.StatusError as error:
            raise error.with_context(f"exchanging the id of a channel: {failure}") from None
        except (RuntimeError, OSError) as error:  # torch's class for it differs from release to release
            errors.pass_interruption(error)
            raise errors.UnavailableError(
                f"exchanging the id of a channel: {failure}; the store says: {error}"
            ) from error


class PolledStore(abc.ABC):
    """Looks for a key in a store again and again."""

    def __init__(self, timeout: float) -> None:
        """INVALID_ARGUMENT for what is no time: a look that has no end."""
        self._timeout = seconds("timeout", timeout)

    @abc.abstractmethod
    def look(self, key: str) -> bytes | None:
        """The value of a key; None as long as there is none."""

    def get(self, key: str, /) -> bytes:
        deadline = time.monotonic() + self._timeout
        while (value := self.look(key)) is None:
            if time.monotonic() > deadline:
                raise errors.DeadlineExceededError(f"'{key}' was not set within {self._timeout} s")
            time.sleep(_STORE_RETRY_SECONDS)
        return value


class FolderStore(PolledStore):
    """Stores keys in a folder all members see, new for each job. It may be one of a network file system."""

    def __init__(self, path: str | os.PathLike[str], timeout: float = 300.0) -> None:
        super().__init__(timeout)
        self._path = os.fspath(path)
        os.makedirs(self._path, exist_ok=True)

    def _file(self, key: str) -> str:
        return os.path.join(self._path, key.replace("/", "-"))

    def set(self, key: str, value: bytes, /) -> None:
        """Sets a key; ALREADY_EXISTS for one an earlier job or member set."""
        path = self._file(key)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "wb") as file:
            file.write(value)
        try:
            os.link(temporary, path)  # whole or not at all, and once
        except FileExistsError:
            raise errors.AlreadyExistsError(
                f"'{path}' is there already; take a new folder for each job"
            ) from None
        finally:
            os.unlink(temporary)

    def look(self, key: str) -> bytes | None:
        try:
            with open(self._file(key), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
