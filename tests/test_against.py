"""The arithmetic of `perf/against.py`: which rows of two checkouts have fallen, and by what measure."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

PERF = Path(__file__).resolve().parent.parent / "perf"


@pytest.fixture
def perf(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PERF))
    return importlib.import_module


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        (
            "add                iree.runtime       15.2 us  jitree        1.8 us  ratio    8.441",
            "add",
            [("iree.runtime", 15.2e-6), ("jitree", 1.8e-6)],
        ),
        (
            "list of 20           plain     1.25 us  this     2.50 us  ratio   2.00  beyond    1.25 us",
            "list of 20",
            [("plain", 1.25e-6), ("this", 2.5e-6), ("beyond", 1.25e-6)],
        ),
        (
            "load of    1000 instructions  jitree    7.25 us each",
            "load of    1000 instructions",
            [("jitree", 7.25e-6)],
        ),
        (
            "digits       model.jit      0.125 s  of a processor   0.500 s",
            "digits",
            [("model.jit", 0.125), ("of a processor", 0.5)],
        ),
        ("geometric mean 12.684 of 7, worst 2.573", "geometric mean 12.684 of 7, worst 2.573", []),
    ],
)
def test_lines_of_reports(perf: Any, line: str, name: str, expected: list[tuple[str, float]]) -> None:
    found, figures = perf("verdicts").figures(line)
    assert found == name
    assert [label for label, _ in figures] == [label for label, _ in expected]
    assert [seconds for _, seconds in figures] == pytest.approx([seconds for _, seconds in expected])


def test_times_count_by_those_of_a_peer_in_the_row(perf: Any) -> None:
    verdicts = perf("verdicts")
    peer, own = verdicts.Figure("iree.runtime", 8.0), verdicts.Figure("jitree", 2.0)
    assert list(verdicts.own_times([peer, own])) == [(1, "jitree", 0.25)]
    plain, this, beyond = (verdicts.Figure(label, 2.0) for label in ("plain", "this", "beyond"))
    assert list(verdicts.own_times([plain, this, beyond])) == [(0, "plain", 2.0), (1, "this", 2.0)]


@pytest.mark.parametrize(
    ("base", "new", "fallen", "is_open"),
    [
        ([1.0, 2.0, 1.0], [1.04, 2.08, 1.05], True, False),
        ([1.0, 1.0, 1.0], [1.02, 1.02, 1.02], False, False),
        ([1.0, 1.0, 1.0], [1.04, 1.04, 0.99], False, True),
        ([1.0, 1.0, 1.0], [0.9, 0.9, 1.2], False, False),
    ],
)
def test_a_row_has_fallen_when_all_rounds_say_so(
    perf: Any, base: list[float], new: list[float], fallen: bool, is_open: bool
) -> None:
    verdict = perf("verdicts").judged({"time": base}, {"time": new})
    assert (verdict.has_fallen, verdict.is_open) == (fallen, is_open)


def test_rounds_are_compared_one_by_one(perf: Any) -> None:
    """So that a machine which becomes slower in between changes nothing."""
    verdict = perf("verdicts").compared([1.0, 10.0, 100.0], [1.1, 11.0, 110.0])
    assert verdict.ratio == pytest.approx(1.1)
    assert verdict.is_clear


def test_a_finer_measure_decides_where_times_do_not(perf: Any) -> None:
    judged = perf("verdicts").judged
    noisy, rising = {"time": [1.0, 1.0, 1.0]}, {"time": [1.3, 0.8, 1.2]}
    same, more = {"instructions": [50.0] * 3}, {"instructions": [55.0] * 3}
    little = {"processor": [2.0] * 3}
    assert judged(noisy | same | little, rising | more | little).measure == "instructions"
    assert judged(noisy | same | little, rising | more | little).has_fallen
    assert judged(noisy | little, rising | little).measure == "processor"
    assert not judged(noisy | little, rising | little).is_open
    assert judged(noisy | same, rising | little).measure == "time"
    assert judged({"time": [1.0, 1.0]} | same, {"time": [1.2, 1.2]} | same).measure == "time"


def test_rows_are_named_by_their_command(perf: Any) -> None:
    line = "add   iree.runtime  4.0 us  jitree  1.0 us  ratio 4.0"
    taken = [{"processor": 4.0}, {"processor": 1.5, "instructions": 9.0}]
    events = [{"line": line, "calls": taken}, {"line": line, "calls": []}, {"line": "worst 1.0", "calls": []}]
    assert list(perf("against").rows("call.py", events)) == [
        ("call.py: add jitree", {"time": 0.25, "processor": 1.5, "instructions": 9.0}),
        ("call.py: add jitree (2)", {"time": 0.25}),
    ]


def test_the_table_begins_with_the_worst(perf: Any) -> None:
    verdicts = perf("verdicts")
    rows = {name: verdicts.Verdict("time", ratio, ratio, ratio) for name, ratio in (("a", 1.0), ("b", 1.5))}
    first, second, third = verdicts.table(rows, ["c"])
    assert first.split() == ["b", "1.500", "1.500", "to", "1.500", "time", "fallen"]
    assert second.split()[-1] == "time"
    assert third.endswith("of one checkout only")


def test_what_sets_run_is_there(perf: Any) -> None:
    commands = [command for commands in perf("against").SETS.values() for command in commands]
    assert commands
    assert not [command for command in commands if not (PERF / command.split()[0]).exists()]


def test_counting_reports_what_calls_took(perf: Any, tmp_path: Path) -> None:
    """A script's lines, each with the calls that were timed before it."""
    script, events = tmp_path / "script.py", tmp_path / "events"
    script.write_text(
        "from comparison import alternate\n"
        "print('begins')\n"
        "alternate([lambda: sum(range(9)), lambda: sum(range(99))], 0.001)\n"
        "print('row')\n"
    )
    (tmp_path / "comparison.py").write_text((PERF / "comparison.py").read_text())
    subprocess.run([sys.executable, PERF / "counting.py", events, script], check=True, timeout=60)
    first, second = map(json.loads, events.read_text().splitlines())
    assert first == {"line": "begins", "calls": []}
    assert second["line"] == "row"
    assert [call["processor"] > 0 for call in second["calls"]] == [True, True]


def test_numbers_of_processors_that_are_not_there_are_said(
    perf: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of first seconds without them looks like a whole one."""
    judged = perf("judged")
    monkeypatch.setattr(judged, "print_builds", lambda count, repeat: print(count))
    judged.judged(Namespace(processors="4096,1", builds=True, repeat=1))
    out, err = capsys.readouterr()
    assert out == "1\n" and "not measured: 4096 processors" in err
