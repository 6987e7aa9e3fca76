"""Kernels read memory that a program may not change, and are refused a store to it, however it is bound."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import Session
from jitree.errors import FailedPreconditionError, PermissionDeniedError
from jitree.hal.buffer import BufferView
from jitree.hal.executable import Executable, ExecutableCache, ExecutableParameters
from jitree.hal.local.device import LocalDevice
from jitree.hal.pipeline_layout import PipelineLayout
from jitree.loaders.vmvx.loader import FORMAT
from jitree.observe.tensors import ObservedDispatch
from jitree.params.irpa import plan, write
from jitree.params.provider import array_entry
from jitree.regs import records
from jitree.regs.buffer import VmBuffer
from jitree.vmfb.archive import _MAPPED_SIZE
from tests.assembler import Assembler
from tests.hal.native_kernels import aligned
from tests.loaders.vmvx.cut_programs import (
    FIRST_BINDING,
    KernelText,
    compiled,
    most_parts,
    run_parts,
    run_whole,
)
from tests.modules.hal_programs import (
    BUFFERS,
    COMMANDS,
    DEVICE,
    F32,
    FENCES,
    FIRST,
    NULL,
    OLD_ROWS,
    PLACES,
    PUSHED_ROWS,
    ROWS,
    SECOND,
    Program,
)
from tests.modules.hal_programs import (
    TEXT as LABEL,
)
from tests.security.programs import VMVX

KERNEL = (Path(__file__).parent.parent / "data" / "executables" / "vmvx_mul-3.13.0.fb").read_bytes()
"""The product of two vectors of 1,000 numbers is stored in the third binding."""
COUNT = 1024
CALLS = 250
"""Machine code takes over when Python has made some."""
TEXT = VmBuffer.alias(b"text")
THREES = np.full(COUNT + 16, 3, np.float32).tobytes()
TILE = 16
"""Fewer than a workgroup does."""
TIERS = ("plain", "fast", "native", "auto")
READ, WRITTEN = BUFFERS[:2]
IN_SLOTS, TAKEN_OVER = "in slots", "taken over"
"""Whether buffers come with submissions, or Python takes over what machine code has recorded."""


def read_only(tmp_path: Path) -> np.ndarray:
    """Threes in pages that the processor protects: whoever stores to them ends the process."""
    path = tmp_path / "numbers"
    path.write_bytes(np.full(COUNT, 3, np.float32).tobytes())
    return np.memmap(path, np.float32, mode="r")


def program(rows: dict[str, str], bound: str) -> bytes:
    """Dispatches the kernel on the first argument, twice, and the second; again by the same commands."""
    made, in_slots = Program(rows), bound == IN_SLOTS
    for view, buffer in ((FIRST, READ), (SECOND, WRITTEN)):
        made.call("buffer_view.buffer", view, to=buffer)
    made.call("command_buffer.create", DEVICE, 0, 3, -1, 3 if in_slots else 0, to=COMMANDS[0])
    ranges = [READ, READ, WRITTEN]
    bindings = [[0, slot, NULL if in_slots else buffer, 0, -1] for slot, buffer in enumerate(ranges)]
    made.dispatch(COMMANDS[0], 0, (1, 1, 1), [], bindings)
    if bound == TAKEN_OVER:
        made.call("command_buffer.begin_debug_group", COMMANDS[0], LABEL)
        made.call("command_buffer.end_debug_group", COMMANDS[0])
    made.call("command_buffer.finalize", COMMANDS[0])
    for _ in range(2):
        made.call("fence.create", DEVICE, 0, to=FENCES[0])
        submission = DEVICE, -1, NULL, FENCES[0], COMMANDS[0], 0
        if in_slots:
            made.call("device.queue.execute.indirect", *submission, [[buffer, 0, -1] for buffer in ranges])
        elif rows is ROWS:
            made.call("device.queue.execute", *submission)
        else:
            made.call("device.queue.execute.indirect", *submission, [])
        made.call("fence.await", -1, 0, [[FENCES[0]], [NULL]])
    return made.module("m")


def kernels(device: LocalDevice) -> Executable:
    cache = ExecutableCache("test", device.loaders)
    executable = cache.prepare_executable(ExecutableParameters(FORMAT, memoryview(KERNEL)))
    executable.layouts = (PipelineLayout(0, tuple(PLACES)),)
    return executable


@pytest.mark.parametrize("bound", ["whole", IN_SLOTS, TAKEN_OVER])
@pytest.mark.parametrize("uri", ["local-sync", "local-task"])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("rows", [ROWS, OLD_ROWS, PUSHED_ROWS], ids=["0.7", "0.5", "0.2"])
def test_what_is_bound_on_a_device(
    tmp_path: Path, rows: dict[str, str], tier: str, uri: str, bound: str
) -> None:
    pages = read_only(tmp_path)
    with Session(uri, tier=tier) as session:
        session.load(program(rows, bound))
        device = session.device
        assert isinstance(device, LocalDevice)
        buffer = device.device_allocator.import_host(pages.data, 0x42, 0xC03)
        assert buffer is not None
        fixed = BufferView(buffer, (COUNT,), F32)
        executable = kernels(device)

        def call(read: BufferView, written: BufferView) -> None:
            session.call_direct("m.f", device, read, written, executable, TEXT, TEXT)

        for calls in (1, 1, CALLS if tier != "plain" else 2):
            with pytest.raises(PermissionDeniedError, match=r"buffer is read-only and cannot be .*mul"):
                call(fixed, fixed)
            assert (pages == 3).all()
            for _ in range(calls):
                other = session.to_device(np.zeros(COUNT, np.float32))
                call(fixed, other.buffer_view)
            assert (np.asarray(other)[:TILE] == 9).all()
        with pytest.raises(PermissionDeniedError, match="buffer is read-only"):
            call(other.buffer_view, fixed)
        assert (pages == 3).all()


def inline_program(target: str, before: str = "", start: int = 0) -> bytes:
    """Dispatches the kernel of the file on its constants and ``target`` (of constants, or an argument);
    ``start``: where the constants begin."""
    assembler = (
        Assembler("m")
        .import_function("hal_loader.executable.dispatch", "0rIiiiCiDCrIID_v")
        .import_function("hal_loader.executable.load", "0rrr_r")
        .import_function("hal_inline.buffer.storage", "0r_r")
        .import_function("hal_inline.buffer_view.buffer", "0r_r")
    )
    assembler.rodata(FORMAT.encode())
    assembler.rodata(KERNEL)
    assembler.rodata(THREES, external=True)
    assembler.function(
        "f",
        "0r_r",
        f"""
    %r1 = const.ref.rodata 0
    %r2 = const.ref.rodata 1
    %r3 = const.ref.rodata 2
    {before}
    [%r4] = call @hal_loader.executable.load [%r1, %r2, %r9]
    %i0:1 = const.i64.zero
    %i2 = const.i32 1
    %i4:5 = const.i64 {start}
    %i8:9 = const.i64.zero
    %i6:7 = const.i64 4096
    call.variadic @hal_loader.executable.dispatch [0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0, 3] \
