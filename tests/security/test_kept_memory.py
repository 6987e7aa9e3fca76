"""A kernel that keeps what it was called with finds nothing in it once the dispatch is over: the memory may
be another's by then, or nobody's."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from jitree import Limits, Session
from jitree.api.executables import create_loaders
from jitree.api.sandbox import Charging
from jitree.errors import InvalidArgumentError, OutOfRangeError, ResourceExhaustedError
from jitree.hal.executable import ExecutableParameters
from jitree.hal.heap import HeapAllocator
from jitree.loaders.vmvx.executable import VmvxExecutable
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from jitree.loaders.vmvx.loader import FORMAT
from tests.assembler import Assembler
from tests.hal.native_kernels import aligned
from tests.loaders.vmvx.cut_programs import run_whole, with_code
from tests.loaders.vmvx.programs import load

KEEP, USE = 0, 1
LOCAL, CONSTANTS, SECOND = "%r0", "%r1", "%r4"
BINDINGS = """
    %i9 = const.i32 0
    %r3 = list.get.ref %r2, %i9, !vm.buffer
    %i10:11 = const.i64 0
"""
FIND = {
    "global": "%r5 = global.load.ref 0, !vm.buffer",
    "list": "%r6 = global.load.ref 0, !vm.list<?>\n%r5 = list.get.ref %r6, %i9, !vm.buffer",
}
STORE = {
    "global": "global.store.ref 0, !vm.buffer, {}",
    "list": """
        %i14 = const.i32 1
        %r6 = list.alloc !vm.buffer, %i14
        list.resize %r6, %i14
        list.set.ref %r6, %i9, {}
        global.store.ref 0, !vm.list<?>, %r6
    """,
}
USES = {
    "reads": "%i12 = buffer.load.i32 %r5, %i10:11\nbuffer.store.i32 %r3, %i10:11, %i12",
    "writes": "%i12 = const.i32 5\nbuffer.store.i32 %r5, %i10:11, %i12",
}


def kernels(kept: str, into: str, use: str) -> Assembler:
    """The first keeps something that it was called with, the second reads or writes its first element."""
    program = Assembler("kernels", ref_global_count=1)
    keep = f"{BINDINGS} %i13 = const.i32 1\n%r4 = list.get.ref %r2, %i13, !vm.buffer\n{STORE[into]}"
    keep = f"{keep.format(kept)}\nreturn []"
    program.function("keep", ENTRY_CONVENTION, keep, attrs={"local_memory": "64"})
    return program.function("use", ENTRY_CONVENTION, f"{BINDINGS}{FIND[into]}\n{USES[use]}\nreturn []")


def numbers(value: int) -> np.ndarray:
    return aligned(np.full(1024, value, np.int32))


def loaded(tier: str, kept: str, into: str = "global", use: str = "reads") -> VmvxExecutable:
    program = kernels(kept, into, use)
    return with_code(lambda: load(program, tier)) if tier == "native" else load(program, tier)


@pytest.mark.parametrize(
    ("kept", "use"),
    [(LOCAL, "reads"), (LOCAL, "writes"), (CONSTANTS, "reads"), (SECOND, "reads"), (SECOND, "writes")],
)
@pytest.mark.parametrize("tier", ["plain", "fast", "native"])
def test_memory_goes_with_its_dispatch(tier: str, kept: str, use: str) -> None:
    executable = loaded(tier, kept, use=use)
    for value in (7, 8):
        first, second, result = numbers(value), numbers(value), numbers(0)
        run_whole(executable, 1, (value,), [first, second], KEEP)
        for _ in range(2):
            with pytest.raises(OutOfRangeError):
                run_whole(executable, 1, (), [result], USE)
        assert (second == value).all() and (result == 0).all()


@pytest.mark.parametrize("tier", ["plain", "fast"])
def test_what_lists_keep_of_it(tier: str) -> None:
    """Where the next dispatch binds as many buffers, too: the list has nothing of theirs."""
    executable = loaded(tier, SECOND, "list")
    run_whole(executable, 1, (), [numbers(7), numbers(7)], KEEP)
    result = [numbers(0), numbers(1)]
    with pytest.raises(OutOfRangeError):
        run_whole(executable, 1, (), result, USE)
    assert (result[0] == 0).all()


def test_machine_code_finds_memory_of_the_dispatch_that_runs_or_none() -> None:
    executable = loaded("native", SECOND)
    run_whole(executable, 1, (), [numbers(7), numbers(7)], KEEP)
    for count in (3, 2):
        result = [numbers(number) for number in range(count)]
        run_whole(executable, 1, (), result, USE)
        assert result[0][0] == 1, "what it keeps stands for its place in the list"


def test_a_workgroup_that_leaves_machine_code_finds_no_memory_of_another() -> None:
    executable, result = loaded("native", SECOND), numbers(0)
    with pytest.raises(InvalidArgumentError, match="null"):  # on the VM, which is shown two buffers
        run_whole(executable, 1, (), [numbers(0), numbers(9)], USE)
    run_whole(executable, 1, (), [numbers(7), numbers(7)], KEEP)
    with pytest.raises(OutOfRangeError):
        run_whole(executable, 1, (), [result], USE)
    assert (result == 0).all()


def test_what_is_kept_is_dropped_with_the_executable() -> None:
    executable = loaded("native", LOCAL)
    run_whole(executable, 1, (), [numbers(7), numbers(7)], KEEP)
    kernels = executable._compiled
    assert kernels is not None
    _, context = kernels._contexts.popitem()
    context.close()  # which frees what the program keeps, and the handles of that


def program(kernels: bytes, keep_count: int = 2) -> bytes:
    """Calls two kernels on the memory of an argument, the first one with so many bindings."""
    module = Assembler("m", ref_global_count=1)
    for name, convention in (
        ("hal_loader.executable.dispatch", "0rIiiiCiDCrIID_v"),
        ("hal_loader.executable.load", "0rrr_r"),
        ("hal_inline.buffer.storage", "0r_r"),
        ("hal_inline.buffer_view.buffer", "0r_r"),
    ):
        module.import_function(name, convention)
    module.rodata(FORMAT.encode())
    module.rodata(kernels)
    module.function("__init", "0v_v", """
        %r1 = const.ref.rodata 0
        %r2 = const.ref.rodata 1
        [%r3] = call @hal_loader.executable.load [%r1, %r2, %r4]
        global.store.ref 0, !hal.executable, %r3
        return []
    """)  # fmt: skip
    for name, kernel, count in (("keep", KEEP, keep_count), ("use", USE, 1)):
        module.function(name, "0r_r", f"""
            %r1 = global.load.ref 0, !hal.executable
            [%r2] = call @hal_inline.buffer_view.buffer [%r0]
            [%r3] = call @hal_inline.buffer.storage [%r2]
            %i0:1 = const.i64 {kernel}
            %i2 = const.i32 1
            %i4:5 = const.i64.zero
            %i6:7 = const.i64 4096
            call.variadic @hal_loader.executable.dispatch [{"0xFFFF, " * 5}0, {count}] \
