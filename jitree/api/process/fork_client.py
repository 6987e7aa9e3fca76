"""Starts the fork server, and asks it for children."""

from __future__ import annotations

import _socket
import atexit
import json
import os
import socket
import subprocess
import sys
from _thread import LockType, allocate_lock, start_new_thread
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from jitree.base.finalizers import guard
from jitree.codegen.image.cache import VARIABLE, place
from jitree.codegen.image.keys import folders_of
from jitree.errors import UnavailableError, pass_interruption

_PROGRAM: Final = Path(__file__).with_name("fork_server.py")
_PACKAGES: Final = ("jitree", "numpy", "ml_dtypes")


class ForkServer:
    """The process that starts children. It ends when no process has ``control`` any more.

    A thread starts it: signals are handled on the main one, and what their handlers raise while a process is
    started leaves one that nothing waits for.
    """

    def __init__(self) -> None:
        self.control, self._theirs = _pair()
        self._parent = os.getpid()
        self._lock = guard()
        self._is_over = False
        """Whether a thread has begun to start it, or none is to."""
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Starts it unless it has been started. Raises what its thread has raised: OSError where that is not
        possible."""
        if not self._is_over:
            done = allocate_lock()
            done.acquire()
            start_new_thread(self._start, (done,))
            with done:
                pass
        if self._failure is not None:
            raise self._failure

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def _start(self, done: LockType) -> None:
        try:
            with self._lock, closing(self._theirs):  # an end waits until it is closed
                if not self._is_over:
                    self._is_over = True
                    self._process = self._started()
        except BaseException as error:  # no thread hears it but the one that waits
            self._failure = error
        finally:
            done.release()

    def _started(self) -> subprocess.Popen[bytes]:
        folders = {package: folders_of(package) for package in _PACKAGES}
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM), json.dumps(folders)],
            stdin=self._theirs.fileno(),
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
        """Children go on. Again, it does what was left when it was interrupted."""
        self.control.close()
        if self._parent == os.getpid():
            with self._lock:  # what has begun to start it has done so then, and nothing begins
                self._is_over = True
            self._theirs.close()
            if self._process is not None:
                self._process.kill()
                self._process.wait()


_started: Final[list[ForkServer]] = []
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
        pass_interruption(error)
        raise UnavailableError(f"no process can be started here: {error}") from None


def _asked(options: bytes) -> tuple[socket.socket, socket.socket]:
    (connection, theirs), (life, its) = _pair(), _pair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # few messages can wait unread
    with closing(theirs), closing(its):
        for starter in (*_started[-1:], None):
            if starter is None:
                _end()
                starter = ForkServer()
                _started.append(starter)
            try:
                starter.start()
            except BaseException:
                if starter.has_failed:
                    _end()  # the next one may be started
                raise
            try:
                socket.send_fds(starter.control, [options], [theirs.fileno(), its.fileno()])
            except OSError as error:  # it has ended
                pass_interruption(error)
                continue
            return connection, life
    raise UnavailableError("no process can be started here")


def _pair() -> tuple[socket.socket, socket.socket]:
    """As they come from C: the function of `socket` takes them apart to make its own of them, and Ctrl-C in
    between would leave descriptors which nothing closes."""
    pair: Any = _socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first, second = pair
    return first, second
