"""What a signal's handler raises goes through as itself, also where its class is one that work fails with."""

from __future__ import annotations

import ast
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.api.calls import conversion
from jitree.api.process import messages
from jitree.base import copying, dlpack, private_files, start
from jitree.errors import (
    CancelledError,
    DeadlineExceededError,
    ResourceExhaustedError,
    StatusError,
    ignored,
)
from jitree.hal import heap
from jitree.hal.groups import rendezvous
from jitree.modules.hal import pacing
from jitree.params import ParameterIndex, entry, numpy_files
from jitree.regs import buffer
from jitree.tools import values
from jitree.vmfb import archive
from tests.sizes import nodes
from tests.tools.command import ECHO


class Late(TimeoutError, ValueError):
    """A ``TimeoutError``, as handlers of alarms raise it, is an ``OSError``."""


@pytest.fixture
def alarm() -> Iterator[Callable[..., Any]]:
    """Has the alarm's handler raise."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise Late("too late")

    before = signal.signal(signal.SIGALRM, expire)
    yield lambda *_, **__: signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def test_where_a_process_is_asked(alarm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends, since nobody takes its answer; the next call starts another one."""
    session: Any = Session("local-sync", sandbox="process")
    session._alive()
    with session:
        echo = session.load(ECHO)
        for place in ((socket, "send_fds"), (os, "pwrite"), (messages, "read")):
            with monkeypatch.context() as patch:
                patch.setattr(*place, alarm)
                with pytest.raises(Late):
                    echo.two(np.ones(4, np.float32), 7)
            first, second = echo.two(np.ones(4, np.float32), 7)
            assert second == 7 and list(np.asarray(first)) == [2.0] * 4


