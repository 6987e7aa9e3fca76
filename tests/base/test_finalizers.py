"""What happens when the last reference goes: not before, and whatever interrupts it."""

from __future__ import annotations

import gc
import operator
import signal
import sys
import threading
import time
from _thread import interrupt_main
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, product
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.base import finalizers
from jitree.base.finalizers import Finalized, Finalizer, end_each, guard, raised_later, uninterrupted
from jitree.errors import ignored, is_interruption
from jitree.hal import watchdog
from jitree.hal.enums import BufferUsage, MemoryType
from jitree.hal.heap import HeapAllocator
from tests.base.interruption import AtJump, Interruption

PROGRAM = Path(__file__).parents[1] / "data" / "programs" / "aliases.vmfb"


_ENTERED = 6
"""Levels of calls by which an end is entered."""


class _Holder:
    """In a circle with itself."""

    def __init__(self, ending: Any, seen: list[str]) -> None:
        self.ending = ending
        self.seen = seen
        self.circle = self

    def __del__(self) -> None:
        self.seen.append("finalized")


@pytest.mark.parametrize("wrap", [lambda action: action, uninterrupted])
def test_an_ending_is_not_finalized_with_what_holds_it(wrap: Callable[[Any], Any]) -> None:
    seen: list[str] = []
    holders = [_Holder(Finalizer(wrap(partial(seen.append, "ended"))), seen) for _ in range(2)]
    holders[0].circle, holders[1].circle = holders[1], holders[0]
    del holders
    gc.collect()
    assert seen == ["finalized"] * 2 + ["ended"] * 2


