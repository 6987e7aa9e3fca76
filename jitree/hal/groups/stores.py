"""The id of a channel through a store of keys: of torch (``TCPStore``), of Ray, or a folder."""

from __future__ import annotations

import abc
import os
import time
from functools import partial
from typing import Final, Protocol, runtime_checkable

from jitree.base.arguments import seconds
from jitree.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    StatusError,
    UnavailableError,
    pass_interruption,
)
from jitree.hal.groups.waiting import wait_looking
from jitree.hal.objects import ChannelProvider

_RETRY_SECONDS: Final = 0.02


class KeyStore(Protocol):
    """What the members of a job share."""

    def set(self, key: str, value: bytes, /) -> None: ...

    def get(self, key: str, /) -> bytes:
        """Waits until another has set it, and raises what says that it took too long."""


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
        """Rank 0 gives its id to all others, and goes on when all have it; so do they. DEADLINE_EXCEEDED or
        UNAVAILABLE when one does not come. Call it in the same order everywhere."""
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
        except StatusError as error:
            raise error.with_context(f"exchanging the id of a channel: {failure}") from None
        except (RuntimeError, OSError) as error:  # torch's class for it differs from release to release
            pass_interruption(error)
            raise UnavailableError(
                f"exchanging the id of a channel: {failure}; the store says: {error}"
            ) from error


class PolledStore(abc.ABC):
    """A store in which a key is looked for again and again."""

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
                raise DeadlineExceededError(f"'{key}' was not set within {self._timeout} s")
            time.sleep(_RETRY_SECONDS)
        return value


class FolderStore(PolledStore):
    """A folder that all members see, such as one of a network file system; a new one for each job."""

    def __init__(self, path: str | os.PathLike[str], timeout: float = 300.0) -> None:
        super().__init__(timeout)
        self._path = os.fspath(path)
        os.makedirs(self._path, exist_ok=True)

    def _file(self, key: str) -> str:
        return os.path.join(self._path, key.replace("/", "-"))

    def set(self, key: str, value: bytes, /) -> None:
        """ALREADY_EXISTS for a key that is set: by an earlier job, or a second member of the rank."""
        path = self._file(key)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "wb") as file:
            file.write(value)
        try:
            os.link(temporary, path)  # whole or not at all, and once
        except FileExistsError:
            raise AlreadyExistsError(f"'{path}' is there already; take a new folder for each job") from None
        finally:
            os.unlink(temporary)

    def look(self, key: str) -> bytes | None:
        try:
            with open(self._file(key), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
