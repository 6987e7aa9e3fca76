"""Collectives on the local devices: members are threads of this process, or processes, joined by sockets."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.base.events import EventReader
from jitree.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    StatusError,
    UnavailableError,
    UnimplementedError,
)
from jitree.hal.command_buffer import Collective
from jitree.hal.groups.channel import GroupTransport, LocalChannel, MpiProvider, make_transport
from jitree.hal.groups.collectives import LocalCall, _move, _perform
from jitree.hal.groups.rendezvous import Transport
from jitree.hal.local.interrupts import require_going_on
from jitree.hal.objects import ChannelProvider
from jitree.hal.stepwise import DeviceStep
from tests.hal.groups.processes import SocketProvider, SocketTransport, sockets_of
from tests.hal.helpers import direct, execute, record

PROGRAM = Path(__file__).parents[2] / "data" / "collectives.vmfb"
MEMBERS = 3
SEND, RECEIVE = 6, 7
TYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "bfloat16"]


def together(member: Callable[[LocalChannel], Any], count: int = MEMBERS) -> list[Any]:
    """What each member gets, or the error that it raises."""
    table = sockets_of(count)

    def run(rank: int) -> Any:
        transport = GroupTransport(SocketTransport(rank, table[rank], 60))
        try:
            return member(LocalChannel(transport, range(count), 0))
        except StatusError as error:
            return error
        finally:
            for connection in table[rank]:
                if connection is not None:
                    connection.close()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


def call(
    channel: LocalChannel, kind: int, send: Any, receive: Any, count: int, *, reduction: int = 0,
    number: int = 9, parameter: int = 0,
) -> Any:  # fmt: skip
    operation = kind | reduction << 8 | number << 16
    made = LocalCall(
        Collective(channel, operation, parameter, count), send.view(np.uint8), receive.view(np.uint8)
    )
    if kind >= SEND:
        _move([made])
    else:
        _perform(made)
    return receive


def values(rank: int, kind: str, count: int) -> Any:
    return (np.random.default_rng(rank).integers(0, 4, count) + rank).astype(_dtype(kind))


def _dtype(kind: str) -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16) if kind == "bfloat16" else np.dtype(kind)


@pytest.mark.parametrize("count", [5, 40000])
def test_reductions(count: int) -> None:
    """Of every type; small arrays are sent whole, large ones in parts."""
    functions: dict[int, Callable[..., Any]] = {
        1: np.sum,
        2: np.prod,
        3: np.min,
        4: np.max,
        5: lambda rows, axis: rows.sum(axis) / MEMBERS,
    }

    def member(channel: LocalChannel) -> dict[tuple[int, int], Any]:
        made = {}
        for number, kind in enumerate(TYPES):
            for reduction in functions:
                data = values(channel.rank, kind, count)
                options = {"reduction": reduction, "number": number}
                made[number, reduction] = call(channel, 1, data, data, count, **options)  # in place
        return made

    found = together(member)
    for number, kind in enumerate(TYPES):
        rows = np.array([values(rank, kind, count).astype(np.float64) for rank in range(MEMBERS)])
        for reduction, function in functions.items():
            expected = function(rows, axis=0).astype(_dtype(kind))
            for made in found:
                np.testing.assert_array_equal(made[number, reduction], expected, f"{kind} {reduction}")


def test_what_is_moved() -> None:
    def member(channel: LocalChannel) -> list[list[float]]:
        rank, count = channel.rank, channel.count
        data = np.arange(6, dtype=np.float32) + 10 * rank
        made = [
            call(channel, 0, data[:2], np.zeros(6, np.float32), 6),
            call(channel, 0, data[:2], np.zeros(6, np.float32), 2),  # as older compilers say it
            call(channel, 2, data, data.copy(), 6),
            call(channel, 3, data[:2], np.zeros(2, np.float32), 2, parameter=1),
            call(channel, 4, data[:2], np.zeros(2, np.float32), 2, parameter=2, reduction=1),
            call(channel, 5, data, np.zeros(2, np.float32), 2, reduction=1),
            call(channel, 8, data, data.copy(), 6, parameter=(rank + 1) % count | (rank - 1) % count << 16),
            call(channel, 8, data, data.copy(), 6, parameter=0xFFFFFFFF),
        ]
        part = channel.split(rank % 2, -rank)
        assert part is not None and channel.split(-1, 0) is None
        made.append(call(part, 0, data[:1], np.zeros(part.count, np.float32), part.count))
        return [each.tolist() for each in made]

    found = together(member)
    for rank, (gathered, older, exchanged, broadcast, reduced, scattered, ring, none, part) in enumerate(
        found
    ):
        assert gathered == older == [0, 1, 10, 11, 20, 21]
        assert exchanged == [10 * other + 2 * rank + place for other in range(3) for place in range(2)]
        assert broadcast == [10, 11]
        assert reduced == ([30, 33] if rank == 2 else [0, 0])
        assert scattered == [30 + 3 * (2 * rank), 30 + 3 * (2 * rank + 1)]
        assert ring == [place + 10 * ((rank - 1) % 3) for place in range(6)]
        assert none == [0] * 6
        assert part == ([10] if rank == 1 else [20, 0])


def test_members_name_each_other_in_any_order() -> None:
    """Sends and receives between two barriers are done at one time, however large."""

    def member(channel: LocalChannel) -> bool:
        other, data = 1 - channel.rank, np.full(1 << 20, channel.rank, np.float32)
        found, nothing = np.empty_like(data), np.empty(0, np.uint8)
        calls = [
            LocalCall(Collective(channel, SEND | 9 << 16, other, data.size), data.view(np.uint8), nothing),
            LocalCall(
                Collective(channel, RECEIVE | 9 << 16, other, data.size), nothing, found.view(np.uint8)
            ),
        ]
        _move(calls if channel.rank else calls[::-1])
        return bool((found == other).all())

    assert together(member, 2) == [True, True]


class Onlooker(EventReader):
    """Keeps what the operands of each step begin with after it."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, list[Any]]] = []

    def submitted(self, work: object) -> EventReader:
        return self

    def ends(self, step: DeviceStep) -> None:
        firsts = [step.look(extent).view(np.float32)[:1].tolist() for extent in step.operands]
        self.steps.append((step.name, firsts))


