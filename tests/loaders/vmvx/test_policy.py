"""Whether a call interprets its kernels or waits for their machine code: decisions, and calls that wait."""

from __future__ import annotations

import time
from _thread import interrupt_main
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from jitree import Session
from jitree.base import cancel_scopes
from jitree.codegen import image
from jitree.codegen.image import batch, estimates
from jitree.codegen.image.flat import PUT_OFF, map_image
from jitree.codegen.record import size_of
from jitree.dispatch import grid_call
from jitree.errors import CancelledError, DeadlineExceededError
from jitree.hal.command_layout import Job
from jitree.hal.command_list import CommandList
from jitree.hal.local import executor, interrupts
from jitree.loaders.vmvx import native as vmvx_native
from jitree.loaders.vmvx import policy as vmvx_policy
from jitree.loaders.vmvx import worker as vmvx_worker
from jitree.loaders.vmvx.executable import VmvxExecutable
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION, SPANS
from jitree.loaders.vmvx.policy import (
    ALL,
    EVEN,
    LATER,
    LeftToDo,
    Running,
    WaitingPolicy,
)
from tests.assembler import Assembler
from tests.codegen.images import built
from tests.hal.native_kernels import aligned, whole
from tests.loaders.vmvx.programs import COUNT, load

GROUPS = 60
_DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "digits.vmvx.vmfb"


def test_what_calls_before_have_taken_does_not_come_again() -> None:
    """Lists of one call are thought to repeat; what a call before took says nothing of this one."""
    policy = WaitingPolicy(_provider(4.0), 2)
    policy.spend(0, int(2e9))
    policy.spend(1, int(3e9))
    assert policy.spent_by_call() == [2.0, 3.0]
    interrupts.end_call(None)
    assert policy.spent_by_call() == [0.0, 0.0]
    policy.spend(1, int(1e9))
    policy.spend(1, int(1e9))
    assert policy.spent_by_call() == [0.0, 2.0]
    interrupts.end_call(None)
    policy.spend(0, int(1e9))
    assert policy.spent_by_call() == [1.0, 0.0] and policy.spent == [3.0, 5.0]


class _Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(vmvx_policy, "time", clock)
    return clock


def _provider(estimate: float) -> Any:
    return SimpleNamespace(estimate=estimate, begun=None, progress=0, tell_silence=lambda seconds: None)


@pytest.mark.parametrize("processors", [1, 2])
def test_calls_after_the_first_leave_the_processors_to_the_build(
    processors: int, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vmvx_policy, "processors", lambda: processors)
    provider = _provider(4.0)
    policy, at_begin = WaitingPolicy(provider, 1), Running(0, 0, 0, 0, 1)
    rest = LeftToDo(0.1, 0.5 * processors, processors)
    policy.decide(at_begin, rest, 4.0, 0.0)
    assert policy.share == ALL and policy.may_go_on(at_begin)
    first = policy.fills, policy.holds
    assert first == (True, True), "builders leave it all processors"
    policy.spend(0, int(0.5e9) * processors)
    interrupts.end_call(None)
    provider.begun = clock.now
    policy.decide(at_begin, rest, 4.0, 0.0)
    assert policy.share == LATER and not policy.holds
    policy.spend(0, int(0.1e9) * processors)
    assert not policy.may_go_on(at_begin)
    clock.now += 1.1 * 0.1 / LATER
    assert policy.may_go_on(at_begin)
    assert not policy.may_go_on(Running(0, int(0.5e9) * processors, 0, 0, 1))


@pytest.mark.parametrize(("estimate", "is_shown"), [(4.0, True), (0.4, False)])
def test_a_later_call_shows_that_it_gives_way_to_a_long_build(
    estimate: float, is_shown: bool, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vmvx_policy, "processors", lambda: 2)
    provider = _provider(estimate)
    policy, at_begin, rest = WaitingPolicy(provider, 1), Running(0, 0, 0, 0, 1), LeftToDo(0.1, 0.3, 1)
    policy.decide(at_begin, rest, estimate, 0.0)
    provider.begun = clock.now
    interrupts.end_call(None)
    policy.decide(at_begin, rest, estimate, 0.0)
    assert policy.share == LATER and policy.is_shown == is_shown


