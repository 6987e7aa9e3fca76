"""How members of a group hear of each other's end, in processes of their own."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pytest

from jitree.errors import UnavailableError
from jitree.hal.groups import presence
from jitree.hal.groups.presence import FAILED, LEFT, NOTE_BYTES, Presence

SECONDS = 30.0
"""That a busy machine may take for what is heard at once."""


def heard(member: Presence) -> UnavailableError:
    """The failure that a member hears of, soon."""
    until = time.monotonic() + SECONDS
    while (failure := member.failure()) is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    return failure


def joined(count: int) -> list[Presence]:
    """Members in this process."""
    members = [Presence(rank, count) for rank in range(count)]
    note = members[0].invite()
    for member in members[1:]:
        member.answer(note)
    members[0].await_all()
    return members


def after_word(stranger: socket.socket) -> bytes:
    """What member 0 sends to a connection after its word, if anything."""
    left = presence._WORD_BYTES
    while left and (part := stranger.recv(left)):
        left -= len(part)
    return stranger.recv(1)


@pytest.fixture
def group() -> Iterator[list[Presence]]:
    members = joined(3)
    yield members
    for member in members:
        member.end(LEFT)


def take_part(rank: int, count: int, line: Connection) -> None:
    """A process that is a member. It is asked for what it hears of."""
    member = Presence(rank, count)
    if rank:
        member.answer(line.recv_bytes())
    else:
        line.send_bytes(member.invite())
        member.await_all()
    line.send("joined")
    while line.recv() == "heard":
        line.send(str(heard(member)))


class Processes:
    """A group of three, of a process each."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(3)]
        self.lines = [line for line, _ in pairs]
        self.members = [
            context.Process(target=take_part, args=(rank, 3, pairs[rank][1]), daemon=True)
            for rank in range(3)
        ]
        for member in self.members:
            member.start()
        note = self._from(0, self.lines[0].recv_bytes)
        for line in self.lines[1:]:
            line.send_bytes(note)
        assert [self._from(rank, self.lines[rank].recv) for rank in range(3)] == ["joined"] * 3

    def _from(self, rank: int, receive: Callable[[], Any]) -> Any:
        assert self.lines[rank].poll(SECONDS)
        return receive()

    def send(self, rank: int, number: int) -> None:
        pid = self.members[rank].pid
        assert pid
        os.kill(pid, number)

    def heard_by(self, rank: int) -> str:
        self.lines[rank].send("heard")
        return str(self._from(rank, self.lines[rank].recv))


@pytest.fixture
def processes() -> Iterator[Processes]:
    group = Processes()
    yield group
    for member in group.members:
        member.kill()
        member.join()


@pytest.mark.parametrize("killed", range(3))
def test_a_killed_member_is_named_at_all_others(processes: Processes, killed: int) -> None:
    processes.send(killed, signal.SIGKILL)
    for rank in {0, 1, 2} - {killed}:
        assert f"member {killed} of 3 of a channel has ended: its process is gone" in processes.heard_by(rank)


def test_a_stopped_member_has_not_ended(processes: Processes) -> None:
    """Its lateness is the watch's to see; that it is killed then shows at once."""
    processes.send(1, signal.SIGSTOP)
    processes.send(2, signal.SIGKILL)
    assert "member 2 of 3" in processes.heard_by(0)
    processes.send(1, signal.SIGCONT)
    assert "member 2 of 3" in processes.heard_by(1)


def test_who_leaves_in_order_is_missed_only_by_those_that_wait_for_it(group: list[Presence]) -> None:
    first, second, third = group
    for member in group:
        member.progress.whole += 2
    third.progress.sent[0] += 1
    third.end(LEFT)
    first.progress.received[2] += 1  # which the third has sent
    first.progress.sent[1] += 1
    second.progress.received[0] += 1
    second.end(LEFT)
    until = time.monotonic() + SECONDS
    while set(first._ends) != {1, 2}:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert first.failure() is None
    first.progress.received[2] += 1
    assert "member 2 of 3 of a channel has left the group" in str(first.failure())
    first.progress.received[2] -= 1
    first.progress.sent[1] += 1
    assert "member 1 of 3" in str(first.failure())
    first.progress.sent[1] -= 1
    first.progress.whole += 1
    assert "has left the group" in str(first.failure())


def test_what_member_0_leaves_behind_goes_on(group: list[Presence]) -> None:
    group[0].end(LEFT)
    group[1].end(FAILED, "here")
    assert "member 1 of 3 of a channel has failed: here" in str(heard(group[2]))


def test_the_first_end_is_the_reason(group: list[Presence]) -> None:
    group[1].end(FAILED, "first")
    heard(group[2])
    group[0].end(FAILED, "second")
    assert "member 1 of 3 of a channel has failed: first" in str(group[2].failure())


def test_who_comes_late_hears_what_was() -> None:
    members = [Presence(rank, 3) for rank in range(3)]
    note = members[0].invite()
    members[1].answer(note)
    members[1].end(FAILED, "early")
    heard(members[0])
    members[2].answer(note)
    assert "member 1 of 3 of a channel has failed: early" in str(heard(members[2]))
    for member in members:
        member.end(LEFT)