[%r4, %i0:1, %i2, %i2, %i2, %r3, %i4:5, %i6:7, %r3, %i4:5, %i6:7, {target}, %i6:7]
    return [%r0]
    """,
    )
    data = assembler.build()
    aligned_start = -data.index(THREES) % 64
    return data if start == aligned_start else inline_program(target, before, aligned_start)


ARGUMENT = """[%r5] = call @hal_inline.buffer_view.buffer [%r0]
    [%r6] = call @hal_inline.buffer.storage [%r5]"""


@pytest.mark.parametrize("copied", [records.COPIED_BYTES, 0])
@pytest.mark.parametrize("sandbox", [False, True])
@pytest.mark.parametrize("tier", TIERS)
def test_constants_without_a_device(
    tmp_path: Path, tier: str, sandbox: bool, copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sandbox all are refused, and so are those of the caller's bytes that are too many to copy. Else a
    store is to memory that the program alone has: bytes and file stay as they are."""
    monkeypatch.setattr(records, "COPIED_BYTES", copied)
    kept = inline_program("%r3, %i4:5")
    data = aligned(np.frombuffer(kept, np.uint8))
    data.flags.writeable = False
    path = tmp_path / "m.vmfb"
    path.write_bytes(kept)
    sources: tuple[Any, ...] = (data.data, path)
    for source in sources:
        with Session("local-sync", tier=tier, sandbox=sandbox) as session:
            session.load(source)
            for _ in range(3):
                if not sandbox and (copied or source == path):
                    session.lookup("m.f")(np.zeros(COUNT, np.float32))
                    continue
                with pytest.raises(PermissionDeniedError, match="buffer is read-only"):
                    session.lookup("m.f")(np.zeros(COUNT, np.float32))
    assert data.tobytes() == kept and path.read_bytes() == kept


