"""A sandbox in a separate process: what native code does ends or fools the child, and nothing else."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import io
import mmap
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

import jitree
from jitree.api.process import messages
from jitree.errors import (
    AbortedError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StatusError,
    UnimplementedError,
)
from jitree.hal.heap import GUARD, GuardedAllocator
from jitree.vmfb.module import VERSIONS
from tests.security.native_mutants import Campaign
from tests.security.programs import DATA, NATIVE, ONE_PROCESSOR, PROGRAM, VMVX

ROOT = Path(__file__).resolve().parent.parent.parent
IMAGE = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
TRAP = b"\x0f\x0b"
LOOP = b"\xeb\xfe"
"""For x86-64."""
MOST_DIMENSIONS = 64 if np.__version__ >= "2" else 32
"""That numpy has."""

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the example's code is for x86-64")


def confined(**options: Any) -> Any:
    limits = jitree.Limits(**options.pop("limits", {"memory": 1 << 28}))
    return jitree.Session("local-sync", sandbox="process", limits=limits, **options)


@pytest.fixture(scope="module")
def session() -> Any:
    with confined() as session:
        session.load(NATIVE)
        yield session


def with_kernels(code: bytes) -> bytes:
    """The example with other kernels; the function that describes its library stays."""
    data = bytearray(ONE_PROCESSOR.read_bytes())
    begin = data.index(b"\x7fELF")
    elf = ELFFile(io.BytesIO(data[begin:]))
    [query] = [symbol for symbol in elf.get_section_by_name(".dynsym").iter_symbols() if symbol.name]
    kept = range(query["st_value"], query["st_value"] + max(query["st_size"], 64))
    for segment in elf.iter_segments("PT_LOAD"):
        if segment["p_flags"] & 1:
            for place in range(0, segment["p_filesz"] - 1, 2):
                if segment["p_vaddr"] + place not in kept:
                    at = begin + segment["p_offset"] + place
                    data[at : at + 2] = code
    return bytes(data)


def test_results_are_those_of_an_ordinary_session(session: Any) -> None:
    with jitree.Session("local-sync") as ordinary:
        expected = np.asarray(ordinary.load(NATIVE).classify(IMAGE))
    for _ in range(4):
        result = session["module.classify"](IMAGE)
        assert (result == expected).all() and not result.flags.writeable
    with confined() as other:
        assert np.allclose(other.load(VMVX).classify(IMAGE), expected, atol=1e-5)


@pytest.mark.parametrize("file", ["releases/families-20240129.785.vmfb", "programs/levels_both.vmfb"])
def test_what_code_needs_of_the_processor_is_known_there(file: str) -> None:
    """The table of instructions is a file, and a confined process opens none."""
    with jitree.Session("local-sync", sandbox="process") as session:
        assert session.load(DATA.parent / file).names


def test_bytecode_of_another_version_is_refused_by_name(session: Any) -> None:
    """The table of releases is a file as well."""
    module = bytearray(NATIVE.read_bytes())
    struct.pack_into("<I", module, module.index(struct.pack("<I", VERSIONS[-1] << 16)), 99 << 16)
    with pytest.raises(InvalidArgumentError, match=r"module has 99.0 \(a release after 3"):
        session.load(bytes(module))


def test_what_the_program_refuses_is_its_status(session: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expected 8 but have 4"):
        session.modules["module"].classify(IMAGE[:4])
    with pytest.raises(InvalidArgumentError, match="expected an array or a number"):
        session.call("module.classify", "text")


def test_a_crash_is_a_status_and_the_session_opens_again(session: Any) -> None:
    expected = session.call("module.classify", IMAGE)
    child = session.pid
    os.kill(child, signal.SIGSEGV)
    with pytest.raises(AbortedError, match="ended by SIGSEGV") if session._worker.is_alive else _nothing():
        session.call("module.classify", IMAGE)
    assert (session.call("module.classify", IMAGE) == expected).all()
    assert session.pid != child


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...


def test_kernels_that_crash_or_never_end() -> None:
    with confined(limits={"time": 1.0}) as session:
        session.load(with_kernels(LOOP))
        for _ in range(2):
            with pytest.raises(DeadlineExceededError, match=r"within 1 s .*; while module.classify ran"):
                session.call("module.classify", IMAGE)
    with confined() as session:
        session.load(with_kernels(TRAP))
        for _ in range(2):
            with pytest.raises(
                AbortedError, match=r"ended by SIG(ILL|SEGV|TRAP|BUS) while module.classify ran"
            ):
                session.call("module.classify", IMAGE)


def test_the_time_of_a_process_that_is_stopped_is_limited() -> None:
    """Others of the same user may stop it in the midst of a call: it answers nothing, and is ended."""
    with confined(limits={"time": 1.0}) as session:
        session.load(with_kernels(LOOP))
        child = session.pid
        stop = threading.Timer(0.2, os.kill, (child, signal.SIGSTOP))
        stop.start()
        with pytest.raises(DeadlineExceededError, match="within 1 s"):
            session.call("module.classify", IMAGE)
        stop.join()
        assert not Path(f"/proc/{child}").exists()
        with pytest.raises(DeadlineExceededError, match="within 1 s"):
            session.call("module.classify", IMAGE)


def test_nothing_goes_on_between_calls(session: Any) -> None:
    """All threads are stopped, those that native code has made among them."""
    for image in (IMAGE, IMAGE[:4]):
        with contextlib.suppress(StatusError):
            session.call("module.classify", image)
        while stated(session.pid, "State")[0] != "T":
            time.sleep(0.001)
    assert int(stated(session.pid, "CapEff"), 16) == 0, "nor has it rights that root has"


def stated(process: int, name: str) -> str:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(name))


def test_limits_reach_the_child() -> None:
    with confined(limits={"memory": 1000}) as session:
        with pytest.raises(ResourceExhaustedError, match="of 1000 bytes are in use"):
            session.load(NATIVE)
        session.load(PROGRAM)
        with pytest.raises(ResourceExhaustedError, match="of 1000 bytes are in use"):
            session.call("hostile.hoard", 1, 1000)
    small = confined(limits={"load_size": 100})
    with small, pytest.raises(ResourceExhaustedError, match="load size"):
        small.load(NATIVE)


def test_what_a_child_cannot_have_is_refused() -> None:
    with pytest.raises(UnimplementedError, match="check_finite"):
        jitree.Session("local-sync", sandbox="process", check_finite=True)
    with pytest.raises(PermissionDeniedError, match="opens no files"):
        jitree.Session("local-sync", sandbox="process", parameters="weights.irpa")
    with pytest.raises(UnimplementedError, match="instructions"):
        confined(limits={"instructions": 5})
    with pytest.raises(PermissionDeniedError, match="separate devices"):
        jitree.Session("cuda", sandbox="process")
    with pytest.raises(InvalidArgumentError, match="guard_pages"):
        jitree.Session("local-sync", guard_pages=True)
    session = confined()
    session.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        session.load(NATIVE)


ATTEMPTS = {
    "open": "open('/etc/passwd').read()",
    "create": "open('/tmp/made', 'w')",
    "socket": "__import__('socket').socket()",
    "fork": "os.fork()",
    "start": "os.execv('/bin/true', ['true'])",
    "signal": "os.kill(parent, 9)",
    "signal by a socket": "fcntl.fcntl(0, fcntl.F_SETOWN, parent)",
    "processors": "os.sched_setaffinity(parent, {0})",
    "list": "os.listdir('/')",
    "look": "os.stat('/etc/passwd')",
    "trace": "ctypes.CDLL(None, use_errno=True).ptrace(16, parent, 0, 0) == 0 or 1 / 0",
    "memory": "np.zeros(1 << 31, np.uint8)",
    "a memory file": "os.memfd_create('made')",
    "a message": "system(46, 0, 0, 0) == 0 or 1 / 0",
    "files for a thread alone": "system(56, 0x10900, 0, 0, 0, 0) >= 0 or 1 / 0",
    "a network for a thread alone": "system(56, 0x40010f00, 0, 0, 0, 0) >= 0 or 1 / 0",
    "a seal": "fcntl.fcntl(1, 1033, 15)",
}


_EACH_CONFINED = """
import ctypes, fcntl, os, socket, sys, numpy as np
from jitree.base.platform.confinement import confine
parent, system = os.getpid(), ctypes.CDLL(None).syscall
for name, attempt in eval(sys.argv[1]).items():
    if not os.fork():
        try:
            confine(parent, 1 << 30, 1 << 20)
            exec(attempt)
        except (PermissionError, MemoryError, ZeroDivisionError):
            os.write(1, f"{name}\\n".encode())
        finally:
            os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def refused() -> list[str]:
    """The attempts that fail as they should, each in a process of its own: those of one that imports once."""
    program = [sys.executable, "-c", _EACH_CONFINED, repr(ATTEMPTS)]
    result = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return result.stdout.splitlines()


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_confined_process_has_nothing(attempt: str, refused: list[str]) -> None:
    assert attempt in refused


