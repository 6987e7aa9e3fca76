"""NCCL for tests: a group of one member moves bytes on the fake driver's memory, larger ones record only."""

from __future__ import annotations

from typing import Any

from jitree.cuda.nccl import IDENTIFIER_SIZE
from jitree.errors import StatusError
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

    def join(self, count: int, identifier: bytes, rank: int) -> int:
        assert len(identifier) == IDENTIFIER_SIZE
        self.members[len(self.members) + 1] = rank, count
        return len(self.members)

    def split(self, communicator: int, color: int, key: int) -> int:
        if color < 0:
            return 0
        self.members[len(self.members) + 1] = 0, 1
        return len(self.members)

    def query(self, name: str, communicator: int) -> int:
        return self.members[communicator][name == "ncclCommCount"]

    def new_identifier(self) -> bytes:
        return bytes(range(IDENTIFIER_SIZE))

    def failure_of(self, communicator: int) -> StatusError | None:
        return self.failure

    def attempt(self, name: str, communicator: int) -> None:
        assert name == "ncclCommDestroy"
        self.destroyed.append(communicator)

    def call(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, arguments))
        if len(arguments) > 5 and self.members[arguments[-2]][1] == 1:
            send, receive, count, data_type = arguments[:4]
            size = count * _SIZES[data_type]
            driver = self.driver
            driver.enqueue(
                arguments[-1],
                lambda: driver.bytes_at(receive, size).__setitem__(slice(None), driver.bytes_at(send, size)),
            )
