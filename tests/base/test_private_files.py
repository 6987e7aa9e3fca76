"""Private files and folders; files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jitree.base import private_files
from jitree.errors import InvalidArgumentError, UnavailableError
from tests.base.interruption import interruptions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "above" / "folder"
    private_files.write(str(path), "name.kind", b"data")
    return path


@pytest.fixture(params=[0, 0o022, 0o002, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def found(folder: Path) -> bytes | None:
    return private_files.read(str(folder), "name.kind")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_rights_are_the_users_alone(umask: None, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    private_files.write(str(path), "name", b"data")
    assert [mode(path.parent.parent), mode(path.parent), mode(path), mode(path / "name")] == [
        0o700, 0o700, 0o700, 0o600
    ]  # fmt: skip
    assert private_files.read(str(path), "name") == b"data"
    assert list(path.iterdir()) == [path / "name"]


def test_relative_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    for name in ("folder", "folder/", "./folder", "../above/folder"):
        private_files.write(name, "name.kind", name.encode())
        assert private_files.read(name, "name.kind") == name.encode()
    private_files.write("new/", "name.kind", b"new")
    assert found(folder.parent / "new") == b"new"


@pytest.mark.parametrize("right", [stat.S_IWGRP, stat.S_IWOTH])
@pytest.mark.parametrize("what", ["above/folder/name.kind", "above/folder", "above"])
def test_what_others_can_write_is_a_miss(what: str, right: int, folder: Path, tmp_path: Path) -> None:
    assert found(folder) == b"data"
    (tmp_path / what).chmod(mode(tmp_path / what) | right)
    assert found(folder) is None
    (tmp_path / what).chmod(mode(tmp_path / what) & ~right)
    assert found(folder) == b"data"


@pytest.mark.parametrize("what", ["above/folder", "above"])
def test_folders_that_others_can_write_are_not_written(what: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / what).chmod(0o777)
    for path in (folder, folder / "deeper"):
        with pytest.raises(PermissionError, match=rf"{what}' can be .* others \(mode 0777\).*chmod go-w"):
            private_files.write(str(path), "name.kind", b"other")
    assert list(folder.iterdir()) == [folder / "name.kind"]


def test_a_sticky_folder_above_keeps_names_with_their_owners(folder: Path) -> None:
    folder.parent.chmod(0o1777)
    assert found(folder) == b"data"
    folder.chmod(0o1777)
    assert found(folder) is None, "anybody may make files here"


def test_folders_of_the_users_own_group(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As systems with a group for each user make them; the administrator's group may have other members."""
    status = os.stat(folder.parent)
    own = [*status]
    own[0], own[4], own[5] = 0o040775, 1234, 1234
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert private_files._is_of_own_group(os.stat_result(own))
    for index, value in ((0, 0o040777), (4, 1235), (5, 100)):
        assert not private_files._is_of_own_group(os.stat_result([*own[:index], value, *own[index + 1 :]]))
    own[4] = own[5] = 0
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not private_files._is_of_own_group(os.stat_result(own))


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can give files away")
@pytest.mark.parametrize("what", ["above/folder/name.kind", "above/folder", "above"])
def test_what_belongs_to_another_user_is_a_miss(what: str, folder: Path, tmp_path: Path) -> None:
    os.chown(tmp_path / what, 12345, 12345)
    assert found(folder) is None
    if what != "above/folder/name.kind":
        with pytest.raises(PermissionError, match="belongs to user 12345"):
            private_files.write(str(folder), "name.kind", b"other")


def test_links_of_files_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"elsewhere")
    (folder / "name.kind").unlink()
    (folder / "name.kind").symlink_to(tmp_path / "elsewhere")
    assert found(folder) is None
    private_files.write(str(folder), "name.kind", b"data")
    assert found(folder) == b"data"
    assert (tmp_path / "elsewhere").read_bytes() == b"elsewhere"


def test_a_named_pipe_is_a_miss(folder: Path) -> None:
    (folder / "name.kind").unlink()
    os.mkfifo(folder / "name.kind", 0o600)
    assert found(folder) is None


