"""Sessions: what closing ends, what keeps them alive, and several threads."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

import jitree
from jitree import HostExport, HostModule, Instance, Session
from jitree.api.calls.native.arrays import put_off
from jitree.api.calls.native.layout import Owners, Python
from jitree.codegen.record import size_of
from jitree.errors import (
    CancelledError,
    FailedPreconditionError,
    NotFoundError,
)
from jitree.hal.heap import HeapAllocator
from jitree.regs.layout import Entry
from jitree.regs.memory import address_of, zeroed
from jitree.vmfb.decode import BytecodeModule
from tests.api.direct import direct, needs_machine_code, prepare_calls
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, ECHO, STATE
from tests.hal.helpers import TIMEOUT, wait_until

X = np.arange(4, dtype=np.float32)


def test_closing(session: Session) -> None:
    module = session.load(ARITHMETIC)
    function = module.add
    result = function(X, X)
    session.close()
    session.close()
    assert session.closed and np.asarray(result).tolist() == [0, 2, 4, 6]
    for use in (
        lambda: function(X, X), lambda: session.load(STATE), lambda: session.lookup("arithmetic.add"),
        lambda: session.to_device(X), lambda: session.call("arithmetic.add", X, X), session.trim,
        lambda: module["twice"],
    ):  # fmt: skip
        with pytest.raises(FailedPreconditionError, match="closed"):
            use()
    assert "closed" in repr(session)


def test_submitted_results_after_closing() -> None:
    """What was computed is right; the rest says that it was not, whichever way it is looked at."""
    matrix = (np.arange(65536, dtype=np.float32).reshape(256, 256) % 7) / 64
    with Session("local-task", tier="fast") as session:
        product = session.load(ASYNCHRONOUS).product
        expected = [np.array(product(matrix))]
        for _ in range(5):
            expected.append(np.array(product(expected[-1])))
        results = [product.submit(matrix)]
        for _ in expected[1:]:
            results.append(product.submit(results[-1]))
    cancelled = False
    for result, right in zip(results, expected, strict=True):
        for look in (np.asarray, np.from_dlpack, lambda array: array.to_host()):
            try:
                assert np.array_equal(np.asarray(look(result)), right) and not cancelled
            except CancelledError:
                cancelled = True


@needs_machine_code
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_arrays_that_are_dropped_after_closing_leave_nothing(device: str) -> None:
    """No call comes that would take back what they had."""
    session = Session(device, tier="fast")
    prepare_calls()
    scale = direct(session.load(ECHO).e1_f32, np.ones(8, np.float32))
    small, large = (np.ones(count, np.float32) for count in (1000, 400_000))
    kept = [scale(array) for array in 10 * [small, large]]
    table, allocator = session.context.table, session.device.device_allocator
    assert isinstance(allocator, HeapAllocator)
    session.close()
    assert table.live_count == 2 * len(kept)
    del kept[1:]
    gc.collect()
    assert table.live_count == 2 and allocator.kept_bytes == 0
    assert np.array_equal(np.asarray(kept[0]), small)


@needs_machine_code
def test_closing_waits_for_a_thread_that_finds_it_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a thread has the lock for a moment when the context is closed, and looks at nothing. What was
    dropped meanwhile is taken back all the same."""
    session = Session("local-sync", tier="fast")
    prepare_calls()
    kept = [direct(session.load(ECHO).e1_f32, X)(X)]
    context, close, has_closed = session.context, session.context.close, threading.Event()
    with ThreadPoolExecutor(1) as pool:

        def close_and_drop() -> None:
            close()
            _hold(pool, context.invoker.lock, lambda: has_closed.wait(0.1))
            kept.clear()

        monkeypatch.setattr(context, "close", close_and_drop)
        session.close()
        has_closed.set()
    assert context.table.live_count == 0