@pytest.mark.parametrize("place", ["_check_apart", "zipfile.ZipFile.read"])
def test_where_an_archive_of_numpy_is_read(
    place: str, alarm: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told as a damaged file."""
    np.savez_compressed(tmp_path / "a.npz", w=np.ones(4, np.float32))
    monkeypatch.setattr(f"{numpy_files.__name__}.{place}", alarm)
    index = ParameterIndex()
    with pytest.raises(Late):
        index.load(tmp_path / "a.npz")
        index.get("w").contents()


def test_where_an_argument_is_converted(alarm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "numbers_of", alarm)
    with Session("local-sync", tier="plain") as session:
        two = session.load(ECHO).two
        with pytest.raises(Late):
            two([1.5] * 4, 7)


def test_where_a_file_is_read(
    alarm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "weights.npz"
    np.savez(path, a=np.ones(3))
    monkeypatch.setattr(entry.ParameterFile, "_map", alarm)
    with pytest.raises(Late):
        entry.ParameterFile(path)


def test_where_members_find_each_other(alarm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_receive", alarm)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with pytest.raises(Late):
            rendezvous._fetch(address, 1, 1, 1e300)
        with socket.create_connection(address) as connection, pytest.raises(Late):
            rendezvous._greet(connection, 1)


def test_where_memory_is_allocated(alarm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, pytest.raises(Late):
        patched.setattr(heap, "np", SimpleNamespace(empty=alarm, uint8=np.uint8))
        heap.HeapAllocator().allocate(0, 0, 64)
    monkeypatch.setattr(buffer, "zeroed", alarm)
    with pytest.raises(Late):
        buffer.VmBuffer(64)


def test_where_a_module_is_read(
    alarm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.vmfb").write_bytes(bytes(64))
    monkeypatch.setattr(archive, "_read_file", alarm)
    with pytest.raises(Late):
        archive.content(tmp_path / "a.vmfb")
    with open(tmp_path / "a.vmfb", "rb") as file, pytest.raises(Late):
        monkeypatch.setattr(archive, "_read_stream", alarm)
        archive.content(file)


def test_where_files_of_tools_and_of_the_cache_are_read(
    alarm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(Late), values._memory_for(8):
        alarm()
    with pytest.raises(Late), values._reading("a.npy", "array"):
        alarm()
    with monkeypatch.context() as patch, pytest.raises(Late):
        patch.setattr(private_files, "opened", alarm)
        private_files.read(str(tmp_path), "a.image")
    with monkeypatch.context() as patch, pytest.raises(Late):
        patch.setattr(start, "_mapped", alarm)
        with ExitStack() as kept:
            start._read(__file__, kept)


def test_what_is_ignored() -> None:
    """Code that goes on after an error does not go on after what a handler has raised."""
    with ignored(OSError):
        raise PermissionError
    with pytest.raises(Late), ignored(OSError):
        _raise_by_alarm(Late("too late"))
    with pytest.raises(ValueError), ignored(OSError):
        raise ValueError
    with pytest.raises(DeadlineExceededError), ignored(OSError):
        raise DeadlineExceededError("too late")
    with ignored(StatusError):
        raise DeadlineExceededError("too late")


@pytest.mark.parametrize("kind", [DeadlineExceededError, CancelledError])
def test_what_ends_a_block_is_no_refusal_of_the_system(kind: type[StatusError], tmp_path: Path) -> None:
    """A deadline's error is an ``OSError``, and each status a ``RuntimeError``. Files may be a program's."""

    def read(size: int = -1) -> bytes:
        raise kind("too late")

    late: Any = SimpleNamespace(read=read, fileno=read)
    with pytest.raises(kind):
        archive.content(late)
    with pytest.raises(kind):
        dlpack.import_array(SimpleNamespace(__dlpack__=lambda **_: read(), __dlpack_device__=lambda: (1, 0)))


_CHILDREN = {
    "api/process/serving.py", "base/start.py", "codegen/checked/instrument.py", "codegen/image/build.py",
    "codegen/image/builder_process.py", "compiling/importer.py", "compiling/peer.py",
}  # fmt: skip
"""What runs in processes that only answer, or as one begins and ends: no program's code raises there."""
_OTHERS = {
    "codegen/image/worklist.py": "it is raised again when the others have done their part",
    "cuda/completion.py": "on a thread of the package", "cuda/queue.py": "on a thread of the package",
    "hal/groups/presence.py": "on a thread of the package",
    "hal/local/workers.py": "on a thread of the package",
    "hal/semaphore.py": "while what a handler has raised is on its way",
    "integrations/batching.py": "the request fails by it",
    "integrations/streams.py": "the request fails by it",
    "tools/main.py": "the process ends by it",
}  # fmt: skip
_WIDE = {"OSError", "TimeoutError", "Exception", "DAMAGE"}


def _name(node: ast.AST) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _swallows(path: Path) -> bool:
    """Whether any ``except``, or ``suppress``, of a wide class takes all for a failure of its work."""
    for node in nodes(path):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            names = (name for name in ast.walk(node.type) if isinstance(name, ast.Name))
            kinds, body = {name.id for name in names}, "\n".join(map(ast.unparse, node.body))
            if _WIDE & kinds and "_interruption(" not in body and body != "raise":
                return True
        arguments = node.args if isinstance(node, ast.Call) and _name(node.func) == "suppress" else []
        if {*_WIDE, "BaseException"} & {*map(_name, arguments)}:
            return True
    return False


def test_wide_classes_are_looked_at() -> None:
    """Errors of signals' handlers and deadlines have the classes of what the system refuses."""
    package = Path(archive.__file__).parents[1]
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if _swallows(path)}
    assert found == {*_CHILDREN, *_OTHERS}


def _raise_by_alarm(error: Exception) -> None:
    """As the handler of a signal that comes now."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, expire)
    try:
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_of_the_class_of_missing_memory() -> None:
    """It is not taken for memory that may be there later, for which a program waits."""
    late = ResourceExhaustedError("too late")
    device: Any = SimpleNamespace(can_be_awaited=lambda wait: True)
    wait: Any = SimpleNamespace(timepoints=())
    with pytest.raises(ResourceExhaustedError) as caught:
        pacing.submit(lambda: _raise_by_alarm(late), device, wait)
    assert caught.value is late
    with pytest.raises(MemoryError, match="too late"), copying.room_for(np.ones(3)):
        _raise_by_alarm(MemoryError("too late"))