def test_a_build_that_is_overdue_takes_half_of_later_calls(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that others use a second call waited 17 s for kernels that it interprets in 0.3."""
    monkeypatch.setattr(vmvx_policy, "processors", lambda: 2)
    provider = _provider(4.0)
    policy, at_begin, rest = WaitingPolicy(provider, 1), Running(0, 0, 0, 0, 1), LeftToDo(0.1, 0.3, 1)
    provider.begun = clock.now
    policy.decide(at_begin, rest, 4.0, 0.0)
    interrupts.end_call(None)
    clock.now, provider.progress = clock.now + 7.9, 1
    policy.decide(at_begin, rest, 4.0, 0.0)
    assert policy.share == LATER, "it gets on"
    clock.now += 0.2
    policy.decide(at_begin, rest, 4.0, 0.0)
    assert policy.share == EVEN
    policy.spend(0, int(0.2e9))
    assert not policy.may_go_on(at_begin)
    clock.now += 0.21
    assert policy.may_go_on(at_begin)


def test_a_look_at_a_list_serves_all_of_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is good; a kernel that it does not know is another list's."""
    monkeypatch.setattr(vmvx_policy, "_REFRESH", float("inf"))
    policy, looks = WaitingPolicy(_provider(4.0), 3), iter([{0: 1.0, 1: 2.0}, {2: 5.0}])

    def look() -> LeftToDo:
        return LeftToDo(0.5, 3.0, 2, next(looks))

    assert [policy.left_to_do(kernel, look).kernel for kernel in (0, 1, 0)] == [0.5, 2.0, 1.0]
    assert policy.left_to_do(2, look).of_kernels == {2: 5.0}


def test_one_decision_serves_all_kernels_of_a_call_that_ends_sooner(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vmvx_policy, "processors", lambda: 2)
    policy, running = WaitingPolicy(_provider(4.0), 2), Running(0, 0, 0, 0, 1)
    for call, is_due in ((0.5, False), (20.0, True)):
        assert policy.is_due(0)
        rest = policy.left_to_do(0, lambda call=call: LeftToDo(0.1, call, 2, {0: 0.1, 1: 0.1}))  # type: ignore[misc]
        policy.decide(running, rest, 4.0, 0.0)
        assert policy.is_due(1) == is_due
        clock.now += 1.0


@pytest.mark.parametrize(
    ("processors", "threads", "is_held"), [(1, 1, False), (2, 2, True), (2, 1, False), (16, 16, False)]
)
def test_a_builder_imports_nothing_before_the_first_decision_of_a_call_that_fills_the_processors(
    processors: int, threads: int, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On few of them: it would have a good part."""
    executable = load(Assembler("held").function("f", ENTRY_CONVENTION, COUNT), "auto")
    compiled, held = executable._compiled, list[object]()
    assert compiled is not None
    monkeypatch.setattr(vmvx_native, "_MUCH", 0.0)
    monkeypatch.setattr(type(compiled), "ready", False)
    monkeypatch.setattr(batch.ImageBatch, "prepare", lambda images: None)
    monkeypatch.setattr(batch.ImageBatch, "hold", lambda images: held.append(images))
    monkeypatch.setattr(vmvx_policy, "processors", lambda: processors)
    job = array("q", bytes(size_of(Job)))
    job[vmvx_policy._JOB.concurrency] = threads
    monkeypatch.setattr(Running, "job", job.buffer_info()[0])
    compiled.prepare()
    for _ in range(3):
        compiled.look(0, Running(0, 0, 0, 0, 1))
    assert held == [compiled._batch] * is_held, "once"


def test_a_larger_build_is_begun_later() -> None:
    small, large = WaitingPolicy(_provider(0.3), 1), WaitingPolicy(_provider(3.0), 1)
    assert [policy.worth_aside(20_000_000, 20_000_000) for policy in (small, large)] == [True, False]
    assert large.worth_aside(20_000_000, 200_000_000)
    assert large.worth(20_000_000, 20_000_000), "what the call wants is not"


@pytest.mark.parametrize(("gain", "builds"), [(0.0, False), (0.04, False), (0.06, True)])
def test_a_builder_has_its_share_of_the_processors_where_it_saves_more_than_it_takes(
    gain: float, builds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of half a second, all of whose kernels take four."""
    monkeypatch.setattr(vmvx_policy, "processors", lambda: 2)
    policy = WaitingPolicy(_provider(4.0), 1)
    policy.decide(Running(0, 0, 0, 0, 1), LeftToDo(0.1, 0.5, 1), 4.0, gain)
    assert (policy.share, policy.builds, policy.holds) == (ALL, builds, False)


# -- calls that wait ---------------------------------------------------------------------------------------


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[VmvxExecutable]:
    """Its builder never ends, and takes less time than any call, as far as is known."""

    own = image.Provider._look

    def look(provider: image.Provider, niceness: Callable[[], int | None]) -> None:
        if not provider.recipe.data:
            own(provider, niceness)
        elif niceness() is not None:
            provider.begun = provider.begun or time.monotonic()

    executor.require_native_executor()
    image.wait(SPANS)

    monkeypatch.setattr(image.Provider, "_look", look)
    for waited_for in (image.Provider, batch.ImageBatch):
        monkeypatch.setattr(waited_for, "estimate", 0.0)
    monkeypatch.setattr(vmvx_policy, "_SILENT", float("inf"))
    monkeypatch.setattr(vmvx_policy, "_PATIENCE", float("inf"))
    monkeypatch.setattr(vmvx_native, "INTERPRETED_FIRST", 0)
    for module in (grid_call, vmvx_worker):
        monkeypatch.setattr(module, "FIRST_TIME", 0)
    yield load(Assembler("waiting").function("f", ENTRY_CONVENTION, COUNT), "auto")


def _run(executable: VmvxExecutable) -> np.ndarray:
    block = aligned(np.zeros(GROUPS, np.int32))
    commands = CommandList()
    commands.dispatch(executable, 0, (GROUPS, 1, 1), [], [whole(block)])
    executor.require_native_executor().execute(commands, *commands.bind(()))
    return block


def _after_looks(
    monkeypatch: pytest.MonkeyPatch, count: int, do: Callable[[image.Provider], object]
) -> list[int]:
    """Does something when machine code has been asked for so many times."""
    asked: list[int] = []

    def get(provider: image.Provider) -> image.Image | None:
        asked.append(1)
        if len(asked) == count:
            do(provider)
        return provider.image

    monkeypatch.setattr(image.Provider, "get", get)
    return asked


def test_a_call_waits_for_its_kernels(hanging: VmvxExecutable, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(provider: image.Provider) -> None:
        provider.image = map_image(built(provider.recipe))

    asked, starts = _after_looks(monkeypatch, 5, build), list[object]()
    start = batch.ImageBatch.start

    def counted(images: batch.ImageBatch) -> None:
        starts.append(images)
        start(images)

    monkeypatch.setattr(batch.ImageBatch, "start", counted)
    monkeypatch.setattr(vmvx_policy, "_REFRESH", 1e6)
    assert (_run(hanging) == 1).all()
    compiled = hanging._compiled
    assert compiled is not None and compiled.ready and len(asked) == 5
    assert len(starts) == 1, "a builder is started where that is decided"
    assert compiled._policy.spent == [0.0], "nothing was interpreted"


def test_a_deadline_ends_the_wait(hanging: VmvxExecutable) -> None:
    with cancel_scopes.deadline(0.05), pytest.raises(DeadlineExceededError):
        _run(hanging)


def test_an_interrupt_ends_the_wait(hanging: VmvxExecutable, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _after_looks(monkeypatch, 5, lambda provider: interrupt_main())
    with pytest.raises(KeyboardInterrupt):
        _run(hanging)
    assert len(asked) == 5


@pytest.mark.parametrize("device", ["local-sync", "local-task://?threads=2"])
def test_cancelling_the_session_ends_the_wait(
    device: str, hanging: VmvxExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch.ImageBatch, "prepare", lambda images: None)
    with Session(device, tier="auto") as session:
        classify = session.load(_DIGITS).classify
        asked = _after_looks(monkeypatch, 5, lambda provider: session.cancel())
        with pytest.raises(CancelledError):
            classify(np.zeros((8, 8), np.float32))
    assert len(asked) >= 5


def test_a_terminal_shows_the_wait_while_it_lasts(
    hanging: VmvxExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends it, and each of them."""
    made = MagicMock()
    made.return_value.is_open = False
    monkeypatch.setattr(estimates, "Bar", made)
    for looks in (5, 3):
        _after_looks(monkeypatch, looks, lambda provider: interrupt_main())
        with pytest.raises(KeyboardInterrupt):
            _run(hanging)
    ((title, _),) = (call.args for call in made.call_args_list)
    bar = made.return_value
    assert title.startswith("1 kernel of executable") and bar.show.called
    assert bar.__enter__.call_count == bar.__exit__.call_count == 2


def test_a_builder_that_hangs_is_given_up(hanging: VmvxExecutable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmvx_policy, "_SILENT", 0.0)
    monkeypatch.setattr(vmvx_policy, "_PATIENCE", 0.0)
    with pytest.warns(RuntimeWarning, match="1 kernel of .*interpreted.*cache warm") as seen:
        for _ in range(3):
            assert (_run(hanging) == 1).all()
    assert len(seen) == 1


def test_a_builder_that_fails_ends_the_wait(hanging: VmvxExecutable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(provider: image.Provider) -> None:
        provider.failure = "it was killed"

    _after_looks(monkeypatch, 5, fail)
    assert (_run(hanging) == 1).all()


def test_kernels_are_built_beside_a_call_that_ends_sooner(
    hanging: VmvxExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the processors it has what the call leaves, also where that has a thread for each of them."""
    for waited_for in (image.Provider, batch.ImageBatch):
        monkeypatch.setattr(waited_for, "estimate", 100.0)
    monkeypatch.setattr(batch.ImageBatch, "shares", [100.0])  # however slow this machine is now
    compiled = hanging._compiled
    assert compiled is not None
    compiled._policy.fills = True
    interrupts.end_call(None)
    assert (_run(hanging) == 1).all()
    assert compiled._batch.begun is not None and compiled._batch.gives_way
    assert compiled._policy.share == ALL and not compiled._policy.builds


def test_on_one_processor_a_builder_begins_when_the_call_has_ended(
    hanging: VmvxExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, which ends sooner: of a single processor a process that starts would have a part."""
    held = list[bool]()
    monkeypatch.setattr(vmvx_policy, "processors", lambda: 1)
    monkeypatch.setattr(batch.ImageBatch, "hold", lambda images: held.append(images.begun is not None))
    for waited_for in (image.Provider, batch.ImageBatch):
        monkeypatch.setattr(waited_for, "estimate", 100.0)
    monkeypatch.setattr(batch.ImageBatch, "shares", [100.0])
    assert (_run(hanging) == 1).all()
    compiled = hanging._compiled
    assert compiled is not None and compiled._policy.holds and not compiled._policy.builds
    assert True in held, "also the builder that has begun since the last decision"


def test_to_wait_for_a_kernel_takes_longer_than_to_build_it_among_others(
    hanging: VmvxExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    owns: list[float] = []
    monkeypatch.setattr(batch.ImageBatch, "shares", [1.0])
    monkeypatch.setattr(batch.ImageBatch, "start_seconds", 0.5)
    monkeypatch.setattr(WaitingPolicy, "decide", lambda policy, running, rest, own, gain: owns.append(own))
    assert (_run(hanging) == 1).all()
    assert set(owns) == {0.5 + 2 * 1.0}


@pytest.fixture
def two(hanging: VmvxExecutable, monkeypatch: pytest.MonkeyPatch) -> VmvxExecutable:
    """An executable with two kernels, of which lists have the first."""
    monkeypatch.setattr(image, "_providers", {})
    program = Assembler("two").function("f", ENTRY_CONVENTION, COUNT).function("g", ENTRY_CONVENTION, COUNT)
    return load(program, "auto")


def test_processes_build_other_kernels_while_a_call_waits_for_one(
    two: VmvxExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the processors are used all the same."""
    owns: list[float] = []
    monkeypatch.setattr(batch.ImageBatch, "shares", [1.0, 1.0])
    monkeypatch.setattr(batch.ImageBatch, "start_seconds", 0.5)
    monkeypatch.setattr(vmvx_native, "saved", lambda rest, builds: {1: 2.0, 0: 1.0})
    monkeypatch.setattr(WaitingPolicy, "decide", lambda policy, running, rest, own, gain: owns.append(own))
    assert (_run(two) == 1).all()
    assert set(owns) == {0.5 + 1.0}


@pytest.mark.parametrize(("estimate", "order"), [(0.0, [(0, 1), (0,)]), (100.0, [(0,), (0,)])])
def test_kernels_that_the_first_list_has_not_are_built_where_that_takes_less_than_the_list(
    estimate: float, order: list[tuple[int, ...]], two: VmvxExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists after it may need them: a loop, of which nobody knows how often it goes round."""
    orders, later = list[list[tuple[int, ...]]](), list[image.Provider]()
    for waited_for in (image.Provider, batch.ImageBatch):
        monkeypatch.setattr(waited_for, "estimate", estimate)
    monkeypatch.setattr(batch.ImageBatch, "shares", [0.0, 0.0])
    monkeypatch.setattr(
        batch.ImageBatch,
        "order",
        lambda images, gaining, following: orders.append([tuple(gaining), tuple(following)]),
    )
    monkeypatch.setattr(
        image.Provider, "put", lambda provider, kind: later.extend([provider] * (kind == PUT_OFF))
    )
    monkeypatch.setattr(WaitingPolicy, "decide", lambda policy, running, rest, own, gain: None)
    monkeypatch.setattr(vmvx_native, "saved", lambda rest, builds: {0: 1.0})
    assert (_run(two) == 1).all()
    assert orders[0] == order
    assert later == [], "what a call gains by is not put off"


def test_what_holds_for_all_kernels_of_a_list_is_decided_once_a_look(
    two: VmvxExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel that runs asks: 66 of them, for each of 66 images, took a first call milliseconds."""
    looked, started = MagicMock(side_effect=vmvx_policy.saved), MagicMock()
    monkeypatch.setattr(vmvx_native, "saved", looked)
    monkeypatch.setattr(vmvx_native, "rest_of", lambda *of: LeftToDo(1.0, 2.0, 1, {0: 1.0, 1: 1.0}))
    monkeypatch.setattr(vmvx_policy, "_REFRESH", 1e6)
    monkeypatch.setattr(batch.ImageBatch, "start", started)
    compiled = two._compiled
    assert compiled is not None
    compiled._batch.providers[0].begun = time.monotonic()
    for kernel in (0, 1, 0, 1):
        compiled._decide(kernel, Running(0, 0, 0, 0, 1))
    assert looked.call_count == started.call_count == 1


def test_a_kernel_by_which_a_call_ends_sooner_after_all_is_brought_forward(
    hanging: VmvxExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of a loop, once it has gone round for long, though a builder is at work by then."""
    brought = list[list[int]]()
    monkeypatch.setattr(batch.ImageBatch, "bring", lambda images, numbers: brought.append(list(numbers)))
    monkeypatch.setattr(vmvx_policy, "_REFRESH", 0.0)
    monkeypatch.setattr(vmvx_native, "saved", lambda rest, builds: {0: 1.0})
    compiled = hanging._compiled
    assert compiled is not None
    compiled._batch.providers[0].begun = time.monotonic()
    _after_looks(monkeypatch, 2, lambda provider: setattr(provider, "failure", "enough"))
    assert (_run(hanging) == 1).all()
    assert brought and brought[0] == [0]


@pytest.mark.parametrize(("tier", "count"), [("auto", 1), ("native", 0), ("fast", 0)])
def test_a_builder_starts_as_a_program_is_loaded(
    tier: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And waits until calls want kernels. ``native`` wants all at once."""
    prepared: list[batch.ImageBatch] = []
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(image, "_providers", {})
    monkeypatch.setattr(batch.ImageBatch, "prepare", lambda images: prepared.append(images))
    monkeypatch.setattr(batch.ImageBatch, "start", lambda images: None)
    monkeypatch.setattr(vmvx_native, "_MUCH", 0.0)
    load(Assembler("starting").function("f", ENTRY_CONVENTION, COUNT), tier)
    assert len(prepared) == count


def test_where_little_is_to_be_built_a_builder_starts_with_the_second_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one may take less than that."""
    prepared: list[batch.ImageBatch] = []
    executor.require_native_executor()
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(image, "_providers", {})
    monkeypatch.setattr(batch.ImageBatch, "prepare", lambda images: prepared.append(images))
    executable = load(Assembler("little").function("f", ENTRY_CONVENTION, COUNT), "auto")
    interrupts.end_call(None)  # that of the program's initialiser, which loads it
    _run(executable)
    assert prepared == []
    interrupts.end_call(None)
    _run(executable)
    _run(executable)
    assert len(prepared) == 1
