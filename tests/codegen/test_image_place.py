"""A folder that images cannot be kept in does not keep programs from being compiled: it is named once, with a
remedy that fits it, and a folder of the user's own is taken."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jitree.api import session_arguments
from jitree.api.process import worker
from jitree.base import private_files
from jitree.codegen import image
from jitree.codegen.image import cache
from jitree.codegen.image.contents import SIZE_VARIABLE
from jitree.codegen.image.flat import FlatImage
from jitree.tools import cache as command
from jitree.tools import dump
from tests.codegen.test_image import KEY, recipe, twice
from tests.security.programs import VMVX

_ROOT = Path(__file__).parents[2]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is taken instead, in a process that knows no images yet."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(image, "_static", {})
    monkeypatch.setattr(cache, "_chosen", None)
    return tmp_path / "temporary" / f"jitree-{os.geteuid()}"


def _open_to_all(path: Path) -> str:
    path.mkdir()
    path.chmod(0o775)
    return rf"can be written by others \(mode 0775\).*take that right away \(chmod go-w '{path}'\)"


def _below_one(path: Path) -> str:
    path.parent.mkdir()
    path.parent.chmod(0o777)
    return rf"can be written by others \(mode 0777\).*\(chmod go-w '{path.parent}'\)"


def _of_all(path: Path) -> str:
    path.mkdir()
    path.chmod(0o1777)
    return r"files of all users; name a folder in it"


def _file(path: Path) -> str:
    path.touch()
    return f"'{path}' is a file: name a folder"


def _below_a_file(path: Path) -> str:
    path.parent.touch()
    return f"'{path.parent}' is a file: name a folder"


def _pipe(path: Path) -> str:
    os.mkfifo(path)
    return "is a named pipe: name a folder"


def _socket(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # a whole path may be too long for it
    return "is a socket: name a folder"


def _device(path: Path) -> str:
    path.symlink_to("/dev/null")
    return "'/dev/null' is a device: name a folder"


def _loop(path: Path) -> str:
    path.symlink_to(path)
    return r"cannot be made or opened \(Too many levels.*\): name another folder"


def _nothing_behind(path: Path) -> str:
    path.symlink_to(path.with_name("nothing"))
    return r"cannot be made or opened \(No such file.*\): name another folder"


BAD = [
    _open_to_all, _of_all, _file, _pipe, _socket, _device, _loop, _nothing_behind, _below_one, _below_a_file,
]  # fmt: skip


@pytest.mark.parametrize("source", [cache.VARIABLE, "cache_dir", "XDG_CACHE_HOME"])
@pytest.mark.parametrize("plant", BAD)
def test_images_are_built_all_the_same(
    plant: Callable[[Path], str], source: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "above" if plant in (_below_one, _below_a_file) else tmp_path
    path = base / "jitree"
    reason = plant(path)
    before = path.lstat() if os.path.lexists(path) and plant is not _below_a_file else None
    if source == "cache_dir":
        session_arguments.choose_cache(path)
    else:
        monkeypatch.delenv(cache.VARIABLE, raising=False)
        monkeypatch.setenv(source, str(base if source == "XDG_CACHE_HOME" else path))
    if source == "XDG_CACHE_HOME" and plant in (_open_to_all, _of_all):
        assert cache.directory() == path, "it is for jitree alone, which may take rights away"
        return
    with pytest.warns(
        RuntimeWarning, match=f"{source}: '{path}' is not used.*{reason}.*'{own}' inst"
    ) as told:
        assert twice(image.wait(recipe("texts")), 4) == 8
    image._static.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert twice(image.wait(recipe("texts", "other")), 4) == 8
    assert len(told) == 1
    assert cache.directory() == own and len(list(own.glob("*.image"))) == 2
    assert own.stat().st_mode & 0o777 == 0o700
    assert before is None or path.lstat().st_mode == before.st_mode, "the rights of what is there are left"


def _is_root_elsewhere(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As for a user who may not write to a folder."""
    status, allowed = os.stat(folder), os.access

    def access(path: Any, mode: int, **options: Any) -> bool:
        file = options.get("dir_fd")
        return allowed(path, mode, **options) and (file is None or os.stat(file).st_ino != status.st_ino)

    monkeypatch.setattr(os, "access", access)


