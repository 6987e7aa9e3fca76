"""The child process as the parent sees it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from jitree.api.limits import Limits
from jitree.api.process import messages
from jitree.base.endings import Ended
from jitree.codegen.image.packages import folders_of
from jitree.errors import (
    AbortedError,
    DataLossError,
    DeadlineExceededError,
    StatusError,
    UnavailableError,
    status_error,
)

_PROGRAM: Final = Path(__file__).with_name("child.py")
_VARIABLES: Final = ("HOME", "JITREE_CACHE_DIR")
"""Where machine code is kept; the child forgets them when it has it."""
_PACKAGES: Final = ("jitree", "numpy", "ml_dtypes")
_START: Final = 60.0
"""Seconds that a child may take to get ready, on a busy machine."""
_LARGEST: Final = 1 << 33
"""Bytes of a message where no limit says less."""
_GRACE: Final = 0.2
"""Seconds that a child has to end by itself."""
_HEAD: Final = 1 << 20
"""Bytes of a message beside results."""


class Child(Ended):
    """A confined process with a session."""

    def __init__(self, device: str, limits: Limits, guard_pages: bool) -> None:
        """UNAVAILABLE where the system cannot confine it, or it does not start."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        sizes = [size for size in (limits.output, limits.memory) if size is not None]
        self._most = min(sizes, default=_LARGEST) + _HEAD
        rest = limits._replace(time=None, load_time=None, instructions=None)
        options = {
            "device": device, "limits": rest._asdict(), "parent": os.getpid(), "most": self._most,
            "guard_pages": guard_pages,
        }  # fmt: skip
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(_PROGRAM),
                    json.dumps({package: folders_of(package) for package in _PACKAGES}),
                    str(theirs.fileno()),
                    json.dumps(options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.will_end()
        try:
            self._answer(_START, "while it started")
        except AbortedError as error:
            raise UnavailableError(f"no process can be confined here: {error.message}") from None

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(
        self, head: dict[str, Any], parts: Sequence[memoryview], seconds: float | None, doing: str
    ) -> messages.Message:
        """The answer to a message. What the child fails with; ABORTED when it ends meanwhile or answers what
        no session does, DEADLINE_EXCEEDED after ``seconds``. It has ended then."""
        try:
            messages.send(self._socket, head, parts)
        except OSError:
            raise self._ended(doing) from None
        return self._answer(seconds, doing)

    def _answer(self, seconds: float | None, doing: str) -> messages.Message:
        try:
            until = None if seconds is None else time.monotonic() + seconds
            if not self._has_message(until):
                self.end()
                raise DeadlineExceededError(
                    f"{doing}: it was not done within {seconds:g} s (the limit on time)"
                )
            message = messages.receive(self._socket, self._most)
        except DataLossError as error:
            self.end()
            raise AbortedError(
                f"the process of the sandbox sent what no session does {doing}: {error.message}"
            ) from None
        except BaseException:
            self.end()  # an answer that comes later would be taken for that of the next call
            raise
        if message is None:
            raise self._ended(doing)
        if "error" in message.head:
            raise self._failure(message.head["error"], doing)
        return message

    def _has_message(self, until: float | None) -> bool:
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            if select.select([self._socket], [], [], left)[0]:
                return True
            if left is not None and left <= 0:
                return False

    def _failure(self, described: Any, doing: str) -> StatusError:
        match described:
            case [int(code), str(message), [*contexts], [*backtrace]]:
                error = status_error(code, message, *map(str, contexts))
                error.backtrace = list(map(str, backtrace))
                return error
        self.end()
        return AbortedError(f"the process of the sandbox sent what no session does {doing}")

    def _ended(self, doing: str) -> AbortedError:
        self.end()
        code = self._process.returncode
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with code {code}"
        return AbortedError(
            f"the process of the sandbox ended {how} {doing}; the next call starts another one, with the "
            "modules as they are after loading"
        )

    def end(self) -> None:
        """Ends the process."""
        self._end = bool
        if self._process.poll() is None:
            self._socket.shutdown(socket.SHUT_WR)
            try:
                self._process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._socket.close()
