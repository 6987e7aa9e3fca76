"""Spans of OpenTelemetry, and pictures of matplotlib, where those packages are."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import Session
from jitree.base.events import EventReader, listen
from jitree.errors import InternalError, InvalidArgumentError, UnavailableError
from jitree.hal.fence import Fence
from jitree.observe import telemetry
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS

X = np.ones(4, np.float32)


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("local-sync", tier="fast") as session:
        session.load(ARITHMETIC)
        yield session


class Spans:
    """Stands for OpenTelemetry's SDK: what jitree asks its API for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        api = pytest.importorskip("opentelemetry.trace")
        self.ended: list[tuple[str, str, bool]] = []
        self.open: list[str] = []
        spans = self

        class Span(api.NonRecordingSpan):  # type: ignore[misc, name-defined]
            def __init__(self, name: str) -> None:
                super().__init__(api.INVALID_SPAN_CONTEXT)
                self.name, self.parent, self.failed = name, "".join(spans.open[-1:]), False
                spans.open.append(name)

            def set_status(self, status: Any, description: str | None = None) -> None:
                self.failed = not status.is_ok

            def end(self, end_time: int | None = None) -> None:
                spans.open.remove(self.name)
                spans.ended.append((self.name, self.parent, self.failed))

        class Tracer:
            def start_span(self, name: str, attributes: dict[str, str]) -> Span:
                assert attributes["jitree.device"] == "local-sync://"
                return Span(name)

        monkeypatch.setattr(api, "get_tracer", lambda name: Tracer())
        monkeypatch.setitem(sys.modules, telemetry.SDK, api)


