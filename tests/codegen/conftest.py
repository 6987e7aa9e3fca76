"""Where the tests of images keep them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitree.codegen import image


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that is its user's alone, in a process that knows no images yet."""
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("JITREE_CACHE_DIR", str(path))
    monkeypatch.setattr(image, "_static", {})
    return path
