"""Images that another user can have written are not run, and builders cannot be made to write elsewhere."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import pytest

import jitree
from jitree.codegen import image
from jitree.codegen.image import cache
from jitree.codegen.image.flat import FlatImage
from jitree.codegen.image.keys import key_of
from jitree.errors import UnavailableError
from tests.codegen.test_image import KEY, recipe, twice
from tests.security.programs import VMVX


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder that no cache was chosen in; temporary files are made in the folder ``temporary``."""
    monkeypatch.delenv("JITREE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "temporary").mkdir()
    (tmp_path / "temporary").chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(image, "_static", {})
    monkeypatch.setattr(image, "_providers", WeakValueDictionary())
    return tmp_path / "home"


def test_no_cache_is_in_the_current_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.directory() == home / ".cache" / "jitree"
    monkeypatch.setenv("HOME", "relative")
    assert cache.directory() == tmp_path / "temporary" / f"jitree-{os.geteuid()}"
    assert not Path("relative").exists()


def test_no_cache_is_in_the_current_folder_where_no_other_can_be_written(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in containers that are read-only but for the folder of the program."""
    home.chmod(0o777)
    monkeypatch.chdir(tmp_path)
    for temporary in ("/proc/nothing", ".", "temporary"):
        monkeypatch.setenv("TMPDIR", temporary)
        monkeypatch.setattr(cache, "_TEMPORARY", ("/proc/not there",))
        assert cache.directory() == Path(f"/proc/not there/jitree-{os.geteuid()}")
        monkeypatch.setattr(cache, "_TEMPORARY", ("/proc/not there", str(tmp_path / "temporary")))
        assert cache.directory() == tmp_path / "temporary" / f"jitree-{os.geteuid()}"
    assert not [*tmp_path.glob("jitree*")]


def test_programs_run_where_nothing_can_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.chmod(0o777)
    monkeypatch.setenv("TMPDIR", "/proc/nothing")
    monkeypatch.setattr(cache, "_TEMPORARY", ("/proc",))
    with jitree.Session("local-sync") as session:
        assert session.load(VMVX).classify(np.zeros((8, 8), np.float32)).shape == (10,)


def test_a_current_folder_that_is_gone(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    cache.write("name", b"data")
    assert cache.read("name") == b"data"
    monkeypatch.setenv("JITREE_CACHE_DIR", "relative")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert cache.read("name") is None
    with pytest.warns(RuntimeWarning, match="'relative' is not used .*: name the whole path; it is kept in"):
        cache.write("name", b"data")
    assert cache.directory() == tmp_path / f"jitree-{os.geteuid()}"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_image_that_others_can_write_is_a_miss(mode: int, folder: Path) -> None:
    path = cache.store(recipe("texts"), KEY, FlatImage(b"x" * 8, b"", {}))
    assert path.stat().st_mode & 0o777 == 0o600
    assert cache.load(recipe("texts"), KEY) is not None
    path.chmod(mode)
    assert cache.load(recipe("texts"), KEY) is None


def test_a_folder_that_others_can_write_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in it is not run, and nothing is written to it: the user's own one gets the image."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sample = recipe("texts")
    planted = cache.store(sample, key_of(sample), FlatImage(b"\xcc" * 64, b"", {"twice": 0}))
    folder.chmod(0o777)
    reason = r"cache' can be written by others \(mode 0777\).*chmod go-w '.*it is kept in '.*/jitree-"
    with pytest.warns(RuntimeWarning, match=reason):
        assert twice(image.wait(sample), 4) == 8
    assert list(folder.iterdir()) == [planted]
    assert cache.directory() == tmp_path / f"jitree-{os.geteuid()}"
    assert cache.directory().stat().st_mode & 0o777 == 0o700


def test_logs_and_locks_are_not_written_through_links(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    log = cache.path_of(recipe("failing_texts"), key_of(recipe("failing_texts"))).with_suffix(
        cache.LOG_SUFFIX
    )
    log.symlink_to(victim)
    with pytest.raises(UnavailableError, match="no text today"):
        image.wait(recipe("failing_texts"))
    assert victim.read_text() == "precious"
    assert not log.is_symlink() and "no text today" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    lock = cache.path_of(recipe("texts"), key_of(recipe("texts"))).with_suffix(cache.LOCK_SUFFIX)
    lock.symlink_to(tmp_path / "not there")
    image._static.clear()
    with pytest.raises(UnavailableError, match=r"cannot be started: .*\.lock"):
        image.wait(recipe("texts"))
    assert not (tmp_path / "not there").exists()


@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_files_of_builders_are_the_users_alone(umask: int, folder: Path) -> None:
    before = os.umask(umask)
    try:
        image.wait(recipe("texts"))
    finally:
        os.umask(before)
    modes = set()
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # a lock goes when its builder ends
            modes.add(path.stat().st_mode & 0o777)
    assert modes == {0o600}


def test_the_default_folder_is_made_for_the_user_alone(home: Path) -> None:
    before = os.umask(0)
    try:
        found = cache.directory()
    finally:
        os.umask(before)
    assert found == home / ".cache" / "jitree"
    assert [path.stat().st_mode & 0o777 for path in (found, found.parent)] == [0o700, 0o700]


def test_the_default_folder_of_an_earlier_version_is_closed(home: Path) -> None:
    (home / ".cache").mkdir()
    (home / ".cache" / "jitree").mkdir()
    (home / ".cache" / "jitree").chmod(0o777)
    assert cache.directory() == home / ".cache" / "jitree"
    assert cache.directory().stat().st_mode & 0o777 == 0o700


def test_a_temporary_folder_where_others_can_change_the_default_one(home: Path, tmp_path: Path) -> None:
    home.chmod(0o777)
    expected = tmp_path / "temporary" / f"jitree-{os.geteuid()}"
    assert cache.directory() == expected
    assert expected.stat().st_mode & 0o777 == 0o700
    cache.write("name", b"data")
    assert cache.read("name") == b"data"


def require_new(folder: Path, above: Path) -> None:
    """It has a name that nobody can have guessed, and is for its user alone."""
    assert folder.parent == above and re.fullmatch(rf"jitree-{os.geteuid()}-[0-9a-f]{{16}}", folder.name)
    assert folder.stat().st_mode & 0o777 == 0o700 and folder.stat().st_uid == os.geteuid()


def test_a_temporary_folder_that_was_there_first(home: Path, tmp_path: Path) -> None:
    """A link of a user who guessed its name; without other users, one to a folder that others can write."""
    home.chmod(0o777)
    taken = tmp_path / "taken"
    taken.mkdir()
    taken.chmod(0o777)
    (tmp_path / "temporary" / f"jitree-{os.geteuid()}").symlink_to(taken)
    with pytest.warns(RuntimeWarning, match="can be written by others"):
        cache.write("name", b"data")
    assert cache.read("name") == b"data"
    assert taken.stat().st_mode & 0o777 == 0o777 and not list(taken.iterdir())
    require_new(cache.directory(), tmp_path / "temporary")


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can give folders away")
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_temporary_folder_of_another_user(kind: str, home: Path, tmp_path: Path) -> None:
    home.chmod(0o777)
    taken = tmp_path / "temporary" / f"jitree-{os.geteuid()}"
    if kind == "folder":
        taken.mkdir(mode=0o700)
    else:
        taken.symlink_to(home.parent)
    os.chown(taken, 12345, 12345, follow_symlinks=False)
    before = list(taken.iterdir())
    with pytest.warns(RuntimeWarning, match="can be written by others"):
        cache.write("name", b"data")
    assert cache.read("name") == b"data"
    assert list(taken.iterdir()) == before
    require_new(cache.directory(), tmp_path / "temporary")
