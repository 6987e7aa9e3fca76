"""Programs that this package starts to compile: their place, their time limit, and the file that they write
their messages to."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from jitree.errors import DeadlineExceededError, UnavailableError, pass_interruption

INSTALL: Final = "pip install 'jitree[compile]'"
_MOST_MESSAGES: Final = 1 << 20
"""Bytes of a log in which the reason of a failure is looked for: it comes first."""


class MessageLog:
    """The file that programs write their messages to; it stays where something fails."""

    def __init__(self, path: str) -> None:
        self.path = path
        Path(path).write_bytes(b"")

    def text(self) -> str:
        with open(self.path, "rb") as file:
            return file.read(_MOST_MESSAGES).decode("utf-8", "backslashreplace")


def compiler() -> list[str]:
    """How ``iree-compile`` is started: the one of this Python's packages, else the one of the search path.
    UNAVAILABLE without either."""
    spec = _spec("iree.compiler")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        for path in Path(folder).glob("_mlir_libs/iree-compile*"):
            if os.access(path, os.X_OK):
                return [str(path)]
    found = shutil.which("iree-compile")
    if found is None:
        raise UnavailableError(f"there is no iree-compile: {INSTALL}")
    return [found]


def onnx_importer() -> list[str]:
    """How a file is imported, by the importer of the compiler's package. UNAVAILABLE without it."""
    if _spec("iree.compiler.extras.onnx_importer") is None:
        raise UnavailableError(f"there is no importer of ONNX files (iree-base-compiler): {INSTALL}")
    return [sys.executable, "-P", str(Path(__file__).with_name("import_onnx.py"))]


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ImportError:
        return None


def run(command: Sequence[str], log: MessageLog, ends: float) -> int:
    """The exit status of a program whose messages go to the log. It ends, with all that it has started, at
    the time ``ends`` of the monotonic clock, with DEADLINE_EXCEEDED; and where an exception comes."""
    try:
        with open(log.path, "ab") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
    except OSError as error:
        pass_interruption(error)
        raise UnavailableError(f"cannot start '{command[0]}': {error.strerror}") from None
    try:
        return process.wait(max(0.0, ends - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise DeadlineExceededError(
            f"'{Path(command[0]).name}' has not ended in time; give it more (--timeout=<seconds>, timeout=)"
        ) from None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process, if it has not ended, and those that it has started."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