class _Late(Finalized):
    """In a circle with itself, and younger than what is done at its end."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self.circle = self


def test_what_is_done_at_the_end_is_not_finalized_before() -> None:
    seen: list[str] = []
    late = _Late(uninterrupted(partial(seen.append, "ended")))
    del late
    gc.collect()
    assert seen == ["ended"]


def test_cancelled() -> None:
    seen: list[int] = []
    ending = Finalizer(partial(seen.append, 1))
    ending.cancel()
    del ending
    assert not seen


def _drop_interrupted(holder: list[Any], kind: type[BaseException] = KeyboardInterrupt) -> None:
    """Ctrl-C comes, and before Python looks for it the contents of a list die."""
    with pytest.raises(kind):
        deque(map(operator.call, [interrupt_main, holder.clear]), maxlen=0)
    assert not holder


def test_interrupted_memory_comes_back() -> None:
    allocator = HeapAllocator()
    holder = [allocator.allocate(int(MemoryType.DEVICE_LOCAL), int(BufferUsage.DEFAULT), 4096)]
    _drop_interrupted(holder)
    assert allocator.statistics.device.live == 0 and allocator.kept_bytes


def test_interrupted_results() -> None:
    """Machine code has made their memory."""
    with Session("local-sync", tier="fast") as session:
        double = session.load(PROGRAM).double
        double(np.ones(1 << 14, np.float32))  # the first is a call in Python
        for _ in range(3):
            holder = [double(np.ones(1 << 14, np.float32)).buffer_view.buffer.allocation]
            assert isinstance(holder[0].source, np.ndarray)  # not an allocation of the allocator's own
            _drop_interrupted(holder)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
def test_an_interrupted_action_is_done(kind: type[BaseException]) -> None:
    seen: list[str] = []

    def act() -> None:
        seen.append("ended")

    def handle(number: int, frame: FrameType | None) -> None:
        raise kind

    before = signal.signal(signal.SIGINT, handle)
    try:
        _drop_interrupted([Finalizer(uninterrupted(act))], kind)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["ended"]


def test_an_action_is_done_where_closing_of_generators_is_raised_later() -> None:
    """Python forgets the frames that it came through before."""
    seen: list[str] = []
    interruption = GeneratorExit()
    holder = [Finalizer(uninterrupted(partial(seen.append, "ended")))]
    later = raised_later(interruption)
    with pytest.raises(GeneratorExit) as raised:
        deque(chain(later, map(operator.call, [holder.clear])), maxlen=0)
    assert raised.value is interruption
    assert seen == ["ended"]


class _Watched:
    """What can be watched, and has lent memory."""

    held = 0

    def withdraw(self) -> None: ...


def _watch(thing: Any) -> None:
    watchdog.ask(thing)


_LIMITED = HeapAllocator(1 << 20)


def _lend(thing: Any) -> None:
    _LIMITED.extend(thing, 64)


@pytest.mark.parametrize("register", [_watch, _lend])
def test_no_interrupt_is_lost_where_what_is_known_dies(register: Callable[[Any], None]) -> None:
    holder = [_Watched()]
    register(holder[0])
    _drop_interrupted(holder)


@pytest.mark.parametrize("kind", [Finalized, Finalizer])
def test_what_dies_where_the_stack_is_full_ends(kind: type) -> None:
    """However many levels are left, but for those that the end is entered by. Where one is missing, it is
    done again."""
    ended = list[int]()

    def end(left: int, levels: int = 20) -> None:
        if levels:
            end(left, levels - 1)
        else:
            ended.append(left)

    class Late(Finalized):
        def __init__(self, left: int) -> None:
            self.left = left
            self.will_end()

        def end(self) -> None:
            end(self.left)

    def fall(levels: int, holder: list[object]) -> None:
        if levels:
            fall(levels - 1, holder)
        holder.clear()

    def room(levels: int = 0) -> int:
        try:
            return room(levels + 1)
        except RecursionError:
            return levels

    lefts = range(_ENTERED, 40)
    for left in lefts:
        made = Late(left) if kind is Finalized else Finalizer(uninterrupted(partial(end, left)))
        holder: list[object] = [made]
        del made
        fall(room() - left, holder)
    finalizers.without_guards(bool)
    until = time.monotonic() + 60
    while len({*ended}) < len(lefts) and time.monotonic() < until:
        time.sleep(0.01)
    assert {*ended} == {*lefts}


def test_what_has_ended_in_another_thread_is_no_longer_kept() -> None:
    """The error that had it put off has frames, and these the object."""
    ended = threading.Event()
    freed = threading.Event()

    class Late(Finalized):
        def __init__(self) -> None:
            self.owned = Finalizer(freed.set)
            self.attempts = 0
            self.will_end()

        def end(self) -> None:
            self.attempts += 1
            if self.attempts == 1:
                raise RecursionError
            ended.set()

    Late()
    assert ended.wait(60)
    gc.collect()
    assert freed.wait(60)


def test_an_interrupted_session_ends() -> None:
    for _ in range(2):
        holder = [Session("local-sync")]
        context = holder[0].context
        _drop_interrupted(holder)
        assert context.invoker.closed


def test_what_cannot_be_ended_keeps_nothing_else_from_its_end() -> None:
    """Also a warning, where these are errors. Once is enough: the next time it would fail as well."""
    ended = []

    def end(name: str) -> None:
        ended.append(name)
        if name != "last":
            raise RuntimeWarning(name)

    left = dict.fromkeys(("first", "second", "last"))
    with pytest.raises(RuntimeWarning, match="first"):
        end_each(left, guard(), end)
    assert ended == ["first", "second", "last"] and not left


class _Absent(OSError):
    """What a handler raises: of a class that work fails with."""


@pytest.fixture
def alarm() -> Iterator[Callable[[], object]]:
    """Sends a signal whose handler raises that."""

    def handler(number: int, frame: object) -> None:
        raise _Absent("from a handler")

    before = signal.signal(signal.SIGUSR1, handler)
    yield partial(signal.raise_signal, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_what_a_handler_raises_in_an_end_is_an_interrupt_later_too(alarm: Callable[[], object]) -> None:
    """Python raises it anew after the end, without the frames that it came through."""
    holder = [Finalizer(uninterrupted(alarm))]
    with pytest.raises(_Absent) as raised, ignored(OSError):
        holder.clear()
        sum(range(3))
    assert is_interruption(raised.value)


def test_it_is_not_lost_in_another_end(alarm: Callable[[], object]) -> None:
    """That of an object which dies there."""
    inner = [Finalizer(uninterrupted(alarm))]

    def end() -> None:
        inner.clear()
        sum(range(3))

    holder = [Finalizer(uninterrupted(end))]
    with pytest.raises(_Absent):
        holder.clear()
        sum(range(3))
    assert not holder


@pytest.mark.parametrize("name", ["is_interruption", "raised_later"])
def test_it_is_not_lost_where_another_comes_after_it(
    alarm: Callable[[], object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what the first has raised is seen to."""
    function, alarms, ends = getattr(finalizers, name), [alarm], list[int]()

    def interrupted(error: BaseException) -> Any:
        if alarms:
            alarms.pop()()
        return function(error)

    def end() -> None:
        ends.append(1)
        alarm()

    monkeypatch.setattr(finalizers, name, interrupted)
    holder = [Finalizer(uninterrupted(end))]
    with pytest.raises(_Absent):
        holder.clear()
        sum(range(3))
    assert not alarms and ends == [1]


def test_what_is_raised_later_is_itself_where_a_function_traces() -> None:
    """Python makes an exception of its class twice then, the second time with the first one as argument."""
    error, before = ValueError("late"), sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return trace

    def wait() -> None:
        _ = [*raised_later(error)]
        for _ in range(100):
            pass

    with pytest.raises(ValueError) as caught:
        try:
            sys.settrace(trace)
            wait()
        finally:
            sys.settrace(before)
    assert caught.value is error


@pytest.mark.parametrize("kind", [Interruption, AtJump])
def test_an_interrupt_in_a_collection_where_a_frame_begins(
    kind: type[Interruption], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11 collects as it makes the frame's object, after it has read what it is to call: that has to
    live until then, whatever is raised in the collection."""

    def collected(phase: str, info: dict[str, int]) -> None:
        end_each(dict.fromkeys(range(3)), lock, bool)

    def begin() -> None: ...

    def act() -> None:
        for _ in range(8):
            begin()

    lock, thresholds = guard(), gc.get_threshold()
    monkeypatch.setattr(sys, "unraisablehook", bool)  # what a hook of the collector raises
    gc.callbacks.append(collected)
    try:
        for place, threshold in product(range(1, 12), range(1, 24)):
            gc.set_threshold(threshold)
            kind(place).during(act)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collected)
