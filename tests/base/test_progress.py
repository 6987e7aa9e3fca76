"""Long work reports how far it has come, to whom wants to know."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import jitree
from jitree.base.logs import ProgressStep, progress, report
from jitree.errors import InvalidArgumentError
from jitree.params import irpa
from jitree.params.provider import array_entry, open_providers
from tests.api.programs import PROGRAMS

MANY = np.zeros((8, 1 << 20), np.float32)


def test_copies_and_archives_report_in_order(tmp_path: Path) -> None:
    steps: list[ProgressStep] = []
    with jitree.progress(steps.append), jitree.Session("local-sync") as session:
        session.to_device(MANY)
        irpa.write(tmp_path / "a.irpa", irpa.plan([array_entry(name, MANY) for name in "ab"]))
    session = jitree.Session("local-sync")
    session.to_device(MANY)  # nobody is told any more
    for name in ("copying", "writing parameters"):
        mine = [step for step in steps if step.name == name]
        amounts = [step.done for step in mine]
        assert len(mine) > 1 and amounts == sorted(amounts), name
        assert mine[-1].done == mine[-1].total >= MANY.nbytes and mine[0].unit == "bytes"
    assert str(ProgressStep("x", 512, 2048, "bytes")) == "x: 512 bytes of 2.0 KiB"
    assert len(open_providers([tmp_path / "a.irpa"])[0].index) == 2


def test_what_a_callback_raises_ends_the_work() -> None:
    def stop(step: ProgressStep) -> None:
        raise KeyboardInterrupt

    with jitree.Session("local-sync") as session:
        with pytest.raises(KeyboardInterrupt), jitree.progress(stop):
            session.to_device(MANY)
        assert np.array_equal(session.to_device(MANY[:, :4]), MANY[:, :4])
    with pytest.raises(InvalidArgumentError, match="expected a function"):
        jitree.progress(3)  # type: ignore[arg-type]


def test_parameters_report() -> None:
    steps: list[ProgressStep] = []
    given = {"model": {"w": np.zeros((4, 3), np.float32), "b": np.zeros(3, np.float32)}}
    scale = {"scale": np.ones(3, np.float32)}
    with jitree.progress(steps.append), jitree.Session("local-sync", parameters=[given, scale]) as session:
        session.load(PROGRAMS / "parameters.vmfb")
    assert any(step.name == "loading parameters" and step.done == step.total for step in steps)


@pytest.mark.parametrize("has_rich", [True, False])
def test_a_bar_or_lines(
    has_rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if has_rich and importlib.util.find_spec("rich") is None:
        pytest.skip("rich is not installed")
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    with progress():
        for done in range(0, 101):
            report("uploading [a]", done, 100)
    shown = capsys.readouterr().err
    assert "uploading [a]" in shown
    assert has_rich or shown.count("\n") == 11