def test_calls_and_dispatches_have_spans(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = Spans(monkeypatch)
    add = session["arithmetic.add"]
    with session.telemetry(dispatches=True):
        add(X, X)
        with pytest.raises(InvalidArgumentError):
            add(X)
    add(X, X)
    dispatch, call, failed = spans.ended
    assert dispatch[0].startswith("add_dispatch_0") and dispatch[1] == "arithmetic.add"
    assert call == ("arithmetic.add", "", False) and failed == ("arithmetic.add", "", True)
    assert not spans.open


class Told(EventReader):
    """Notes awaited calls as they begin and end."""

    needs_python = False
    reads_awaited = True

    def __init__(self) -> None:
        self.noted: list[tuple[str, bool]] = []

    def begins(self, event: Any) -> None:
        self.noted.append(("begins", event.failed))

    def ends(self, event: Any) -> None:
        self.noted.append(("ends", event.failed))


async def awaited_calls(add: Any) -> tuple[Any, Any]:
    with pytest.raises(InvalidArgumentError):
        await add.async_(X)
    return await asyncio.gather(add.async_(X, X), add.async_(X, X, timeout=60))


def test_readers_of_awaited_calls_are_told(session: Session) -> None:
    """So are profiles and metrics, in their ways."""
    add, told = session["arithmetic.add"], Told()
    listen(add, told)
    with session.profile() as profile:
        results = asyncio.run(awaited_calls(add))
    assert [result.tolist() for result in results] == [[2.0] * 4] * 2
    assert told.noted[:2] == [("begins", True), ("ends", True)]
    assert sorted(told.noted[2:]) == [("begins", True)] * 2 + [("ends", False)] * 2
    (row,) = profile.table("function")
    assert row.calls >= 2  # parts, where it waits
    metrics = session.metrics()
    assert (metrics.calls, metrics.errors) == (2, 0)


def test_awaited_calls_have_spans(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = Spans(monkeypatch)
    with session.telemetry():
        asyncio.run(awaited_calls(session["arithmetic.add"]))
    assert [(name, failed) for name, _, failed in spans.ended] == [
        ("arithmetic.add", True), ("arithmetic.add", False), ("arithmetic.add", False),
    ]  # fmt: skip
    assert not spans.open


def test_submitted_calls_have_spans_until_they_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where machine code has submitted those before."""
    spans = Spans(monkeypatch)
    monkeypatch.setenv(telemetry.VARIABLE, "off")
    with Session("local-sync", tier="fast") as session:
        two = session.load(ASYNCHRONOUS).two
        for _ in range(4):
            two.submit(X)
        for failed in (False, True):
            gate = Fence.create(session.device)
            x = jitree.Array(session.to_device(X).buffer_view, session.device, gate)
            with session.telemetry():
                first, _ = two.submit(x)
                with pytest.raises(InvalidArgumentError):
                    two.submit()
            assert spans.ended.pop()[::2] == ("asynchronous.two", True)
            assert spans.open == ["asynchronous.two"]
            gate.fail(InternalError("gone")) if failed else gate.signal()
            with pytest.raises(InternalError, match="gone") if failed else nullcontext():
                np.asarray(first)
            assert spans.ended.pop()[::2] == ("asynchronous.two", failed)
        assert not spans.ended + spans.open


@pytest.mark.parametrize(("choice", "count"), [("calls", 1), ("dispatches", 2), ("off", 0), ("", 1)])
def test_sessions_trace_by_themselves_where_the_sdk_is(
    choice: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = Spans(monkeypatch)
    monkeypatch.setenv(telemetry.VARIABLE, choice)
    with Session("local-sync", tier="fast") as session:
        add = session.load(ARITHMETIC).add
        add(X, X)
        assert len(spans.ended) == count
        with session.profile() as profile:
            add(X, X)
        assert len(profile.table("function")) == 1
        with session.explain(add) as explanation:
            add(X, X)
        assert explanation.calls == 1


def test_another_text_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Spans(monkeypatch)
    monkeypatch.setenv(telemetry.VARIABLE, "all")
    with pytest.raises(InvalidArgumentError, match="JITREE_TELEMETRY"):
        Session("local-sync")


@pytest.mark.parametrize(
    ("package", "ask"),
    [
        ("opentelemetry", "session.telemetry()"),
        ("matplotlib.figure", "profile.plot()"),
        ("matplotlib.figure", "taps.plot()"),
    ],
)
def test_what_is_not_installed_is_named(
    session: Session, package: str, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with session.profile() as profile:
        session.call("arithmetic.add", X, X)
    with session.tap() as taps:
        session.call("arithmetic.add", X, X)
    with pytest.raises(UnavailableError, match="pip install 'jitree"):
        eval(ask, {"session": session, "profile": profile, "taps": taps})


def test_a_first_result_takes_no_package_of_these() -> None:
    code = (
        "import sys, jitree, numpy as np\n"
        f"m = jitree.load({str(ARITHMETIC)!r}, device='local-sync')\n"
        "m.add(np.ones(4, 'f'), np.ones(4, 'f'))\n"
        "print([n for n in ('opentelemetry', 'matplotlib', 'rich', 'logging') if n in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_pictures(session: Session) -> None:
    pytest.importorskip("matplotlib")
    with session.profile() as profile:
        session.call("arithmetic.add", X, X)
        session.call("arithmetic.square", np.float32(3))
    with session.tap() as taps:
        session.call("arithmetic.add", X, X)
        session.call("arithmetic.add", X, X * np.inf)
    for figure, bars in ((profile.plot(), None), (profile.plot("function", 1), 2), (taps.plot(), 2)):
        (axes,) = figure.get_axes()
        assert axes.get_title() and axes.get_xlabel()
        assert bars is None or len(axes.get_yticks()) == bars
        figure.canvas.draw()
    with pytest.raises(InvalidArgumentError, match="count=0"):
        profile.plot(count=0)
    with session.tap(keep="tensors") as kept:
        session.call("arithmetic.add", X, X)
    with pytest.raises(InvalidArgumentError, match="keep='stats'"):
        kept.plot()
    assert jitree.Session.telemetry.__doc__
