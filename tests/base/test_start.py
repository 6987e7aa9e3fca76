"""The code of a first result comes from one file, and what comes from it is what would have come without."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest

from jitree.base import start

PACKAGE = Path(__file__).resolve().parents[2] / "jitree"
REPORT = """
import importlib, inspect, sys
import numpy, jitree
jitree.Session
session = sys.modules["jitree.api.session"]
names = open(jitree.base.start._NAMES).read().split()
for module in [sys.modules[name] for name in names if name in sys.modules]:
    spec, path = module.__spec__, getattr(module, "__path__", None)
    print(module.__name__, module.__file__, module.__cached__, module.__package__, module.__doc__, path)
    print(spec.parent, spec.origin, spec.has_location, session.Session.load.__code__.co_filename)
print(len(inspect.getsource(session)), importlib.reload(session) is session)
"""
LOADERS = """
import sys, jitree
jitree.Session
loaders = {name: getattr(module, "__loader__", None) for name, module in sys.modules.items()}
print(*[name for name, loader in loaders.items() if type(loader).__name__ == "_Loader"])
"""


@pytest.fixture(scope="module")
def imported_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's modules of a first result and of later calls, in another place, with Python's own code of
    the former: to compile them takes longer than what most tests do, and so does a copy of all files."""
    folder = tmp_path_factory.mktemp("imported") / "jitree"
    names = (PACKAGE / "base" / "start.txt").read_text(encoding="ascii").split()
    names += run(PACKAGE, "import sys, jitree; jitree.Session; print(*sys.modules)").split()
    for file in ["base/start.txt", *{source(name) for name in names if name.split(".")[0] == "jitree"}]:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PACKAGE / file, folder / file)
    run(folder, LOADERS)
    for name in ("start", "later"):
        file_of(folder, name).unlink()
    assert any(folder.rglob("*.pyc")) and not any(folder.rglob("*.bin"))
    return folder


@pytest.fixture
def copy(tmp_path: Path, imported_once: Path) -> Path:
    """The package in a place of its own, before any process has written what the next ones take."""
    return shutil.copytree(imported_once, tmp_path / "jitree")


def source(name: str) -> str:
    """The file of a module, in the package's folder."""
    file = name.partition(".")[2].replace(".", "/")
    return f"{file}.py" if (PACKAGE / f"{file}.py").is_file() else f"{file}/__init__.py".removeprefix("/")


def run(copy: Path, code: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), **variables}
    if "PYTHONDONTWRITEBYTECODE" not in variables:
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, env=environment, cwd=copy.parent, text=True)


def file_of(copy: Path, name: str = "start") -> Path:
    return copy / "base" / "__pycache__" / f"{name}.{sys.implementation.cache_tag}.bin"


def test_modules_are_those_of_their_files(copy: Path) -> None:
    plain = run(copy, REPORT, PYTHONDONTWRITEBYTECODE="1")
    assert not file_of(copy).exists()
    assert run(copy, REPORT) == plain and file_of(copy).exists()
    assert run(copy, REPORT) == plain
    assert "jitree.api.session" in run(copy, LOADERS).split()


def test_what_has_changed_is_imported_anew(copy: Path) -> None:
    run(copy, LOADERS)
    with (copy / "api" / "session.py").open("a") as file:
        file.write("\nCHANGED = True\n")
    for taken in (False, True):
        assert ("jitree.api.session" in run(copy, LOADERS).split()) == taken, (
            "the first process writes it anew"
        )
    assert run(copy, "import jitree; jitree.Session; print(jitree.api.session.CHANGED)") == "True\n"


def test_modules_say_what_they_lack_and_make_what_they_promise(copy: Path) -> None:
    with (copy / "types.py").open("a") as file:
        file.write("\ndef __getattr__(name):\n    return name.upper()\n")
    program = """
import jitree
jitree.Session
from jitree.api import session
from jitree import types
missing = not hasattr(session, "__path__") and not hasattr(session, "nothing")
try:
    from jitree.api.session import nothing
except ImportError as error:
    print(type(types.__loader__).__name__, missing, types.made, str(error).partition(" (")[0])
"""
    run(copy, program)
    said = run(copy, program)
    assert said == "_Loader True MADE cannot import name 'nothing' from 'jitree.api.session'\n"


@pytest.mark.parametrize("damage", ["cut", "other", "empty", "moved"])
def test_a_file_that_does_not_fit_is_not_used(copy: Path, damage: str) -> None:
    run(copy, LOADERS)
    content = file_of(copy).read_bytes()
    damaged = {
        "cut": content[: len(content) // 2],
        "other": b"\0\0\0\0" + content[4:],
        "empty": b"",
        "moved": content.replace(os.fsencode(copy) + b"\0", b"/elsewhere\0", 1),
    }
    file_of(copy).write_bytes(damaged[damage])
    assert run(copy, LOADERS).split() == []
    assert "jitree.api.session" in run(copy, LOADERS).split(), "it was written anew"


def _pipe(file: Path) -> None:
    os.mkfifo(file)


def _long(file: Path) -> None:
    file.touch()
    os.truncate(file, 64 << 30)


def _loop(file: Path) -> None:
    file.symlink_to(file)


@pytest.mark.parametrize("plant", [_pipe, _long, _loop, Path.mkdir])
@pytest.mark.parametrize("name", ["start", "later"])
def test_what_is_no_file_is_not_used(copy: Path, name: str, plant: Callable[[Path], None]) -> None:
    program = "import jitree; jitree.Session; from jitree.codegen.image import cache; print(cache.SUFFIX)"
    run(copy, LOADERS)
    file_of(copy, name).unlink()
    plant(file_of(copy, name))
    assert run(copy, program, PYTHONDONTWRITEBYTECODE="1") == ".image\n"


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9, 0.999])
def test_a_file_for_later_that_is_cut_off_is_not_used(copy: Path, kept: float) -> None:
    """Each code is found by its distance from the end."""
    run(copy, LOADERS)
    later = file_of(copy, "later")
    os.truncate(later, int(later.stat().st_size * kept))
    program = "import jitree; jitree.Session; from jitree.codegen.image import cache, keys; print(1)"
    assert run(copy, program, PYTHONDONTWRITEBYTECODE="1") == "1\n"


