"""The release of IREE that is installed, against jitree's tables."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from jitree.modules.import_rows import rows
from jitree.vmfb.instructions import INSTRUCTIONS
from tests import newest_release


@pytest.fixture
def root() -> Path:
    """The folder of the two packages."""
    is_there = importlib.util.find_spec("iree") is not None
    found = [is_there and importlib.util.find_spec(f"iree.{name}") for name in ("compiler", "_runtime_libs")]
    if not all(found):
        pytest.skip("iree-base-compiler and iree-base-runtime are not installed")
    assert found[0] and found[0].origin is not None
    return Path(found[0].origin).parents[1]


def test_the_installed_release_has_nothing_new(root: Path) -> None:
    """Where something is new, this says what; nothing else depends on it."""
    assert newest_release.news(root) == []


def test_what_is_new_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [row for row in INSTRUCTIONS if row.mnemonic != "add.i32"]
    monkeypatch.setattr(newest_release, "INSTRUCTIONS", known)
    without = [row for row in rows("hal") if row.name != "allocator.allocate"]
    monkeypatch.setattr(newest_release, "rows", lambda module: without if module == "hal" else rows(module))
    monkeypatch.setattr(newest_release, "_BACKENDS", ())
    lines = newest_release.news(root)
    assert lines == ["instruction vm.add.i32", "import hal.allocator.allocate"]