def test_a_confined_process_may_make_threads() -> None:
    text = (
        "import os, threading\n"
        "from jitree.base.platform.confinement import confine\n"
        "confine(os.getppid(), None, 1 << 20)\n"
        "thread = threading.Thread(target=os.write, args=(1, b'made'))\n"
        "thread.start()\nthread.join()\nos._exit(0)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout == "made", result.stderr


def _mapped(file: int) -> object:
    """It stays writable."""
    os.pwrite(file, struct.pack("<Q", 2) + b"{}", 0)
    return mmap.mmap(file, 10)


def _written(text: bytes, length: int) -> Callable[[int], object]:
    return lambda file: os.pwrite(file, struct.pack("<Q", length) + text, 0)


HOSTILE_ANSWERS: dict[str, Callable[[int], object]] = {
    "nothing": lambda file: None,
    "a file that can change": _mapped,
    "a file that it has sealed": lambda file: fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL),
    "no length": lambda file: os.pwrite(file, b"{}", 0),
    "no text": _written(b"", 0),
    "a length beyond the file": _written(b"{}", 1 << 62),
    "no JSON": _written(b"\xff{", 2),
    "no mapping": _written(b"[]", 2),
    "deep JSON": _written(b"[" * 100_000, 100_000),
    "a long number": _written(b"1" * 100_000, 100_000),
    "a large file": _written(bytes(1 << 21), 2),
    "a large file of holes": lambda file: os.truncate(file, 1 << 45),
}


