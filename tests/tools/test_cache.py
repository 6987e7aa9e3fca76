"""Listing, emptying and filling the cache folder, and its bound."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from jitree.codegen import image
from jitree.codegen.image import cache, contents
from jitree.codegen.image.flat import FlatImage, Recipe
from jitree.errors import InvalidArgumentError
from jitree.tools import cache as cache_command
from jitree.tools import cache as cache_pack
from jitree.tools import cache as command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("JITREE_CACHE_DIR", str(path))
    monkeypatch.delenv("JITREE_CACHE_SIZE", raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return path


def store(name: str, title: str, number: int, size: int = 100) -> Path:
    """An image that was last used ``number`` hours after the epoch."""
    recipe = Recipe(name, title, "m:f", 1.0)
    path = cache.store(recipe, bytes([number]) * 32, FlatImage(b"x" * size, b"", {}))
    os.utime(path, (3600 * number, 3600 * number))
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert command.main(arguments) == 0
    return capsys.readouterr().out


def test_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "list") == f"{folder}: 0 images, 0 B of 256.0 MiB\n"
    store("loop", "the fast tier's loop", 1)
    store("kernel", "the kernels of a program", 3, 3 << 20)
    damaged = store("native", "module 'mnist'", 2, 1900)
    damaged.write_bytes(b"rubbish")
    os.utime(damaged, (86400 * 366, 86400 * 366))
    (folder / "notes.txt").write_text("not ours")
    lines = printed(capsys, "list").splitlines()
    assert lines[0] == f"{folder}: 3 images, 3.0 MiB of 256.0 MiB"
    assert lines[1:3] == ["", "NAME         SIZE  LAST USED         WHAT"]
    assert lines[3] == "native        7 B  1971-01-02 00:00  " + cache_pack._DAMAGED
    assert lines[4:] == [
        "kernel    3.0 MiB  1970-01-01 03:00  the kernels of a program",
        "loop        212 B  1970-01-01 01:00  the fast tier's loop",
    ]


def test_clear(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "clear") == f"removed 0 images, 0 B, from {folder}\n"
    path = store("loop", "the fast tier's loop", 1, 1000)
    store("loop", "the fast tier's loop", 2, 1000)
    failed = path.with_suffix(cache.LOG_SUFFIX)
    failed.write_text("no memory")
    (folder / "notes.txt").write_text("not ours")
    busy = folder / f"kernel-{'0' * 32}{cache.LOCK_SUFFIX}"
    with open(busy, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        busy.with_suffix(".123").write_bytes(b"half an image")
        assert printed(capsys, "clear") == f"removed 2 images, 2.2 KiB, from {folder}\n"
        assert sorted(path.name for path in folder.iterdir()) == [
            f"kernel-{'0' * 32}.123", f"kernel-{'0' * 32}.lock", "notes.txt"
        ]  # fmt: skip
    assert printed(capsys, "clear") == f"removed 0 images, 0 B, from {folder}\n"
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_bound_drops_what_was_not_used_for_longest(folder: Path) -> None:
    paths = [store("native", "a module", number, 1000) for number in range(1, 6)]
    size = paths[0].stat().st_size
    os.utime(paths[0], (9e5, 9e5))
    contents.shrink(3 * size, paths[1:2])
    assert sorted(folder.iterdir()) == sorted([paths[0], paths[1], paths[4]])
    contents.shrink(0, paths[1:2])
    assert list(folder.iterdir()) == [paths[1]]


def test_use_counts(folder: Path) -> None:
    old, new = store("native", "a module", 1), store("native", "a module", 2)
    assert cache.load(Recipe("native", "", "", 1.0), bytes([1]) * 32) is not None
    contents.shrink(old.stat().st_size, ())
    assert list(folder.iterdir()) == [old]
    assert not new.exists()


def test_leftovers_of_killed_builders_go(folder: Path) -> None:
    path = store("native", "a module", 1)
    left, fresh = path.with_suffix(".77"), path.with_suffix(".78")
    for file in (left, fresh):
        file.write_bytes(b"half")
    os.utime(left, (0, 0))
    contents.shrink(1 << 20, [path])
    assert sorted(folder.iterdir()) == sorted([path, fresh])


def test_a_file_that_is_too_long_goes_and_not_the_images(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store("native", "a module", 1)
    sparse = path.with_name(f"loop-{'0' * 32}.image")
    sparse.touch(mode=0o600)
    os.truncate(sparse, 64 << 30)
    assert "64.0 GiB" in printed(capsys, "list") and sparse.exists()
    contents.shrink(1 << 20, ())
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("2k", 2048), ("3M", 3 << 20), ("1G", 1 << 30)])
def test_size_variable(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITREE_CACHE_SIZE", text)
    assert contents.maximum_size() == size


@pytest.mark.parametrize("text", ["x", "-1", "1T", "1.5G", "9" * 30])
def test_bad_size_variable(text: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("JITREE_CACHE_SIZE", text)
    with pytest.raises(InvalidArgumentError, match="expected a number of bytes"):
        command.main(["list"])


def test_built_images_are_kept_within_the_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITREE_CACHE_SIZE", "1")
    generator = "tests.codegen.image_texts:texts"
    for name in ("one", "two"):
        image.provider(Recipe(name, "a sample", generator, 1.0)).wait()
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.image"))) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)  # the builder makes room after its own image is there
    assert [path.name[:4] for path in folder.glob("*.image")] == ["two-"]


def test_warm(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Recipe("sample", "a sample", "tests.codegen.image_texts:texts", 1.0)
    monkeypatch.setattr(cache_command, "batches", lambda paths: [image.provider(sample)])
    assert printed(capsys, "warm").startswith("a sample: built in ")
    assert printed(capsys, "warm") == "a sample: ready\n"


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert "#   warm   build what" in printed(capsys, "--help")
    assert printed(capsys, "list", "--help").startswith("# jitree cache list: shows")
    assert printed(capsys, "clear", "--help").startswith("# jitree cache clear: removes")
    assert "# --module=..." in printed(capsys, "warm", "--help")
    assert command.main([]) == 1
    with pytest.raises(
        InvalidArgumentError, match="unknown command 'cache burn'; there are list, clear, warm"
    ):
        command.main(["burn"])
