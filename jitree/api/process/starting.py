"""How children are started: by a process that has imported all that they need, and forks itself for each."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from jitree.base.endings import guard
from jitree.codegen.image.packages import folders_of
from jitree.codegen.image.place import VARIABLE, place
from jitree.errors import UnavailableError

_PROGRAM: Final = Path(__file__).with_name("starter.py")
_PACKAGES: Final = ("jitree", "numpy", "ml_dtypes")


class Starter:
    """The process that starts children. It ends when no process has ``control`` any more."""

    def __init__(self) -> None:
        self.control, theirs = _pair()
        self._parent = os.getpid()
        folders = {package: folders_of(package) for package in _PACKAGES}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM), json.dumps(folders)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={
                    VARIABLE: place().folder,  # the starter forgets it when it has its machine code
                    "OPENBLAS_NUM_THREADS": "1",  # one that has threads does not fork well
                },
                start_new_session=True,
            )

    def end(self) -> None:
        """Children go on."""
        self.control.close()
        if self._parent == os.getpid():
            self._process.kill()
            self._process.wait()


_started: Final[list[Starter]] = []
_lock = guard()
"""Of a thread that asks: of two at once, one would end the process that the other has just asked."""


def _unlock() -> None:
    """In a forked process, where no other thread goes on."""
    global _lock
    _lock = guard()


os.register_at_fork(after_in_child=_unlock)


@atexit.register
def _end() -> None:
    while _started:
        _started[-1].end()
        _started.pop()


def ask_for_child(options: bytes) -> tuple[socket.socket, socket.socket]:
    """Has a child started: the sockets for messages to it, and to its keeper. UNAVAILABLE without one."""
    if not hasattr(os, "memfd_create"):
        raise UnavailableError(f"no process can be confined on {sys.platform}")
    try:
        with _lock:
            return _asked(options)
    except OSError as error:
        raise UnavailableError(f"no process can be started here: {error}") from None


def _asked(options: bytes) -> tuple[socket.socket, socket.socket]:
    (connection, theirs), (life, its) = _pair(), _pair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # few messages can wait unread
    with theirs, its:
        for starter in (*_started[-1:], None):
            if starter is None:
                _end()
                starter = Starter()
                _started.append(starter)
            try:
                socket.send_fds(starter.control, [options], [theirs.fileno(), its.fileno()])
            except OSError:  # it has ended
                continue
            return connection, life
    raise UnavailableError("no process can be started here")


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