FOLDER = Path(__file__).parent
SORTED = FOLDER / "sorted.vmfb"
x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the executables are x86-64 code")


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("tier", TIERS)
def test_what_compilers_have_kernels_do_to_constants(tmp_path: Path, tier: str, mapped: bool) -> None:
    """An operation that works in place on a constant, in a file that is read or mapped."""
    path = tmp_path / "sorted.vmfb"
    kept = SORTED.read_bytes() + bytes(_MAPPED_SIZE if mapped else 0)
    path.write_bytes(kept)
    for uri in ("local-sync", "local-task"):
        with Session(uri, tier=tier) as session:
            function = session.load(path)["sorted"]
            for _ in range(3):
                assert np.asarray(function()).tolist() == [[3, 6], [5, 7]]
    assert path.read_bytes() == kept


def placed(content: bytes, place: int) -> np.ndarray:
    """Bytes that nothing may change, so many behind a multiple of 64."""
    room = aligned(np.zeros(len(content) + 64, np.uint8))
    data = room[place : place + len(content)]
    data[:] = np.frombuffer(content, np.uint8)
    data.flags.writeable = False
    return data


@pytest.mark.parametrize("place", [0, 1, 16, 32])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", ["sorted.vmfb", pytest.param("sorted_native.vmfb", marks=x86_64)])
def test_where_bytes_of_the_caller_lie_decides_nothing(
    tmp_path: Path, name: str, tier: str, place: int
) -> None:
    """A program that works in place on a constant has a copy, in a sandbox, too; the bytes stay."""
    kept = (FOLDER / name).read_bytes()
    data, path = placed(kept, place), tmp_path / name
    path.write_bytes(kept)
    sources: list[tuple[bool, Any]] = [(False, data.data), (False, kept)]
    if name == "sorted.vmfb":
        sources += [(True, data.data), (True, path)]
    for sandbox, source in sources:
        for _ in range(2):
            with Session("local-sync", tier=tier, sandbox=sandbox) as session:
                function = session.load(source)["sorted"]
                for _ in range(3):
                    assert np.asarray(function()).tolist() == [[3, 6], [5, 7]]
    assert data.tobytes() == path.read_bytes() == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("place", [0, 4, 16, 32])
@pytest.mark.parametrize(
    "name", ["sorted_parameter.vmfb", pytest.param("sorted_parameter_native.vmfb", marks=x86_64)]
)
def test_where_parameters_lie_decides_nothing(tmp_path: Path, name: str, place: int) -> None:
    """As with constants, of arrays and of files, which would end the process."""
    numbers = placed(np.array([[5, 6], [3, 7]], np.int32).tobytes(), place).view(np.int32).reshape(2, 2)
    archive = tmp_path / "numbers.irpa"
    write(archive, plan([array_entry("numbers", numbers)]))
    kept = archive.read_bytes()
    for parameters in ({"s": {"numbers": numbers}}, [f"s={archive}"]):
        with Session("local-sync", parameters=parameters) as session:
            function = session.load(FOLDER / name)["sorted"]
            for _ in range(3):
                assert np.asarray(function()).tolist() == [[3, 6], [5, 7]]
    assert numbers.tolist() == [[5, 6], [3, 7]] and archive.read_bytes() == kept


