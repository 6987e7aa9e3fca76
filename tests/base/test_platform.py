"""The layer over the system: what it does where Linux's names are missing, and pages that threads switch."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jitree.base import platform
from jitree.base.platform import EXECUTE, MACHINE, PAGE_SIZE, READ, WRITE, SwitchedMapping, confinement
from jitree.errors import PermissionDeniedError, UnimplementedError

_ROOT = Path(__file__).parents[2]
_ANSWER = {"x86_64": "b82a000000c3", "aarch64": "40058052c0035fd6"}
"""A function that returns 42."""


@pytest.fixture
def switches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What a thread of macOS is told; the pages are both writable and executable here."""
    told: list[int] = []
    monkeypatch.setattr(platform, "_switch", told.append)
    return told


def test_switched_pages_are_written_in_one_step(switches: list[int]) -> None:
    """Before that and after it the thread runs code."""
    if MACHINE not in _ANSWER:
        pytest.skip("no machine code for this processor")
    code = bytes.fromhex(_ANSWER[MACHINE])
    mapping = SwitchedMapping(2 * PAGE_SIZE)
    mapping.protect(0, mapping.size, READ | WRITE)
    mapping.view()[: len(code)] = code
    mapping.protect(0, PAGE_SIZE, READ | EXECUTE)
    mapping.protect(PAGE_SIZE, PAGE_SIZE, READ)
    assert switches == [] and ctypes.string_at(mapping.address, len(code)) == bytes(len(code))
    mapping.publish()
    assert switches == [0, 1] and ctypes.CFUNCTYPE(ctypes.c_int)(mapping.address)() == 42


def test_switched_pages_hold_no_data_that_changes(switches: list[int]) -> None:
    mapping = SwitchedMapping(2 * PAGE_SIZE)
    mapping.protect(0, mapping.size, READ | WRITE)
    with pytest.raises(PermissionDeniedError, match="both writable and executable"):
        mapping.protect(0, PAGE_SIZE, READ | WRITE | EXECUTE)
    mapping.protect(0, PAGE_SIZE, READ | EXECUTE)
    with pytest.raises(UnimplementedError, match="data that it stores to"):
        mapping.publish()
    assert switches == []


_RUNS = """
import os
from tests.base import as_macos as macos
import numpy, jitree
from jitree.base import platform
from jitree.base.platform import threads
assert (platform.SYSTEM, platform.PAGE_SIZE, threads.CAN_PARK) == ("darwin", 1 << 14, False)
zeros = numpy.zeros((8, 8), "f4")
expected = None
for kind in ("vmvx", "llvm-cpu"):
    for device in ("local-sync", "local-task"):
        for tier in ("plain", "fast"):
            with jitree.Session(device, tier=tier) as session:
                try:
                    module = session.load(f"examples/digits/digits.{kind}.vmfb")
                except jitree.StatusError as error:  # compiled for pages of 4 KB
                    assert platform.MACHINE == "x86_64" and "share a memory page" in str(error), error
                    continue
                for _ in range(3):
                    found = numpy.asarray(module.classify(zeros))
                assert numpy.allclose(found, found if expected is None else expected, atol=1e-5)
                expected = found
parking = threads.Parking()
parking.wake(), parking.wake(), parking.wait()
with jitree.Session("local-task://?threads=3") as session:
    module = session.load("examples/digits/digits.vmvx.vmfb")
    submitted = [module.classify.submit(zeros) for _ in range(8)]
    assert [numpy.asarray(each).shape for each in submitted] == [(10,)] * 8
threads.place_thread({0})
assert threads.running_on() is None and len(threads.allowed_processors()) == os.cpu_count()
assert len(macos.code_pages) > 5 and macos.switched == [0, 1] * (len(macos.switched) // 2) != []
print("answered", int(expected.argmax()))
"""
_ARM = """
from tests.base import as_macos as macos
import numpy, jitree
from jitree.base.platform import MACHINE, UNAME, processor
from jitree.codegen import primitives
assert (UNAME, MACHINE, processor.machine()) == ("arm64", "aarch64", "aarch64")
if not macos.MAY_RUN:  # the one function of machine code that interpreting takes
    primitives._kernel_call = lambda: lambda function, *states: primitives._DIRECT(function)(*states)
with jitree.Session("local-task", tier="plain") as session:
    module = session.load("examples/digits/digits.vmvx.vmfb")
    print("answered", int(numpy.asarray(module.classify(numpy.zeros((8, 8), "f4"))).argmax()))
features = {name: present for name, (_, present) in processor.known_features().items()}
assert features["bf16"] and not features["sve"] and processor.arm_features() == {"dotprod", "i8mm"}
"""
_REFUSALS = """
import os, socket
from tests.base import as_macos as macos
import jitree
from jitree.base.platform import files, processor, topology
from jitree.base.platform.available_resources import available_memory, available_processors
from jitree.base.platform.starting import OpenedProcess
from jitree.base.platform.threads import thread_pointer
from jitree.api.process import worker
assert available_processors() == os.cpu_count() and thread_pointer(1) == 0
descriptor = files.memory_file("name")
assert os.write(descriptor, b"held") == 4 and files.read_memory(id(descriptor), 8) is None
assert files.code_file(b"") is None and files.machine_identity() == socket.gethostname()
assert [row.number for row in topology.processors()] == list(range(os.cpu_count()))
assert topology.describe(0)[1:] == (0, 0, 0, (0,), 0, (), (0,))
for refused in (available_memory, lambda: worker.ask_for_child(b""), lambda: files.mapped_ranges(0, 0),
                lambda: OpenedProcess(1)):
    try:
        refused()
    except (OSError, jitree.StatusError) as error:
        print(type(error).__name__, str(error))
"""
_IMPORTS = """
import contextlib, importlib, pkgutil, re
with contextlib.suppress(ImportError):  # whose library has another name there
    import llvmlite.binding, numba
from tests.base import as_macos
import jitree
for found in pkgutil.walk_packages(jitree.__path__, "jitree."):
    if not re.search(r"__main__|builder_process|[.]cuda|[.]compat|[.]integrations|[.]compiling", found.name):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # a package that is not installed here
            assert not error.name.startswith("jitree")
print("imported")
"""


