"""Calls that wait: host functions that cannot complete yet, yields, several calls at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from jitree.dispatch.engine import Pending
from jitree.errors import AbortedError, CancelledError, DeadlineExceededError
from jitree.regs.buffer import VmBuffer
from tests.assembler import Assembler
from tests.dispatch.harness import HostFunctions, Vm

ONE = VmBuffer(1)
SECONDS = 20
"""Long enough for a slow machine; a test that waits so long has failed."""


class Gate:
    """A host module ``gate`` whose function ``wait(i32, ref) -> (i32, ref)`` waits until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.waiting = threading.Event()
        self.awaitable: Callable[[], asyncio.Future[object]] | None = None
        self.module = HostFunctions("gate", [("wait", "0ir_ir", self.wait)])

    def wait(self, value: int, thing: object) -> Pending:
        def block(timeout: float | None) -> bool:
            self.waiting.set()
            if not self.opened.wait(SECONDS if timeout is None else timeout):
                raise DeadlineExceededError("the test hangs")
            return True

        return Pending(block, lambda: (value + 1, thing), self.awaitable)


def program(yieldable: bool) -> Assembler:
    module = Assembler("m", globals_size=4).import_function("gate.wait", "0ir_ir")
    if yieldable:
        call = "[%i1, %r1] = call.yieldable @gate.wait [%i0, %R0] ^resume\n^resume:\n"
    else:
        call = "[%i1, %r1] = call @gate.wait [%i0, %R0]\n"
    module.function("f", "0ir_ir", call + "%i1 = add.i32 %i1, %i0\nreturn [%i1, %r1]")
    module.function("outer", "0ir_ir", "[%i1, %r1] = call @f [%i0, %r0]\nreturn [%i1, %r1]")
    module.function("quick", "0v_i", "%i0 = const.i32 3\nreturn [%i0]")
    return module


@pytest.mark.parametrize("yieldable", [False, True], ids=["call", "call.yieldable"])
def test_waiting_calls_complete(vm: Vm, yieldable: bool) -> None:
    gate = Gate()
    gate.opened.set()
    vm.add(gate.module, program(yieldable))
    assert vm.call("outer", 5, ONE) == [11, ONE]


def test_who_has_the_context_already_may_wait(vm: Vm) -> None:
    """As in calls that are recorded: the thread has the lock twice, and a wait gives up one of the two."""
    gate = Gate()
    vm.add(gate.module, program(yieldable=False))
    results: list[object] = []

    def call() -> None:
        with vm.context.invoker.lock:
            results.extend(vm.context.invoke(vm.function("outer"), [5, ONE]))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert gate.waiting.wait(SECONDS)
    gate.opened.set()
    thread.join(SECONDS)
    assert results == [11, ONE]


def test_waiting_again_after_waiting(vm: Vm) -> None:
    def wait(left: int) -> object:
        return Pending(lambda timeout: True, lambda: wait(left - 1)) if left else 7

    module = Assembler("m").import_function("n.wait", "0i_i")
    vm.add(HostFunctions("n", [("wait", "0i_i", wait)]))
    vm.add(module.function("f", "0i_i", "[%i0] = call @n.wait [%i0]\nreturn [%i0]"))
    assert vm.call("f", 5) == [7]
    assert vm.call("n:wait", 5) == [7]
    assert asyncio.run(vm.context.invoke_async(vm.function("n:wait"), [5])) == [7]
    assert asyncio.run(vm.context.invoke_async(vm.function("m:f"), [5])) == [7]


YIELDING = """
    %i1 = const.i32 1
    br ^head
    ^head:
    yield ^next {%i2->%i3, %R0->%r1}
    ^next:
    %i2 = add.i32 %i3, %i1
    %r0 = assign.ref %R1
    %i4 = cmp.lt.i32.s %i2, %i0
    cond_br %i4, ^head, ^end
    ^end:
    return [%i2, %r0]
"""


def test_yields_are_resumed_until_done(vm: Vm) -> None:
    assert vm.run("0ir_ir", YIELDING, [100, ONE]) == [100, ONE]


def test_yields_let_other_tasks_run(vm: Vm) -> None:
    module = Assembler("m").function("f", "0ir_ir", YIELDING)
    vm.add(module)
    order: list[int] = []

    async def call(number: int) -> None:
        for _ in range(3):
            assert await vm.context.invoke_async(vm.function("f"), [number, ONE]) == [number, ONE]
            order.append(number)

    async def both() -> None:
        await asyncio.gather(call(30), call(10))

    asyncio.run(both())
    assert order[:2] == [10, 10]
    assert vm.context.table.live_count == 0


