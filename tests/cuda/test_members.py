"""Programs with collectives: one member on the fake driver, two where there is a GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from jitree import Session
from jitree.cuda import nccl
from jitree.cuda.channel import CudaChannel
from jitree.cuda.device import CudaDevice
from jitree.cuda.driver import CudaDriver
from jitree.errors import StatusError, UnavailableError
from jitree.hal.fence import Fence
from jitree.hal.objects import Channel, ChannelProvider
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
    assert len(library.members) == 1  # joining takes half a second, and programs ask for it in each call


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


def gpus() -> int:
    """How many there are that groups can be of."""
    try:
        driver = CudaDriver()
        nccl.library()
    except UnavailableError:
        return 0
    return len(driver.query_available_devices())


@pytest.fixture
def two_gpus() -> None:
    if gpus() < MEMBERS:
        pytest.skip("there are no two GPUs, or no NCCL")


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


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of processes that are members. One GPU has several: NCCL takes them for machines, if they say so."""
    count = gpus()
    if not count:
        pytest.skip("there is no GPU, or no NCCL")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "NCCL_SOCKET_IFNAME": "lo"}
    own = {"WORLD_SIZE": str(MEMBERS), "GPUS": str(count), "JOINED": str(tmp_path)}
    return {**os.environ, **address, **own}


def start_members(environment: dict[str, str], part: str) -> list[subprocess.Popen[str]]:
    processes = []
    for rank in range(MEMBERS):
        own = {"RANK": str(rank)}
        if int(environment["GPUS"]) < MEMBERS:
            own["NCCL_HOSTID"] = f"member-{rank}"
        command = [sys.executable, "-m", __name__, part]
        variables = environment | own
        processes.append(
            subprocess.Popen(command, cwd=DATA.parents[2], env=variables, stdout=subprocess.PIPE, text=True)
        )
    return processes


def test_one_process_a_member(environment: dict[str, str]) -> None:
    processes = start_members(environment, "all")
    assert [process.wait(120) for process in processes] == [0] * MEMBERS


class Loss(NamedTuple):
    """How a group loses a member, and what the other one gets."""

    how: Callable[[CudaDevice, Channel], object]
    """What the member does that is lost."""
    error: str
    """Name of the class."""
    text: str
    seconds: float = 5.0
    """In which the other one has its error, at the latest."""
    lost: int = 1
    """The member."""
    timeout: float = 60.0
    """For which members may be late."""
    waits: float = 0.0
    """Seconds after which the other one begins its collective."""


def end_by(number: int) -> None:
    os.kill(os.getpid(), number)


def end_while_waiting(device: CudaDevice, channel: Channel) -> None:
    threading.Timer(0.5, end_by, (signal.SIGKILL,)).start()
    sum_of_all(device, channel)


def end_after(seconds: float) -> None:
    time.sleep(seconds)
    end_by(signal.SIGKILL)


def fail(device: CudaDevice, channel: Channel) -> None:
    raise ValueError("a member that raises")


ENDED = "of 2 of a channel has ended: its process is gone"
LOSSES: Final = {
    "killed": Loss(lambda *_: end_by(signal.SIGKILL), "UnavailableError", f"member 1 {ENDED}"),
    "killed-first": Loss(lambda *_: end_by(signal.SIGKILL), "UnavailableError", f"member 0 {ENDED}", lost=0),
    "killed-meanwhile": Loss(lambda *_: end_after(1), "UnavailableError", f"member 1 {ENDED}"),
    "killed-inside": Loss(end_while_waiting, "UnavailableError", f"member 1 {ENDED}", waits=2),
    "exits": Loss(lambda *_: os._exit(3), "UnavailableError", f"member 1 {ENDED}"),
    "raises": Loss(fail, "UnavailableError", "member 1 of 2 of a channel has left the group", seconds=8),
    "stopped": Loss(
        lambda *_: end_by(signal.SIGSTOP), "DeadlineExceededError", "within 5 s", seconds=13, timeout=5
    ),
    "late": Loss(lambda *_: time.sleep(100), "DeadlineExceededError", "within 5 s", seconds=13, timeout=5),
}


@pytest.mark.parametrize("part", LOSSES)
def test_a_missing_member(environment: dict[str, str], part: str) -> None:
    """It ends between collectives or in one, or does not come for five seconds: the other one gets an error,
    and can open the device again."""
    loss = LOSSES[part]
    printed = printed_by(1 - loss.lost, environment, part)
    assert "again" in printed, "the member has not come to its end"
    name, taken, again = printed.split()[-3:]
    assert (name, again) == (loss.error, "again") and loss.text in printed
    assert float(taken) < loss.seconds


def printed_by(rank: int, environment: dict[str, str], part: str) -> str:
    """What a member prints, while the other one is lost."""
    processes = start_members(environment, part)
    try:
        printed, _ = processes[rank].communicate(timeout=120)
        print(part, printed)
        return printed
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_member_that_is_killed_before_others_split(environment: dict[str, str]) -> None:
    printed = printed_by(0, environment, "split")
    assert f"member 1 {ENDED}" in printed and printed.split()[-1] == "again"


