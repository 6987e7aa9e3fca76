"""The layer over the system: what it does where Linux's names are missing, and pages that threads switch."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from jitree.base import platform
from jitree.base.platform import EXECUTE, MACHINE, PAGE_SIZE, READ, WRITE, SwitchedMapping
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


_WITHOUT = """
import ctypes, fcntl, os, re, resource, select, signal, socket, sys, time
for module, names in (
    (os, "memfd_|MFD_|sched_[gs]|SCHED_|eventfd|EFD_|pidfd_|posix_fa|copy_file|splice|getrandom"
         "|O_TMP|O_PATH|O_DIRECT$|P_PIDFD|.*xattr|unshare|setns|timerfd"),
    (fcntl, "F_ADD_SEALS|F_GET_SEALS|F_SEAL|F_.*PIPE_SZ|F_NOTIFY|DN_"),
    (socket, "AF_NETLINK|AF_PACKET|AF_ALG|SO_PEERCRED|SO_BIND|TCP_KEEPIDLE|TCP_USER|TCP_QUICK"
             "|TCP_CORK|SOCK_C|SOCK_N|MSG_CMSG"),
    (resource, "prlimit|RLIMIT_(MSG|NICE|RT|SIGP)"),
    (select, "epoll|EPOLL"),
    (signal, "SIGRT|SIGPWR|SIGSTKFLT|sigtimedwait|sigwaitinfo"),
    (time, "CLOCK_(BOOT|TAI|PROF)|clock_getcpu|pthread_getcpu"),
):
    for name in [name for name in dir(module) if re.match(names, name)]:
        delattr(module, name)

class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if re.match("malloc_trim|mallinfo2|dlvsym|getauxval|sched_[gs]et|prctl|capset|memfd", name):
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = Library

def refuse(event, arguments):
    path = arguments[0] if event in ("open", "os.listdir") else ""
    if isinstance(path, (str, bytes)) and os.fsdecode(path).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "no such file", path)

sys.addaudithook(refuse)
from jitree.base.platform import threads
threads.CAN_PARK = False
"""
"""Hides what only Linux has, of the modules of Python, of the C library and of files; no helper may park."""

_RUNS = """
import numpy, jitree
zeros = numpy.zeros((8, 8), "f4")
expected = None
for kind in ("vmvx", "llvm-cpu"):
    for device in ("local-sync", "local-task"):
        for tier in ("plain", "fast"):
            with jitree.Session(device, tier=tier) as session:
                module = session.load(f"examples/digits/digits.{kind}.vmfb")
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
print("answered")
"""
_REFUSALS = """
import jitree
from jitree.base.platform import files
from jitree.base.platform.available_resources import available_memory, available_processors
from jitree.api.process import worker
assert available_processors() == os.cpu_count()
descriptor = files.memory_file("name")
assert os.write(descriptor, b"held") == 4 and files.read_memory(id(descriptor), 8) is None
assert files.code_file(b"") is None and files.machine_identity() == socket.gethostname()
for refused in (available_memory, lambda: worker.ask_for_child(b""), lambda: files.mapped_ranges(0, 0)):
    try:
        refused()
    except (OSError, jitree.StatusError) as error:
        print(type(error).__name__, str(error))
"""
_IMPORTS = """
import importlib, pkgutil
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
    ("program", "said"),
    [
        (_IMPORTS, ["imported"]),
        (_RUNS, ["answered"]),
        (_REFUSALS, ["FileNotFoundError", "UnavailableError", "no process can be confined",
                     "UnavailableError", "libraries of the system cannot be used without '/proc/self/maps'"]),
    ],
    ids=["imports", "runs", "refusals"],
)  # fmt: skip
def test_without_what_only_linux_has(program: str, said: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT + program], cwd=_ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    place = 0
    for text in said:
        place = done.stdout.index(text, place)
