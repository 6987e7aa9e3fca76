"""Starts the fork server, and asks it for children.

Asks the child process, and ends it.
"""

from __future__ import annotations

import _socket
import atexit
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from jitree import errors
from jitree.api.process import messages
from jitree.api.sandbox import Limits
from jitree.base import cancel_scopes
from jitree.base.cancel_scopes import Scope
from jitree.base.finalizers import Finalized, guard
from jitree.base.platform import SYSTEM
from jitree.base.platform.files import CAN_SEAL
from jitree.base.platform.starting import CAN_OPEN_PROCESSES, OpenedProcess
from jitree.base.platform.threads import thread_refusals
from jitree.codegen.image.cache import VARIABLE, place
from jitree.codegen.image.keys import folders_of

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
            with thread_refusals("starting a process"):
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
    if not (CAN_SEAL and CAN_OPEN_PROCESSES):
        raise errors.UnavailableError(f"no process can be confined on {SYSTEM}")
    try:
        with _lock:
            return _asked(options)
    except OSError as error:
        errors.pass_interruption(error)
        raise errors.UnavailableError(f"no process can be started here: {error}") from None


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
                errors.pass_interruption(error)
                continue
            return connection, life
    raise errors.UnavailableError("no process can be started here")


def _pair() -> tuple[socket.socket, socket.socket]:
    """As they come from C: the function of `socket` takes them apart to make its own of them, and Ctrl-C in
    between would leave descriptors which nothing closes."""
    pair: Any = _socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first, second = pair
    return first, second


_START: Final = 60.0
"""Seconds that a child may take to get ready, on a busy machine."""
_LARGEST: Final = 1 << 33
"""Bytes of a message where no limit says less."""
_HEAD: Final = 1 << 20
"""Bytes of a message beside results."""
_STATUS: Final = struct.Struct("<i")
_GRACE: Final = 1.0
"""Seconds in which a child has ended that has closed its socket."""
_WAIT: Final = 10.0
"""Seconds that the system may take to end a process."""


