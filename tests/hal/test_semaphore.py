"""Timeline semaphores and fences: payloads, failures, waits, callbacks, threads and asyncio."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable
from functools import partial
from weakref import ref

import pytest

from jitree.base import cancel_scopes, stop_word
from jitree.base.cancel_scopes import Scope
from jitree.errors import (
    AbortedError,
    DataLossError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    StatusCode,
    StatusError,
)
from jitree.hal.device import Device
from jitree.hal.enums import MAXIMUM_PAYLOAD
from jitree.hal.fence import Fence, wait_fences
from jitree.hal.semaphore import Semaphore
from jitree.hal.waiting import SemaphoreCompatibility, WaitMode, wait_for
from tests.base.interruption import interruptions
from tests.hal.helpers import TIMEOUT, wait_until


def test_payload_grows_only() -> None:
    semaphore = Semaphore(3)
    assert semaphore.query() == 3
    semaphore.signal(5)
    assert semaphore.query() == 5
    for value in (5, 4, 0, -1, MAXIMUM_PAYLOAD + 1):
        with pytest.raises(InvalidArgumentError):
            semaphore.signal(value)
    semaphore.advance(4)
    assert semaphore.query() == 5
    semaphore.advance(7)
    assert semaphore.query() == 7
    assert semaphore.is_reached(7) and not semaphore.is_reached(8)


def test_failure_is_sticky_and_raised_as_copies() -> None:
    semaphore = Semaphore()
    semaphore.fail(DataLossError("first", "where"))
    semaphore.fail(InternalError("second"))
    semaphore.advance(9)
    raised = []
    for action in (semaphore.query, lambda: semaphore.signal(1), lambda: semaphore.wait(1, 0)):
        with pytest.raises(DataLossError, match=r"first; where$") as caught:
            action()
        caught.value.with_context("added by a caller")
        raised.append(caught.value)
    assert len({id(error) for error in raised}) == 3


def test_reached_wait_returns_at_once_and_pending_one_times_out() -> None:
    semaphore = Semaphore(1)
    assert semaphore.wait(1, 0)
    assert not semaphore.wait(2, 0)
    for timeout in (0.0, 0.05, 0.2):
        start = time.monotonic()
        assert not semaphore.wait(2, timeout)
        assert timeout <= time.monotonic() - start < timeout + TIMEOUT
    assert not semaphore._timepoints, "waits that ended leave nothing"


def test_wait_is_woken_by_another_thread() -> None:
    semaphore = Semaphore()
    timer = threading.Timer(0.05, semaphore.signal, (4,))
    timer.start()
    assert semaphore.wait(3, TIMEOUT)
    timer.join()
    threading.Timer(0.02, semaphore.fail, (AbortedError("gone"),)).start()
    with pytest.raises(AbortedError, match="gone"):
        semaphore.wait(5, TIMEOUT)


def test_very_long_timeout_is_accepted() -> None:
    semaphore = Semaphore()
    threading.Timer(0.02, semaphore.signal, (1,)).start()
    assert semaphore.wait(1, 1e12)


def test_callbacks_run_once_in_all_cases() -> None:
    seen: list[tuple[str, StatusError | None]] = []
    semaphore = Semaphore()
    assert semaphore.on_reached(0, lambda failure: seen.append(("now", failure))) is None
    semaphore.on_reached(2, lambda failure: seen.append(("two", failure)))
    cancelled = semaphore.on_reached(2, lambda failure: seen.append(("never", failure)))
    late = semaphore.on_reached(5, lambda failure: seen.append(("five", failure)))
    assert cancelled is not None and cancelled.cancel() and not cancelled.cancel()
    semaphore.signal(1)
    assert [name for name, _ in seen] == ["now"]
    semaphore.signal(3)
    assert [name for name, _ in seen] == ["now", "two"]
    failure = AbortedError("x")
    semaphore.fail(failure)
    assert seen[2:] == [("five", failure)]
    assert late is not None and not late.cancel()
    semaphore.on_reached(1, lambda failure: seen.append(("after", failure)))
    assert seen[3:] == [("after", failure)], "a failed semaphore has failed for every value"


def test_callback_may_use_the_semaphore() -> None:
    semaphore = Semaphore()
    semaphore.on_reached(1, lambda _: semaphore.signal(2))
    semaphore.on_reached(2, lambda _: semaphore.fail(AbortedError("end")))
    semaphore.signal(1)
    assert semaphore.failure is not None


def test_raising_callback_does_not_keep_others_from_running() -> None:
    seen: list[StatusError | None] = []

    def fail(failure: StatusError | None) -> None:
        raise ZeroDivisionError

    semaphore = Semaphore()
    semaphore.on_reached(1, fail)
    semaphore.on_reached(1, seen.append)
    with pytest.raises(ZeroDivisionError):
        semaphore.signal(1)
    assert seen == [None]


def test_wait_any_and_all(any_device: Device) -> None:
    first, second = any_device.create_semaphore(), any_device.create_semaphore(5)
    points = [(first, 1), (second, 5)]
    assert any_device.wait_semaphores(WaitMode.ANY, points, 0)
    assert not any_device.wait_semaphores(WaitMode.ALL, points, 0.01)
    assert not first._timepoints
    first.signal(1)
    assert any_device.wait_semaphores(WaitMode.ALL, points, 0)
    assert any_device.wait_semaphores(WaitMode.ALL, [], 0)
    second.fail(AbortedError("x"))
    with pytest.raises(AbortedError):
        any_device.wait_semaphores(WaitMode.ALL, points, None)
    assert any_device.query_semaphore_compatibility(first) == SemaphoreCompatibility.ALL


def test_failure_ends_a_wait_for_all_early() -> None:
    never, failing = Semaphore(), Semaphore()
    threading.Timer(0.02, failing.fail, (AbortedError("x"),)).start()
    with pytest.raises(AbortedError):
        wait_for([(never, 1), (failing, 1)], WaitMode.ALL, TIMEOUT)
    assert not never._timepoints


def test_many_threads_signal_and_wait() -> None:
    """Threads hand a counter around in turns: any lost wake-up would hang it."""
    semaphore, turns, threads = Semaphore(), 300, 4

    def run(index: int) -> None:
        for turn in range(index, turns, threads):
            assert semaphore.wait(turn, TIMEOUT)
            semaphore.signal(turn + 1)

    workers = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(TIMEOUT)
    assert semaphore.query() == turns


# Fences.


def test_fence_states(any_device: Device) -> None:
    fence = Fence.create(any_device)
    assert fence.query() == StatusCode.DEFERRED
    assert fence.wait(0) == StatusCode.DEADLINE_EXCEEDED
    fence.signal()
    fence.signal()
    assert fence.query() == StatusCode.OK == fence.wait(0)
    failed = Fence.create(any_device)
    failed.fail(DataLossError("lost"))
    assert failed.query() == StatusCode.DATA_LOSS
    with pytest.raises(DataLossError):
        failed.wait()


def test_join_keeps_the_larger_value(any_device: Device) -> None:
    semaphore = any_device.create_semaphore()
    low, high, other = Fence([(semaphore, 1)]), Fence([(semaphore, 3)]), Fence.create(any_device)
    assert Fence.join([]) is None
    assert Fence.join([None, None]) is None
    joined = Fence.join([low, None, other, high])
    assert joined is not None
    assert dict(joined.timepoints) == {semaphore: 3, other.timepoints[0][0]: 1}
    low.signal()
    other.signal()
    assert joined.query() == StatusCode.DEFERRED
    high.signal()
    assert joined.query() == StatusCode.OK


def test_empty_fence_is_reached() -> None:
    assert Fence().query() == StatusCode.OK
    assert Fence().wait() == StatusCode.OK


def test_joined_fence_fails_with_any_part(any_device: Device) -> None:
    first, second = Fence.create(any_device), Fence.create(any_device)
    joined = Fence.join([first, second])
    assert joined is not None
    seen: list[StatusError | None] = []
    joined.on_reached(seen.append)
    second.fail(AbortedError("x"))
    assert [error.code for error in seen if error] == [StatusCode.ABORTED]
    first.signal()
    assert len(seen) == 1
    with pytest.raises(AbortedError):
        joined.wait(0)


def test_wait_fences_skips_null(any_device: Device) -> None:
    fences = [Fence.create(any_device), None, Fence.create(any_device)]
    assert wait_fences(fences, 0) == StatusCode.DEADLINE_EXCEEDED
    for fence in fences:
        if fence is not None:
            threading.Timer(0.01, fence.signal).start()
    assert wait_fences(fences, TIMEOUT) == StatusCode.OK
    assert wait_fences([None]) == StatusCode.OK


def test_fences_are_awaitable(any_device: Device) -> None:
    async def main() -> int:
        fence, ticks = Fence.create(any_device), 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                if ticks == 4:
                    threading.Thread(target=fence.signal).start()
                await asyncio.sleep(0)

        ticker = asyncio.create_task(tick())
        late = threading.Timer(30, fence.signal)  # ends the wait of a loop that does not run
        late.start()
        await fence
        await fence
        late.cancel()
        ticker.cancel()
        return ticks

    assert asyncio.run(main()) > 3, "the loop ran while the fence was awaited"


def test_awaited_failure_and_cancellation(any_device: Device) -> None:
    async def main() -> None:
        failing, never = Fence.create(any_device), Fence.create(any_device)
        failing.fail(DataLossError("lost"))
        with pytest.raises(DataLossError):
            await failing
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_awaited(never), 0.02)
        await asyncio.sleep(0)
        assert not never.timepoints[0][0]._timepoints, "a cancelled wait is forgotten"
        never.signal()

    asyncio.run(main())


async def _awaited(fence: Fence) -> None:
    await fence


@pytest.mark.parametrize("timeout", [None, 2 * TIMEOUT])
def test_a_signal_that_does_not_end_the_sleep(timeout: float | None) -> None:
    """As one that comes after Python's last look before it."""
    semaphore = Semaphore()

    def interrupt() -> None:
        wait_until(lambda: bool(semaphore._timepoints))
        time.sleep(0.1)
        interrupt_main()

    late = threading.Timer(TIMEOUT, semaphore.signal, (1,))
    late.start()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        semaphore.wait(1, timeout)
    assert not semaphore.is_reached(1)
    late.cancel()


