"""NCCL for tests: a group of one member moves bytes on the fake driver's memory, larger ones record only, or
wait for members that do not come."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from jitree.cuda.nccl import IDENTIFIER_SIZE
from jitree.errors import InternalError, StatusError
from jitree.hal.groups.presence import Presence
from tests.cuda.fake import FakeDriver

_SIZES = {0: 1, 1: 1, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}
"""Bytes by ncclDataType_t."""


class FakeNccl:
    """In place of ``jitree.cuda.nccl.Nccl``."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.members: dict[int, tuple[int, int]] = {}
        """(rank, count) by communicator."""
        self.failure: StatusError | None = None
        self.destroyed: list[int] = []
        self.aborted: list[int] = []
        self.waits_in = ""
        """Where a larger group waits until it is aborted: in "join", "share", "split", "ncclGroupEnd" (the
        first collective of a group), "ncclCommFinalize", or, as "device", in collectives on the device."""
        self.on_collective: list[threading.Thread] = []
        """Started as the device begins to wait."""
        self._is_aborted = threading.Event()
        self.others: dict[int, Presence] = {}
        """The members of the newest group that member 0 has, or member 0."""

    def join(self, made: ctypes.c_void_p, count: int, identifier: bytes, rank: int) -> None:
        assert len(identifier) == IDENTIFIER_SIZE
        self.members[len(self.members) + 1] = rank, count
        made.value = len(self.members)
        self._wait("join")

    def split(self, part: ctypes.c_void_p, communicator: int, color: int, key: int) -> None:
        self._wait("split")
        if color >= 0:
            self.members[len(self.members) + 1] = 0, 1
            part.value = len(self.members)

    def share(self, communicator: int, address: int, size: int, stream: int) -> None:
        self._wait("share")
        rank, count = self.members[communicator]
        note = self.driver.bytes_at(address, size)
        if rank:
            self.others = {0: Presence(0, count)}
            note[:] = np.frombuffer(self.others[0].invite(), np.uint8)
        else:
            self.others = {other: Presence(other, count) for other in range(1, count)}
            for other in self.others.values():
                other.answer(note.tobytes())

    def _wait(self, place: str) -> None:
        if self.waits_in == place:
            self._is_aborted = aborted = threading.Event()
            assert aborted.wait(60)
            raise InternalError(f"{place} of NCCL failed: it was aborted")

    def query(self, name: str, communicator: int) -> int:
        return self.members[communicator][name == "ncclCommCount"]

    def new_identifier(self) -> bytes:
        return bytes(range(IDENTIFIER_SIZE))

    def failure_of(self, communicator: int) -> StatusError | None:
        return self.failure

    def function(self, name: str) -> Callable[[ctypes.c_void_p], object]:
        return lambda made: self.attempt(name, made.value or 0)

    def attempt(self, name: str, communicator: int) -> bool:
        if name == "ncclCommAbort":
            self.aborted.append(communicator)
            self._is_aborted.set()
            self.driver.release()
        elif name == "ncclCommFinalize":
            return self.waits_in != name or not self._is_aborted.wait(60)
        else:
            assert name == "ncclCommDestroy"
            self.destroyed.append(communicator)
        return True

    def call(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, arguments))
        self._wait(name)
        if len(arguments) > 5 and self.members[arguments[-2]][1] == 1:
            send, receive, count, data_type = arguments[:4]
            size = count * _SIZES[data_type]
            driver = self.driver
            driver.enqueue(
                arguments[-1],
                lambda: driver.bytes_at(receive, size).__setitem__(slice(None), driver.bytes_at(send, size)),
            )
        elif len(arguments) > 5 and self.waits_in == "device":
            self._is_aborted = aborted = threading.Event()

            def collective() -> None: ...

            collective.blocked = lambda: not aborted.is_set()  # type: ignore[attr-defined]
            self.driver.enqueue(arguments[-1], collective)
            for thread in self.on_collective:
                thread.start()
