"""What a server does with a session: it counts, drains, and reloads without a call that fails."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import HostExport, HostModule, Session
from jitree.api import serving
from jitree.api.module import create_function
from jitree.base import logs
from jitree.base.cancel_scopes import deadline
from jitree.base.events import EventReader, listen, process, stop_listening
from jitree.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnimplementedError,
)
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, PROGRAMS
from tests.assembler import Assembler
from tests.exposition import samples
from tests.hal.helpers import TIMEOUT

X = np.arange(4, dtype=np.float32)


def adding(number: int, extra: bool = False) -> bytes:
    """A module ``m`` whose ``f`` adds a number, and whose ``slow`` calls the host before it does."""
    code = f"%i3 = const.i32 {number}\n%i3 = add.i32 %i0, %i3\nreturn [%i3]"
    module = Assembler("m").import_function("host.wait", "0v_v")
    module = module.function("f", "0ii_i" if extra else "0i_i", code)
    return module.function("slow", "0i_i", f"call @host.wait []\n{code}").build()


class Gate(HostModule):
    """Lets calls of ``slow`` wait for the test."""

    name = "host"

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.opened = threading.Event(), threading.Event()

    def exports(self) -> Any:
        return [HostExport("wait", "0v_v", self.wait)]

    def wait(self, state: object) -> None:
        self.entered.set()
        assert self.opened.wait(TIMEOUT)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def session(gate: Gate) -> Iterator[Session]:
    with Session("local-sync", tier="fast") as session:
        session.append_module(gate)
        session.load(adding(1))
        yield session


def in_thread(action: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(action())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


# Metrics.


def test_calls_and_errors_are_counted_however_they_are_made(session: Session) -> None:
    f, before = session["m.f"], session.metrics()
    for number in range(20):
        assert f(number) == number + 1
    with pytest.raises(InvalidArgumentError):
        f("text")
    assert session.metrics().calls - before.calls == 20
    add = session.load(ARITHMETIC).add
    for _ in range(20):
        add(X, X)
    session.call_direct("m.f", 1)
    assert session.metrics().calls - before.calls == 41
    assert session.metrics().errors == before.errors


def test_failures_are_counted() -> None:
    with Session("local-sync", tier="fast") as session:
        module = session.load(Assembler("m").function("f", "0v_v", "return []").build())
        for _ in range(5):
            module.f()
        counted = session.metrics()
        assert (counted.calls, counted.errors) == (5, 0)
        failing = session.load(Assembler("n").function("f", "0i_v", 'fail %i0, "no"').build())
        for _ in range(5):
            with pytest.raises(jitree.StatusError):
                failing.f(3)
        counted = session.metrics()
        assert (counted.calls, counted.errors) == (10, 5)


def test_prometheus_reads_the_text(session: Session) -> None:
    session["m.f"](1)
    kept = session.to_device(np.zeros(1000, np.float32))
    counted = session.metrics()
    read = samples(counted.prometheus())
    assert read["jitree_calls_total", ()] == counted.calls >= 1
    used = read["jitree_memory_used_bytes", (("device", "local-sync://"),)]
    assert used == counted.memory[0].used >= kept.nbytes
    assert "local-sync:// used" in str(counted) and "calls" in counted._repr_html_()


# Drain.


def test_a_drained_session_ends_what_it_has_begun(session: Session, gate: Gate) -> None:
    thread, results = in_thread(lambda: session["m.slow"](1))
    assert gate.entered.wait(TIMEOUT)
    with pytest.raises(DeadlineExceededError):
        session.drain(0.01)
    gate.opened.set()
    session.drain(TIMEOUT)
    thread.join(TIMEOUT)
    assert results == [2]
    calls: list[Callable[[], object]] = [
        lambda: session["m.f"](1),
        lambda: asyncio.run(session["m.f"].async_(1)),
    ]
    for call in calls:
        with pytest.raises(UnavailableError, match="draining"):
            call()
    with pytest.raises(FailedPreconditionError, match="draining"):
        session.reload(adding(2))
    session.drain()
    session.close()


def test_calls_by_machine_code_are_refused_too() -> None:
    with Session("local-sync", tier="fast") as session:
        add = session.load(ARITHMETIC).add
        for _ in range(5):
            add(X, X)
        session.drain()
        for _ in range(3):
            with pytest.raises(UnavailableError, match="draining"):
                add(X, X)


# Reload.


def test_functions_that_callers_have_are_those_of_the_new_module(session: Session) -> None:
    module = session.modules["m"]
    f, by_name = module.f, session["m.f"]
    assert f(1) == by_name(1) == 2
    assert session.reload(adding(10)) is module
    assert f(1) == by_name(1) == module.f(1) == session.call("m.f", 1) == 11
    assert session.modules["m"] is module and module.f is f
    calls = session.metrics().calls
    f(1)
    assert session.metrics().calls == calls + 1, "counts go on"
    session.cancel()
    assert f(2) == 12


def test_a_function_that_gains_storage_refuses_what_lies_in_it() -> None:
    """Memory of two results is no one memory, whatever the program before had it for."""

    def program(first: str, second: str) -> bytes:
        given = f"%a: tensor<4xf32> {first}, %b: tensor<4xf32> {second}"
        attrs = {"iree.abi.declaration": f"sync func @f({given}) -> (%y: tensor<4xf32>, %z: tensor<4xf32>)"}
        return Assembler("m").function("f", "0rr_rr", "return [%r0, %r1]", attrs=attrs).build()

    storages = [f"{{iree.abi.output = {number} : index}}" for number in range(2)]
    with Session("local-sync") as session:
        f, one = session.load(program("", "")).f, session.to_device(X)
        f(one, one)
        session.reload(program(*storages))
        with pytest.raises(InvalidArgumentError, match="lies in the memory of"):
            f(one, one)


def test_a_session_that_another_thread_closes_is_not_reloaded(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: Any) -> list[str]:
        replaced = loading(*arguments)
        session.close()
        return replaced

    loading = serving._load
    monkeypatch.setattr(serving, "_load", load)
    with pytest.raises(FailedPreconditionError, match="closed"):
        session.reload(adding(10))
    assert session.context.invoker.closed
    with pytest.raises(FailedPreconditionError, match="closed"):
        session.reload(adding(10))


def test_threads_reload_one_after_the_other(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    f, others = session["m.f"], list[tuple[threading.Thread, list[Any]]]()

    def load(*arguments: Any) -> list[str]:
        if not others:
            others.append(in_thread(lambda: session.reload(adding(20))))
            time.sleep(0.01)  # the other one may come as far as it can
        return loading(*arguments)

    loading = serving._load
    monkeypatch.setattr(serving, "_load", load)
    session.reload(adding(10))
    ((thread, results),) = others
    thread.join(TIMEOUT)
    assert results == [session.modules["m"]] and f(1) == 21


@pytest.mark.parametrize("find", [lambda session: session["m.f"], lambda session: session.modules["m"].f])
def test_a_function_that_is_found_during_a_reload_is_exchanged_too(
    session: Session, monkeypatch: pytest.MonkeyPatch, find: Callable[[Session], Any]
) -> None:
    """The other thread waits at the gate until the function is noted, or has exchanged all by then."""
    others, is_there = list[tuple[threading.Thread, list[Any]]](), threading.Event()

    @contextmanager
    def waiting(lock: object) -> Iterator[None]:
        is_there.set()
        yield

    def reload() -> None:
        with deadline(TIMEOUT):  # who has one says that it waits at the gate
            session.reload(adding(10))
        is_there.set()

    def create(*arguments: Any) -> Any:
        if not others:
            others.append(in_thread(reload))
            assert is_there.wait(TIMEOUT)
        return create_function(*arguments)

    monkeypatch.setattr("jitree.api.session.create_function", create)
    monkeypatch.setattr(session.context.invoker, "watch_gate", waiting)
    f = find(session)
    others[0][0].join(TIMEOUT)
    assert f(1) == 11 and find(session) is f


def test_a_call_in_progress_ends_in_the_old_module(session: Session, gate: Gate) -> None:
    slow = session["m.slow"]
    thread, results = in_thread(lambda: slow(1))
    assert gate.entered.wait(TIMEOUT)
    reloading, reloaded = in_thread(lambda: session.reload(adding(10)))
    gate.opened.set()
    for each in (thread, reloading):
        each.join(TIMEOUT)
    assert results == [2] and reloaded == [session.modules["m"]] and slow(1) == 11


@pytest.mark.parametrize("path", [ARITHMETIC, ASYNCHRONOUS], ids=["plain", "asynchronous"])
@pytest.mark.parametrize("uri", ["local-sync", "local-task"])
def test_no_call_fails_under_load(uri: str, path: Any) -> None:
    with Session(uri, tier="fast") as session:
        add, stop = session.load(path).add, threading.Event()
        values = np.arange(4 if path == ARITHMETIC else 64, dtype=np.float32)
        counts = []

        def call() -> None:
            array, count = session.to_device(values), 0
            while not stop.is_set():
                assert np.array_equal(add(array, values), values + values)
                count += 1
                array = session.to_device(values) if count % 50 else add(values, values - values)
            counts.append(count)

        async def awaited() -> None:
            while not stop.is_set():
                for result in await asyncio.gather(*[add.async_(values, values) for _ in range(4)]):
                    assert np.array_equal(result, values + values)

        work = [in_thread(call), in_thread(call), in_thread(lambda: asyncio.run(awaited()))]
        for _ in range(8):
            session.reload(path)
        stop.set()
        for thread, results in work:
            thread.join(TIMEOUT)
            assert results == [None]
        assert session.metrics().errors == 0 and min(counts) > 0
        assert np.array_equal(add(values, values), values + values)


def test_memory_is_that_of_one_program_when_it_has_ended() -> None:
    with Session("local-sync", tier="fast") as session:
        session.load(PROGRAMS / "state.vmfb")
        gc.collect()
        before = session.device.memory().live
        for _ in range(4):
            session.reload(PROGRAMS / "state.vmfb")
        gc.collect()
        assert session.device.memory().live <= before


def test_what_callers_could_not_go_on_with_is_refused(session: Session, gate: Gate) -> None:
    f = session["m.f"]
    one = Assembler("m").function("f", "0i_v", "return []").build()
    for source, error, text in (
        (adding(1, extra=True), FailedPreconditionError, "m.f is"),
        (one, FailedPreconditionError, "m.f is"),
        (Assembler("m").function("g", "0v_v", "return []").build(), FailedPreconditionError, "not there"),
        (ARITHMETIC, NotFoundError, "no module 'arithmetic' is loaded"),
        (b"no module", InvalidArgumentError, "the file is plain text, not a module"),
    ):
        with pytest.raises(error, match=text):
            session.reload(source)
        assert f(1) == 2
    with pytest.raises(InvalidArgumentError, match="no module was given"):
        session.reload()
    with session.profile(), pytest.raises(FailedPreconditionError, match="profile"):
        session.reload(adding(2))
    with session.tap(), pytest.raises(FailedPreconditionError, match="tap"):
        session.reload(adding(2))
    session.reload(adding(2))
    assert f(1) == 3
    with Session("local-sync", sandbox=True) as sandboxed, pytest.raises(UnimplementedError, match="sandbox"):
        sandboxed.reload(adding(2))


def test_a_reloaded_session_pickles_as_what_it_is_now(tmp_path: Any) -> None:
    path = tmp_path / "m.vmfb"
    plain = "%i1 = const.i32 {}\n%i2 = add.i32 %i0, %i1\nreturn [%i2]"
    path.write_bytes(Assembler("m").function("f", "0i_i", plain.format(1)).build())
    with jitree.Program(path, device="local-sync").open() as session:
        pickle.dumps(session)
        path.write_bytes(Assembler("m").function("f", "0i_i", plain.format(5)).build())
        session.reload(path)
        f = session["m.f"]
        with pickle.loads(pickle.dumps(f)).session as other:
            assert f(1) == 6 == other["m.f"](1)


# Logs.


class Notes(EventReader):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def begins(self, event: Any) -> None:
        self.seen.append(event)
        raise ValueError("what a reader raises disturbs nobody")


class Records(logging.Handler):
    """Keeps what a logger is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record)