[%r1, %i0:1, %i2, %i2, %i2{", %r3, %i4:5, %i6:7" * count}]
            return [%r0]
        """)  # fmt: skip
    return module.build()


@pytest.mark.parametrize("tier", ["plain", "fast", "auto"])
def test_nothing_of_an_earlier_call_is_left_in_a_sandbox(tier: str) -> None:
    with Session("local-sync", tier=tier, sandbox=True) as session:
        session.load(program(kernels(SECOND, "global", "reads").build()))
        session.lookup("m.keep")(np.full(1024, 7, np.int32))
        gc.collect()
        with pytest.raises(OutOfRangeError, match="out of bounds of a buffer of 0 bytes"):
            session.lookup("m.use")(np.zeros(1024, np.int32))


def local_kernels(size: int = 64) -> bytes:
    """The first one copies an element to local memory, the second one from there."""
    made, local = Assembler("kernels"), {"local_memory": str(size)}
    for name, source, target in (("keep", "%r3", LOCAL), ("use", LOCAL, "%r3")):
        copy = f"%i12 = buffer.load.i32 {source}, %i10:11\nbuffer.store.i32 {target}, %i10:11, %i12"
        made.function(name, ENTRY_CONVENTION, f"{BINDINGS}{copy}\nreturn []", attrs=local)
    return made.build()


@pytest.mark.parametrize("limited", [{"sandbox": True}, {"zero_memory": True}])
@pytest.mark.parametrize("tier", ["plain", "fast", "auto"])
def test_nothing_is_left_in_local_memory(tier: str, limited: dict[str, bool]) -> None:
    """What kernels of other sessions or earlier calls left there, by Python or by machine code."""
    data, secret = program(local_kernels(), 1), np.full(1024, 7777, np.int32)
    with Session("local-sync", tier=tier) as other:
        other.load(data)
        other.lookup("m.keep")(secret)
    with Session("local-sync", tier=tier, **limited) as session:  # type: ignore[arg-type]
        session.load(data)
        for _ in range(3):
            assert not session.lookup("m.use")(np.zeros(1024, np.int32)).to_host().any()
            session.lookup("m.keep")(secret)


@pytest.mark.parametrize(
    ("device", "threads"), [("local-sync", 1), ("local-task://?task_topology_group_count=3", 3)]
)
def test_local_memory_counts(device: str, threads: int) -> None:
    """That of each thread, in a queue and in machine code: a kernel could take a gibibyte for each thread."""
    size, data = 1 << 20, program(local_kernels(1 << 20), 1)
    counted = 2 * threads * size
    for most in (counted, counted + (1 << 16)):
        with Session(device, sandbox=True, limits=Limits(memory=most)) as session:
            if most == counted:
                with pytest.raises(ResourceExhaustedError, match="the limit on memory"):
                    session.load(data)
            else:
                session.load(data)
                assert not session.lookup("m.use")(np.zeros(1024, np.int32)).to_host().any()


def test_executables_that_are_refused_are_not_counted() -> None:
    """A sandbox with many executables pays for each; those whose local memory has no room are not there."""
    allocator = HeapAllocator(8 << 20)
    loader = Charging(create_loaders("plain")[-1], allocator, list, lambda: 1)
    large, small = (ExecutableParameters(FORMAT, memoryview(local_kernels(size))) for size in (16 << 20, 64))
    for _ in range(100):
        with pytest.raises(ResourceExhaustedError, match="the limit on memory"):
            loader.try_load(large)
    room = allocator.charge((8 << 20) - (32 << 10))
    assert loader.try_load(small).function_count == 2
    del room
