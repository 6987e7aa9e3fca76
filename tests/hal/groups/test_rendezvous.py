"""How the members of a group find each other."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from random import SystemRandom
from typing import Any

import pytest

from jitree.base.cancel_scopes import deadline
from jitree.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from jitree.hal.groups.channel import MpiProvider
from jitree.hal.groups.rendezvous import EnvironmentProvider, FixedProvider, exchange


def free_port() -> int:
    """Below those that a system gives away: no connection of others takes it before it is used."""
    for port in SystemRandom().sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    pytest.fail("no port is free")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "1"}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, (0, 1)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6"}, (5, 6)),
        ({"RANK": "007", "WORLD_SIZE": "0008"}, (7, 8)),
        ({"RANK": "000", "WORLD_SIZE": "1"}, (0, 1)),
    ],
)
def test_launchers(environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert EnvironmentProvider(environment).query_default_rank_and_count() == expected


def test_unusable_environments() -> None:
    with pytest.raises(FailedPreconditionError, match="torchrun, mpirun or srun"):
        EnvironmentProvider({"RANK": "1"}).query_default_rank_and_count()
    many = "9" * 5000  # digits, of which Python reads no more than 4300
    for rank, count in (("2", "2"), ("-1", "2"), ("one", "2"), ("1", many), (many, "2"), ("0", str(1 << 40))):
        with pytest.raises(InvalidArgumentError, match=f"RANK={rank}"):
            EnvironmentProvider({"RANK": rank, "WORLD_SIZE": count}).query_default_rank_and_count()
    for place in ("nowhere", "here:65536", f"here:{many}"):
        member = {"RANK": "1", "WORLD_SIZE": "2", "JITREE_RENDEZVOUS": place}
        with pytest.raises(InvalidArgumentError, match="expected host:port"):
            EnvironmentProvider(member).exchange_default_id(b"")
    for port in ("65519", "99999", many):
        member = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": port}
        with pytest.raises(InvalidArgumentError, match=r"MASTER_PORT is .*JITREE_RENDEZVOUS=host:port"):
            EnvironmentProvider(member).exchange_default_id(b"")
    member = {"RANK": "1", "WORLD_SIZE": "2", "JITREE_RENDEZVOUS": f"{'long' * 20}.example:80"}
    with pytest.raises(InvalidArgumentError, match="no name of a machine"):
        EnvironmentProvider(member).exchange_default_id(b"")


@pytest.mark.parametrize(
    "place",
    [
        lambda port: {"JITREE_RENDEZVOUS": f"127.0.0.1:{port}", "MASTER_ADDR": "nowhere.invalid"},
        lambda port: {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 17)},
        lambda port: {"SLURM_JOB_ID": str(port)},
    ],
)
def test_everybody_gets_the_id_of_member_0(place: Any) -> None:
    environment = {"WORLD_SIZE": "3", **place(free_port())}
    found: dict[tuple[int, int], bytes] = {}

    def member(rank: int) -> None:
        provider = EnvironmentProvider({**environment, "RANK": str(rank)}, timeout=30)
        for number in range(2):
            own = bytes([number]) * 128 if rank == 0 else b""
            found[rank, number] = provider.exchange_default_id(own)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in (2, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {(rank, number): bytes([number]) * 128 for rank in range(3) for number in range(2)}


def test_members_that_do_not_come() -> None:
    address = ("127.0.0.1", free_port())
    with pytest.raises(DeadlineExceededError, match=r"members \[1, 2\] of 3 have not come"):
        exchange(address, 1, 0, 3, b"id", 0.2)
    with pytest.raises(DeadlineExceededError, match="member 0 does not answer at 127"):
        exchange(("127.0.0.1", free_port()), 1, 1, 3, b"", 0.2)
    for rank in range(2):
        with deadline(0.1), pytest.raises(DeadlineExceededError, match="was not done within"):
            exchange(address, 1, rank, 3, b"id", 60)


def test_strangers_are_ignored() -> None:
    address = ("127.0.0.1", free_port())
    found: list[bytes] = []
    server = threading.Thread(target=lambda: found.append(exchange(address, 1, 0, 2, b"id", 30)))
    server.start()
    for noise in (b"", b"GET / HTTP/1.0\r\n\r\n" * 4):
        while True:
            try:
                with socket.create_connection(address, 5) as stranger:
                    stranger.sendall(noise)
                break
            except OSError:
                continue
    assert exchange(address, 1, 1, 2, b"", 30) == b"id"
    server.join(30)
    assert found == [b"id"]


def test_providers_of_objects() -> None:
    class Communicator:
        def Get_rank(self) -> int:
            return 2

        def Get_size(self) -> int:
            return 4

        def bcast(self, value: bytes, root: int) -> bytes:
            return b"from 0"

    provider = MpiProvider(Communicator())
    assert provider.query_default_rank_and_count() == (2, 4)
    assert provider.exchange_default_id(b"") == b"from 0"
    fixed = FixedProvider(0, 2, b"known")
    assert fixed.query_default_rank_and_count() == (0, 2) and fixed.exchange_default_id(b"new") == b"known"