@needs_machine_code
def test_two_threads_may_close_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One has to wait for the lock, and finds that the other one has done all."""
    session = Session("local-sync", tier="fast")
    prepare_calls()
    direct(session.load(ECHO).e1_f32, X)(X)
    invoker, entrance = session.context.invoker, session.context.invoker.entrance
    others = iter([session._end_parts])

    def after_another_thread() -> object:
        for close in others:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(close).result(TIMEOUT)
        return entrance()

    patch = partial(monkeypatch.setattr, type(invoker), "entrance", lambda gate: after_another_thread())
    monkeypatch.setattr(session, "_end_replacements", patch)
    session.close()
    assert session.closed and not next(others, None)


@needs_machine_code
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_arrays_that_are_dropped_while_a_thread_finds_it_closed_leave_nothing(device: str) -> None:
    session = Session(device, tier="fast")
    prepare_calls()
    kept = [direct(session.load(ECHO).e1_f32, X)(X)]
    session.close()
    table, is_dropped = session.context.table, threading.Event()
    with ThreadPoolExecutor(1) as pool:
        _hold(pool, session.context.invoker.lock, lambda: is_dropped.wait(TIMEOUT))
        kept.clear()
        is_dropped.set()
    wait_until(lambda: table.live_count == 0)


def _hold(pool: ThreadPoolExecutor, lock: threading.RLock, until: Callable[[], object]) -> None:
    """Has another thread take a lock, which it keeps until something has happened."""
    is_taken = threading.Event()

    def hold() -> None:
        with lock:
            is_taken.set()
            until()

    pool.submit(hold)
    assert is_taken.wait(TIMEOUT)


def test_closing_in_a_call_is_refused(session: Session) -> None:
    class Closing(HostModule):
        name = "closing"
        version = 0

        def exports(self) -> list[HostExport]:
            return [HostExport("close", "0_v", lambda state: session.close())]

    add = session.load(ARITHMETIC).add
    closing = session.append_module(Closing())
    with pytest.raises(FailedPreconditionError, match="in use"):
        closing.close()
    assert not session.closed and np.array_equal(add(X, X), X + X)


def test_a_function_keeps_its_session() -> None:
    function = jitree.load(ARITHMETIC, device="local-task", tier="plain").add
    gc.collect()
    assert np.array_equal(function(X, X), X + X)
    session = weakref.ref(function.session)
    del function
    gc.collect()
    assert session() is None


@pytest.mark.parametrize("tier", ["plain", "fast"])
def test_sessions_are_freed_without_the_garbage_collector(tier: str) -> None:
    """Their memory goes when the last reference does, however many functions were called."""
    gc.collect()
    gc.disable()
    try:
        with jitree.Session("local-sync", tier=tier) as session:
            module = session.load(ARITHMETIC)
            for _ in range(3):
                module.add(X, X)
                results = module.sums(np.arange(4), 2), module.twice(np.zeros((2, 3), np.float32))
            np.asarray(results[1])
            program = cast(BytecodeModule, module.vm_module).program
            things = [session, session.context, module, module.add, program, results[1]]
            references = [weakref.ref(thing) for thing in things]
        del session, module, things, results, program
        assert [reference() for reference in references] == [None] * 6
    finally:
        gc.enable()


@pytest.mark.parametrize("tier", ["plain", "fast"])
@pytest.mark.parametrize("kept", ["session", "function", "result", "elements", "state", "pending"])
def test_circles_end_without_errors(kept: str, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of a session is in one: the garbage collector takes its parts in any order."""
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: errors.append(unraisable.exc_value))
    for device in ("local-sync", "local-task"):
        session = Session(device, tier=tier)
        arithmetic, state = session.load(ARITHMETIC), session.load(STATE)
        for _ in range(4):
            result = arithmetic.add(X, X)
        circle: dict[str, object] = {
            "session": session, "function": arithmetic.add, "result": result, "elements": np.asarray(result),
            "state": state.accumulate(X), "pending": arithmetic.add.submit(X, X),
        }  # fmt: skip
        circle = {"kept": circle[kept]}
        circle["circle"] = circle
        reference = weakref.ref(session)
        del session, arithmetic, state, result, circle
        gc.collect()
        assert reference() is None
    assert errors == []


def test_what_load_cannot_load_leaves_nothing() -> None:
    before = threading.active_count()
    with pytest.raises(NotFoundError):
        jitree.load("no/such/file.vmfb", device="local-task", tier="plain")
    gc.collect()
    assert threading.active_count() <= before


def test_sessions_come_and_go() -> None:
    """Handles, threads and memory of closed sessions are gone."""
    threads = threading.active_count()
    for _ in range(3):
        with Session("local-task", tier="plain") as session:
            module = session.load(STATE)
            for _ in range(10):
                module.accumulate(X)
            live = session.context.table.live_count
            for _ in range(50):
                module.accumulate(X)
            assert session.context.table.live_count == live
            device = weakref.ref(session.device)
    assert session.context.table.live_count == 0
    del session, module
    gc.collect()
    assert device() is None
    assert threading.active_count() == threads


def test_memory_of_results_is_reused(plain_session: Session) -> None:
    module = plain_session.load(ARITHMETIC)
    values = np.ones(65536, np.float32)
    for _ in range(5):
        module.large(values)
    statistics = plain_session.device_allocator.statistics
    for _ in range(50):
        module.large(values)
    later = plain_session.device_allocator.statistics
    assert later.device.live == statistics.device.live
    assert later.device.peak <= statistics.device.peak + values.nbytes
    plain_session.trim()


def test_many_threads_on_one_session(session: Session) -> None:
    module, state = session.load(ARITHMETIC), session.load(STATE)

    def work(number: int) -> list[int]:
        counts = []
        for step in range(20):
            value = np.full(4, number * 100 + step, np.float32)
            assert np.array_equal(module.add(value, X), value + X)
            counts.append(state.increment())
        return counts

    with ThreadPoolExecutor(8) as pool:
        counts = [count for counts in pool.map(work, range(8)) for count in counts]
    assert sorted(counts) == list(range(11, 171))


def test_two_sessions_on_one_device_in_two_threads() -> None:
    device = Instance.default().create_device("local-task")

    def work(number: int) -> None:
        with Session(device, tier="plain") as session:
            module = session.load(STATE)
            for step in range(30):
                assert np.array_equal(module.accumulate(X), X * (step + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    device.close()


@pytest.mark.parametrize("lacking", ["new_long", "new_tuple"])
def test_what_there_is_no_memory_to_note_is_no_tuple_without_its_number(lacking: str) -> None:
    """Python dies of one when it is taken apart."""
    words, owners = zeroed(size_of(Python), 64), zeroed(size_of(Owners), 64)
    called, kind = list[str](), ctypes.CFUNCTYPE(*[ctypes.c_int64] * 5)

    def answer(name: str) -> Any:
        def call(*_: int) -> int:
            called.append(name)
            return 0 if name == lacking else 1

        return kind(call)

    functions = {name: answer(name) for name in ("new_long", "new_tuple", "set_item", "vectorcall", "drop")}
    python = Python(address_of(words))
    for name, function in functions.items():
        setattr(python, name, ctypes.cast(function, ctypes.c_void_p).value)
    assert put_off(python, Owners(address_of(owners)), Entry(64)) == 0
    assert not {"set_item", "vectorcall"} & {*called}
    assert ("drop" in called) == ("new_long" in called and lacking == "new_tuple")
