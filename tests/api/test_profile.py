"""Profiles of sessions: where the time of calls goes, by whatever they are asked for."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.dispatch import context
from jitree.dispatch.invocation import WAITED_FOR
from jitree.dispatch.plain import handlers
from jitree.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from jitree.observe.profile import covered, merged
from jitree.observe.profile_rows import operations
from tests.api.direct import CALLS
from tests.api.programs import ASYNCHRONOUS, PROGRAMS

SEEN = PROGRAMS / "seen.vmfb"
GENERATOR = np.random.default_rng(5)
ARGUMENTS = (
    GENERATOR.random((4, 64), np.float32), GENERATOR.random((64, 71), np.float32), np.zeros(71, np.float32)
)  # fmt: skip
MATMUL, SOFTMAX, REDUCTION = (
    "normalized_dispatch_0_matmul_4x71x64_f32",
    "normalized_dispatch_1_softmax_4x71xf32_dispatch_tensor_store",
    "normalized_dispatch_2_reduction_4x71_f32xf32xi64",
)
NAME = "module.normalized"


@pytest.fixture(params=["local-sync", "local-task", "local-task://?threads=3"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(device=request.param) as session:
        session.load(SEEN)
        yield session


def call(session: Session) -> list[Any]:
    return [np.array(result) for result in session[NAME](*ARGUMENTS)]


def test_rows_are_the_dispatches(session: Session) -> None:
    before = call(session)
    with session.profile() as profile:
        profiled = [call(session) for _ in range(5)]
    expected = [array.tobytes() for array in before]
    assert all([array.tobytes() for array in found] == expected for found in profiled)
    rows = {row.name: row for row in profile.rows}
    assert set(rows) == {MATMUL, SOFTMAX, REDUCTION}
    for row in rows.values():
        assert row.calls == 5 and 0 < row.median <= row.worst <= row.total and row.bytes
        assert row.total <= profile.total and row.threads is not None and row.threads > 0
    assert [row.total for row in profile.rows] == sorted((row.total for row in profile.rows), reverse=True)
    matmul = rows[MATMUL]
    assert matmul.gigaflops == pytest.approx(5 * 2 * 4 * 71 * 64 / matmul.total / 1e9, rel=1e-6)
    assert rows[REDUCTION].gigaflops is None
    assert MATMUL in str(profile.rows[:3]) and "measures each command" in str(profile)
    assert len(profile.table()[:2]) == 2 and SOFTMAX in profile._repr_html_()


def test_parts_of_calls_add_up(session: Session) -> None:
    call(session)
    with session.profile() as profile:
        for _ in range(4):
            call(session)
    rest = {one.name: one for one in profile.rows.rest}
    assert set(rest) == {"(between dispatches)", "(imports in Python)", "(bytecode, arguments, results)"}
    dispatched = sum(one.total for one in profile.rows)
    if session.device.uri == "local-sync://":
        assert dispatched + sum(one.total for one in rest.values()) == pytest.approx(profile.total, rel=1e-3)
    assert all(one.calls == 4 and one.name in str(profile) for one in rest.values())
    assert not profile.rows[:2].rest, "a part of the table does not add up"
    row = profile.table("function")[0]
    assert (row.name, row.calls) == (NAME, 4) and row.total == pytest.approx(profile.total)
    assert row.device is not None and row.python is not None and row.bytecode is not None
    assert row.device > 0 and row.device + row.python + row.bytecode == pytest.approx(row.total)
    outside = f"{1 - row.device / row.total:.0%} of the calls' time is outside of devices: table('function')"
    assert profile.rows.note.endswith(outside), "of so small a program nearly all"
    site = profile.table(by="call site")[0]
    assert site.name.startswith(f"{__file__}:") and site.name.endswith(" in call") and site.calls == 4
    work = next(row for row in profile.table("device operation") if row.name == "execute")
    dispatched = sum(row.total for row in profile.rows)
    assert work.calls == 4 and work.waited is not None and work.gaps is not None and work.gaps >= 0
    assert work.total - work.gaps == pytest.approx(dispatched, rel=0.2) or "threads" in session.device.uri


def test_machine_code_goes_on_making_calls() -> None:
    with Session(device="local-sync", tier="fast") as session:
        session.load(SEEN)
        for _ in range(CALLS):
            call(session)
        with session.profile() as profile:
            for _ in range(3):
                call(session)
        assert not profile.imports and profile.table("function")[0].calls == 3
        assert Counter(row.calls for row in profile.rows) == {3: 3}
        for _ in range(CALLS):
            call(session)
        assert session[NAME].is_direct, "as before"


@pytest.mark.parametrize("tier", ["plain", "fast"])
def test_imports_of_python(tier: str) -> None:
    with Session(device="local-sync", tier=tier) as session:
        session.load(SEEN)
        with session.profile() as profile:
            call(session)
        found = {row.name: row.calls for row in profile.table("import")}
        function = profile.table("function")[0]
        assert tier != "plain" or found["hal.device.queue.execute.indirect"] == 1
        assert tier != "plain" or (function.python and function.python <= function.total)
        with Session(device="local-sync", tier="plain") as other:
            other.load(SEEN)
            call(other)
        assert {row.name: row.calls for row in profile.table("import")} == found, "what others call"


def test_other_sessions_are_not_in_it(session: Session) -> None:
    with Session(device="local-sync") as other, session.profile() as profile:
        other.load(SEEN)
        call(other)
        with other.profile() as second:
            call(other)
    assert not len(profile.rows) and not len(profile.table("function")) and len(second.rows) == 3


def test_a_session_is_profiled_once_at_a_time(session: Session) -> None:
    with session.profile():
        with pytest.raises(FailedPreconditionError, match="profiled already"):
            session.profile()
        with Session(device=session.device) as other, pytest.raises(FailedPreconditionError, match="already"):
            other.profile()
        call(session)
    with session.profile() as profile:
        call(session)
    assert profile.table("function")[0].calls == 1


def test_explained_functions(session: Session) -> None:
    with session.explain(NAME), pytest.raises(FailedPreconditionError, match="explain"):
        session.profile()
    with session.profile() as profile:
        call(session)
        with pytest.raises(FailedPreconditionError, match="profiled"):
            session.explain(NAME)
        assert session.explain() == {}
    assert len(profile.rows) == 3


def test_odd_questions(session: Session, tmp_path: Path) -> None:
    with session.profile() as profile:
        for ask in (profile.table, lambda: profile.rows, lambda: profile.total, lambda: profile.calls):
            with pytest.raises(FailedPreconditionError, match="not ended"):
                ask()
        assert "not ended" in str(profile)
    for by in ("dispatches", "", 3, None):
        with pytest.raises(InvalidArgumentError, match="call site"):
            profile.table(by)  # type: ignore[arg-type]
    with pytest.raises(UnavailableError, match="missing"):
        profile.save(tmp_path / "missing" / "trace.json")
    assert len(profile.rows) == 0 and profile.total == 0 and str(profile.table("function"))


def test_taps_and_profiles_at_the_same_time(session: Session) -> None:
    with session.profile() as profile, session.tap() as taps:
        call(session)
    assert [tap.name for tap in taps] == [MATMUL, SOFTMAX, REDUCTION]
    assert {row.name for row in profile.rows} == {MATMUL, SOFTMAX, REDUCTION}


def test_failing_calls_and_functions_of_later_modules() -> None:
    with Session(device="local-sync") as session, session.profile() as profile:
        session.load(SEEN)
        call(session)
        with pytest.raises(InvalidArgumentError):
            session[NAME](1)
    found = {row.name: row.calls for row in profile.table("function")}
    assert found == {"module.__init": 1, NAME: 2} and len(profile.rows) == 3


def test_calls_after_one_that_was_ended_before_it_began() -> None:
    """Ctrl-C may come while devices are told to begin or end their measuring."""

    def interrupted(function: str, thread: int, at: int) -> bool:
        raise KeyboardInterrupt

    with Session(device="local-sync") as session:
        session.load(SEEN)
        with session.profile() as profile:
            profile.notes.before = interrupted
            with pytest.raises(KeyboardInterrupt):
                call(session)
            profile.notes.before = None
            call(session)
    assert [row.calls for row in profile.table("function")] == [1]


def test_closing_ends_the_profile() -> None:
    session = Session(device="local-sync")
    session.load(SEEN)
    profile = session.profile()
    call(session)
    session.close()
    assert len(profile.rows) == 3
    profile.stop()


def test_a_device_that_executes_nothing() -> None:
    with Session(device="null") as session:
        session.load(SEEN)
        with session.profile() as profile:
            session[NAME](*ARGUMENTS)
        assert not len(profile.rows) and "null measures nothing" in str(profile.rows)


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_awaited_and_submitted_calls(device: str) -> None:
    with Session(device=device) as session:
        function = session.load(ASYNCHRONOUS).add
        arguments = np.ones(64, np.float32), np.ones(64, np.float32)
        with session.profile() as profile:
            np.asarray(function.submit(*arguments))

            async def awaited() -> None:
                np.asarray(await function.async_(*arguments))

            asyncio.run(awaited())
        assert {row.name for row in profile.table("function")} == {function.full_name}
        assert all(row.calls == 2 for row in profile.rows)


def calls_of_an_event_loop(tier: str) -> Any:
    """What a profile says of the lines that three awaited calls are of."""
    with Session(device="local-sync", tier=tier) as session:
        function = session.load(ASYNCHRONOUS).add
        arguments = np.ones(64, np.float32), np.ones(64, np.float32)

        async def several() -> None:
            await asyncio.gather(*(function.async_(*arguments) for _ in range(3)))

        with session.profile() as profile:
            asyncio.run(several())
    return profile.table(by="call site")


@pytest.mark.parametrize("tier", ["plain", "fast", "auto"])
def test_calls_that_an_event_loop_makes_are_of_the_line_that_runs_it(
    tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "SUBMITTED", WAITED_FOR)  # they do not give way, however slow
    (site,) = calls_of_an_event_loop(tier)
    assert "test_profile.py" in site.name and site.calls == 3


def test_parts_of_a_call_that_gives_way_are_of_the_line_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "SLICE", 1)  # after each instruction
    (site,) = calls_of_an_event_loop("plain")
    assert "test_profile.py" in site.name and site.calls > 3


def test_threads() -> None:
    with Session(device="local-task") as session:
        session.load(SEEN)
        with session.profile() as profile:
            threads = [threading.Thread(target=call, args=(session,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert all(row.calls == 4 for row in profile.rows) and profile.table("function")[0].calls == 4
        assert len({call.thread for call in profile.calls}) >= 1


def test_without_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitree.hal.local import executor

    monkeypatch.setattr(executor, "_native", None)
    monkeypatch.setattr(executor, "SUPPORTED", False)
    with Session(device="local-sync", tier="plain") as session:
        session.load(SEEN)
        with session.profile() as profile:
            call(session)
    assert len(profile.rows) == 3 and sum(row.total for row in profile.rows) < profile.total


def test_traces_have_threads_frames_and_flows(session: Session, tmp_path: Path) -> None:
    call(session)
    with session.profile() as profile:
        for _ in range(3):
            call(session)
    profile.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    names = Counter(event["name"] for event in slices)
    assert names[NAME] == 3 and names[MATMUL] >= 3 and names["execute"] == 3
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in slices)
    processes = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert set(processes) == {"Python", session.device.uri}
    frames = [event for event in slices if event["name"] == "call"]
    assert frames and frames[0]["args"]["file"] == __file__ and frames[0]["pid"] == processes["Python"]
    calls = [event for event in slices if event["name"] == NAME]
    assert all(any(_inside(one, frame) for frame in frames) for one in calls)
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(begins) == 3 and set(begins) == set(ends)
    for number, begin in begins.items():
        assert begin["ts"] <= ends[number]["ts"] and ends[number]["pid"] == processes[session.device.uri]
        assert any(_around(one, begin["ts"]) for one in calls), "submitted in a call"


def _inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return _around(outer, inner["ts"]) and _around(outer, inner["ts"] + inner["dur"])


def _around(event: dict[str, Any], time: float) -> bool:
    begun: float = event["ts"]
    return begun - 1e-3 <= time <= begun + float(event["dur"]) + 1e-3


def test_intervals() -> None:
    found = merged([(5, 7), (1, 3), (2, 4), (7, 8)])
    assert found == [(1, 4), (5, 8)]
    assert [covered(found, whole) for whole in ((0, 10), (2, 6), (4, 5), (8, 9))] == [6, 3, 0, 0]


def test_long_profiles_take_no_copies_of_what_follows() -> None:
    class Places(list[tuple[int, int]]):
        looks = 0

        def __getitem__(self, place: Any) -> Any:
            assert not isinstance(place, slice), "with each question"
            self.looks += 1
            return super().__getitem__(place)

    places = Places((10 * number, 10 * number + 5) for number in range(10_000))
    assert covered(places, (20, 31)) == 6 and places.looks < 40


@pytest.mark.parametrize(
    ("name", "count"),
    [
        (MATMUL, 2 * 4 * 71 * 64), ("f_dispatch_1_conv_8x8x8x3x3_f32", 2 * 8 * 8 * 8 * 9),
        ("f_dispatch_1_matmul_Dx71x64_f32", 0), (SOFTMAX, 0), ("anything", 0),
    ],
)  # fmt: skip
def test_operations_by_name(name: str, count: int) -> None:
    assert operations(name) == count


def test_profiles_end_while_another_thread_calls() -> None:
    """A job that has begun before may write an event after."""
    counts, is_over = [0], threading.Event()
    with Session("local-sync", tier="fast") as session:
        function = session.load(PROGRAMS.parents[2] / "perf/programs/further.vmfb").attention
        tensors: list[Any] = [argument.tensor for argument in function.arguments]
        shapes = ([37 if size is None else size for size in tensor.shape] for tensor in tensors)
        given = [np.ones(shape, np.float32) for shape in shapes]
        expected = np.array(function(*given))

        def work() -> None:
            while not is_over.is_set():
                if np.array_equal(function(*given), expected):
                    counts[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(100):
            with session.profile():
                count = counts[0]
                while counts[0] == count and thread.is_alive():
                    time.sleep(0)
        is_over.set()
        thread.join()
