"""Runs the compiler: flags of its targets, time limit and message file."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from jitree import errors
from jitree.base.records import NamedTuple

CPU_TARGETS: Final = ("vmvx", "llvm-cpu")
CUDA: Final = "cuda"
TARGETS: Final = (*CPU_TARGETS, CUDA)
PORTABLE: Final = "vmvx"

_DEVICE: Final = "--iree-hal-target-device="
_BACKEND: Final = "--iree-hal-local-target-device-backends="
_SEPARATE: Final = "--iree-hal-link-executables=false"
"""Without it the compiler links the dispatches of one kind, and drops those of the other."""
_PROCESSOR: Final = "--iree-llvmcpu-target-cpu="
_ARCHITECTURE: Final = "--iree-cuda-target="


class CompileTarget(NamedTuple):
    """What one file is compiled for."""

    names: tuple[str, ...]
    """Of TARGETS, each once."""
    processor: str = "host"
    """Of llvm-cpu: ``host``, or a name that LLVM has."""
    architecture: str = "sm_80"
    """Of cuda."""

    def __str__(self) -> str:
        return ", ".join(self.names)

    @property
    def device(self) -> str:
        """What it runs on."""
        return CUDA if self.names == (CUDA,) else "local-task"

    def flags(self, given: Iterable[str]) -> list[str]:
        """Of the compiler: those that are ``given``, and those that the target needs besides."""
        given = list(given)
        backends = [name for name in CPU_TARGETS if name in self.names]
        devices = ["local"] * bool(backends) + [CUDA] * (CUDA in self.names)
        flags = [_DEVICE + ",".join(devices), *(_BACKEND + name for name in backends)]
        if len(self.names) > 1:
            flags.append(_SEPARATE)
        if "llvm-cpu" in backends:
            flags.append(_PROCESSOR + self.processor)
        if CUDA in devices:
            flags.append(_ARCHITECTURE + self.architecture)
        replaced = {flag.partition("=")[0] for flag in given}
        return [flag for flag in flags if flag.partition("=")[0] not in replaced] + given


def target_of(
    names: str | Sequence[str], processor: str = "host", architecture: str = "sm_80"
) -> CompileTarget:
    """Of names with commas between them, or a sequence. INVALID_ARGUMENT for one that is not known."""
    listed = names.split(",") if isinstance(names, str) else list(names)
    for name in listed:
        if name not in TARGETS:
            raise errors.InvalidArgumentError(
                f"target: there is no '{name}'; there are {', '.join(TARGETS)} (several with commas make one "
                "file that has all of them)"
            )
    if not listed:
        raise errors.InvalidArgumentError(f"target: name one or more of {', '.join(TARGETS)}")
    return CompileTarget(tuple(dict.fromkeys(listed)), processor, architecture)


INSTALL: Final = "pip install 'jitree[compile]'"
_MOST_MESSAGES: Final = 1 << 20
"""Bytes of a log in which the reason of a failure is looked for: it comes first."""


class MessageLog:
    """The file that programs write their messages to."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.clear()

    def clear(self) -> None:
        Path(self.path).write_bytes(b"")

    def text(self) -> str:
        with open(self.path, "rb") as file:
            return file.read(_MOST_MESSAGES).decode("utf-8", "backslashreplace")


class CompilerWork(NamedTuple):
    """What all steps of one compilation share."""

    folder: str
    """Where files are put that are not needed any more when it is done."""
    log: MessageLog
    """Of importer and compiler."""
    ends: float
    """When it has to be done, by the monotonic clock."""
    note: Callable[[str], None]
    """Gets what cannot be done to the model, and is not needed either."""

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def run(self, who: str, command: Sequence[str], log: MessageLog | None = None) -> int:
        """The exit status of a program, whose messages go to the log. It ends, with all that it has started,
        when time is over, with DEADLINE_EXCEEDED; and where an exception comes."""
        place = (log or self.log).path
        with errors.system_refusals(f"cannot start '{command[0]}'"), open(place, "ab") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        try:
            return process.wait(max(0.0, self.ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise errors.DeadlineExceededError(
                f"{who} has not ended in time; give it more (--timeout=<seconds>, timeout=)"
            ) from None
        finally:
            _end(process)

    def ask_peer(self, what: str, *paths: str) -> str:
        """Has onnxruntime do something with files; what keeps it from that, empty where nothing does."""
        if _spec("onnxruntime") is None:
            return "onnxruntime is not installed (pip install onnxruntime)"
        log = MessageLog(f"{paths[-1]}.log")
        command = [sys.executable, "-P", str(Path(__file__).with_name("peer.py")), what, *paths]
        status = self.run("onnxruntime", command, log)
        if status < 0:
            return f"onnxruntime has crashed ({signal.Signals(-status).name})"
        lines = log.text().splitlines() or [f"exit status {status}"]
        return f"onnxruntime refuses the model: {lines[-1]}" if status else ""


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
        raise errors.UnavailableError(f"there is no iree-compile: {INSTALL}")
    return [found]


def importer(kind: str) -> list[str]:
    """How a file of a kind is imported, by the compiler's package. UNAVAILABLE without it."""
    if _spec("iree.compiler.extras.onnx_importer") is None:
        raise errors.UnavailableError(f"the Python package iree-base-compiler is not installed: {INSTALL}")
    return [sys.executable, "-P", str(Path(__file__).with_name("importer.py")), kind]


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ImportError:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process, if it has not ended, and those that it has started."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
