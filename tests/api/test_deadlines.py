"""Deadlines and cancelled sessions end what never ends, and the session is as good as new."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree import CustomModule, Limits, Session
from jitree.api.calls.argument_order import ArgumentOrder
from jitree.base import cancel_scopes, stop_word
from jitree.base.cancel_scopes import Scope
from jitree.codegen.image import Provider
from jitree.codegen.image.batch import ImageBatch
from jitree.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    StatusError,
)
from jitree.hal.fence import Fence
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, STATE
from tests.assembler import Assembler
from tests.hal.helpers import TIMEOUT
from tests.tools.command import jitree

KERNEL = Path(__file__).parents[1] / "data" / "programs" / "endless.vmfb"
DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.vmvx.vmfb"
TASK = "local-task://?threads=2"
SHORT = 0.03
"""Seconds, of calls that never end."""
BYTECODE = (
    Assembler("m")
    .function("loop", "0i_i", "br ^a\n^a:\n%i1 = const.i32 1\n%i0 = add.i32 %i0, %i1\nbr ^a")
    .function("recursion", "0i_i", """
        %i1 = const.i32 0
        %i2 = cmp.eq.i32 %i0, %i1
        cond_br %i2, ^end, ^more
        ^more:
        %i3 = const.i32 -1
        %i4 = add.i32 %i0, %i3
        [%i5] = call @recursion [%i4]
        [%i5] = call @recursion [%i4]
        return [%i5]
        ^end:
        return [%i0]
        """)
)  # fmt: skip
TWO = np.int32(2)
FOUND = np.full(4096, 2, np.int32)
LOST = np.array([*FOUND[1:], 3], np.int32)
"""The last element's workgroup never ends."""

ENDLESS: dict[str, Callable[[Session], tuple[Any, tuple[Any, ...]]]] = {
    "a loop": lambda session: (session["m.loop"], (1,)),
    "a recursion": lambda session: (session["m.recursion"], (200,)),
    "a loop of dispatches": lambda session: (session["state.double_until"], (np.float32(0), 1.0)),
    "a workgroup": lambda session: (session["module.f"], (LOST, TWO)),
    "a wait": lambda session: (session["asynchronous.await_fence"], (Fence.create(session.device), -1)),
}


def check(session: Session) -> None:
    """Calls of all kinds give what they always give."""
    assert (np.asarray(session["module.f"](FOUND, TWO)) == 2).all()
    assert session["state.double_until"](np.float32(1), 100.0)[1] == 7
    ones = np.ones(64, np.float32)
    function = session["asynchronous.add"]
    assert (np.asarray(function(function.submit(ones, ones), ones)) == 3).all()
    assert session["m.recursion"](3) == 0


@pytest.fixture(
    scope="module",
    params=[
        ("plain", "local-sync"),
        ("plain", TASK),
        ("fast", "local-sync"),
        ("fast", TASK),
        ("native", "local-sync"),
        ("auto", TASK),
    ],
    ids="-".join,
)
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    tier, device = request.param
    with Session(device, tier=tier) as session:
        session.load(KERNEL, STATE, ASYNCHRONOUS)
        session.load(BYTECODE.build())
        for _ in range(4):
            check(session)
        yield session


@contextlib.contextmanager
def cancelling(session: Session) -> Iterator[None]:
    """Another thread says it again and again: the call may not have begun when it does so first."""
    done = threading.Event()

    def cancel() -> None:
        while not done.wait(SHORT):
            session.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_never_ends_ends_in_time(session: Session, kind: str) -> None:
    function, arguments = ENDLESS[kind](session)
    name = f"invoking function '{function.name}'"
    for _ in range(2):
        with pytest.raises(DeadlineExceededError, match=name):
            function(*arguments, timeout=SHORT)
        check(session)
    with pytest.raises(DeadlineExceededError, match=name), session.deadline(SHORT):
        function(*arguments)
    with cancelling(session), pytest.raises(CancelledError, match=name):
        function(*arguments)
    check(session)


