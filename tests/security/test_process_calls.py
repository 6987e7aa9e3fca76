"""Calls of a sandbox in a process of its own: deadlines, cancelling, threads, forks, processes that end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jitree
from jitree.api.process import messages, worker
from jitree.api.process.serving import NativeSandbox
from jitree.base import cancel_scopes
from jitree.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StatusError,
    UnimplementedError,
)
from jitree.params import open_providers
from tests.assembler import Assembler
from tests.security.programs import CHANNEL, DATA, PROGRAM, VMVX

SHORT = 0.1
TIMEOUT = 60
IMAGE = np.ones((8, 8), np.float32)
STATE = (
    Assembler("state", globals_size=8)
    .function("add", "0i_i", """
        %i1 = global.load.i32 0
        %i1 = add.i32 %i1, %i0
        global.store.i32 0, %i1
        return [%i1]
    """)
    .build()
)  # fmt: skip


def confined(parameters: Any = (), **limits: Any) -> Any:
    limited = jitree.Limits(**limits)
    return jitree.Session("local-sync", sandbox="process", limits=limited, parameters=parameters)


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with confined() as session:
        session.load(PROGRAM, STATE)
        yield session


def test_deadlines(session: Any) -> None:
    spin = session["hostile.spin"]
    with pytest.raises(DeadlineExceededError, match=f"within {SHORT} s; while hostile.spin ran"):
        spin(timeout=SHORT)
    with pytest.raises(DeadlineExceededError), session.deadline(SHORT):
        spin()
    with pytest.raises(DeadlineExceededError), jitree.Session("local-sync").deadline(SHORT):
        spin(timeout=60)
    assert session.call("hostile.count", 5) == 5
    child = session.pid
    with pytest.raises(DeadlineExceededError):
        spin(timeout=0)
    assert session.pid == child, "nothing has begun"
    for limit in (None, math.inf, 10**400, 60):
        assert session["hostile.count"](5, timeout=limit) == 5
    with pytest.raises(InvalidArgumentError, match="timeout"):
        spin(timeout=math.nan)


def _cancelled(session: Any, count: int) -> None:
    """Calls that never end, cancelled: one runs, the others wait for it."""
    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(session.call, "hostile.spin") for _ in range(count)]
        while not all(call.done() for call in calls):
            time.sleep(0.01)
            session.cancel()
        for call in calls:
            with pytest.raises(CancelledError):
                call.result()


def test_arguments_by_name_and_awaited_calls(session: Any) -> None:
    count = session["hostile.count"]
    assert count(input0=5) == 5
    with pytest.raises(InvalidArgumentError, match="argument 'other' is unknown; there are: input0"):
        count(other=5)
    assert asyncio.run(count.async_(input0=6)) == 6
    with pytest.raises(DeadlineExceededError):
        asyncio.run(session["hostile.spin"].async_(timeout=SHORT))

    async def cancelled() -> None:
        task = asyncio.create_task(session["hostile.spin"].async_())
        while not session._gate.waiting:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())  # waits for the thread of the call
    assert count(5) == 5


def test_an_argument_named_timeout(session: Any) -> None:
    declared = {"iree.abi.declaration": "sync func @f(%x: i32, %timeout: i32) -> (%y: i32)"}
    module = Assembler("timed").function("f", "0ii_i", "%i2 = sub.i32 %i0, %i1\nreturn [%i2]", attrs=declared)
    session.load(module.build())
    for call in (session["timed.f"], session.modules["timed"].f, partial(session.call, "timed.f")):
        assert call(5, timeout=3) == 2 and call(timeout=1, x=2) == 1
    assert asyncio.run(session["timed.f"].async_(5, timeout=3)) == 2
    with session.deadline(TIMEOUT):
        assert session["timed.f"](5, timeout=4) == 1


NUMBERS = {"count": ("i32", "i"), "wide": ("i64", "I"), "single": ("f32", "f"), "double": ("f64", "F")}
SCALARS: list[Any] = [
    np.float32(1), np.int64(3), np.float64(2.5), np.uint8(200), np.bool_(True), np.float16(0.5),
    ml_dtypes.bfloat16(2), np.uint64(2**64 - 1), np.complex64(1j), np.str_("1"), np.datetime64(1, "s"),
    -math.nan, np.float32("nan"), 10**400, 2.5, 7, True, np.array(7), np.array([7]),
]  # fmt: skip


def test_numbers_are_taken_as_in_an_ordinary_session(session: Any) -> None:
    """Scalars of numpy, too: the same results, to the bit, and the same refusals."""
    module = Assembler("numbers")
    for name, (kind, letter) in NUMBERS.items():
        attrs = {"iree.abi.declaration": f"sync func @{name}(%x: {kind}) -> (%y: {kind})"}
        register = "%i0" if letter in "if" else "%i0:1"
        module.function(name, f"0{letter}_{letter}", f"return [{register}]", attrs=attrs)

    def outcome(function: Any, value: Any) -> Any:
        try:
            result = function(value)
        except StatusError as error:
            return error.code
        return isinstance(result, float), struct.pack("<d", result) if isinstance(result, float) else result

    data = module.build()
    with jitree.Session("local-sync") as ordinary:
        functions, confined_ones = ordinary.load(data), session.load(data)
        for name in NUMBERS:
            for value in SCALARS:
                expected = outcome(functions[name], value)
                assert outcome(confined_ones[name], value) == expected, (name, value)


def test_texts_that_no_message_has_room_for(session: Any) -> None:
    """They are statuses that name them; the process goes on."""
    session.load(Assembler("texts", globals_size=8).function("f", "0i_i", "return [%i0]").build())
    call, child, much = session["texts.f"], session.pid, 5 << 20
    for arguments, text in (
        ({"x" * much: 1}, rf"RESOURCE_EXHAUSTED.* its names of arguments, .* 'xxxx.* of {much} characters"),
        ({"x" * (much // 2): 1}, r"INVALID_ARGUMENT; argument 'xxxx.* characters\)"),
        ({"\ud800": 1}, r"INVALID_ARGUMENT; argument '\\ud800' is unknown"),
    ):
        with pytest.raises(StatusError, match=text):
            call(**arguments)
    with pytest.raises(ResourceExhaustedError, match="most are its arguments"):
        call(*range(much // 4))
    with pytest.raises(NotFoundError, match="no function 'xxxx"):
        session.call("texts." + "x" * much)
    assert call(5) == 5 and session.pid == child
    named = Assembler("long" * (much // 8)).function("f" * (much // 2), "0i_i", "return [%i0]").build()
    for _ in range(2):
        with pytest.raises(
            ResourceExhaustedError, match=r"names and declarations of functions, .*'func @ffff"
        ):
            session.load(named)
        assert call(5) == 5
    refused = pytest.raises(ResourceExhaustedError, match=r"names of parameters, the longest of them 'kkkk")
    with confined({"m": {"k" * much: np.ones(3)}}) as given, refused:
        given.load(STATE)


def test_cancelling(session: Any) -> None:
    session.cancel()  # nothing is in progress
    assert session.call("hostile.count", 5) == 5
    _cancelled(session, 1)
    _cancelled(session, 3)
    assert session.call("hostile.count", 5) == 5


def test_programs_join_no_group() -> None:
    with confined() as session, pytest.raises(PermissionDeniedError, match="replace_channel_provider"):
        session.load(CHANNEL).join()


def test_ctrl_c(session: Any) -> None:
    """It ends the call, and the session opens again."""
    for _ in range(2):
        timer = threading.Timer(SHORT, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            session["hostile.spin"](timeout=TIMEOUT)
        timer.join()
        assert session["hostile.count"](5) == 5


def test_nothing_in_progress_is_cancelled(session: Any) -> None:
    session.call("state.add", 0)
    child = session.pid
    for _ in range(20):
        session.cancel()
        session.call("state.add", 0)
    assert session.pid == child


def test_waiting_for_another_call_has_a_deadline(session: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        endless = pool.submit(session.call, "hostile.spin")
        while not session._gate.waiting:
            time.sleep(0.001)
        with pytest.raises(DeadlineExceededError):
            session["hostile.count"](5, timeout=SHORT)
        session.cancel()
        with pytest.raises(CancelledError):
            endless.result(TIMEOUT)


class FakeChild:
    """In the place of a child: what answers the parent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        life, self._life = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        monkeypatch.setattr(worker, "ask_for_child", lambda options: (theirs, life))
        self._process = subprocess.Popen(["sleep", "600"])
        self._pool = ThreadPoolExecutor(2)
        self._pool.submit(self._keep)
        self.will_answer({"ready": self._process.pid})

    def _keep(self) -> None:
        self._life.recv(1)
        self.connection.shutdown(socket.SHUT_RDWR)
        self._life.close()

    def will_answer(self, head: dict[str, Any], size: int = 0) -> None:
        """With so many bytes of results."""
        self._pool.submit(self._answer, head, size)

    def _answer(self, head: dict[str, Any], size: int) -> None:
        received = messages.receive(self.connection)
        assert received is not None
        messages.answer(self.connection, received[1], head, [bytes(size)])

    def __enter__(self) -> FakeChild:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        self._pool.shutdown()
        self.connection.close()