def test_a_waiting_call_lets_other_threads_in(vm: Vm) -> None:
    gate = Gate()
    vm.add(gate.module, program(True))
    results: list[object] = []
    thread = threading.Thread(
        target=lambda: results.append(vm.context.invoke(vm.function("outer"), [5, ONE]))
    )
    thread.start()
    assert gate.waiting.wait(SECONDS)
    assert vm.call("quick") == [3]
    assert results == []
    gate.opened.set()
    thread.join(SECONDS)
    assert results == [[11, ONE]]


def test_asynchronous_calls_overlap(vm: Vm) -> None:
    gate = Gate()
    vm.add(gate.module, program(True))
    function = vm.function("outer")

    async def main() -> list[list[object]]:
        calls = [asyncio.ensure_future(vm.context.invoke_async(function, [n, ONE])) for n in range(3)]
        while not gate.waiting.is_set():
            await asyncio.sleep(0.001)
        assert vm.context.invoke(vm.function("quick")) == [3]
        gate.opened.set()
        return list(await asyncio.gather(*calls))

    assert asyncio.run(main()) == [[1, ONE], [3, ONE], [5, ONE]]


def test_awaitables_are_preferred(vm: Vm) -> None:
    gate = Gate()
    vm.add(gate.module, program(True))

    async def main() -> list[object]:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        gate.awaitable = lambda: future
        call = asyncio.ensure_future(vm.context.invoke_async(vm.function("f"), [5, ONE]))
        await asyncio.sleep(0.01)
        assert not call.done()
        future.set_result(None)
        return await call

    assert asyncio.run(main()) == [11, ONE]
    assert not gate.waiting.is_set()


def test_failures_while_waiting(vm: Vm) -> None:
    def wait() -> Pending:
        def fail(timeout: float | None) -> bool:
            raise AbortedError("the other side is gone")

        return Pending(fail, lambda: None)

    module = Assembler("m").import_function("n.wait", "0v_v")
    vm.add(
        HostFunctions("n", [("wait", "0v_v", wait)]),
        module.function("f", "0r_v", "[] = call @n.wait []\nreturn []"),
    )
    with pytest.raises(AbortedError, match=r"gone; while invoking host function n\.wait") as failure:
        vm.call("f", ONE)
    assert failure.value.backtrace == ["m.f+00000001"]
    with pytest.raises(AbortedError):
        asyncio.run(vm.context.invoke_async(vm.function("f"), [ONE]))
    assert vm.context.table.live_count == 0


def test_cancelled_tasks_release_their_references(vm: Vm) -> None:
    gate = Gate()
    vm.add(gate.module, program(True))

    async def main() -> None:
        gate.awaitable = lambda: asyncio.get_running_loop().create_future()
        call = asyncio.ensure_future(vm.context.invoke_async(vm.function("outer"), [5, ONE]))
        await asyncio.sleep(0.01)
        assert vm.context.table.live_count == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    assert vm.context.table.live_count == 0


def test_closing_cancels_what_waits(vm: Vm) -> None:
    gate = Gate()
    vm.add(gate.module, program(True))
    failures: list[CancelledError] = []

    def call() -> None:
        with pytest.raises(CancelledError) as failure:
            vm.context.invoke(vm.function("outer"), [5, ONE])
        failures.append(failure.value)

    thread = threading.Thread(target=call)
    thread.start()
    assert gate.waiting.wait(SECONDS)
    vm.context.close()
    gate.opened.set()
    thread.join(SECONDS)
    assert len(failures) == 1
    assert "closed" in failures[0].message


@pytest.mark.parametrize("name", ["m:outer", "gate:wait"])
def test_closing_cancels_what_is_awaited(vm: Vm, name: str) -> None:
    """A program's call, and a host function's."""
    gate = Gate()
    vm.add(gate.module, program(True))

    async def main() -> None:
        call = asyncio.create_task(vm.context.invoke_async(vm.function(name), [5, ONE]))
        while not gate.waiting.is_set():
            await asyncio.sleep(0.001)
        vm.context.close()
        gate.opened.set()
        with pytest.raises(CancelledError, match="closed while the call was waiting"):
            await call

    asyncio.run(main())
    assert vm.context.table.live_count == 0


def test_threads_share_a_context(vm: Vm) -> None:
    module = Assembler("m", globals_size=8).function("add", "0rI_I", """
        %r1 = assign.ref %r0
        %i2 = global.load.i64 0
        %i2 = add.i64 %i2, %i0
        global.store.i64 0, %i2
        return [%i2:3]
    """)  # fmt: skip
    vm.add(module)
    function = vm.function("add")

    def work() -> None:
        for _ in range(300):
            vm.context.invoke(function, [VmBuffer(1), 1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert vm.call("add", None, 0) == [1200]
    assert vm.context.table.live_count == 0
