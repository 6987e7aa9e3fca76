"""Calls that use a program's variables, and wait between reading and storing them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from _thread import LockType
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from jitree import HostModule, Session
from jitree.base.cancel_scopes import LOOK_SECONDS, deadline, next_look
from jitree.dispatch.engine import Pending
from jitree.dispatch.function import BytecodeFunction
from jitree.dispatch.variables import uses_variables
from jitree.errors import AbortedError, DeadlineExceededError, FailedPreconditionError
from tests.api.direct import direct, needs_machine_code
from tests.assembler import Assembler
from tests.dispatch.harness import HostFunctions, Vm

SECONDS = 20
HELD = 7
ADD = """
    %i1 = global.load.i32 4
    [%i0] = call @slow.pass [%i0]
    %i1 = add.i32 %i1, %i0
    global.store.i32 4, %i1
    return [%i1]
"""
STORE = """
    %i0 = const.i64 5
    global.store.i64 8, %i0
    %r0 = const.ref.zero
    global.store.ref 0, !vm.buffer, %r0
    return []
"""


class Slow:
    """A host function that gives back its argument after a moment, in which others run: HELD when the test
    says so."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.waker: LockType | None = None
        """Taken while the function runs, as by another thread."""
        self.opened = threading.Event()
        self.waiting = threading.Event()
        self.module: HostModule = HostFunctions("slow", [("pass", "0i_i", self._pass)])

    def _pass(self, value: int) -> Pending:
        if self.waker is not None:
            self.waker.acquire()

        def wait(timeout: float | None) -> bool:
            time.sleep(0)
            if value == HELD:
                self.waiting.set()
                assert self.opened.wait(SECONDS)
            return True

        def resume() -> int:
            if self.failure is not None:
                raise self.failure
            return value

        return Pending(wait, resume)


def program() -> Assembler:
    module = Assembler("m", globals_size=16, ref_global_count=1).import_function("slow.pass", "0i_i")
    module.function("__init", "0v_v", "%i0 = const.i32 5\nglobal.store.i32 0, %i0\nreturn []")
    module.function("add", "0i_i", ADD)
    module.function("outer", "0i_i", "[%i0] = call @add [%i0]\nreturn [%i0]")
    module.function("peek", "0v_i", "%i0 = global.load.i32 4\nreturn [%i0]")
    module.function("slow", "0i_i", "[%i0] = call @slow.pass [%i0]\nreturn [%i0]")
    module.function("constant", "0v_i", "%i0 = global.load.i32 0\nreturn [%i0]")
    return module


@pytest.fixture
def slow(vm: Vm) -> Slow:
    slow = Slow()
    vm.add(slow.module, program())
    return slow


class Call(threading.Thread):
    """Makes a call that another thread waits for."""

    def __init__(self, vm: Vm, name: str, *arguments: object) -> None:
        super().__init__(daemon=True)
        self._call = partial(vm.context.invoke, vm.function(name), arguments)
        self.results: list[object] = []
        self.start()

    def run(self) -> None:
        self.results = self._call()

    def end(self) -> list[object]:
        self.join(SECONDS)
        return self.results


def used(vm: Vm, name: str) -> bool:
    function = vm.function(name)
    assert isinstance(function, BytecodeFunction)
    return uses_variables(function.record)


@pytest.mark.parametrize(
    ("body", "is_used"),
    [
        ("%i0 = global.load.i32 0\nreturn []", False),
        ("%i0 = global.load.i32 8\nreturn []", True),
        ("%i0 = global.load.i32 12\nreturn []", True),
        ("%i0 = global.load.i32 16\nreturn []", False),
        ("%i0 = global.load.i64 8\nreturn []", True),
        ("%i0 = const.i32 8\n%i1 = global.load.indirect.i32 %i0\nreturn []", True),
        ("%r0 = global.load.ref 0, !vm.buffer\nreturn []", True),
        ("%r0 = global.load.ref 1, !vm.buffer\nreturn []", False),
        ("call @other []\nreturn []", True),
        ("return []", False),
    ],
)
def test_what_uses_variables(body: str, is_used: bool) -> None:
    module = Assembler("m", globals_size=32, ref_global_count=2)
    module.function("__init", "0v_v", "call @constant []\nreturn []")
    constant = "%i0 = const.i32 5\nglobal.store.i32 0, %i0\nreturn []"
    module.function("constant", "0v_v", constant, exported=False)
    module.function("other", "0v_v", STORE)
    module.function("f", "0v_v", body)
    vm = Vm("plain").add(module)
    assert used(vm, "f") is is_used
    caller = Assembler("n").import_function("m.f", "0v_v").function("g", "0v_v", "call @m.f []\nreturn []")
    assert used(vm.add(caller), "g") is is_used