def test_a_folder_without_the_right_to_write(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "read"
    folder.mkdir(mode=0o555)
    monkeypatch.setenv(cache.VARIABLE, str(folder))
    _is_root_elsewhere(monkeypatch, folder)
    reason = rf"cannot be written by user .* \(mode 0555\): give that right \(chmod u\+wx '{folder}'\)"
    with pytest.warns(RuntimeWarning, match=reason):
        assert cache.settle().folder == str(own)


def test_images_of_a_folder_that_is_read_only_are_used(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a container: nothing is said until something has to be built."""
    folder = tmp_path / "read"
    monkeypatch.setenv(cache.VARIABLE, str(folder))
    flat = FlatImage(b"x" * 8, b"", {})
    cache.store(recipe("texts"), KEY, flat)
    cache._places.clear()
    _is_root_elsewhere(monkeypatch, folder)
    system = os.fstatvfs
    monkeypatch.setattr(os, "fstatvfs", lambda file: _ReadOnly(system(file).f_flag | os.ST_RDONLY))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.load(recipe("texts"), KEY) == flat
    other = bytes(reversed(KEY))
    with pytest.warns(RuntimeWarning, match=f"'{folder}' .* mounted read-only: name a folder elsewhere"):
        path = cache.store(recipe("texts"), other, flat)
    assert path.parent == own
    assert cache.load(recipe("texts"), KEY) == flat and cache.load(recipe("texts"), other) == flat


class _ReadOnly:
    def __init__(self, flags: int) -> None:
        self.f_flag = flags


def test_a_folder_without_room(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "full"))
    create = private_files.create

    def full(directory: int, name: str) -> Any:
        if "/full" in os.readlink(f"/proc/self/fd/{directory}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(directory, name)

    monkeypatch.setattr(private_files, "create", full)
    with pytest.warns(RuntimeWarning, match=r"cannot be written \(No space left.*\): name another folder"):
        cache.write("name", b"data")
    assert cache.read("name") == b"data" and cache.directory() == own


@pytest.mark.parametrize("name", ["x" * 300, "nul\0", "/proc/jitree", "\udcff/jitree"])
def test_names_that_no_folder_can_have(
    name: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "\udcff").touch()
    session_arguments.choose_cache(name)
    with pytest.warns(RuntimeWarning, match="cache_dir: .* is not used.*: name a"):
        cache.write("name", b"data")
    assert cache.directory() == own


def test_a_folder_in_thousands_that_are_not_there(own: Path, tmp_path: Path) -> None:
    """Python has no room for as many calls, and to check each took minutes."""
    session_arguments.choose_cache(f"{tmp_path}/{'d/' * 1500}")
    with pytest.warns(RuntimeWarning, match="1500 folders that are not there, .*: name another folder"):
        cache.write("name", b"data")
    assert cache.directory() == own and not (tmp_path / "d").exists()


def test_warnings_that_are_errors(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A call in which something is built does not fail for it."""
    monkeypatch.setenv(cache.VARIABLE, "/dev/null")
    monkeypatch.setattr(cache, "_told", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.settle().folder == cache.settle().folder == str(own)
    assert capsys.readouterr().err.count("'/dev/null' is a device: name a folder; it is kept in") == 1


def test_a_folder_that_becomes_unusable(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv(cache.VARIABLE, str(folder))
    cache.write("name", b"data")
    assert cache.directory() == folder
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="can be written by others"):
        cache.write("name", b"data")
    assert cache.directory() == own
    own.rename(own.with_name("gone"))
    own.touch()
    cache.write("name", b"data")
    assert cache.directory().name.startswith(f"{own.name}-") and cache.read("name") == b"data"


def test_what_tools_say(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shared"
    monkeypatch.setenv(cache.VARIABLE, str(folder))
    monkeypatch.delenv(SIZE_VARIABLE, raising=False)
    assert dump.main(["--tiers", str(VMVX)]) == 0
    assert "not used for machine code" not in capsys.readouterr().out
    folder.chmod(0o775)
    cache._places.clear()
    reason = cache.place().reason
    assert f"(chmod go-w '{folder}')" in reason and f"is kept in '{own}' instead" in reason
    assert dump.main(["--tiers", str(VMVX)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["", reason]
    assert command.main(["list"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == reason and any(line.startswith(f"{folder}: ") for line in lines)
    assert f"{own}: 0 images, 0 B of 256.0 MiB" in lines
    assert command.main(["clear"]) == 0
    assert capsys.readouterr().out == f"removed 0 images, 0 B, from {own}\n"


_PROGRAM = """
import os, sys
import numpy as np
from jitree import Session

path, sandbox = sys.argv[1:]
with Session("local-sync", **({"sandbox": "process"} if sandbox else {"tier": "native"})) as session:
    module = session.load(path)
    print(module.classify(np.zeros((8, 8), np.float32)).shape)
    sys.stdout.flush()
    child = os.fork() if not sandbox else None
    if child == 0:
        with Session("local-sync", tier="native") as inner:
            inner.load(path).classify(np.zeros((8, 8), np.float32))
        os._exit(0)
    assert child is None or os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("sandbox", ["", "process"])
def test_programs_are_compiled(sandbox: str, own: Path, tmp_path: Path) -> None:
    """As in a program of its own: by tier ``native``, which fails where nothing can be compiled."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o775)
    environment = os.environ | {cache.VARIABLE: str(folder), "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(VMVX), sandbox],
        env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(10,)\n"
    assert not list(folder.iterdir())
    if not sandbox:
        assert done.stderr.count("RuntimeWarning") == 1 and f"chmod go-w '{folder}'" in done.stderr
        assert any(file.suffix == ".image" for file in own.iterdir())


@pytest.mark.parametrize("is_usable", [True, False])
def test_the_process_of_a_sandbox_takes_the_same_folder(
    is_usable: bool, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, str] = {}

    def start(command: object, **options: Any) -> None:
        given.update(options["env"])
        raise OSError("none is started")

    session_arguments.choose_cache(tmp_path / "chosen" if is_usable else "/dev/null")
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(OSError, match="none is started"):
        worker.ForkServer().start()
    assert given[cache.VARIABLE] == str(tmp_path / "chosen" if is_usable else own)


def test_the_name_that_was_taken_is_removed_at_the_end(own: Path, tmp_path: Path) -> None:
    own.touch()
    program = "from jitree.codegen.image import cache; cache.write('name', b'data'); print(cache.directory())"
    environment = os.environ | {cache.VARIABLE: "/dev/null", "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", program]
    named = Path(subprocess.check_output(command, env=environment, text=True).strip())
    assert named.parent == own.parent and named.name.startswith(f"{own.name}-")
    assert list(own.parent.iterdir()) == [own]