CHANGES: tuple[Callable[[Semaphore], None], ...] = (
    lambda semaphore: semaphore.signal(1),
    lambda semaphore: semaphore.advance(1),
    lambda semaphore: semaphore.advance_in_turn(1),
    lambda semaphore: semaphore.fail(AbortedError("it has failed")),
)


@pytest.mark.parametrize("change", CHANGES)
def test_an_interrupted_change_leaves_nobody_waiting(change: Callable[[Semaphore], None]) -> None:
    """Wherever it is interrupted: what has changed has been told."""
    places = 0
    for interruption in interruptions(0):
        semaphore, told = Semaphore(), list[StatusError | None]()
        semaphore.on_reached(1, told.append)
        interruption.during(partial(change, semaphore))
        has_changed = semaphore.is_reached(1) or semaphore.failure is not None
        assert bool(told) == has_changed, f"interrupted at place {interruption.place}"
        places += 1
    assert places > 5


@pytest.mark.parametrize("timeout", [None, 2 * TIMEOUT])
def test_who_waits_looks_whether_it_was_forgotten(
    timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing calls it: the value is there, as where a thread has ended before it told of that."""
    monkeypatch.setattr(cancel_scopes, "LOOK_SECONDS", 0.01)
    semaphore = Semaphore()

    def change() -> None:
        wait_until(lambda: bool(semaphore._timepoints))
        semaphore._value = 1

    threading.Thread(target=change).start()
    assert semaphore.wait(1, timeout)


def test_a_deadline_ends_a_wait_where_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(stop_word, "start_new_thread", refuse)
    monkeypatch.setattr(stop_word._stop, "_earlier", None)
    with pytest.raises(DeadlineExceededError), cancel_scopes.deadline(0.01):
        Semaphore().wait(1)


def test_a_scope_whose_end_was_interrupted_ends_again() -> None:
    """The next end wakes what it has left asleep; the failure stays the first one."""
    places = 0
    for interruption in interruptions(0):
        woken: list[StatusError] = []
        with Scope() as scope:
            scope.watch(woken.append)
            interruption.during(partial(scope.end, AbortedError("first")))
            first = scope.failure
            scope.end(AbortedError("second"))
            assert woken and scope.failure in (first, woken[-1])
        places += 1
    assert places > 5


def test_an_interrupted_removal_is_no_endless_search() -> None:
    """It may leave a value that nothing waits for any more."""
    semaphore, called = Semaphore(), list[int]()
    for value in (1, 2):
        semaphore.on_reached(value, lambda failure, value=value: called.append(value))  # type: ignore[misc]
    assert semaphore._timepoints is not None
    semaphore._timepoints._of_value[1].clear()
    semaphore.advance(1)
    semaphore.on_reached(2, lambda failure: called.append(3))
    semaphore.advance(2)
    assert called == [2, 3] and not semaphore._timepoints


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_wait_leaves_nothing_with_the_scope() -> None:
    """What it waited for, and so a device, lived until the thread was in another scope (turns:37456)."""
    places = 0
    for interruption in interruptions(0):
        semaphore, scope = Semaphore(), Scope()
        with scope:
            interruption.during(partial(semaphore.wait, 1, 0.001))
            kept = ref(semaphore)
            del semaphore
            gc.collect()
            assert kept() is None or interruption.was_none
        places += 1
    assert places > 5