def test_a_folder_that_may_not_be_written_to(copy: Path) -> None:
    run(copy, LOADERS)
    file = file_of(copy)
    file.unlink()
    file.mkdir()  # root may write anywhere
    assert run(copy, LOADERS).split() == []
    assert [*file.parent.glob("start.*.bin.*")] == [], "nothing is left behind"


def test_only_its_user_may_write_it(copy: Path) -> None:
    before = os.umask(0)
    try:
        run(copy, LOADERS)
    finally:
        os.umask(before)
    assert file_of(copy).stat().st_mode & 0o777 == 0o644
    (copy / "base" / "start.txt").chmod(0o600)
    file_of(copy).unlink()
    run(copy, LOADERS)
    assert file_of(copy).stat().st_mode & 0o777 == 0o600


def test_what_later_calls_import_is_read_when_they_do(copy: Path) -> None:
    program = (
        "import jitree; jitree.Session; from jitree.codegen.image import cache; print(type(cache.__loader__))"
    )
    run(copy, LOADERS)
    later = file_of(copy, "later")
    assert later.stat().st_size > 100_000
    assert "_Loader" in run(copy, program)
    later.unlink()
    run(copy, LOADERS)
    assert not later.exists(), "a first result does not ask for it"
    assert "SourceFileLoader" in run(copy, program) and later.exists(), "written anew"


COLLECTIONS = """
import gc, numpy, jitree
from jitree.base import start
def collections():
    return sum(each["collections"] for each in gc.get_stats())
before = collections()
jitree.Session
print(collections() - before, gc.isenabled(), gc.get_freeze_count())
"""


def test_the_collector_leaves_imports_alone(copy: Path) -> None:
    assert run(copy, COLLECTIONS) == "0 True 0\n"


def test_what_the_user_has_frozen_stays_frozen(copy: Path) -> None:
    program = (
        "import gc, jitree; gc.freeze(); jitree.Session; print(gc.isenabled(), gc.get_freeze_count() > 0)"
    )
    assert run(copy, program) == "True True\n"


def test_a_collector_that_is_off_stays_off(copy: Path) -> None:
    program = "import gc, jitree; gc.disable(); jitree.Session; print(gc.isenabled())"
    assert run(copy, program) == "False\n"


SLOWLY = """
import sys, threading, time
import jitree
found = []
def look():
    while "jitree.types" not in sys.modules:
        time.sleep(0.001)
    from jitree.types import LAST
    found.append(LAST)
thread = threading.Thread(target=look)
thread.start()
jitree.Session
thread.join(20)
print(type(jitree.types.__loader__).__name__, found)
"""


def test_other_threads_wait_for_what_is_run_early(copy: Path) -> None:
    with (copy / "types.py").open("a") as file:
        file.write("\nimport time\ntime.sleep(0.3)\nLAST = 1\n")
    assert run(copy, SLOWLY) == "SourceFileLoader [1]\n"
    assert run(copy, SLOWLY) == "_Loader [1]\n"


FAILING = """
import sys
import jitree, jitree.base
jitree.base.fails = True
try:
    jitree.Session
except OSError as error:
    names = "jitree.types", "jitree.hal.buffer", "jitree.api.session"
    print(error, [name in sys.modules for name in names])
jitree.base.fails = False
print(jitree.Session.__name__, jitree.types.__spec__._initializing)
"""


def test_a_module_that_fails_may_be_imported_again(copy: Path) -> None:
    with (copy / "types.py").open("a") as file:
        file.write("\nfrom jitree import base\nif getattr(base, 'fails', False): raise OSError('no room')\n")
    said = "no room [False, False, False]\nSession False\n"
    assert run(copy, FAILING) == said
    assert file_of(copy).exists()
    assert run(copy, FAILING) == said


def test_what_a_handler_raises_while_a_source_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual time-out is an OSError, and so is a source that is gone."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("too late")

    def stat(file: str) -> None:
        signal.raise_signal(signal.SIGUSR1)

    assert start._state(__file__) is not None and start._state(f"{__file__}/x") is None
    before = signal.signal(signal.SIGUSR1, expire)
    try:
        monkeypatch.setattr(start, "os", SimpleNamespace(stat=stat))
        with pytest.raises(TimeoutError, match="too late"):
            start._state(__file__)
    finally:
        signal.signal(signal.SIGUSR1, before)
