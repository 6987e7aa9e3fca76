"""The processes of `perf/apart.py`: threads of one do nothing while another is measured."""

from __future__ import annotations

import importlib
import mmap
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

PERF = Path(__file__).resolve().parent.parent / "perf"
WAIT = 0.03


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PERF))
    return importlib.import_module("apart")


def _shared(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 8)


def busy(path: Path) -> Callable[[], str]:
    """A runtime whose thread goes on after each call, as one that looks for work."""
    count = _shared(path)

    def look() -> None:
        while True:
            count[:] = (int.from_bytes(count[:], "little") + 1).to_bytes(8, "little")

    threading.Thread(target=look, daemon=True).start()
    return lambda: "busy"


def still(path: Path) -> Callable[[], str]:
    """Sees whether the other's thread does something."""
    count = _shared(path)

    def see() -> str:
        before = count[:]
        time.sleep(WAIT)
        assert count[:] == before
        return "still"

    return see


def refused() -> Callable[[], str]:
    raise ValueError("no such operator")


def test_others_stand_still_during_a_turn(
    apart: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "count"
    path.write_bytes(bytes(8))
    monkeypatch.setattr(apart, "TURN", WAIT)
    found = apart.measured({"busy": partial(busy, path), "still": partial(still, path)}, seconds=0)
    assert {name: timed.result for name, timed in found.items()} == {"busy": "busy", "still": "still"}
    assert int.from_bytes(path.read_bytes(), "little") > 0
    assert found["still"].seconds >= WAIT


def test_a_runtime_that_refuses_a_model_is_named(apart: Any) -> None:
    assert apart.measured({"one": refused}, seconds=0) == {"one": "ValueError: no such operator"}