def test_notes_go_to_readers_and_to_the_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, records, logger = Notes(), Records(), logging.getLogger("jitree")
    monkeypatch.setattr(logger, "handlers", [records])
    logger.setLevel(logging.INFO)
    listen(process, reader)
    try:
        logs.note("slow", "something\x1b takes long", seconds=1.5)
        logs.note("found", "a detail", "debug")
    finally:
        stop_listening(process, reader)
        logger.setLevel(logging.NOTSET)
    assert [(each.topic, each.seconds) for each in reader.seen] == [("slow", 1.5), ("found", 0.0)]
    (record,) = records.seen
    assert record.name == "jitree" and record.levelname == "INFO" and record.__dict__["topic"] == "slow"
    assert record.getMessage() == "something\\1B takes long (1.50 s)"


LOGGED = """
import numpy as np, jitree, sys
m = jitree.load(sys.argv[1], device="local-sync", tier="fast")
for _ in range(30):
    m.classify(np.zeros((8, 8), np.float32))
from jitree.codegen import image
print("logging" in sys.modules)
image.warn("a kernel", "the disk is full")
"""


@pytest.mark.parametrize(
    ("level", "expected"), [("", False), ("info", True), ("WARNING", True), ("loud", True)]
)
def test_the_environment_turns_the_log_on(level: str, expected: bool) -> None:
    environment = os.environ | {"JITREE_LOG": level, "PYTHONWARNINGS": "ignore"}
    digits = PROGRAMS.parents[2] / "examples/digits/digits.llvm-cpu.vmfb"
    done = subprocess.run(
        [sys.executable, "-c", LOGGED, digits],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    assert ("jitree: goes without a kernel: the disk is full" in done.stderr) is expected, done.stderr
    assert ("JITREE_LOG=loud is none of" in done.stderr) is (level == "loud")
    if not level:
        assert done.stdout.strip() == "False", "logging is imported by whom it is asked for"