def test_no_update_of_threads_is_lost(vm: Vm, slow: Slow) -> None:
    def work() -> None:
        for _ in range(10):
            vm.context.invoke(vm.function("add"), [1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert vm.call("peek") == [40]


def test_no_update_of_tasks_is_lost(vm: Vm, slow: Slow) -> None:
    async def work() -> None:
        for _ in range(5):
            await vm.context.invoke_async(vm.function("outer"), [1])

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(4)))

    asyncio.run(main())
    assert vm.call("peek") == [20]


def test_others_do_not_wait(vm: Vm, slow: Slow) -> None:
    first = Call(vm, "add", HELD)
    assert slow.waiting.wait(SECONDS)
    assert vm.context.invoke(vm.function("constant")) == [5]
    assert vm.context.invoke(vm.function("slow"), [3]) == [3]
    second = Call(vm, "peek")
    slow.opened.set()
    assert first.end() == [HELD] and second.end() == [HELD]


def test_a_wait_for_the_turn_ends(vm: Vm, slow: Slow) -> None:
    first = Call(vm, "add", HELD)
    assert slow.waiting.wait(SECONDS)
    with pytest.raises(DeadlineExceededError, match="not done within"), deadline(0.05):
        vm.context.invoke(vm.function("peek"))
    assert vm.context.invoke(vm.function("constant")) == [5]
    slow.opened.set()
    assert first.end() == [HELD] and vm.call("peek") == [HELD]


def test_a_wait_looks_when_its_deadline_passes() -> None:
    """A program's call that waited for the turn of another one ended up to a second later."""
    assert next_look(None) == LOOK_SECONDS
    with deadline(60), deadline(0.05), deadline(30):
        assert next_look(None) <= 0.05 and next_look(time.monotonic() + 20) <= 0.05
    with deadline(20):
        assert next_look(time.monotonic() - 1) == 0 and next_look(None) == LOOK_SECONDS


def test_a_thread_that_wakes_keeps_no_turn_from_the_next_call(vm: Vm, slow: Slow) -> None:
    """It holds the lock of the last turn for a moment."""
    slow.waker = vm.context.invoker.turn
    first = Call(vm, "add", HELD)
    assert slow.waiting.wait(SECONDS)
    slow.waker.release()
    with pytest.raises(DeadlineExceededError), deadline(0.05):
        vm.context.invoke(vm.function("peek"))
    slow.opened.set()
    assert first.end() == [HELD]


def test_failed_calls_end_their_turn(vm: Vm, slow: Slow) -> None:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            vm.context.invoke(vm.function("add"), [HELD])
        except AbortedError as error:
            errors.append(error)  # with its traceback, and the frames of the call

    thread = threading.Thread(target=call)
    thread.start()
    assert slow.waiting.wait(SECONDS)
    slow.failure = AbortedError("aborted by the test")
    slow.opened.set()
    thread.join(SECONDS)
    slow.failure = None
    assert errors and vm.call("peek") == [0]


def test_the_thread_of_an_awaited_call_may_not_wait_for_it(vm: Vm, slow: Slow) -> None:

    async def main() -> list[object]:
        call = asyncio.ensure_future(vm.context.invoke_async(vm.function("add"), [HELD]))
        while not slow.waiting.is_set():
            await asyncio.sleep(0.001)
        with pytest.raises(FailedPreconditionError, match="await this call, too"):
            vm.context.invoke(vm.function("peek"))
        assert vm.context.invoke(vm.function("constant")) == [5]
        slow.opened.set()
        return [await call, await vm.context.invoke_async(vm.function("peek"), [])]

    assert asyncio.run(main()) == [[HELD], [HELD]]


def test_a_forked_child_waits_for_no_call(vm: Vm, slow: Slow) -> None:
    """The thread that would end it is not there."""
    first = Call(vm, "add", HELD)
    assert slow.waiting.wait(SECONDS)
    child = os.fork()
    if not child:
        try:
            with deadline(SECONDS):
                os._exit(0 if vm.context.invoke(vm.function("peek")) == [0] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    slow.opened.set()
    assert first.end() == [HELD]


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("local-sync", tier="fast") as session:
        yield session


@needs_machine_code
def test_calls_by_machine_code(session: Session) -> None:
    slow = Slow()
    session.append_module(slow.module)
    module = session.load(program().build())
    add, constant = direct(module.add, np.int32(0)), direct(module.constant)
    threads = [threading.Thread(target=lambda: [add(1) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert {constant() for _ in range(100)} == {5}
    for thread in threads:
        thread.join(SECONDS)
    assert module.peek() == 80