@pytest.mark.parametrize("kind", ENDLESS)
def test_awaited_calls_end_in_time(session: Session, kind: str) -> None:
    function, arguments = ENDLESS[kind](session)

    async def call(**limits: float) -> Any:
        return await function.async_(*arguments, **limits)

    async def call_in_block() -> Any:
        with session.deadline(SHORT):
            return await function.async_(*arguments)

    with pytest.raises(DeadlineExceededError):
        asyncio.run(call(timeout=SHORT))
    with pytest.raises(DeadlineExceededError):
        asyncio.run(call_in_block())
    with cancelling(session), pytest.raises(CancelledError):
        asyncio.run(call())
    check(session)


def test_submitted_work_keeps_its_deadline(session: Session) -> None:
    """Also when it has not begun; its results are never there."""
    add, ones = session["asynchronous.add"], np.ones(64, np.float32)
    never = session.to_device(ones)
    never._compute_until(Fence.create(session.device))
    late = add.submit(never, ones, timeout=SHORT)
    later = add.submit(late, ones)
    for result in (late, later):
        with pytest.raises(DeadlineExceededError):
            np.asarray(result)
    with session.deadline(60):
        late = add.submit(never, ones)
    session.cancel()
    with pytest.raises(CancelledError):
        np.asarray(late)
    check(session)


def test_a_wait_ends_and_what_it_waits_for_does_not(session: Session) -> None:
    add, ones = session["asynchronous.add"], np.ones(64, np.float32)
    fence = Fence.create(session.device)
    given = session.to_device(ones)
    given._compute_until(fence)
    result = add.submit(given, ones)
    with pytest.raises(DeadlineExceededError), session.deadline(SHORT):
        np.asarray(result)
    fence.signal()
    assert (np.asarray(result) == 2).all()


@pytest.fixture(scope="module")
def one() -> Iterator[Session]:
    """For what has nothing to do with tiers and devices."""
    with Session("local-sync", tier="fast") as session:
        session.load(KERNEL, STATE, ASYNCHRONOUS, ARITHMETIC)
        session.load(BYTECODE.build())
        for _ in range(4):
            check(session)
        yield session


def test_nothing_in_progress_is_cancelled(one: Session) -> None:
    for _ in range(100):
        one.cancel()
        check(one)


@pytest.mark.parametrize("seconds", [0, -0.0, np.float32(0)])
def test_a_deadline_that_has_passed(one: Session, seconds: float) -> None:
    with pytest.raises(DeadlineExceededError, match="recursion"):
        one["m.recursion"](0, timeout=seconds)
    with pytest.raises(DeadlineExceededError, match="double_until"), one.deadline(seconds):
        one["state.double_until"](np.float32(1), 100.0)
    with pytest.raises(DeadlineExceededError), one.deadline(seconds):
        one["m.recursion"](0)
    check(one)


@pytest.mark.parametrize("seconds", [None, math.inf, 1e300, 10**400, 60, np.float64(60)])
def test_a_deadline_that_is_far(one: Session, seconds: float | None) -> None:
    with one.deadline(seconds):
        check(one)
        assert one["m.recursion"](0, timeout=seconds) == 0