@pytest.mark.parametrize("is_observed", [False, True])
def test_lists_with_sends_and_receives(is_observed: bool) -> None:
    """All members send first, more than fits between them: alone, each would wait for another's receive."""
    table = sockets_of(2)

    def member(rank: int) -> list[Any]:
        session = jitree.Session(device="local-sync")
        device = session.device
        device.replace_channel_provider(SocketProvider(rank, table[rank], 20))
        onlooker = Onlooker()
        if is_observed:
            device.listen(onlooker)
        channel = device.create_channel(-1, None, None, -1, -1)
        length = 1 << 24
        source, target = (device.device_allocator.allocate(0x30, 0, length) for _ in range(2))
        source.host_array().view(np.float32)[...] = rank + 1
        commands = record(device)
        operation = 9 << 16
        commands.fill_buffer(direct(target), 0, 4)
        commands.execution_barrier(0, 0)
        commands.collective(channel, SEND | operation, 1 - rank, direct(source), None, length // 4)
        commands.collective(channel, RECEIVE | operation, 1 - rank, None, direct(target), length // 4)
        commands.execution_barrier(0, 0)
        commands.fill_buffer(direct(source), 0, 4)
        commands.finalize()
        execute(device, commands)
        session.close()
        assert not source.host_array().any()
        return [target.host_array().view(np.float32)[[0, -1]].tolist(), onlooker.steps]

    with ThreadPoolExecutor(2) as threads:
        for rank, (found, steps) in enumerate(threads.map(member, range(2))):
            assert found == [2 - rank] * 2
            if is_observed:
                assert [name for name, _ in steps] == ["fill", "collective", "collective", "fill"]
                moved = [first for _, firsts in steps[1:3] for first in firsts]
                assert sorted(moved) == [[], [], [1], [2]]


def test_wrong_collectives() -> None:
    def differing(channel: LocalChannel) -> Any:
        data = np.zeros(4, np.float32)
        return call(channel, 1, data, data, 4 - channel.rank, reduction=1)

    for error in together(differing, 2):
        assert isinstance(error, FailedPreconditionError | UnavailableError), error
        assert "another collective" in str(error) or "has ended" in str(error)

    def alone(channel: LocalChannel) -> None:
        data = np.zeros(4, np.float32)
        for kind, options, expected in [
            (1, {"count": 5, "reduction": 1}, OutOfRangeError),
            (1, {"count": 4, "reduction": 6}, InvalidArgumentError),
            (1, {"count": 4, "reduction": 1, "number": 12}, UnimplementedError),
            (1, {"count": 4, "reduction": 1, "number": 16}, UnimplementedError),
            (0, {"count": 3}, InvalidArgumentError),
            (3, {"count": 4, "parameter": 1}, OutOfRangeError),
            (6, {"count": 4, "parameter": -1}, OutOfRangeError),
            (9, {"count": 4}, InvalidArgumentError),
        ]:
            with pytest.raises(expected):
                if kind == 9:
                    _perform(LocalCall(Collective(channel, 9, 0, 4), data.view("u1"), data.view("u1")))
                else:
                    call(channel, kind, data, data, **options)
        assert call(channel, 1, data + 1, data, 4, reduction=1).tolist() == [1] * 4

    assert together(alone, 1) == [None]


def run_program(provider: SocketProvider, device: str) -> Any:
    session = jitree.Session(device=device)
    session.device.replace_channel_provider(provider)
    return session.load(PROGRAM)


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_a_program(device: str) -> None:
    """Every function, on two devices of one process."""
    table = sockets_of(2)

    def member(rank: int) -> None:
        module = run_program(SocketProvider(rank, table[rank]), device)
        numbers = np.arange(8, dtype=np.float32) + rank
        total = 2 * np.arange(8) + 1
        for _ in range(3):
            assert tuple(map(int, module.who())) == (rank, 2)
            assert np.array_equal(np.asarray(module.scaled_sum(numbers)), 2 * total * numbers)
        data = [np.random.default_rng(one).standard_normal(1024).astype(np.float32) for one in range(2)]
        assert np.array_equal(np.asarray(module.all_reduce(data[rank])), data[0] + data[1])
        assert np.asarray(module.largest(numbers.astype(np.int16))).tolist() == list(range(1, 9))
        assert np.array_equal(np.asarray(module.reduce_scatter(numbers)), total[4 * rank : 4 * rank + 4])
        whole = np.arange(16, dtype=np.int32)
        exchanged = module.exchange(whole + 100 * rank, 0, rank, 1 - rank, 1 - rank)
        assert np.array_equal(np.asarray(exchanged), whole + 100 * (1 - rank))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(member, range(2)))


def _member_that_ends(sockets: list[Any], how: int) -> None:
    module = run_program(SocketProvider(1, sockets), "local-sync")
    module.scaled_sum(np.zeros(8, np.float32))
    os.kill(os.getpid(), how)


@pytest.mark.parametrize(
    ("how", "expected"), [(signal.SIGKILL, UnavailableError), (signal.SIGSTOP, DeadlineExceededError)]
)
def test_a_member_that_ends(how: int, expected: type[StatusError]) -> None:
    """Others raise: at once when it has died, after the time of the provider when it hangs."""
    table = sockets_of(2)
    process = multiprocessing.get_context("fork").Process(target=_forked, args=(table, how))
    process.start()
    try:
        _close(table[1])
        provider = SocketProvider(0, table[0])
        module = run_program(provider, "local-sync")
        module.scaled_sum(np.zeros(8, np.float32))
        if how == signal.SIGSTOP:
            os.waitpid(process.pid or 0, os.WUNTRACED)
            assert provider.transport is not None
            provider.transport.timeout = 0.1
        for _ in range(2):
            with pytest.raises(expected, match="member 0 of 2 of a channel"):
                module.scaled_sum(np.zeros(8, np.float32))
    finally:
        process.kill()
        process.join()


def _forked(table: list[list[Any]], how: int) -> None:
    _close(table[0])
    _member_that_ends(table[1], how)


def _close(sockets: Sequence[socket.socket | None]) -> None:
    for connection in sockets:
        if connection is not None:
            connection.close()


class SilentGroup:
    """A communicator of mpi4py whose other member never comes."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.Request = self
        self.BYTE = None
        self.Exception = MemoryError

    def Dup(self) -> SilentGroup:
        return self

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 2

    def Irecv(self, part: list[Any], peer: int) -> object:
        return part

    Isend = Irecv

    def Testall(self, requests: list[Any]) -> bool:
        self.asked.set()
        return False


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("transport", ["sockets", "mpi"])
def test_a_wait_ends_with_the_call(device: str, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its deadline, or when the session is cancelled. The group is out of step, and not used again."""
    numbers = np.zeros(8, np.float32)
    for is_cancelled in (False, True):
        table, group = sockets_of(2), SilentGroup()
        other = table[1][0]
        assert other is not None
        monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=group))
        provider: Any = SocketProvider(0, table[0]) if transport == "sockets" else MpiProvider(group, 60)
        module = run_program(provider, device)
        with ThreadPoolExecutor(1) as threads:
            if not is_cancelled:
                with pytest.raises(DeadlineExceededError, match="scaled_sum"):
                    threads.submit(module.scaled_sum, numbers, timeout=0.1).result(50)
            else:
                call = threads.submit(module.scaled_sum, numbers)
                assert other.recv(1) if transport == "sockets" else group.asked.wait(50)
                module.session.cancel()
                with pytest.raises(CancelledError, match="scaled_sum"):
                    call.result(50)
                with pytest.raises(FailedPreconditionError, match="an earlier collective was ended here"):
                    module.scaled_sum(numbers)
        _close(table[1] + table[0])