@pytest.mark.parametrize("is_early", [True, False])
def test_a_child_that_reads_nothing(is_early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never answers, or has done so before it was asked."""
    with FakeChild(monkeypatch) as fake:
        child = worker.Child("local-sync", jitree.Limits(), False, "strict", 0)
        if is_early:
            fake.connection.send(b"m")
        error: type[StatusError] = AbortedError if is_early else DeadlineExceededError
        with pytest.raises(error), cancel_scopes.Scope(TIMEOUT if is_early else SHORT):
            child.ask({}, [], "while it was asked")
        assert not child.is_alive


def test_a_child_that_ignores_the_limit_on_output(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {"f": ["", [], [], []]}
    for rows, size, is_allowed in (([["ui8", [64]], None], 64, True), ([["ui8", [64]], 5], 64, False)):
        with FakeChild(monkeypatch) as fake, confined(output=64) as session:
            fake.will_answer({"modules": [["m", functions]]})
            session.load(PROGRAM)
            fake.will_answer({"results": rows}, size)
            if is_allowed:
                assert session.call("m.f")[0].nbytes == 64
                continue
            with pytest.raises(AbortedError, match="what no session does"):
                session.call("m.f")


def test_closing_ends_a_call() -> None:
    session = confined()
    session.load(PROGRAM)
    with ThreadPoolExecutor(1) as pool:
        endless = pool.submit(session.call, "hostile.spin")
        while not session._gate.waiting:
            time.sleep(0.001)
        session.close()
        with pytest.raises(StatusError):
            endless.result(TIMEOUT)
    with pytest.raises(FailedPreconditionError, match="closed"):
        session.call("hostile.count", 5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN, signal.SIGRTMIN + 9])
def test_a_child_that_ends_by_any_signal(session: Any, number: int) -> None:
    session.call("state.add", 0)
    with ThreadPoolExecutor(1) as pool:
        endless = pool.submit(session.call, "hostile.spin")
        while not endless.done():  # a child that ends before it is asked is replaced by another
            child = session.pid
            with contextlib.suppress(ProcessLookupError):
                if child is not None:
                    os.kill(child, number)
            time.sleep(0.05)
        with pytest.raises(AbortedError, match=r"ended by (SIG|signal \d)"):
            endless.result()
    assert session.call("state.add", 1) == 1


def test_many_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("the system gives no more than 1024 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1030)]
    try:
        with confined() as session:
            session.load(PROGRAM)
            assert session["hostile.count"](5, timeout=TIMEOUT) == 5
            assert session._worker._life.fileno() > 1024
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_child_outlives_the_thread_that_started_it() -> None:
    session = confined()
    with session:
        thread = threading.Thread(target=session.load, args=(STATE,))
        thread.start()
        thread.join()
        assert session.call("state.add", 5) == 5
        assert session.call("state.add", 5) == 10


def test_a_forked_process_has_a_child_for_itself(session: Any) -> None:
    session.call("state.add", 0)
    child, before = session.pid, session.call("state.add", 0)
    forked = os.fork()
    if forked == 0:
        code = 1
        try:
            code = 0 if session.call("state.add", 1) == 1 and session.pid != child else 2
            session.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert session.call("state.add", 1) == before + 1 and session.pid == child


def test_starters_that_end_are_replaced(session: Any) -> None:
    session.call("state.add", 0)
    child = session.pid
    (starter,) = worker._started
    assert starter._process is not None
    os.kill(starter._process.pid, signal.SIGKILL)
    starter._process.wait()
    session.call("state.add", 0)
    assert session.pid == child, "which does not need the starter"
    with confined() as other:
        other.load(STATE)
        assert other.call("state.add", 1) == 1


def test_crashes_under_load() -> None:
    """Threads call, and processes end: each call has its result or fails with a status."""
    with confined() as session:
        session.load(VMVX)
        expected = session.call("module.classify", IMAGE)
        done = threading.Event()

        def call() -> tuple[int, int]:
            right = failed = 0
            while not done.is_set():
                try:
                    assert (session.call("module.classify", IMAGE) == expected).all()
                    right += 1
                except AbortedError:
                    failed += 1
            return right, failed

        def crash() -> None:
            for _ in range(8):
                child = session.pid
                if child is not None and session._worker.is_alive:
                    os.kill(child, signal.SIGSEGV)
                time.sleep(SHORT)
            done.set()

        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(call) for _ in range(3)]
            pool.submit(crash).result()
            assert all(right + failed for right, failed in (future.result() for future in calls))
        assert (session.call("module.classify", IMAGE) == expected).all()


@pytest.mark.parametrize(
    "limits",
    [
        {"time": math.inf},
        {"time": 10**400, "load_time": 1e300},
        {"memory": 10**400},
        {"handles": 10**400, "recursion": 10**400, "output": 1 << 200, "load_size": 1 << 200},
    ],
)
@pytest.mark.parametrize("kind", [True, "process"])
def test_limits_beyond_anything(limits: dict[str, Any], kind: Any) -> None:
    with jitree.Session("local-sync", sandbox=kind, limits=jitree.Limits(**limits)) as session:
        session.load(PROGRAM)
        assert session["hostile.count"](5) == 5


def test_what_is_no_limit() -> None:
    for wrong in ({"time": math.nan}, {"memory": -(10**5000)}, {"time": -math.inf}):
        with pytest.raises(InvalidArgumentError, match=r"limits: (time|memory) is"):
            confined(**wrong)


def test_what_a_child_cannot_be_given(session: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expected an array or a number"):
        session.call("hostile.count", 10**5000)
    host = jitree.CustomModule("host")
    with pytest.raises(UnimplementedError, match="object of this process"):
        session.load(host)
    assert session.call("hostile.count", 5) == 5


def test_results_and_modules_take_no_descriptors(session: Any) -> None:
    with confined() as many:
        before = os.listdir("/proc/self/fd")
        for index in range(40):
            many.load(Assembler(f"m{index}").function("f", "0i_i", "return [%i0]").build())
        many.load(VMVX)
        results = [many.call("module.classify", IMAGE) for _ in range(40)]
        assert len(os.listdir("/proc/self/fd")) <= len(before) + 3
        assert all((result == results[0]).all() for result in results)


def test_parameters_are_handed_over(tmp_path: Path) -> None:
    """Also to the next child, and those of an archive that the host has opened."""
    rng = np.random.default_rng(3)
    arrays = {"w": rng.random((4, 3), np.float32), "b": rng.random(3, np.float32)}
    files = [f"model={tmp_path / 'w.npz'}", f"model={tmp_path / 'b.npz'}"]
    np.savez(tmp_path / "w.npz", w=arrays["w"])
    np.savez(tmp_path / "b.npz", b=arrays["b"])
    program = DATA / "parameters.vmfb"
    x = rng.random((2, 4), np.float32)
    scale: Any = {"scale": rng.random(3, np.float32)}
    with jitree.Session("local-sync", parameters=scale | {"model": arrays}) as ordinary:
        expected = np.asarray(ordinary.load(program).linear(x))
    for parameters in (scale | {"model": arrays}, open_providers([*files, scale])):
        for limits in ({}, {"memory": 1 << 24}):
            with confined(parameters, **limits) as given:
                given.load(program)
                for _ in range(2):
                    assert (given.modules["parameters"].linear(x) == expected).all()
                    os.kill(given.pid, signal.SIGKILL)
                    while given._worker.is_alive:
                        time.sleep(0.001)


def test_libraries_for_the_loader_of_the_system_are_refused() -> None:
    sandbox = NativeSandbox(jitree.Limits(), "strict")
    assert not any(loader.query_support("system-elf-x86_64") for loader in sandbox.loaders)
    error = sandbox.loaders[-1].refusal("system-elf-x86_64")
    assert isinstance(error, PermissionDeniedError) and "link-embedded" in sandbox.why_refused