@pytest.mark.parametrize(
    ("program", "machine", "said"),
    [
        (_IMPORTS, "", ["imported"]),
        (_RUNS, "", ["answered 1"]),
        (_ARM, "arm64", ["answered 1"]),
        (_REFUSALS, "", ["FileNotFoundError", "UnavailableError", "no process can be confined on darwin",
                         "UnavailableError", "libraries of the system cannot be used without",
                         "OSError"]),
    ],
    ids=["imports", "runs", "arm64", "refusals"],
)  # fmt: skip
def test_as_on_macos(program: str, machine: str, said: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "JITREE_TEST_MACHINE": machine}
    if program is _IMPORTS:
        environment["NUMBA_DISABLE_JIT"] = "1"  # one file has Numba compile for six seconds
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    place = 0
    for text in said:
        place = done.stdout.index(text, place)


def test_code_that_the_system_refuses_is_said_to_be_refused() -> None:
    """Not that memory is short, nor that no device runs the module."""
    program = """
from tests.base import as_macos
import jitree
with jitree.Session("local-sync", tier="plain") as session:
    try:
        session.load("examples/digits/digits.vmvx.vmfb").classify([[0.0] * 8] * 8)
    except jitree.errors.PermissionDeniedError as error:
        print("refused")
"""
    if MACHINE == "aarch64":
        pytest.skip("this processor runs the code")
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "JITREE_TEST_MACHINE": "arm64"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.stdout == "refused\n", done.stderr


_HEADER = Path("/usr/include/asm-generic/unistd.h")


@pytest.mark.skipif(not _HEADER.exists(), reason="needs the kernel's headers (linux-libc-dev)")
def test_numbers_of_system_calls_for_aarch64() -> None:
    """Emulation has no filter: the kernel's own table says what nothing here has used."""
    numbers: dict[str, int] = {}
    for line in _HEADER.read_text().splitlines():
        match line.split():
            case ["#define", name, number] if name.startswith(("__NR_", "__NR3264_")) and number.isdigit():
                numbers.setdefault(name.partition("_")[2].partition("_")[2].partition("_")[2], int(number))
    allowed = confinement._AARCH64
    assert {name: numbers.get(name) for name in allowed} == allowed
    others = "fcntl", "sched_setaffinity", "sched_getaffinity", "clone", "clone3"
    stated = [*confinement._LIMITED["aarch64"], *confinement._CLONE["aarch64"]]
    assert [numbers[name] for name in others] == stated and numbers["futex"] == 98


def test_an_archive_is_no_place_for_the_package(tmp_path: Path) -> None:
    """Images are mapped, and tables read, from files: a session there failed with NotADirectoryError."""
    archive = tmp_path / "program.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for source in sorted((_ROOT / "jitree").rglob("*.py")):
            packed.write(source, source.relative_to(_ROOT))
    program = "import sys; sys.path.insert(0, sys.argv[1]); import jitree"
    command = [sys.executable, "-c", program, str(archive)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "ImportError: jitree cannot run from the archive" in found.stderr and str(archive) in found.stderr
