"""A sandbox in a separate process: limits of the system, threads that begin at once, the parent that ends."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import jitree
from jitree.api.process import worker
from jitree.errors import ResourceExhaustedError, UnavailableError
from tests.security.programs import PROGRAM, VMVX

ROOT = Path(__file__).resolve().parents[2]
IMAGE = np.ones((8, 8), np.float32)
SECONDS = 60


@pytest.fixture
def session() -> Iterator[Any]:
    with confined() as session:
        session.load(PROGRAM)
        yield session


def confined() -> Any:
    return jitree.Session("local-sync", sandbox="process")


@contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def state(process: int) -> str | None:
    """The letter that the system has for it; None when it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # before the file is opened, or after
        return None


def wait_for(process: int, *states: str | None) -> None:
    end = time.monotonic() + SECONDS
    while state(process) not in states:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_call_that_cannot_be_sent_leaves_the_process_stopped(session: Any) -> None:
    for _ in range(2):
        with pytest.raises(ResourceExhaustedError, match="names of arguments"):
            session.call("hostile.count", **{"x" * (5 << 20): 1})
        wait_for(session.pid, "T")
    assert session.call("hostile.count", 5) == 5


def test_no_more_descriptors(session: Any) -> None:
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    with confined() as other:
        with limited(resource.RLIMIT_NOFILE, free):
            with pytest.raises(ResourceExhaustedError, match=r"no file can be made.*Too many open files"):
                session.call("hostile.count", 5)
            with pytest.raises(
                UnavailableError, match=r"no process can be started here.*Too many open files"
            ):
                other.load(PROGRAM)
        assert session.call("hostile.count", 5) == 5
        other.load(PROGRAM)
        assert other.call("hostile.count", 5) == 5


def test_files_that_may_not_grow(session: Any) -> None:
    child = session.pid
    with limited(resource.RLIMIT_FSIZE, 1000):
        with pytest.raises(ResourceExhaustedError, match=r"cannot be written.*File too large"):
            session.load(VMVX)
        wait_for(child, "T")
        assert session.call("hostile.count", 5) == 5
    assert session.load(VMVX).classify(IMAGE).shape == (10,) and session.pid == child


def test_threads_that_begin_together_share_a_starter() -> None:
    worker._end()
    together = Barrier(6)

    def begin() -> int:
        with confined() as session:
            together.wait()
            session.load(PROGRAM)
            count: int = session.call("hostile.count", 5)
            return count

    with ThreadPoolExecutor(6) as pool:
        assert [*pool.map(lambda _: begin(), range(6))] == [5] * 6
    assert len(worker._started) == 1


def test_what_could_not_be_started_once_may_be_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    worker._end()
    start, reasons = subprocess.Popen, [errno.EAGAIN, errno.ENOMEM]

    def refused(*arguments: Any, **options: Any) -> Any:
        if reasons:
            number = reasons.pop()
            raise OSError(number, os.strerror(number))
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", refused)
    with confined() as session:
        for reason in ("Cannot allocate memory", "Resource temporarily unavailable"):
            with pytest.raises(UnavailableError, match=reason):
                session.load(PROGRAM)
        session.load(PROGRAM)
        assert session.call("hostile.count", 5) == 5


def test_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a RuntimeError."""
    worker._end()
    with confined() as session:
        with monkeypatch.context() as patch:
            patch.setattr(
                worker, "start_new_thread", Mock(side_effect=RuntimeError("can't start new thread"))
            )
            with pytest.raises(ResourceExhaustedError, match=r"a process: cannot start a thread.*ulimit -u"):
                session.load(PROGRAM)
        session.load(PROGRAM)
        assert session.call("hostile.count", 5) == 5


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_whatever_keeps_the_process_from_starting_is_raised_where_it_was_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker._end()
    with confined() as session:
        with monkeypatch.context() as patch:

            def missing(package: str) -> list[str]:
                raise ImportError(f"no {package} here")

            patch.setattr(worker, "folders_of", missing)
            with pytest.raises(ImportError, match="no jitree here"):
                worker.ask_for_child(b"{}")
        assert not worker._started
        session.load(PROGRAM)
        assert session.call("hostile.count", 5) == 5


def test_the_process_ends_with_its_parent() -> None:
    """Also in the middle of a call that never ends, and when nothing can tell it."""
    program = (
        "import threading, jitree\n"
        "from tests.security.programs import PROGRAM\n"
        "session = jitree.Session('local-sync', sandbox='process')\n"
        "session.load(PROGRAM)\n"
        "threading.Thread(target=session['hostile.spin'], daemon=True).start()\n"
        "print(session.pid, flush=True)\n"
        "threading.Event().wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_for(child, "R")
        parent.send_signal(signal.SIGKILL)
        wait_for(child, None, "Z")
