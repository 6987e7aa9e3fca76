"""Whatever becomes of a builder, a call gives its result by interpretation; what keeps machine code away is
said once, with what to do. Each case is a process of its own, with an empty cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


class Model(NamedTuple):
    path: Path
    function: str
    arguments: str
    kernels: int


DIGITS = Model(
    EXAMPLES / "digits" / "digits.vmvx.vmfb",
    "classify",
    "np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8),",
    7,
)
VOICE = Model(
    EXAMPLES / "gallery" / "voice" / "voice.vmvx.vmfb",
    "main",
    "np.linspace(-1, 1, 576, dtype=np.float32).reshape(1, 576), np.zeros((2, 1, 128), np.float32)",
    17,
)
"""A larger list, for which a builder starts as the module is loaded."""
TIMEOUT = 600
REMEDY = "`jitree cache warm` with the program's file tries again"

_PROGRAM = """
import glob, os, signal, sys, threading, time, warnings
import numpy as np
import jitree
from jitree.codegen import image
from jitree.codegen.image import batch, builder
from jitree.loaders.vmvx import policy

policy._SILENT = float("inf")  # however busy the machine is

def started(process):  # what happens to a builder that has just been started
    {happening}

spawn = builder._start
processes = []
def start(*arguments):
    processes.append(spawn(*arguments))
    started(processes[-1])
    return processes[-1]
builder._start = start
{setting}

arguments = ({arguments})

def results(function):
    found = function(*arguments)
    return [np.asarray(item) for item in (found if isinstance(found, tuple) else (found,))]

with jitree.Session("local-sync", tier="fast") as session:
    expected = results(session.load({model!r}).{function})
session = jitree.Session({device!r}, tier="auto")
function = session.load({model!r}).{function}

def call():
    for item, same in zip(results(function), expected, strict=True):
        np.testing.assert_array_equal(item, same)
    time.sleep(0.01)  # a builder of low priority gets on, too

def built():
    programs = [item for item in list(image._providers.values()) if item.recipe.name == "vmvx_kernels"]
    return [item.image is not None for item in programs]

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    {waiting}
    for _ in range(20):
        call()
for process in processes:
    try:
        os.killpg(process, signal.SIGKILL)  # its copies, too: those that are stopped would stay
    except ProcessLookupError:
        pass
for item in caught:
    print(item.message)
"""
IMPATIENT = "policy._SILENT = 0.3"
_UNTIL_WARNED = "while not caught: call()"
_UNTIL_READY = "while not any(built()): call()"


def warned(
    cache: Path,
    happening: str = "pass",
    setting: str = "",
    waiting: str = _UNTIL_WARNED,
    device: str = "local-sync",
    variables: dict[str, str] | None = None,
    model: Model = DIGITS,
) -> list[str]:
    """The warnings of a program whose results were all as expected."""
    program = _PROGRAM.format(
        happening=happening,
        setting=setting,
        waiting=waiting,
        device=device,
        model=str(model.path),
        function=model.function,
        arguments=model.arguments,
    )
    environment = os.environ | {"JITREE_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT), **(variables or {})}
    environment.pop("JITREE_TIER", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def images(cache: Path) -> list[str]:
    return [path.name for path in cache.glob("vmvx_kernels*.image")]


def test_a_builder_that_is_killed(tmp_path: Path) -> None:
    """By a kernel that is short of memory, say. The next process builds."""
    (text,) = warned(tmp_path, "os.kill(process, signal.SIGKILL)", model=VOICE)
    assert "ended by signal 9" in text and REMEDY in text
    assert not images(tmp_path)
    assert not warned(tmp_path, waiting=_UNTIL_READY, model=VOICE)
    assert images(tmp_path)


def test_a_builder_that_is_killed_in_the_middle(tmp_path: Path) -> None:
    """With all of its processes: what it has built is used, the rest is interpreted, and built later."""
    kill = """
def kill(process):
    while not glob.glob(os.environ["JITREE_CACHE_DIR"] + "/vmvx_kernels*.image"):
        time.sleep(0.001)
    os.killpg(process, signal.SIGKILL)
"""
    started = "threading.Thread(target=kill, args=(process,), daemon=True).start()"
    until = "while not caught and not all(built()): call()"
    shown = warned(tmp_path, started, kill, until, model=VOICE)
    left = len(images(tmp_path))
    assert left and (left == VOICE.kernels or "ended by signal 9" in shown[0]) and len(shown) <= 1
    assert not warned(tmp_path, waiting="while not all(built()): call()", model=VOICE)
    assert len(images(tmp_path)) == VOICE.kernels


def test_a_builder_that_is_killed_while_it_writes(tmp_path: Path) -> None:
    """Half a file is no image, and goes when one is built."""
    half = "\n".join(
        [
            "from jitree.base import private_files",
            "import pathlib",
            "folder = os.environ['JITREE_CACHE_DIR']",
            "pathlib.Path(folder, 'vmvx_kernels-' + 32 * '0' + '.image').write_bytes(b'jitree' * 100)",
        ]
    )
    (text,) = warned(tmp_path, "os.kill(process, signal.SIGKILL)", half)
    assert "ended by signal 9" in text
    assert not warned(tmp_path, waiting=_UNTIL_READY)


def test_a_builder_that_hangs(tmp_path: Path) -> None:
    (text,) = warned(tmp_path, "os.kill(process, signal.SIGSTOP)", IMPATIENT)
    assert "has not been built within" in text and REMEDY in text
    assert not images(tmp_path)


@pytest.mark.parametrize(
    ("happening", "waiting"),
    [
        ("os.kill(process, signal.SIGSTOP)", "call()"),
        ("pass", "while not any(built()): call()\n    os.killpg(processes[0], signal.SIGSTOP)"),
    ],
    ids=["at once", "in the middle"],
)
def test_a_call_does_not_wait_for_a_builder_that_hangs(tmp_path: Path, happening: str, waiting: str) -> None:
    """Where to wait seems sooner, and long before it is given up."""
    sooner = "batch.ImageBatch.estimate, batch.ImageBatch.shares = 0.0, [0.0] * 7"
    assert warned(tmp_path, happening, sooner, waiting) == []


def test_the_builder_of_another_process_hangs(tmp_path: Path) -> None:
    """It has the lock, so that this process starts none. Machine code is there when that one goes on."""
    hang = (
        IMPATIENT
        + """