def test_a_link_to_a_folder_is_as_good_as_its_target(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert found(tmp_path / "link") == b"data"
    assert private_files.read(str(tmp_path / "link" / ".." / "folder"), "name.kind") == b"data"
    folder.parent.chmod(0o777)
    assert found(tmp_path / "link") is None
    assert private_files.read(str(tmp_path / "link" / ".." / "folder"), "name.kind") is None
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert found(tmp_path / "loop") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can give links away")
def test_a_link_of_another_user_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    os.lchown(tmp_path / "link", 12345, 12345)
    assert found(tmp_path / "link") is None
    with pytest.raises(PermissionError, match="link' belongs to user 12345"):
        private_files.write(str(tmp_path / "link"), "name.kind", b"other")


@pytest.mark.parametrize("plant", [Path.write_bytes, Path.symlink_to], ids=["file", "link"])
def test_a_taken_temporary_name_is_left_alone(
    plant: Callable[..., object], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(private_files, "unique", lambda: "guessed")
    plant(folder / "name.guessed", victim if plant is Path.symlink_to else b"precious")
    with pytest.raises(FileExistsError):
        private_files.write(str(folder), "name.kind", b"other")
    assert victim.read_bytes() == b"precious"
    assert found(folder) == b"data"


def test_replacing_replaces_the_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (folder / "log").symlink_to(tmp_path / "victim")
    with private_files.opened(str(folder)) as directory, private_files.replace(directory, "log") as file:
        file.write(b"line")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (folder / "log").read_bytes() == b"line" and not (folder / "log").is_symlink()


def test_locks_are_not_taken_through_links(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").touch(mode=0o600)
    with private_files.opened(str(folder)) as directory:
        first, second = (private_files.lockable(directory, "lock") for _ in range(2))
        assert os.path.sameopenfile(first, second)
        os.close(first)
        os.close(second)
        (folder / "lock").unlink()
        (folder / "lock").symlink_to(tmp_path / "victim")
        with pytest.raises(OSError, match="lock"):
            private_files.lockable(directory, "lock")


def test_own_folders_are_closed(folder: Path) -> None:
    folder.chmod(0o777)
    private_files.make_own_folder(str(folder))
    assert mode(folder) == 0o700
    assert found(folder) == b"data"


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _link(path: Path) -> None:
    """To a pipe: what the name leads to counts."""
    os.mkfifo(path.with_name("behind"))
    path.symlink_to("behind")


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "folder": (Path.mkdir, "a folder; name a file in it"),
    "pipe": (os.mkfifo, "a pipe, and would be a file"),
    "socket": (_socket, "a socket, and would be a file"),
    "link": (_link, "a pipe, and would be a file"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file_stays(kind: str, tmp_path: Path) -> None:
    make, text = SPECIAL[kind]
    path = tmp_path / "special"
    make(path)
    there = {each: os.lstat(tmp_path / each) for each in os.listdir(tmp_path)}
    with pytest.raises(InvalidArgumentError, match=f"cannot write '.*special': it is {text}"):
        private_files.write_file(str(path), b"data")
    after = {each: os.lstat(tmp_path / each) for each in os.listdir(tmp_path)}
    assert {name: (one.st_ino, one.st_mode) for name, one in after.items()} == {
        name: (one.st_ino, one.st_mode) for name, one in there.items()
    }


def test_devices_are_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that took the place of /dev/null would be a file for all programs of the machine."""
    moved: list[str] = []
    monkeypatch.setattr(os, "replace", lambda *names: moved.append(names[1]))
    for name in ("null", "full", "zero"):
        with pytest.raises(InvalidArgumentError, match=f"cannot write '/dev/{name}': it is a device"):
            private_files.refuse_special(f"/dev/{name}")
        with (
            pytest.raises(InvalidArgumentError, match=f"cannot write '/dev/{name}': it is a device"),
            private_files.written(f"/dev/{name}"),
        ):
            pytest.fail("it is not refused")
    assert not moved


def test_a_file_is_replaced_when_all_has_gone_well(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), private_files.written(str(path)) as temporary:
        Path(temporary).write_bytes(b"half")
        raise KeyError
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]
    private_files.write_file(str(path), b"new")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]


def test_names_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="No such file or directory"):
        private_files.write_file(str(tmp_path / "none" / "x"), b"")
    with pytest.raises(UnavailableError, match="File name too long"):
        private_files.write_file(str(tmp_path / ("x" * 250)), b"")
    with pytest.raises(InvalidArgumentError, match=r"cannot write '.*': .*null"):
        private_files.write_file(f"{tmp_path}/x\0y", b"")


def test_what_comes_there_meanwhile_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with (
        pytest.raises(UnavailableError, match=r"cannot write '.*x': Is a directory"),
        private_files.written(str(path)),
    ):
        path.mkdir()
    assert os.listdir(tmp_path) == ["x"]


def test_an_interrupt_leaves_no_descriptor(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    def use() -> None:
        private_files.write(str(folder), "name", b"content")
        assert private_files.read(str(folder), "name") == b"content"
        with private_files.opened(str(folder)) as directory:
            os.close(private_files.lockable(directory, "lock"))

    for interruption in interruptions(0):
        with contextlib.suppress(AssertionError):  # a file that is not there is read as none
            interruption.during(use)
        assert len(os.listdir("/proc/self/fd")) == before, f"interrupted at place {interruption.place}"
