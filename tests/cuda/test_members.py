"""Programs with collectives: one member on the fake driver, two where there are two GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from jitree import Session
from jitree.cuda import nccl
from jitree.cuda.device import CudaDevice
from jitree.cuda.driver import CudaDriver
from jitree.errors import UnavailableError
from jitree.hal.objects import ChannelProvider
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_nccl import FakeNccl
from tests.cuda.programs import DATA
from tests.hal.groups.test_rendezvous import free_port

PROGRAM = DATA / "collectives.vmfb"
MEMBERS = 2


def data(rank: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(rank).standard_normal(1024).astype(np.float32)


def run_member(session: Session, rank: int, count: int) -> None:
    """Every function of the program, compared with numpy."""
    module = session.load(PROGRAM)
    others = [data(member) for member in range(count)]
    for _ in range(3):
        assert np.allclose(np.asarray(module.all_reduce(data(rank))), sum(others), rtol=1e-6)
    assert tuple(map(int, module.who())) == (rank, count)


def run_pair(session: Session, rank: int) -> None:
    """What needs two members."""
    module = session.load(PROGRAM)
    gathered = np.asarray(module.all_gather(data(rank)[:256]))
    assert np.array_equal(gathered, np.concatenate([data(member)[:256] for member in range(MEMBERS)]))
    numbers = np.arange(64, dtype=np.int32)
    exchanged = module.exchange(numbers + 1000 * rank, 0, rank, 1 - rank, 1 - rank)
    assert np.array_equal(np.asarray(exchanged), numbers + 1000 * (1 - rank))


def test_a_group_of_one(fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNccl(fake)
    monkeypatch.setattr(nccl, "library", lambda: library)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with Session(device=device) as session:
        run_member(session, 0, 1)
    assert [name for name, _ in library.calls].count("ncclAllReduce") == 3


class ThreadProvider(ChannelProvider):
    """Members in threads of one process."""

    def __init__(self, rank: int, exchange: Callable[[bytes], bytes]) -> None:
        self._rank = rank
        self._exchange = exchange

    def query_default_rank_and_count(self) -> tuple[int, int]:
        return self._rank, MEMBERS

    def exchange_default_id(self, identifier: bytes) -> bytes:
        return self._exchange(identifier)


class Meeting:
    """Everybody gets what member 0 brings."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(MEMBERS)
        self._brought = b""

    def exchange(self, identifier: bytes) -> bytes:
        if identifier:
            self._brought = identifier
        self._barrier.wait(60)
        found = self._brought
        self._barrier.wait(60)
        return found


@pytest.fixture
def two_gpus() -> None:
    try:
        driver = CudaDriver()
        nccl.library()
    except UnavailableError as error:
        pytest.skip(str(error))
    if len(driver.query_available_devices()) < MEMBERS:
        pytest.skip("there are no two GPUs")


def test_two_devices_in_one_process(two_gpus: None) -> None:
    meeting = Meeting()
    failures: list[BaseException] = []

    def member(rank: int) -> None:
        try:
            with Session(device=f"cuda://{rank}") as session:
                session.device.replace_channel_provider(ThreadProvider(rank, meeting.exchange))
                run_member(session, rank, MEMBERS)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(MEMBERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures


def test_one_process_a_gpu(two_gpus: None) -> None:
    environment = {"WORLD_SIZE": str(MEMBERS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=DATA.parents[2],
            env={**os.environ, **environment, "RANK": str(rank)},
        )
        for rank in range(MEMBERS)
    ]
    assert [process.wait(120) for process in processes] == [0] * MEMBERS


def main() -> None:
    """One process of :func:`test_one_process_a_gpu`."""
    rank = int(os.environ["RANK"])
    with Session(device=f"cuda://{rank}") as session:
        run_member(session, rank, MEMBERS)
    with Session(device=f"cuda://{rank}") as session:
        run_pair(session, rank)


if __name__ == "__main__":
    main()