@pytest.mark.parametrize("name", HOSTILE_ANSWERS)
def test_hostile_answers_are_refused(name: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, messages.new_file() as file:
        kept = HOSTILE_ANSWERS[name](file)
        theirs.send(b"m")
        with pytest.raises(DataLossError):
            messages.receive_answer(ours, file, 1 << 20)
        del kept
        theirs.send(b"")
        assert messages.receive_answer(ours, file, 1 << 20) is None


def test_an_answer_does_not_change_once_it_is_read() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, messages.new_file() as file:
        kept = os.dup(file)
        head: dict[str, Any] = {}
        messages.answer(theirs, os.dup(file), head, messages.pack([IMAGE], "results", head))
        answer = messages.receive_answer(ours, file, 1 << 20)
        assert answer is not None
        [result] = messages.unpack(answer.head["results"], answer.data)
        for attempt in (
            lambda: os.pwrite(kept, b"x", 100),
            lambda: os.ftruncate(kept, 0),
            lambda: mmap.mmap(kept, 10),
        ):
            with pytest.raises(OSError, match="not permitted"):
                attempt()
        assert (result == IMAGE).all()
        os.close(kept)


@pytest.mark.parametrize(
    "rows",
    [
        None, 5, [["f32", [16]], ["f32"]], [["nothing", [1]]], [["f32", 5]], [["f32", [-1]]],
        [["f32", [1 << 60]]], [["f32", [1 << 40, 1 << 40]]], [["f32", [1.0]]], [["f32", [True]]],
        [["f32", [1] * 100]], [{}], ["text"], [[]], [["nothing"]], [["f32", [1], 1]], [["f32", [17]]],
        [["f32", [0, 1 << 47, 1 << 47]]],
    ],
)  # fmt: skip
def test_hostile_values_are_refused(rows: Any) -> None:
    try:
        found = messages.unpack(rows, memoryview(bytes(64)))
    except DataLossError:
        return
    assert all(array.size == 0 for array in found)


def test_texts_that_cannot_be_printed_are_refused() -> None:
    messages.require_text({"error": [3, "\u00e9", [], []]})
    for head in ({"error": [3, "\ud800", [], []]}, {"modules": [["m", {"\udfff": ""}]]}):
        with pytest.raises(DataLossError):
            messages.require_text(head)


def test_values_pass_unchanged() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sent: list[Any] = [IMAGE, None, 5, 2.5, np.zeros((0, 3), np.int64), np.array(7, np.uint8), IMAGE.T]
    sent.append(np.ones((1,) * MOST_DIMENSIONS, np.int8))
    head: dict[str, Any] = {}
    with ours, theirs:
        parts = messages.pack(sent, "arguments", head)
        with messages.new_file() as file:
            messages.send(theirs, head, parts, file)
        received = messages.receive(ours)
    assert received is not None
    message, file = received
    os.close(file)
    for one, other in zip(sent, messages.unpack(message.head["arguments"], message.data), strict=True):
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one is other or one == other


def test_guarded_buffers_end_at_a_page() -> None:
    allocator = GuardedAllocator(limit=10_000, is_zeroed=True)
    for size in (1, 64, 4096, 5000):
        buffer = allocator.allocate(0, 0, size)
        assert (buffer.address + -(-size // 64) * 64) % 4096 == 0 and buffer.address % 64 == 0
        buffer.host_array()[:] = 7
        del buffer
        assert not allocator.allocate(0, 0, size).host_array().any()
    with pytest.raises(ResourceExhaustedError, match="of 10000 bytes"):
        allocator.allocate(0, 0, 10_001)
    assert GUARD >= 1 << 22


def test_sizes_that_disagree_are_a_status_with_guard_pages() -> None:
    """A kernel of two dynamic shapes reads as many elements of the second as the first has."""
    with confined(guard_pages=True, limits={}) as session:
        add = session.load(Path(__file__).with_name("addd.vmfb")).addd
        ones = np.ones(1 << 20, np.float32)
        assert (add(ones, ones) == 2).all()
        for _ in range(2):
            with pytest.raises(AbortedError, match=r"ended by SIGSEGV while module.addd ran"):
                add(ones, np.ones(1, np.float32))
        assert (add(ones, ones) == 2).all()


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("name", ["of_constant", "of_argument", "of_temporary"])
def test_each_buffer_ends_at_guard_pages(name: str, device: str) -> None:
    """Also constants of the program, and what it computes in between."""
    with jitree.Session(device, sandbox="process", guard_pages=True) as session:
        function = session.load(Path(__file__).with_name("pick.vmfb"))[name]
        given = () if name == "of_constant" else (np.arange(96, dtype=np.float32),)
        factor = 2 if name == "of_temporary" else 1
        assert (function(*given, np.full(4, 95, np.int32)) == 95 * factor).all()
        for index in (96 + 16, 10_000, GUARD // 4 - 1):
            with pytest.raises(AbortedError, match=rf"ended by SIGSEGV while module.{name} ran"):
                function(*given, np.full(4, index, np.int32))
        assert (function(*given, np.full(4, 5, np.int32)) == 5 * factor).all()


def test_mutants_of_native_modules_never_harm_the_parent() -> None:
    """``python -m tests.security.native_mutants 100000`` makes more of them."""
    campaign = Campaign(5)
    campaign.run(12)
    assert campaign.outcomes.total() == 12 and len(campaign.outcomes) > 1


def test_what_only_calls_in_this_process_can_do_is_a_status(session: Any) -> None:
    function = session.prepare("module.classify")
    assert np.array_equal(function(IMAGE, out=None), function(IMAGE))
    for attempt in (
        lambda: function(IMAGE, out=np.zeros(10, np.float32)),
        lambda: function(IMAGE, workspace=np.zeros(10, np.uint8)),
        lambda: function.submit(IMAGE),
        lambda: pickle.dumps(function),
        lambda: copy.copy(session),
    ):
        with pytest.raises(UnimplementedError):
            attempt()
    with pytest.raises(InvalidArgumentError, match="name: expected"):
        session.lookup(5)


def test_what_only_other_sessions_have_is_a_status(session: Any) -> None:
    module, missing = session.modules["module"], list[str]()
    pairs: tuple[tuple[type, Any], ...] = (
        (jitree.Session, session), (jitree.Module, module), (jitree.Function, module.classify),
    )  # fmt: skip
    for kind, stand_in in pairs:
        names = {name for name in dir(kind) if not name.startswith("_")}.difference(dir(stand_in))
        for name in names:
            assert not hasattr(stand_in, name) and getattr(stand_in, name, None) is None
            expected = f"UNIMPLEMENTED; {kind.__name__.lower()}.{name}: .*use sandbox=True, or a session"
            with pytest.raises(UnimplementedError, match=expected):
                getattr(stand_in, name)
        with pytest.raises(AttributeError, match="no_such_thing") as raised:
            stand_in.no_such_thing  # noqa: B018
        assert type(raised.value) is AttributeError
        missing += names
    assert {"tap", "profile", "explain", "empty", "call_direct", "workspace_size"} <= set(missing)


def test_arrays_of_the_session_are_what_calls_take(session: Any) -> None:
    classify = session.prepare("module.classify")
    with jitree.Session("local-sync") as other:
        for value in (IMAGE, IMAGE.T.copy().T, other.to_device(IMAGE)):
            array = session.to_device(value)
            assert type(array) is np.ndarray and not array.flags.writeable
            assert np.array_equal(array, IMAGE) and not np.shares_memory(array, np.asarray(value))
            assert np.array_equal(classify(array), classify(IMAGE))
    assert session.to_device([1, 2]).tolist() == [1, 2] and session.to_device(2.5).shape == ()
    with pytest.raises(InvalidArgumentError, match="to_device: no device array can hold"):
        session.to_device(np.array(["text"]))
    closed = confined()
    closed.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        closed.to_device(IMAGE)