import fcntl
from jitree.base import private_files
held = []
start_builder = builder.start_builder
def start_locked(recipes, keys, key, *others):
    path = builder.cache.path_of(recipes[0], key).with_suffix(".lock")
    if recipes[0].data and path not in held:
        private_files.make_folder(str(path.parent))
        with private_files.opened(str(path.parent)) as directory:
            descriptor = private_files.lockable(directory, path.name)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        held.append(path)
    return start_builder(recipes, keys, key, *others)
builder.start_builder = start_locked
"""
    )
    (text,) = warned(tmp_path, setting=hang)
    assert "has not been built within" in text
    assert not warned(tmp_path, waiting=_UNTIL_READY)


@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_few_processors(tmp_path: Path, processors: int, device: str) -> None:
    bound = f"os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{processors}])"
    model = VOICE if processors == 2 else DIGITS
    assert not warned(tmp_path, setting=bound, waiting=_UNTIL_READY, device=device, model=model)


@pytest.mark.parametrize(("jump", "model"), [(-1e9, VOICE), (1e9, DIGITS)])
def test_a_clock_that_jumps(tmp_path: Path, jump: float, model: Model) -> None:
    """To 1994 or 2058, when a builder has been started: what waits goes by another clock, and images are not
    taken for old ones."""
    clock = f"clock = time.time; time.time = lambda: clock() + ({jump} if processes else 0)"
    assert not warned(tmp_path, setting=clock, waiting=_UNTIL_READY, model=model)
    assert images(tmp_path)
    for name in images(tmp_path):
        used = (tmp_path / name).stat().st_mtime + jump
        os.utime(tmp_path / name, (used, used))
    assert not warned(tmp_path, waiting=_UNTIL_READY, model=model)
    listed = subprocess.run(
        [sys.executable, "-m", "jitree", "cache", "list"],
        env=os.environ | {"JITREE_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "of executable '" in listed.stdout


def test_two_processes_that_build_the_same(tmp_path: Path) -> None:
    """Both get machine code, and none warns; one builds (`test_many_processes_build_once`)."""
    both = """
other = os.fork()
if other:
    import atexit
    atexit.register(lambda: print(*[f"process {code}" for _, code in [os.waitpid(other, 0)] if code]))
"""
    shown = warned(tmp_path, setting=both, waiting=_UNTIL_READY, model=VOICE)
    assert not [line for line in shown if line]
    assert images(tmp_path)


def test_a_builder_that_finds_a_full_disk(tmp_path: Path) -> None:
    """Which was not full when the folder was looked at."""
    full = "import resource; resource.prlimit(process, resource.RLIMIT_FSIZE, (1024, 1024))"
    (text,) = warned(tmp_path, full, model=VOICE)
    assert "File too large" in text and REMEDY in text
    assert not images(tmp_path)
    assert not [
        path for path in tmp_path.iterdir() if path.suffix not in (".log", ".lock", ".json", ".image")
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_disk_that_becomes_full(tmp_path: Path) -> None:
    tmp_path = tmp_path / "disk"
    tmp_path.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", tmp_path], check=False
    ).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        fill = f"""try:
        with open({str(tmp_path / "full")!r}, "wb", buffering=0) as file:
            while file.write(bytes(4096)): pass
    except OSError: pass"""
        (text,) = warned(tmp_path, fill, model=VOICE)
        assert "No space left on device" in text and REMEDY in text
        (tmp_path / "full").unlink()
        assert not images(tmp_path)
        assert not warned(tmp_path, waiting=_UNTIL_READY, model=VOICE)
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_no_folder_can_be_written(tmp_path: Path) -> None:
    nowhere = tmp_path / "none"
    nowhere.write_text("no folder")
    temporary = f"from jitree.codegen.image import cache; cache._TEMPORARY = ({str(nowhere)!r},)"
    shown = warned(
        nowhere, setting=temporary, variables=dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(nowhere))
    )
    (text,) = shown
    assert "so nothing is compiled" in text and "name a folder" in text


def test_no_compiler(tmp_path: Path) -> None:
    absent = (
        "find = builder.folders_of\n"
        "builder.folders_of = lambda name: [] if name == 'llvmlite' else find(name)"
    )
    (text,) = warned(tmp_path, setting=absent, model=VOICE)
    assert "llvmlite" in text and "pip install" in text and REMEDY in text