@pytest.mark.parametrize("part", ["join-0", "join-0.05", "join-0.3"])
def test_a_member_that_is_killed_while_others_join(environment: dict[str, str], part: str) -> None:
    """NCCL may notice, or the time passes."""
    printed = printed_by(0, environment, part)
    assert printed.split()[-1] == "again"
    assert printed.split()[-3] in ("UnavailableError", "InternalError", "DeadlineExceededError")


def test_a_member_that_leaves_in_order(environment: dict[str, str]) -> None:
    """It is no error for one that does nothing with it."""
    assert printed_by(0, environment, "leaves").split() == ["whole", "again"]


def sum_of_all(device: CudaDevice, channel: Channel) -> float:
    """Of 1 at each member, by one collective."""
    send, receive = (device.device_allocator.allocate(0x30, 0, 4) for _ in range(2))
    device.write_buffer(send, np.ones(1, np.float32).view(np.uint8))
    commands = device.create_command_buffer(1, 1)
    commands.collective(channel, 1 | 1 << 8 | 9 << 16, 0, (0, send, 0, 4), (0, receive, 0, 4), 1)
    commands.finalize()
    done = Fence.create(device)
    device.queue_execute(-1, None, done, commands)
    return float(np.asarray(device.read_buffer(receive, done)).view(np.float32)[0])


def tell(begun: float, error: StatusError) -> None:
    print(error)
    print(type(error).__name__, time.monotonic() - begun)


def lose_member(uri: str, rank: int, loss: Loss) -> None:
    """What a member gets when the other one goes, and after how many seconds; then it works alone."""
    session = Session(device=f"{uri}?collective_timeout={loss.timeout:g}")
    await_others(rank, "begun")  # the time in which they join is that of NCCL alone
    device, channel = joined(session)
    await_others(rank, "joined")
    if rank == loss.lost:
        loss.how(device, channel)
    time.sleep(loss.waits)
    begun = time.monotonic()
    try:
        sum_of_all(device, channel)
    except StatusError as error:
        tell(begun, error)
    session.close()
    work_alone(uri)


def joined(session: Session) -> tuple[CudaDevice, Channel]:
    device = session.device
    assert isinstance(device, CudaDevice)
    channel = device.create_channel(-1, None, None, -1, -1)
    for _ in range(3):
        assert sum_of_all(device, channel) == MEMBERS
    return device, channel


def await_others(rank: int, step: str) -> None:
    """Until all have done that."""
    place = Path(os.environ["JOINED"]) / step
    place.mkdir(exist_ok=True)
    (place / str(rank)).touch()
    while len(list(place.iterdir())) < MEMBERS:
        time.sleep(0.01)


def work_alone(uri: str) -> None:
    with Session(device=uri) as session:
        device = session.device
        assert isinstance(device, CudaDevice)
        assert sum_of_all(device, device.create_channel(-1, nccl.library().new_identifier(), None, 0, 1)) == 1
    print("again")


def lose_before_split(uri: str, rank: int) -> None:
    with Session(device=uri) as session:
        _, channel = joined(session)
        if rank:
            end_by(signal.SIGKILL)
        begun = time.monotonic()
        try:
            channel.split(0, 0)
        except StatusError as error:
            tell(begun, error)
    work_alone(uri)


def lose_while_joining(uri: str, rank: int, seconds: float) -> None:
    """Member 1 is killed so many seconds after it has begun to join."""
    with Session(device=uri + "?collective_timeout=5") as session:
        if rank:
            library = nccl.library()
            join = library.join

            def end(*arguments: Any) -> None:
                threading.Thread(target=end_after, args=(seconds,)).start()
                if seconds:
                    join(*arguments)
                time.sleep(100)

            library.join = end  # type: ignore[assignment, method-assign]
        begun = time.monotonic()
        try:
            joined(session)
        except StatusError as error:
            tell(begun, error)
    work_alone(uri)


def leave(uri: str, rank: int) -> None:
    with Session(device=uri) as session:
        device, channel = joined(session)
        if rank:
            return
        time.sleep(3)
        assert isinstance(channel, CudaChannel)
        channel.check()
        written = device.device_allocator.allocate(0x30, 0, 4)  # what is no collective goes on
        device.write_buffer(written, np.full(4, 7, np.uint8))
        assert np.asarray(device.read_buffer(written)).tolist() == [7] * 4
        print("whole")
    work_alone(uri)


def main(part: str) -> None:
    """A process of :func:`start_members`."""
    rank = int(os.environ["RANK"])
    uri = f"cuda://{rank % int(os.environ['GPUS'])}"
    if part in LOSSES:
        lose_member(uri, rank, LOSSES[part])
    elif part == "split":
        lose_before_split(uri, rank)
    elif part.startswith("join-"):
        lose_while_joining(uri, rank, float(part[5:]))
    elif part == "leaves":
        leave(uri, rank)
    else:
        with Session(device=uri) as session:
            run_member(session, rank, MEMBERS)
        with Session(device=uri) as session:
            run_pair(session, rank)


if __name__ == "__main__":
    main(sys.argv[1])