class Child(Finalized):
    """A confined process with a session. Another process, its keeper, ends it when we let go of its life."""

    def __init__(
        self,
        device: str,
        limits: Limits,
        guard_pages: bool,
        arithmetic: str,
        given: int,
        builtins: Sequence[str] | None = None,
    ) -> None:
        """``given``: bytes of parameters, for which it has room beside its limits. ``builtins``: names of the
        modules that programs may import, None = all.

        UNAVAILABLE where the system cannot confine it, or it does not start."""
        sizes = [size for size in (limits.output, limits.memory) if size is not None]
        self._most = min(sizes, default=_LARGEST) + _HEAD
        self._parent = os.getpid()
        self._is_killed = False
        rest = limits._replace(time=None, load_time=None, instructions=None)
        options = {
            "device": device, "limits": rest._asdict(), "most": self._most, "guard_pages": guard_pages,
            "arithmetic": arithmetic, "builtins": builtins, "given": given,
        }  # fmt: skip
        self._socket, self._life = ask_for_child(json.dumps(options).encode())
        self._process: OpenedProcess | None = None
        self.will_end()
        try:
            with Scope(_START):
                ready = self.ask({"start": True}, [], "while it started")
        except errors.AbortedError as error:
            raise errors.UnavailableError(f"no process can be confined here: {error.message}") from None
        self.pid: int = ready.head["ready"]
        try:
            self._process = OpenedProcess(self.pid)
        except OSError as error:
            errors.pass_interruption(error)
            raise self._ended("while it started") from None
        self._signal(signal.SIGSTOP)

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked: it is not to end, and belongs to this process, not to one that forked."""
        return self._parent == os.getpid() and not self._is_killed and not self._has_ended(0)

    def ask(self, head: dict[str, Any], parts: Sequence[memoryview], doing: str) -> messages.Message:
        """The answer to a message. What the child fails with; ABORTED when it ends meanwhile or answers what
        no session does; why the scope is to end that the thread is in. It has ended then."""
        cancel_scopes.require_going_on()
        with messages.new_file() as file:
            try:
                self._signal(signal.SIGCONT)
                with self._ending_with(cancel_scopes.current()):  # the child may read nothing
                    messages.send(self._socket, head, parts, file)
            except OSError as error:
                if errors.is_interruption(error):
                    self.end()
                    raise
                raise self._ended(doing) from None
            except errors.ResourceExhaustedError:  # nothing was sent
                self._signal(signal.SIGSTOP)
                raise
            except BaseException:
                self.end()
                raise
            return self._answer(file, doing)

    def _signal(self, number: int) -> None:
        """Its threads are stopped while it is not asked: native code goes on in none of them."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.signal(number)

    def _answer(self, file: int, doing: str) -> messages.Message:
        try:
            with self._ending_with(cancel_scopes.current()):
                message = messages.receive_answer(self._socket, file, self._most)
                self._signal(signal.SIGSTOP)
                if message is not None:
                    messages.require_text(message.head)
        except errors.DataLossError as error:
            self.end()
            raise errors.AbortedError(
                f"the process of the sandbox sent what no session does {doing}: {error.message}"
            ) from None
        except BaseException:
            self.end()  # an answer that comes later would be taken for that of the next call
            raise
        if message is None:
            raise self._ended(doing)
        if "error" in message.head:
            if message.head.get("ends"):
                self.end()
            raise self._failure(message.head["error"], doing)
        return message

    @contextmanager
    def _ending_with(self, scope: Scope | None) -> Iterator[None]:
        """The child is killed when the scope ends."""
        killing, is_over = guard(), False

        def kill(_: errors.StatusError) -> None:
            with killing:
                if not is_over:
                    self._kill()

        if scope is not None:
            scope.watch(kill)
        try:
            yield
        finally:
            with killing:
                is_over = True
            if scope is not None:
                scope.unwatch(kill)

    def _failure(self, described: Any, doing: str) -> errors.StatusError:
        match described:
            case [int(code), str(message), [*contexts], [*backtrace]] if all(
                isinstance(text, str) for text in (*contexts, *backtrace)
            ):
                error = errors.status_error(code, message, *contexts)
                error.backtrace = backtrace
                return error
        self.end()
        return errors.AbortedError(f"the process of the sandbox sent what no session does {doing}")

    def _ended(self, doing: str) -> errors.StatusError:
        why = cancel_scopes.why_to_end()
        how = self._how()
        self.end()
        if why is not None:
            return errors.again(why).with_context(doing)
        return errors.AbortedError(
            f"the process of the sandbox ended {how} {doing}; the next call starts another one, with the "
            "modules as they are after loading"
        )

    def _how(self) -> str:
        """How it has ended, or is ended now: it may be there and have closed its socket."""
        if not self._has_ended(_GRACE):
            self._kill()
        status = self._life.recv(_STATUS.size) if self._has_ended(_WAIT) else b""
        if len(status) != _STATUS.size:
            return "and so did its keeper"
        [code] = _STATUS.unpack(status)
        if code >= 0:
            return f"with code {code}"
        known = -code in set(signal.Signals)
        return f"by {signal.Signals(-code).name if known else f'signal {-code}'}"

    def _has_ended(self, seconds: float) -> bool:
        """Whether it has ended, or does so in time."""
        if self._life.fileno() < 0:
            return True
        poll = select.poll()  # `select` knows the first 1024 descriptors only
        poll.register(self._life, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _kill(self) -> None:
        self._is_killed = True
        with errors.ignored(OSError):  # it has ended
            self._life.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Ends the process."""
        if self._parent == os.getpid() and not self._has_ended(0):
            self._kill()
            self._has_ended(_WAIT)
        self._socket.close()
        self._life.close()
        self._process = None
        self._end = bool
