"""What `docs/scale.md` says of many replicas: the simulation of queues, and the arithmetic."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest

PERF = Path(__file__).resolve().parent.parent / "perf"


@pytest.fixture
def perf(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PERF))
    return importlib.import_module


def test_queues(perf: Any) -> None:
    """One replica without batches is known (M/D/1); all requests are answered, none before a call ends."""
    queues = perf("queues")
    for load in (0.3, 0.7):
        found = queues.times(1, load, 1, 10_000)
        assert sum(found) / len(found) == pytest.approx(1 + load / (2 * (1 - load)), rel=0.1)
    for looks, batch in ((1, 1), (2, 1), (2, 8)):
        found = queues.times(10, 0.7, looks, 2_000, batch, 0.1)
        assert len(found) == 1_800
        assert min(found) >= 0.999999
    alone, two = (queues.times(10, 0.7, looks, 5_000) for looks in (1, 2))
    assert queues.share(two, 0.99) < queues.share(alone, 0.99)


def test_arithmetic(perf: Any) -> None:
    options = argparse.Namespace(parameters=16e9, link=25e9, store=400e9, node=8)
    arithmetic = perf("scale").arithmetic
    assert "on 2 nodes: 0.032 TB" in arithmetic(10, 0.1, options)
    assert "on 125 nodes: 2 TB" in arithmetic(1000, 0.1, options)
    text = arithmetic(100_000, 0.1, options)
    assert "200 TB" in text and "4000 s from one store" in text