@pytest.mark.parametrize("sandbox", [False, True])
def test_what_is_only_read_is_used_where_it_lies(sandbox: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel of the program may store to the weights, which are too many to copy."""
    monkeypatch.setattr(records, "COPIED_BYTES", 0)
    data = placed(VMVX.read_bytes(), 0)
    first, places = data.__array_interface__["data"][0], list[int]()

    def look(dispatch: ObservedDispatch) -> None:
        arrays = [tensor.array for tensor in dispatch.inputs if tensor.array is not None]
        places.extend(array.__array_interface__["data"][0] for array in arrays)

    with Session("local-sync", sandbox=sandbox) as session:
        module = session.load(data.data)
        with session.tap("*", keep=look):
            module.classify(np.zeros((8, 8), np.float32))
    assert any(0 <= place - first < len(data) for place in places)


def test_programs_of_files_work_in_place_on_constants(tmp_path: Path) -> None:
    """A session pickles as its file all the same, which is as it was."""
    path = tmp_path / "sorted.vmfb"
    path.write_bytes(SORTED.read_bytes())
    with jitree.Program(path, device="local-sync").open() as session:
        assert np.asarray(session.modules["module"].sorted()).tolist() == [[3, 6], [5, 7]]
    with Session("local-sync") as session:
        function = session.load(path)["sorted"]
        function()
        again = pickle.loads(pickle.dumps(function))
        with again.session:
            assert np.asarray(again()).tolist() == [[3, 6], [5, 7]]
    with Session("local-sync") as session:
        function = session.load(path)["sorted"]
        function()
        path.write_bytes(SORTED.read_bytes() + bytes(1))
        with pytest.raises(FailedPreconditionError, match="has changed since"):
            pickle.dumps(function)


def test_where_pages_of_its_own_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `vm.overcommit_memory=2`: a large file is loaded all the same, and stays as it is."""

    def refused(file: int, size: int) -> memoryview:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr("jitree.vmfb.archive.private_file", refused)
    path = tmp_path / "sorted.vmfb"
    path.write_bytes(SORTED.read_bytes() + bytes(_MAPPED_SIZE))
    with Session("local-sync") as session:
        function = session.load(path)["sorted"]
        assert np.asarray(function()).tolist() == [[3, 6], [5, 7]]
    assert path.read_bytes() == SORTED.read_bytes() + bytes(_MAPPED_SIZE)


@pytest.mark.parametrize("tier", TIERS)
def test_constants_are_read_without_a_device(tmp_path: Path, tier: str) -> None:
    path = tmp_path / "m.vmfb"
    path.write_bytes(inline_program("%r6, %i8:9", ARGUMENT))
    with Session("local-sync", tier=tier) as session:
        session.load(path)
        for _ in range(3):
            result = session.lookup("m.f")(aligned(np.zeros(COUNT, np.float32)))
            assert (np.asarray(result)[:TILE] == 9).all()


@pytest.mark.parametrize("whole_workgroups", [True, False])
def test_machine_code_leaves_what_may_not_be_written(tmp_path: Path, whole_workgroups: bool) -> None:
    """A store to the result comes after stores to other memory, in parts of workgroups and in whole ones."""
    text = KernelText(3)
    sums = text.scratch(64 * COUNT)

    def add(at: list[str]) -> None:
        place = text.index(0, (at[0], COUNT // 64), (at[1], 1))
        text.store("f32", sums, place, text.load("f32", FIRST_BINDING, place))
        text.store("f32", FIRST_BINDING + 1, place, text.load("f32", sums, place))
        text.store("f32", FIRST_BINDING + 2, place, text.load("f32", sums, place))

    text.loops([64, COUNT // 64], add)
    executable = compiled(text)
    numbers = read_only(tmp_path)
    blocks = [numbers, aligned(np.zeros(COUNT, np.float32)), numbers]
    with pytest.raises(PermissionDeniedError, match="buffer is read-only"):
        if whole_workgroups:
            run_whole(executable, 2, (), blocks)
        else:
            run_parts(executable, 2, (), blocks, max(2, most_parts(executable)))
    assert (numbers == 3).all()
    written = aligned(np.zeros(COUNT, np.float32))
    run_whole(executable, 2, (), [numbers, blocks[1], written])
    assert (written == 3).all()


@pytest.mark.parametrize("seed", range(4))
def test_no_part_stores_where_a_later_loop_may_not(tmp_path: Path, seed: int) -> None:
    """Parts of workgroups leave before the first loops have stored anything, or the VM would add twice."""
    text = KernelText(3)
    count = COUNT // 64

    def place(at: list[str]) -> str:
        return text.index(0, (at[0], count), (at[1], 1))

    def add(at: list[str]) -> None:
        read, target = text.load("f32", FIRST_BINDING, place(at)), FIRST_BINDING + 1
        text.store("f32", target, place(at), text.op("add.f32", text.load("f32", target, place(at)), read))

    def copy(at: list[str]) -> None:
        sums = text.load("f32", FIRST_BINDING + 1, place(at))
        text.store("f32", FIRST_BINDING + 1, place(at), sums)
        text.store("f32", FIRST_BINDING + 2, place(at), sums)

    for body in (add, add, copy):
        text.loops([64, count], body)
    executable, numbers = compiled(text), read_only(tmp_path)
    assert most_parts(executable) > 1
    blocks = [numbers, aligned(np.zeros(COUNT, np.float32)), numbers]
    with pytest.raises(PermissionDeniedError, match="buffer is read-only"):
        run_parts(executable, 1, (), blocks, most_parts(executable), seed)
    assert (numbers == 3).all() and (blocks[1] == 6).all()


def test_taps_show_what_nobody_may_write() -> None:
    """Constants lie in the file's pages, whose bytes are the caller's or protected."""
    shown: list[np.ndarray | None] = []

    def look(dispatch: ObservedDispatch) -> None:
        shown.extend(tensor.array for tensor in (*dispatch.inputs, *dispatch.outputs))

    with Session("local-sync", sandbox=True) as session:
        module = session.load(VMVX)
        with session.tap("*", keep=look):
            module.classify(np.zeros((8, 8), np.float32))
    assert len(shown) > 6 and all(array is not None and not array.flags.writeable for array in shown)


@pytest.mark.parametrize("tier", TIERS)
def test_memory_of_buffers_over_constants(tier: str) -> None:
    """A program stores to the memory of a buffer that it has made of its constants."""
    module = (
        Assembler("m")
        .import_function("hal_inline.buffer.wrap", "0rII_r")
        .import_function("hal_inline.buffer.storage", "0r_r")
    )
    module.rodata(THREES)
    module.function(
        "f",
        "0v_v",
        """
    %r0 = const.ref.rodata 0
    %i0:1 = const.i64.zero
    %i2:3 = const.i64 64
    [%r1] = call @hal_inline.buffer.wrap [%r0, %i0:1, %i2:3]
    [%r2] = call @hal_inline.buffer.storage [%r1]
    buffer.store.i32 %r2, %i0:1, %i2
    return []
    """,
    )
    kept = module.build()
    data = bytearray(kept)
    with Session("local-sync", tier=tier, sandbox=True) as session:
        session.load(memoryview(data).toreadonly())
        for _ in range(CALLS):
            with pytest.raises(PermissionDeniedError, match="buffer is read-only"):
                session.lookup("m.f")()
    assert bytes(data) == kept
