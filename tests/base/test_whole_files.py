"""Files that are written whole or not at all, and what no file may take the place of."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from jitree.base import private_files
from jitree.errors import InvalidArgumentError, UnavailableError


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
