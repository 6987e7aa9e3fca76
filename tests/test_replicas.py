"""The simulation of docs/scale.md agrees with what theory knows."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from statistics import fmean

import pytest

_PATH = Path(__file__).resolve().parent.parent / "perf" / "replicas.py"
_SPECIFICATION = importlib.util.spec_from_file_location("replicas", _PATH)
assert _SPECIFICATION is not None and _SPECIFICATION.loader is not None
replicas = importlib.util.module_from_spec(_SPECIFICATION)
_SPECIFICATION.loader.exec_module(replicas)


def test_requests_that_are_routed_at_random_wait_as_long_as_the_formula_says() -> None:
    load = 0.7  # Pollaczek and Khinchine, for equal service times
    assert fmean(replicas.routed(10, 100_000, load, 1)) == pytest.approx(load / (2 * (1 - load)), rel=0.05)
    assert replicas.routed(1, 1000, load, 1) != replicas.routed(1, 1000, load, 1, seed=2)


def test_a_better_choice_waits_less_and_one_queue_least() -> None:
    waits = [
        replicas.routed(100, 40_000, 0.7, 1),
        replicas.routed(100, 40_000, 0.7, 2),
        replicas.queued(100, 40_000, 0.7),
    ]
    means = [fmean(found) for found in waits]
    assert means == sorted(means, reverse=True) and means[2] < 0.1 * means[0]
    assert min(map(min, waits)) >= 0


def test_a_store_limits_many_nodes_and_doubling_does_not() -> None:
    assert replicas.from_store(5, 10.0, 1.0, 10.0) == 10
    assert replicas.from_store(1000, 10.0, 1.0, 10.0) == 1000
    assert replicas.by_doubling(1000, 10.0, 1.0) == 100