@pytest.mark.parametrize("seconds", [math.nan, -1, -1e-9, -math.inf, -(10**400), "1", [1], 1j, object()])
def test_no_number_of_seconds(one: Session, seconds: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout"):
        one.deadline(seconds)
    with pytest.raises(InvalidArgumentError, match=r"timeout.*recursion"):
        one["m.recursion"](0, timeout=seconds)
    with pytest.raises(InvalidArgumentError, match="timeout"):
        asyncio.run(one["m.recursion"].async_(0, timeout=seconds))


def test_deadlines_inside_of_others(one: Session) -> None:
    loop = one["m.loop"]
    with one.deadline(60):
        with pytest.raises(DeadlineExceededError, match=f"{SHORT} s"):
            loop(1, timeout=SHORT)
        check(one)
    with pytest.raises(DeadlineExceededError, match=f"{SHORT} s"), one.deadline(SHORT), one.deadline(60):
        loop(1, timeout=60)
    with one.deadline(SHORT):
        with pytest.raises(DeadlineExceededError):
            loop(1)
        with pytest.raises(DeadlineExceededError):  # which is over: nothing begins any more
            one["m.recursion"](0)
    check(one)


def test_the_loop_looks_each_time_that_Python_has_worked_for_it() -> None:
    """The fuel that is left does not count the time of Python's work, and no other thread rings."""
    module, calls, passed = CustomModule("host"), list[int](), 100
    limit = Scope(60)

    @module.export(signature="i32 -> i32")
    def work(number: int) -> int:
        calls.append(number)
        if len(calls) == passed:
            limit.until = time.monotonic()
            stop_word.arm(limit, limit.until)
        assert len(calls) < 10 * passed
        return number

    program = Assembler("m").import_function("host.work", "0i_i")
    program.function("f", "0i_i", "br ^again\n^again:\n[%i0] = call @host.work [%i0]\nbr ^again")
    with Session("local-sync", tier="fast") as session:
        session.load(module, program.build())
        with limit, pytest.raises(DeadlineExceededError):
            session["m.f"](1)
    assert passed <= len(calls) <= passed + 1


def test_short_calls_end_with_their_block(one: Session) -> None:
    """Each of them ends long before anything looks, by machine code."""
    add = one["arithmetic.add"]
    ones = one.to_device(np.ones(4, np.float32))
    with pytest.raises(DeadlineExceededError), one.deadline(SHORT):
        while True:
            add(ones, ones)
    assert (np.asarray(add(ones, ones)) == 2).all()


def test_a_deadline_of_a_block_inside_of_it(one: Session) -> None:
    """It is refused, and the block that has it goes on, until its end."""
    limit = one.deadline(60)
    with limit:
        with pytest.raises(FailedPreconditionError, match="limits one block"), limit:
            pass
        assert cancel_scopes.current() is limit
        check(one)
    assert cancel_scopes.current() is None
    check(one)


def test_a_deadline_is_its_threads(one: Session) -> None:
    passed, checked = threading.Event(), threading.Event()

    def limited() -> None:
        with one.deadline(0):
            passed.set()
            assert checked.wait(TIMEOUT)
            with pytest.raises(DeadlineExceededError):
                one["m.recursion"](0)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(limited)
        assert passed.wait(TIMEOUT)
        check(one)
        checked.set()
        future.result(TIMEOUT)


def test_others_wait_no_longer_than_they_say(one: Session) -> None:
    """While a call has the session that never ends; then it is cancelled, and so is who waits for it."""
    with ThreadPoolExecutor(2) as pool:
        endless = pool.submit(one["m.loop"], 1)
        while not one.context.invoker.gate[1]:
            time.sleep(0.001)
        with pytest.raises(DeadlineExceededError, match="another call has the session"):
            one["m.recursion"](0, timeout=SHORT)
        with pytest.raises(DeadlineExceededError), one.deadline(SHORT):
            one["arithmetic.add"](np.ones(4, np.float32), np.ones(4, np.float32))
        with pytest.raises(DeadlineExceededError), one.deadline(SHORT):
            asyncio.run(one["m.recursion"].async_(0))
        with pytest.raises(DeadlineExceededError), one.deadline(SHORT):
            one.close()
        one.cancel()
        with pytest.raises(CancelledError):
            endless.result(TIMEOUT)
    check(one)


def test_a_deadline_limits_one_block(one: Session) -> None:
    deadline = one.deadline(60)
    with deadline:
        pass
    with pytest.raises(StatusError, match="one block"), deadline:
        pass
    check(one)


def test_an_argument_may_have_that_name(one: Session) -> None:
    order = ArgumentOrder(one["m.loop"].signature, "f", one.device)
    assert order.limits({"timeout": 1})
    order._names = ("timeout",)
    assert not order.limits({"timeout": 1}) and order(timeout=1) == (1,)


def test_tasks_have_deadlines_apart(one: Session) -> None:
    recursion = one["m.recursion"]

    async def limited(seconds: float) -> bool:
        with one.deadline(seconds):
            await asyncio.sleep(0)
            try:
                return bool(await recursion.async_(0) == 0)
            except DeadlineExceededError:
                return False

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*(limited(0 if index % 2 else 60) for index in range(20)))

    assert asyncio.run(all_of_them()) == [True, False] * 10


