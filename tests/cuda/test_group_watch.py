"""Members of a group that have ended or are late: an error in time, on the fake driver and on a GPU."""

from __future__ import annotations

import ctypes
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from math import inf

import numpy as np
import pytest

from jitree import Module, Session
from jitree.codegen.record import layout_of
from jitree.cuda import nccl
from jitree.cuda.device import CudaDevice
from jitree.cuda.launches import StreamRecord
from jitree.cuda.nccl import IDENTIFIER_SIZE
from jitree.errors import CancelledError, DeadlineExceededError, StatusError, UnavailableError
from jitree.hal.groups import presence
from jitree.hal.groups.presence import FAILED, LEFT, Presence
from jitree.hal.groups.rendezvous import ADDRESS_VARIABLE, EnvironmentProvider, FixedProvider
from jitree.hal.local.queue_record import Queue
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_nccl import FakeNccl
from tests.cuda.test_members import PROGRAM, data
from tests.hal.groups.test_rendezvous import free_port

IDENTIFIER = bytes(range(IDENTIFIER_SIZE))
SECONDS = 0.3
LONGEST = 20.0
"""Seconds that a busy machine may take for what should be done after SECONDS."""


@pytest.fixture
def library(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    library = FakeNccl(fake)
    monkeypatch.setattr(nccl, "library", lambda: library)
    return library


@pytest.fixture
def member(fake: FakeDriver, library: FakeNccl) -> Iterator[CudaDevice]:
    """Member 0 of two; the other one is late after SECONDS."""
    with CudaDevice(fake, 0, collective_timeout=SECONDS) as device:
        device.replace_channel_provider(FixedProvider(0, 2, IDENTIFIER))
        yield device


def fails(module: Module, error: type[StatusError], text: str) -> None:
    """All-reduces do, in time."""
    start = time.monotonic()
    with pytest.raises(error, match=text):
        np.asarray(module.all_reduce(data(0)))
    assert time.monotonic() - start < LONGEST


@pytest.mark.parametrize("tier", ["plain", "fast", "native"])
@pytest.mark.parametrize("place", ["device", "ncclGroupEnd"])
def test_a_late_member(member: CudaDevice, library: FakeNccl, place: str, tier: str) -> None:
    with Session(device=member, tier=tier) as session:
        module = session.load(PROGRAM)
        module.all_reduce(data(0))
        library.waits_in = place
        fails(module, DeadlineExceededError, "collective within 0.3 s")
        assert library.aborted
        fails(module, DeadlineExceededError, "open the device again")


def test_a_member_that_ends_while_others_wait(member: CudaDevice, library: FakeNccl) -> None:
    library.waits_in = "device"
    ended = UnavailableError("remote process exited")
    with Session(device=member) as session:
        module = session.load(PROGRAM)
        library.on_collective.append(threading.Timer(0.1, setattr, (library, "failure", ended)))
        fails(module, UnavailableError, "remote process exited")
    assert library.aborted == [1]


@pytest.fixture
def patient(fake: FakeDriver, library: FakeNccl) -> Iterator[CudaDevice]:
    """Member 0 of three, which never takes another one for late."""
    with CudaDevice(fake, 0, collective_timeout=inf) as device:
        device.replace_channel_provider(FixedProvider(0, 3, IDENTIFIER))
        yield device


def kill(member: Presence) -> None:
    """As the end of its process does."""
    for line in member._lines.values():
        line.connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("tier", ["plain", "fast", "native"])
@pytest.mark.parametrize("place", ["device", "ncclGroupEnd"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_member_whose_process_ends(
    patient: CudaDevice, library: FakeNccl, place: str, when: str, tier: str
) -> None:
    """NCCL says nothing of it."""
    with Session(device=patient, tier=tier) as session:
        module = session.load(PROGRAM)
        module.all_reduce(data(0))
        library.waits_in = place
        killing = threading.Timer(0.1 * (when == "meanwhile"), kill, (library.others[2],))
        killing.start()
        if when == "before":
            killing.join()
        fails(module, UnavailableError, "member 2 of 3 of a channel has ended")


def test_a_member_that_fails_says_why(patient: CudaDevice, library: FakeNccl) -> None:
    library.waits_in = "device"
    with Session(device=patient) as session:
        module = session.load(PROGRAM)
        library.on_collective = [
            threading.Thread(target=lambda: library.others[1].end(FAILED, "it was interrupted"))
        ]
        fails(module, UnavailableError, "member 1 of 3 of a channel has failed: it was interrupted")
        fails(module, UnavailableError, "open the device again")


def test_a_device_that_fails_tells_the_others(member: CudaDevice, library: FakeNccl) -> None:
    library.waits_in = "device"
    with Session(device=member) as session:
        fails(session.load(PROGRAM), DeadlineExceededError, "within 0.3 s")
        assert "member 0 of 2 of a channel has failed: DEADLINE_EXCEEDED" in heard(library.others[1])


def heard(member: Presence) -> str:
    until = time.monotonic() + LONGEST
    while (failure := member.failure()) is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    return str(failure)


def test_who_has_left_is_missed_in_what_comes_after(patient: CudaDevice, library: FakeNccl) -> None:
    """What it has taken part in goes on."""
    with Session(device=patient) as session:
        module = session.load(PROGRAM)
        module.all_reduce(data(0))
        for other in library.others.values():
            other.progress.whole = 2
            other.end(LEFT)
        module.all_reduce(data(0))
        library.waits_in = "device"
        fails(module, UnavailableError, "member [12] of 3 of a channel has left the group")


@pytest.mark.parametrize("is_referred_to", [False, True])
def test_a_device_that_is_closed_has_left_its_groups(
    fake: FakeDriver, library: FakeNccl, is_referred_to: bool
) -> None:
    with CudaDevice(fake, 0) as device, Session(device=device) as session:
        device.replace_channel_provider(FixedProvider(0, 2, IDENTIFIER))
        session.load(PROGRAM).all_reduce(data(0))
        channel = device.create_channel(-1, None, None, -1, -1) if is_referred_to else None
    other = library.others[1]
    other.progress.whole = 2
    assert "member 0 of 2 of a channel has left the group" in heard(other)
    other.progress.whole = 1  # in which both were
    assert other.failure() is None
    del channel


def test_members_that_do_not_meet(member: CudaDevice, library: FakeNccl) -> None:
    """They have joined, and one ends before all know of each other."""
    library.waits_in = "share"
    with pytest.raises(DeadlineExceededError, match="member 0 of 2 joins the group"):
        member.create_channel(-1, None, None, -1, -1)
    assert library.aborted == [1]


def test_a_member_that_joins_and_never_connects(
    member: CudaDevice, library: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for its connection ends with the call: the thread that waits keeps the device."""
    monkeypatch.setattr(library, "share", lambda *arguments: None)
    monkeypatch.setattr(presence, "_ALL_SECONDS", 10 * LONGEST)
    before = threading.enumerate()
    with pytest.raises(DeadlineExceededError, match="member 0 of 2 joins the group"):
        member.create_channel(-1, None, None, -1, -1)
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(LONGEST)
    assert not any(thread.is_alive() for thread in left) and library.aborted == [1]


def test_a_member_that_ends_while_others_split(patient: CudaDevice, library: FakeNccl) -> None:
    channel = patient.create_channel(-1, None, None, -1, -1)
    library.waits_in = "split"
    killing = threading.Timer(0.1, kill, (library.others[1],))
    killing.start()
    with pytest.raises(UnavailableError, match="member 1 of 3 of a channel has ended"):
        channel.split(0, 0)
    assert library.aborted == [1]


def test_what_waits_on_other_threads_fails_too(member: CudaDevice, library: FakeNccl) -> None:
    library.waits_in = "device"
    errors: list[StatusError] = []

    def wait() -> None:
        try:
            member.stream.synchronize()
        except StatusError as error:
            errors.append(error)

    with Session(device=member) as session:
        module = session.load(PROGRAM)
        library.on_collective = [threading.Thread(target=wait) for _ in range(3)]
        fails(module, DeadlineExceededError, "within")
    for thread in library.on_collective:
        thread.join(LONGEST)
    assert [type(error) for error in errors] == [DeadlineExceededError] * 3


def test_machine_code_does_not_wait_by_itself_meanwhile(
    fake: FakeDriver, member: CudaDevice, library: FakeNccl
) -> None:
    """It would take what an aborted collective leaves for results: the driver says that all is done."""
    with Session(device=member) as session:
        module = session.load(PROGRAM)
        assert _waits(member)
        with fake.busy():
            call = threading.Thread(target=module.all_reduce, args=(data(0),))
            call.start()
            until = time.monotonic() + LONGEST
            while _waits(member):
                assert time.monotonic() < until
                time.sleep(0.001)
        call.join(LONGEST)
        while not _waits(member):
            assert time.monotonic() < until
            time.sleep(0.001)


def _waits(device: CudaDevice) -> bool:
    """Whether machine code would call the driver to wait."""
    record = ctypes.c_int64.from_address(device.queue_record() + layout_of(Queue)["timeline"]).value
    function = ctypes.c_void_p.from_address(record + layout_of(StreamRecord)["query"]).value
    return function == device.context.api.address("cuStreamQuery")


def test_the_device_can_be_opened_again(fake: FakeDriver, member: CudaDevice, library: FakeNccl) -> None:
    library.waits_in = "device"
    with Session(device=member) as session:
        fails(session.load(PROGRAM), DeadlineExceededError, "within")
    library.waits_in = ""
    with CudaDevice(fake, 0) as device, Session(device=device) as session:
        device.replace_channel_provider(FixedProvider(0, 1, IDENTIFIER))
        assert np.array_equal(np.asarray(session.load(PROGRAM).all_reduce(data(0))), data(0))


def test_collectives_that_end_are_forgotten(member: CudaDevice, library: FakeNccl) -> None:
    """A group that works for longer than a member may be late."""
    with Session(device=member) as session:
        module = session.load(PROGRAM)
        until = time.monotonic() + 3 * SECONDS
        while time.monotonic() < until:
            np.asarray(module.all_reduce(data(0)))
    assert not library.aborted


def test_time_before_a_collective_does_not_count(
    fake: FakeDriver, member: CudaDevice, library: FakeNccl
) -> None:
    with Session(device=member) as session, fake.busy():
        module = session.load(PROGRAM)
        call = threading.Thread(target=module.all_reduce, args=(data(0),))
        call.start()
        call.join(3 * SECONDS)
        assert call.is_alive() and not library.aborted
        fake.release()
        call.join(LONGEST)
        assert not call.is_alive() and not library.aborted


def test_a_member_that_does_not_join(member: CudaDevice, library: FakeNccl) -> None:
    library.waits_in = "join"
    with pytest.raises(DeadlineExceededError, match="member 0 of 2 joins the group"):
        member.create_channel(-1, None, None, -1, -1)
    assert library.aborted == [1]
    library.waits_in = ""
    assert member.create_channel(-1, None, None, -1, -1).count == 2  # the device still works


def test_joining_ends_with_the_call(fake: FakeDriver, library: FakeNccl) -> None:
    library.waits_in = "join"
    with CudaDevice(fake, 0) as device, Session(device=device) as session:
        device.replace_channel_provider(FixedProvider(0, 2, IDENTIFIER))
        module = session.load(PROGRAM)
        with pytest.raises(DeadlineExceededError, match=r"within 0\.1 s"):
            module.all_reduce(data(0), timeout=0.1)
        stop = threading.Timer(0.2, session.cancel)
        stop.start()
        with pytest.raises(CancelledError):
            module.all_reduce(data(0))
    assert len(library.aborted) == 2


def test_a_member_that_does_not_split(member: CudaDevice, library: FakeNccl) -> None:
    channel = member.create_channel(-1, None, None, -1, -1)
    library.waits_in = "split"
    with pytest.raises(DeadlineExceededError, match="to split it"):
        channel.split(0, 0)
    assert library.aborted == [1]
    with pytest.raises(DeadlineExceededError):
        channel.split(0, 0)


def test_a_member_that_does_not_join_again(member: CudaDevice, library: FakeNccl) -> None:
    """Each channel has an id. Members may start minutes apart, but not be so late afterwards."""
    provider = EnvironmentProvider(
        {"RANK": "0", "WORLD_SIZE": "2", ADDRESS_VARIABLE: f"127.0.0.1:{free_port()}"}
    )
    member.create_channel(-1, None, None, -1, -1)
    member.replace_channel_provider(provider)
    with pytest.raises(DeadlineExceededError, match="within"):
        member.create_channel(-1, None, None, -1, -1)


def test_the_end_does_not_wait_for_members_that_have_ended(
    member: CudaDevice, library: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "_FINAL_SECONDS", SECONDS)
    channel = member.create_channel(-1, None, None, -1, -1)
    library.waits_in = "ncclCommFinalize"
    del channel
    member.replace_channel_provider(None)  # which forgets the channels that there are
    gc.collect()
    nccl.release_abandoned()
    assert library.aborted == [1] and not library.destroyed


def test_the_end_of_the_interpreter_has_no_threads(
    member: CudaDevice, library: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(function: Callable[[], bool], seconds: float) -> bool:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    member.create_channel(-1, None, None, -1, -1)
    member.replace_channel_provider(None)
    gc.collect()
    monkeypatch.setattr(nccl, "wait_looking", start)
    nccl.release_abandoned()
    assert library.destroyed == [1]