def test_a_forked_child_has_no_group() -> None:
    """It has neither the threads of a transport nor a place among the members: it waited forever."""
    module = run_program(SocketProvider(0, [None]), "local-sync")
    numbers = np.ones(8, np.float32)
    module.scaled_sum(numbers)
    process = multiprocessing.get_context("fork").Process(target=_refused, args=(module, numbers))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    module.scaled_sum(numbers)


def _refused(module: Any, numbers: Any) -> None:
    with pytest.raises(FailedPreconditionError, match="a child has to join another group"):
        module.scaled_sum(numbers)


class Cancelled(ChannelProvider):
    """Members that are cancelled while they look for each other."""

    def query_default_rank_and_count(self) -> tuple[int, int]:
        return 1, 2

    def exchange_default_id(self, identifier: bytes) -> bytes:
        raise CancelledError("session.cancel()")


def test_why_a_group_was_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status stays: it was UNAVAILABLE, as if a member had ended."""
    torch = SimpleNamespace(distributed=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
    with pytest.raises(CancelledError, match="member 1 of 2 joins a group"):
        make_transport(Cancelled())


class _LateProvider(SocketProvider):
    """Its group is there when it is told so."""

    def __init__(self, rank: int, sockets: Sequence[socket.socket | None]) -> None:
        super().__init__(rank, sockets)
        self.is_there = threading.Event()

    def make_transport(self) -> Transport:
        while not self.is_there.wait(0.01):
            require_going_on()
        return super().make_transport()


@pytest.mark.parametrize("uri", ["local-sync", "local-task"])
def test_an_event_loop_has_its_turns_while_others_are_late(uri: str) -> None:
    """While members join, and while they come to a collective."""
    table = sockets_of(2)
    provider = _LateProvider(0, table[0])
    has_come = threading.Event()
    ones = np.ones(1024, np.float32)

    def other() -> None:
        with jitree.Session("local-sync") as session:
            session.device.replace_channel_provider(SocketProvider(1, table[1]))
            module = session.load(PROGRAM)
            for _ in range(2):
                assert has_come.wait(60)
                has_come.clear()
                module.all_reduce(ones)

    async def turns(call: asyncio.Task[Any], event: threading.Event) -> Any:
        for _ in range(20):  # a loop that is held up waits for an event that it is to set
            await asyncio.sleep(0.005)
        assert not call.done()
        event.set()
        return await call

    async def member() -> None:
        with jitree.Session(uri) as session:
            session.device.replace_channel_provider(provider)
            all_reduce = session.load(PROGRAM).all_reduce
            with pytest.raises(DeadlineExceededError):
                await all_reduce.async_(ones, timeout=0.05)
            call = asyncio.ensure_future(all_reduce.async_(ones))
            await asyncio.sleep(0)
            call.cancel()
            call = asyncio.ensure_future(all_reduce.async_(ones))
            has_come.set()
            made = [await turns(call, provider.is_there)]
            call = asyncio.ensure_future(all_reduce.async_(ones))
            made.append(await turns(call, has_come))
            assert [np.asarray(array)[0] for array in made] == [2, 2]

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(other)
        asyncio.run(asyncio.wait_for(member(), 60))
        running.result(60)


def test_mpi4py_without_a_library_of_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then Gloo carries what mpirun's members send, where torch is there."""

    class Unlinked:
        @property
        def MPI(self) -> object:
            raise RuntimeError("cannot load MPI library")

    for name in ("RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("PMI_RANK", "0"), ("PMI_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "mpi4py", Unlinked())
    for module in ("torch", "torch.distributed"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnavailableError, match="a library of MPI that it finds"):
        make_transport(None)