@pytest.mark.parametrize("device", ["local-sync", TASK])
def test_cancelled_at_any_moment(device: str) -> None:
    """Calls that end by themselves, some of them cancelled: what they give is right, and what follows."""
    moments, cancelled = random.Random(1), 0
    with Session(device, tier="fast") as session:
        session.load(KERNEL, STATE, ASYNCHRONOUS)
        session.load(BYTECODE.build())
        check(session)
        done = threading.Event()

        def cancel() -> None:
            for _ in range(500):
                time.sleep(moments.random() / 500)
                session.cancel()
            done.set()

        thread = threading.Thread(target=cancel)
        thread.start()
        while not done.is_set():
            try:
                check(session)
            except CancelledError:
                cancelled += 1
        thread.join()
        assert cancelled
        for _ in range(3):
            check(session)


@pytest.mark.parametrize("device", ["local-sync", TASK])
def test_waiting_for_machine_code_ends(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look = Provider._look

    def never_for_kernels(provider: Provider, niceness: Callable[[], int | None]) -> None:
        if not provider.recipe.generator.startswith("jitree.loaders.vmvx.build"):
            look(provider, niceness)

    monkeypatch.setattr(Provider, "_look", never_for_kernels)
    with Session(device, tier="native") as session:
        classify, image = session.load(DIGITS).classify, np.zeros((8, 8), np.float32)
        for _ in range(2):
            with pytest.raises(DeadlineExceededError):
                classify(image, timeout=SHORT)
        with cancelling(session), pytest.raises(CancelledError):
            classify(image)


@pytest.mark.parametrize("device", ["local-sync", TASK])
def test_a_call_that_waits_because_that_is_sooner_ends(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look = Provider._look

    def never_for_kernels(provider: Provider, niceness: Callable[[], int | None]) -> None:
        if not provider.recipe.generator.startswith("jitree.loaders.vmvx.build"):
            look(provider, niceness)
        elif niceness() is not None:
            provider.begun = provider.begun or time.monotonic()

    monkeypatch.setattr(Provider, "_look", never_for_kernels)
    for waited_for in (Provider, ImageBatch):
        monkeypatch.setattr(waited_for, "estimate", 0.0)
    monkeypatch.setattr("jitree.loaders.vmvx.policy._SILENT", 1e6)
    monkeypatch.setattr("jitree.loaders.vmvx.policy._PATIENCE", 1e6)
    monkeypatch.setattr("jitree.loaders.vmvx.native.INTERPRETED_FIRST", 0)
    with Session(device, tier="auto") as session:
        classify, image = session.load(DIGITS).classify, np.zeros((8, 8), np.float32)
        for _ in range(2):
            with pytest.raises(DeadlineExceededError):
                classify(image, timeout=SHORT)
        with cancelling(session), pytest.raises(CancelledError):
            classify(image)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="without fork")
def test_a_forked_child_keeps_its_deadline(one: Session) -> None:
    with one.deadline(1):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                one["m.loop"](1)
            except DeadlineExceededError:
                code = 0
            finally:
                os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    check(one)


def test_the_documentation_works() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "deadlines.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(snippets) == 2
    with contextlib.chdir(root):
        exec("".join(snippets), {})
    (command,) = re.findall(r"^\$ \.venv/bin/jitree (.*)$", text, re.MULTILINE)
    done = jitree(*(word.replace("examples/", f"{root}/examples/") for word in command.split()))
    assert done.code == 0 and "10xf32=" in done.stdout


def test_the_command_line() -> None:
    arguments = f"--module={STATE}", "--function=double_until", "--input=f32=0", "--input=1.0"
    done = jitree("run", *arguments, "--device=local-sync", f"--timeout={SHORT}")
    assert done.code == 1 and "DEADLINE_EXCEEDED" in done.stderr and "double_until" in done.stderr


def test_time_is_a_limit_of_sandboxes() -> None:
    with Session("local-sync", sandbox=True, limits=Limits(time=SHORT), tier="fast") as session:
        session.load(BYTECODE.build())
        with pytest.raises(DeadlineExceededError, match="loop"):
            session["m.loop"](1)
        while True:
            with contextlib.suppress(DeadlineExceededError):  # a busy machine may take as long
                assert session["m.recursion"](3) == 0
                break
