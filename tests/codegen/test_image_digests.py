"""Digests of recipes are those of the files as they are, whether kept or computed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from jitree.codegen.image import cache, digests
from jitree.codegen.image.digests import digest_of
from jitree.codegen.image.recipe import Recipe

HOUR = 3_600_000_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, an hour after all files were written."""
    path = tmp_path / "cache"
    monkeypatch.setenv("JITREE_CACHE_DIR", str(path))
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + HOUR)
    return path


@pytest.fixture
def hashings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets an item for each time that a file is hashed."""
    counted: list[int] = []
    contents = digests._contents

    def count(path: str) -> bytes:
        counted.append(1)
        return contents(path)

    monkeypatch.setattr(digests, "_contents", count)
    return counted


def sample(*sources: Path, **changes: Any) -> Recipe:
    return Recipe("n", "t", "m:f", sources, (), 1.0)._replace(**changes)


def test_files_are_hashed_once(folder: Path, tmp_path: Path, hashings: list[int]) -> None:
    source = tmp_path / "source"
    source.write_text("a")
    first = digest_of(sample(source))
    assert len(first) == 32 and len(hashings) == 1
    assert digest_of(sample(source)) == first and len(hashings) == 1
    (kept,) = folder.iterdir()
    kept.unlink()
    assert digest_of(sample(source)) == first and len(hashings) == 2


def test_a_change_is_seen(folder: Path, tmp_path: Path) -> None:
    """Also one that leaves size and time of modification as they were."""
    source = tmp_path / "source"
    found = set()
    for text in ("a", "b", "c", "ab"):
        source.write_text(text)
        os.utime(source, (1000, 1000))
        found.add(digest_of(sample(source)))
        time.sleep(0.02)  # the time of change counts in steps of some milliseconds
    assert len(found) == 4
    assert len(list(folder.iterdir())) == 1, "the file is written anew"


def test_recent_changes_are_not_trusted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashings: list[int]
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("JITREE_CACHE_DIR", str(folder))
    source = tmp_path / "source"
    source.write_text("a")
    digest_of(sample(source))
    assert not folder.exists()


def test_everything_counts(folder: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    two.write_text("1")
    recipes = [
        sample(one), sample(one, two), sample(), sample(one, name="o"), sample(one, generator="m:g"),
        sample(one, entries=("e",)), sample(one, data=(b"",)), sample(one, data=(b"a",)),
        sample(one, data=(b"a", b"b")), sample(one, data=(b"ab",)),
    ]  # fmt: skip
    for _ in range(2):  # computed, kept
        assert len({digest_of(recipe) for recipe in recipes}) == len(recipes)
    assert digest_of(sample(one)) == digest_of(sample(two)), "wherever the files are"
    assert digest_of(sample(one, title="u", seconds=2.0)) == digest_of(sample(one))


@pytest.mark.parametrize("damage", [b"", b"x", b"long" * 1000])
def test_a_damaged_file_is_a_miss(folder: Path, tmp_path: Path, damage: bytes) -> None:
    source = tmp_path / "source"
    source.write_text("a")
    expected = digest_of(sample(source))
    (kept,) = folder.iterdir()
    for data in (damage, kept.read_bytes()[:-1], damage + kept.read_bytes()):
        kept.write_bytes(data)
        assert digest_of(sample(source)) == expected


def test_a_folder_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    source = tmp_path / "source"
    source.write_text("a")
    expected = digest_of(sample(source))
    (tmp_path / "file").touch()
    monkeypatch.setattr(cache, "_chosen", str(tmp_path / "file" / "cache"))
    assert digest_of(sample(source)) == expected