def test_a_forked_child_does_not_stand_for_its_parent(group: list[Presence]) -> None:
    """It would keep the connection open."""
    reading, writing = os.pipe()
    connection = group[1]._lines[0].connection
    child = os.fork()
    if not child:
        os.write(writing, b"closed" if connection.fileno() < 0 else b"open  ")
        signal.pause()
    try:
        assert os.read(reading, 6) == b"closed"
        connection.shutdown(socket.SHUT_RDWR)  # as the end of the process does
        assert "member 1 of 3" in str(heard(group[2]))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_strangers_are_no_members() -> None:
    first, second = Presence(0, 2), Presence(1, 2)
    note = first.invite()
    assert first._server is not None
    port = first._server.getsockname()[1]
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
    for stranger, text in zip(
        strangers, (b'{"token": "", "rank": 1}\n', b"GET /\r\n\r\n", b"x" * 9000), strict=False
    ):
        stranger.sendall(text)
    for stranger in strangers[:3]:
        stranger.settimeout(SECONDS)
        with suppress(ConnectionResetError):  # with what it has not read
            assert after_word(stranger) == b""
    second.answer(note)
    first.await_all()
    second.end(FAILED, "known")
    assert "has failed: known" in str(heard(first))
    for member in (first, second):
        member.end(LEFT)
    for stranger in strangers:
        stranger.close()


def test_the_token_never_goes_over_the_port_and_a_proof_serves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has listened to a member cannot join in its place."""
    sent: list[dict[str, Any]] = []
    send = presence._Line.send

    def record(line: Any, message: dict[str, Any]) -> None:
        sent.append(message)
        send(line, message)

    monkeypatch.setattr(presence._Line, "send", record)
    first, second, third = (Presence(rank, 3) for rank in range(3))
    note = first.invite()
    second.answer(note)
    assert first._server is not None and first._token
    assert [message["rank"] for message in sent] == [1] and first._token not in str(sent)
    for replayed in (sent[0], {**sent[0], "rank": 2}):
        with socket.create_connection(first._server.getsockname()[:2]) as stranger:
            stranger.settimeout(SECONDS)
            word = stranger.recv(presence._WORD_BYTES, socket.MSG_WAITALL)
            assert len(set(word)) > 1
            stranger.sendall(json.dumps(replayed).encode() + b"\n")
            assert stranger.recv(1) == b""
    third.answer(note)
    first.await_all()
    assert first._all_came.is_set()
    for member in (first, second, third):
        member.end(LEFT)


def test_strangers_take_neither_room_nor_the_place_of_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go where there are many, and all of them once the members are there."""
    monkeypatch.setattr(presence.Presence._strangers, "__defaults__", (2,))
    first, second = Presence(0, 2), Presence(1, 2)
    note = first.invite()
    assert first._server is not None
    port = first._server.getsockname()[1]
    strangers = [socket.create_connection(("127.0.0.1", port), SECONDS) for _ in range(6)]
    assert [after_word(stranger) for stranger in strangers[:4]] == [b""] * 4
    second.answer(note)
    first.await_all()
    assert [after_word(stranger) for stranger in strangers] == [b""] * 6
    second.end(FAILED, "known")
    assert "has failed: known" in str(heard(first))
    for connection in (first, second):
        connection.end(LEFT)
    for stranger in strangers:
        stranger.close()


class Full(socket.socket):
    """A socket of a process that has no descriptor left, until one is given back."""

    failures = [errno.ECONNABORTED, errno.EMFILE]  # noqa: RUF012

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            raise OSError(self.failures.pop(), "it is full")
        return super().accept()


def test_a_process_without_room_still_invites(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = presence._listening

    def full(count: int) -> socket.socket | None:
        server = listening(count)
        assert server is not None
        return Full(fileno=server.detach())

    monkeypatch.setattr(presence, "_listening", full)
    assert len(joined(2)) == 2
    assert not Full.failures


def test_members_that_cannot_connect_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "_ALL_SECONDS", 0.01)
    first, second = Presence(0, 2), Presence(1, 2)
    first.invite()
    with pytest.warns(RuntimeWarning, match=r"members \[1\] cannot connect to member 0"):
        first.await_all()
    with pytest.warns(RuntimeWarning, match="member 1 of 2 of a channel: member 0 cannot be reached"):
        second.answer(bytes(NOTE_BYTES))
    monkeypatch.setattr(presence, "_listening", lambda count: None)
    with pytest.warns(RuntimeWarning, match="member 0 cannot be reached"):
        second.answer(Presence(0, 2).invite())
    first.end(LEFT)


def test_the_threads_end_with_the_group() -> None:
    def listening() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "jitree members of a group"}

    before = listening()
    members = joined(3)
    threads = listening() - before
    assert len(threads) == 3
    for member in members:
        member.end(LEFT)
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
