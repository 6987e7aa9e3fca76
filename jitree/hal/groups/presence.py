"""Watches which members of a group are still there.

A transport may not tell: memory that two devices share says nothing about the process at its other side. So
each member keeps a connection to member 0, which nothing goes over but how members end: by themselves, with a
message, or by the end of their process, which closes the connection. Member 0 tells the others.

Anyone who reaches the port of member 0 may connect. Member 0 sends a new word to each, and whoever has the
token of the group, which never goes over the port, shows that by a digest of both.

A member that leaves in order says how many operations it has begun. What the others begin beyond that waits
for it in vain; what it has done its part of, and what others do among themselves, goes on.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import selectors
import socket
import time
from collections import Counter
from threading import Event, Thread
from typing import Any, Final

from jitree.base.finalizers import SharedWeakSet, guard
from jitree.base.folding import warn
from jitree.base.platform.files import address_of_interface, machine_identity
from jitree.base.platform.threads import thread_refusals
from jitree.errors import UnavailableError, ignored, pass_interruption

NOTE_BYTES: Final = 1024
"""Of what member 0 lets the others know, to find it."""
_CONNECT_SECONDS: Final = 1.0
_ALL_SECONDS: Final = 5.0
"""In which all members have connected: they are all there, as they have just joined."""
_STRANGER_SECONDS: Final = 5.0
_STRANGER_BYTES: Final = 4096
"""That member 0 hears from one that does not say that it is a member."""
_WORD_BYTES: Final = 32
_MOST_STRANGERS: Final = 64
"""Connections that have not said so yet. Of more, the oldest end: members say it at once."""
_RETRY_SECONDS: Final = 0.05
"""After which member 0 looks again whether the process has room for one more connection."""
_TCP: Final = (
    ("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 20_000),
    ("TCP_NODELAY", 1),
)  # fmt: skip
_KEEP_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, vars(socket)[name], value) for name, value in _TCP if name in vars(socket)),
)
"""A machine that is cut off counts as one that has ended after 20 s. A stopped process does not: its machine
answers."""

LEFT: Final = "left"
FAILED: Final = "failed"
_ENDED: Final = "ended"
_SENTENCES: Final = {
    LEFT: "has left the group",
    FAILED: "has failed",
    _ENDED: "has ended: its process is gone, or its machine cannot be reached",
}

_sockets: Final[SharedWeakSet[socket.socket]] = SharedWeakSet()


def _close_inherited() -> None:
    """A forked child does not keep the connections of its parent open."""
    for one in _sockets:
        one.close()


os.register_at_fork(after_in_child=_close_inherited)


class Progress:
    """Counts the operations a member has begun: of all, and with single members."""

    def __init__(self) -> None:
        self.whole = 0
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()

    def towards(self, rank: int) -> list[int]:
        """What takes another member: of all, received from it, sent to it."""
        return [self.whole, self.received[rank], self.sent[rank]]

    def table(self) -> dict[str, Any]:
        """As a message has it."""
        tables = {"sent": self.sent, "received": self.received}
        return {"whole": self.whole} | {
            name: {str(rank): number for rank, number in table.items()} for name, table in tables.items()
        }


def _part_of(message: dict[str, Any], rank: int) -> list[int]:
    """What a member that has ended has begun with ``rank``: of all, sent to it, received from it."""
    tables = (message.get(name, {}) for name in ("sent", "received"))
    return [message.get("whole", 0), *(table.get(str(rank), 0) for table in tables)]


class _Line:
    """A connection, and the part of a message that has come."""

    def __init__(self, connection: socket.socket) -> None:
        for option in _KEEP_ALIVE:
            with ignored(OSError):  # a system that does not have it
                connection.setsockopt(*option)
        self.connection = connection
        self.rank = -1
        """Of the other side; -1 as long as it has not said."""
        self.since = time.monotonic()
        self.word = secrets.token_bytes(_WORD_BYTES)
        """What member 0 sends to the other side first."""
        self._heard = b""
        _sockets.add(connection)

    def messages(self) -> list[dict[str, Any]] | None:
        """Those that have come; None once the other side has ended, or says what is no message."""
        try:
            part = self.connection.recv(1 << 16)
            *lines, self._heard = (self._heard + part).split(b"\n")
            if not part or (self.rank < 0 and len(self._heard) > _STRANGER_BYTES):
                return None
            found = [json.loads(line) for line in lines]
        except (OSError, ValueError, RecursionError) as error:
            pass_interruption(error)
            return None
        return found if all(isinstance(message, dict) for message in found) else None

    def send(self, message: dict[str, Any]) -> None:
        """Of a few bytes, which never wait. The other side may have gone."""
        with ignored(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")


class Presence:
    """Knows which other members are there."""

    def __init__(self, rank: int, count: int) -> None:
        self.progress = Progress()
        """What this member has begun."""
        self._rank = rank
        self._count = count
        self._lock = guard()
        self._ends: dict[int, dict[str, Any]] = {}
        """How members have ended, in the order in which this one has heard of it."""
        self._lines: dict[int, _Line] = {}
        self._selector = selectors.DefaultSelector()
        self._server: socket.socket | None = None
        self._token = ""
        self._told: list[dict[str, Any]] = []
        self._all_came = Event()
        self._has_ended = False

    # Finding each other.

    def invite(self) -> bytes:
        """Member 0 waits for connections from now on. What the others have to know, of NOTE_BYTES."""
        server = _listening(self._count)
        if server is None:
            return bytes(NOTE_BYTES)
        _sockets.add(server)
        server.setblocking(False)
        self._server = server
        self._token = secrets.token_hex(16)
        self._selector.register(server, selectors.EVENT_READ)
        self._start()
        hosts = [*_addresses(), socket.gethostname()]
        port = server.getsockname()[1]
        while True:
            note = {"token": self._token, "port": port, "machine": machine_identity(), "hosts": hosts}
            packed = json.dumps(note).encode()
            if len(packed) <= NOTE_BYTES:
                return packed.ljust(NOTE_BYTES, b"\0")
            hosts.pop()

    def await_all(self) -> None:
        """Waits until all members have connected, or this one takes part no more. A warning when one cannot:
        its end will show by its absence only."""
        if not self._all_came.wait(_ALL_SECONDS if self._server else 0):
            with self._lock:
                missing = sorted(set(range(1, self._count)) - self._lines.keys() - self._ends.keys())
            if missing:
                self._warn(f"members {missing} cannot connect to member 0")

    def answer(self, note: bytes) -> None:
        """Another member connects to member 0, which has given the note. A warning when it cannot."""
        found: dict[str, Any] = json.loads(note.rstrip(b"\0") or b'{"hosts": []}')
        hosts = ["127.0.0.1"] if found.get("machine") == machine_identity() else []
        for host in (*hosts, *found["hosts"]):
            line = self._connect(host, found["port"], found["token"])
            if line is not None:
                with self._lock:
                    self._lines[0] = line
                self._selector.register(line.connection, selectors.EVENT_READ, line)
                self._start()
                return
        self._warn(f"member 0 cannot be reached at {', '.join(hosts) or 'any address'}")

    def _connect(self, host: str, port: int, token: str) -> _Line | None:
        try:
            connection = socket.create_connection((host, port), _CONNECT_SECONDS)
        except OSError as error:
            pass_interruption(error)
            return None
        line = _Line(connection)
        try:
            with ignored(OSError):
                word = connection.recv(_WORD_BYTES, socket.MSG_WAITALL)
                line.send({"proof": _proof(token, word, self._rank), "rank": self._rank})
                if connection.recv(1) == b"\n":  # accepted
                    line.rank = 0
                    connection.setblocking(False)
                    return line
        finally:
            if line.rank < 0:
                connection.close()
        return None

    def _warn(self, what: str) -> None:
        warn(
            f"member {self._rank} of {self._count} of a channel: {what}; the end of a member is noticed only "
            "when it is late (collective_timeout). Let TCP connections between the members through"
        )

    # The end of this member.

    def end(self, kind: str, reason: str = "") -> None:
        """This member takes part no more: it has LEFT in order, or FAILED."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            self._all_came.set()  # nobody waits for them any more
            message = {"rank": self._rank, "end": kind, "reason": reason, **self.progress.table()}
            if self._rank == 0:  # which goes on to tell the others of each other
                self._tell(message)
                closed = [self._server] if self._server else []
            else:
                closed = [line.connection for line in self._lines.values()]
                for line in self._lines.values():
                    line.send(message)
            for connection in closed:
                with ignored(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # which the thread hears

    # The ends of others.

    def failure(self) -> UnavailableError | None:
        """The first other member without which this one cannot go on."""
        with self._lock:
            for rank, message in self._ends.items():
                begun = self.progress.towards(rank)
                is_needed = any(mine > its for mine, its in zip(begun, message["done"], strict=True))
                if message["end"] != LEFT or is_needed:
                    reason = message.get("reason")
                    return UnavailableError(
                        f"member {rank} of {self._count} of a channel {_SENTENCES[message['end']]}"
                        + (f": {reason}" if reason else "")
                    )
        return None

    def _note(self, rank: int, message: dict[str, Any]) -> None:
        if rank != self._rank and rank not in self._ends and message.get("end") in _SENTENCES:
            self._ends[rank] = {"done": _part_of(message, self._rank), **message}

    def _tell(self, message: dict[str, Any]) -> None:
        """By member 0: all others hear of an end."""
        self._told.append(message)
        for line in self._lines.values():
            self._tell_one(line, message)

    def _tell_one(self, line: _Line, message: dict[str, Any]) -> None:
        """Of the tables with what concerns it only: they may be long."""
        rank = line.rank
        if rank != message["rank"]:
            whole, sent, received = _part_of(message, rank)
            own = {"whole": whole, "sent": {str(rank): sent}, "received": {str(rank): received}}
            line.send({**message, **own})

    # Listening, on a thread.

    def _start(self) -> None:
        with thread_refusals("listening to members of a group"):
            Thread(target=self._listen, name="jitree members of a group", daemon=True).start()

    def _listen(self) -> None:
        while True:
            strangers = self._strangers()
            if not self._selector.get_map():
                break
            for key, _ in self._selector.select(_STRANGER_SECONDS if strangers else None):
                if key.data is None:
                    self._accept()
                elif key.data.connection.fileno() >= 0:  # not closed in this round
                    self._hear(key.data)
        self._selector.close()

    def _accept(self) -> None:
        assert self._server is not None
        try:
            connection, _ = self._server.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the other side has gone
            return
        except OSError:
            if self._has_ended:
                self._stop_inviting()
            else:  # the process has no room for one more
                self._strangers(len(self._strangers()) - 1)
                time.sleep(_RETRY_SECONDS)
            return
        connection.setblocking(False)
        line = _Line(connection)
        self._selector.register(connection, selectors.EVENT_READ, line)
        with ignored(OSError):  # it has gone, which is heard of
            connection.send(line.word)

    def _strangers(self, most: int = _MOST_STRANGERS) -> list[_Line]:
        """Connections that have not said that they are members, from the oldest. Those that have had their
        time end, and so do the oldest of more than there may be, which are none once all members are there.
        """
        lines = (key.data for key in self._selector.get_map().values())
        strangers = [line for line in lines if line is not None and line.rank < 0]
        most = 0 if len(self._lines) == self._count - 1 else max(most, 0)
        late = time.monotonic() - _STRANGER_SECONDS
        kept = []
        for left, stranger in zip(range(len(strangers), 0, -1), strangers, strict=True):
            if left > most or stranger.since <= late:
                self._drop(stranger)
            else:
                kept.append(stranger)
        return kept

    def _hear(self, line: _Line) -> None:
        messages = line.messages()
        with self._lock:
            for message in messages or ():
                if line.rank < 0 and not self._greeted(line, message):
                    messages = None
                    break
                if self._rank == 0 and "end" in message:
                    self._end_of(line.rank, message)
                elif self._rank and isinstance(message.get("rank"), int):
                    self._note(message["rank"], message)
            if messages is None:
                if line.rank >= 0 and not (self._rank and self._has_ended):
                    self._end_of(line.rank, {"end": _ENDED})
                self._drop(line)

    def _end_of(self, rank: int, message: dict[str, Any]) -> None:
        """A member has ended; only the first that is heard of it counts."""
        if rank not in self._ends:
            self._note(rank, message)
            self._tell({**message, "rank": rank})

    def _greeted(self, line: _Line, message: dict[str, Any]) -> bool:
        """Whether the other side is a member that has not come yet."""
        rank, proof = message.get("rank"), str(message.get("proof")).encode(errors="replace")
        if not isinstance(rank, int) or not 0 < rank < self._count or rank in self._lines:
            return False
        if not hmac.compare_digest(proof, _proof(self._token, line.word, rank).encode()):
            return False
        line.rank = rank
        self._lines[rank] = line
        with ignored(OSError):
            line.connection.send(b"\n")
        for known in self._told:
            self._tell_one(line, known)
        if len(self._lines) == self._count - 1:
            self._stop_inviting()
            self._all_came.set()
        return True

    def _stop_inviting(self) -> None:
        assert self._server is not None
        self._selector.unregister(self._server)
        self._server.close()

    def _drop(self, line: _Line) -> None:
        self._selector.unregister(line.connection)
        line.connection.close()


def _proof(token: str, word: bytes, rank: int) -> str:
    """That a member has the token, for one connection and one rank."""
    return hmac.digest(token.encode(), word + str(rank).encode(), "sha256").hex()


def _listening(count: int) -> socket.socket | None:
    """A socket for connections by IPv6 and IPv4, or what of these there is."""
    dual = [True] if socket.has_dualstack_ipv6() else []
    for is_dual in (*dual, False):
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        with ignored(OSError):
            return socket.create_server(("", 0), family=family, backlog=count, dualstack_ipv6=is_dual)
    return None


def _addresses() -> list[str]:
    """IPv4 addresses of this machine that others may reach."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with ignored(OSError):  # it has none
                found.append(address_of_interface(any_socket, name))
    return [address for address in found if not address.startswith("127.")]
