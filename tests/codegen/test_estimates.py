"""What builds take on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from jitree.codegen.image import cache, estimates
from jitree.codegen.image.flat import START_SECONDS, Recipe

STATED = [
    Recipe("made", "made of data", "a:b", 2.0 + START_SECONDS, (bytes([number]),)) for number in range(4)
]
"""Eight seconds of work, and the start of a builder."""
WHOLE = estimates._stated(STATED)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _takes(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    times = SimpleNamespace(
        user=seconds / 2, system=0.0, children_user=seconds / 4, children_system=seconds / 4
    )
    monkeypatch.setattr(os, "times", lambda: times)
    estimates.note(STATED)


@pytest.mark.parametrize(("processors", "seconds"), [(1, 8.0), (2, 4.0), (4, 2.0), (16, 2.0)])
def test_processes_share_all_but_the_start(processors: int, seconds: float) -> None:
    assert estimates.estimated(STATED, processors) == pytest.approx(seconds + START_SECONDS)
    assert estimates.estimated([STATED[0]._replace(seconds=0.1)], processors) == 0.1
    assert estimates.shares(STATED, processors, 1.0) == pytest.approx([seconds / 4] * 4)


def test_the_last_builds_correct_what_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one in the middle: a machine that sleeps, or a damaged build, says little."""
    for seconds in (2 * WHOLE, 2 * WHOLE, 2 * WHOLE, 1000.0, 0.1):
        _takes(seconds, monkeypatch)
    assert estimates.estimated(STATED, 1) == 2 * WHOLE
    assert estimates.estimated([one._replace(name="other") for one in STATED], 1) == WHOLE
    for _ in range(9):
        _takes(WHOLE / 2, monkeypatch)
    assert estimates.estimated(STATED, 1) == WHOLE / 2


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"7", b'{"made": 2.0}', b'{"made": ["2"]}', b'{"made": [0.0]}', b'{"made": [NaN]}',
     b'{"made": [1e300]}', b'{"made": [true]}', b'{"made": []}', b'{"made": [-1.0]}', b"[" * 100_000],
)  # fmt: skip
def test_a_damaged_file_says_nothing(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write("build-times.json", data)
    assert estimates.estimated(STATED, 1) == WHOLE
    _takes(2 * WHOLE, monkeypatch)
    assert estimates.estimated(STATED, 1) == 2 * WHOLE


def test_a_folder_that_cannot_be_written_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, data: bytes) -> None:
        json.loads(data)
        raise OSError

    monkeypatch.setattr(cache, "write", refuse)
    _takes(2 * WHOLE, monkeypatch)
    assert estimates.estimated(STATED, 1) == WHOLE
