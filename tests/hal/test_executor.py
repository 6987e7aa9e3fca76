"""Command lists executed by every command executor: alone in Python, alone natively, by teams."""

from __future__ import annotations

import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitree.codegen.image.generated import Unit
from jitree.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    OutOfRangeError,
    ResourceExhaustedError,
)
from jitree.hal.command_list import DIRECT, NO_SLOT, CommandList
from jitree.hal.enums import WHOLE_BUFFER
from jitree.hal.local import executor
from jitree.hal.local.executor import calling
from jitree.hal.local.executor.command_lists import generate
from jitree.regs.memory import address_of, zeroed
from tests.hal.executors import EXECUTORS, Execute, executing
from tests.hal.native_kernels import (
    ALL,
    COUNT,
    FAIL,
    LOCAL,
    LOCAL_BYTES,
    MULTIPLY,
    aligned,
    dispatch,
    executable,
    whole,
)


@pytest.fixture(scope="module")
def executors() -> Iterator[dict[str, Execute]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(executing(name)) for name in EXECUTORS}


@pytest.fixture(scope="module", params=EXECUTORS)
def execute(request: pytest.FixtureRequest) -> Iterator[Execute]:
    with executing(request.param) as execute:
        yield execute


@pytest.mark.parametrize("counts", [(1, 1, 1), (7, 1, 1), (5, 3, 1), (3, 4, 5), (1, 1, 9), (2, 1, 300)])
def test_every_workgroup_runs_once(execute: Execute, counts: tuple[int, int, int]) -> None:
    visits = aligned(np.zeros(counts[::-1], np.uint32))
    commands = CommandList()
    dispatch(commands, COUNT, counts, [], visits)
    execute(commands)
    assert (visits == 1).all()
    execute(commands)
    assert (visits == 2).all()


@pytest.mark.parametrize("counts", [(0, 1, 1), (5, 0, 2), (5, 2, 0)])
def test_zero_counts_run_nothing(execute: Execute, counts: tuple[int, int, int]) -> None:
    visits = aligned(np.zeros(16, np.uint32))
    commands = CommandList()
    dispatch(commands, COUNT, counts, [], visits)
    execute(commands)
    assert not visits.any()


def test_failing_function(execute: Execute) -> None:
    """The message names all that is known, commands after the next barrier do not run."""
    first, second = aligned(np.zeros((3, 5, 7), np.uint32)), aligned(np.zeros(4, np.uint32))
    commands = CommandList()
    dispatch(commands, FAIL, (7, 5, 3), [7 * 5 * 2 + 7 * 4 + 3, -42 & 0xFFFFFFFF], first)
    commands.barrier()
    dispatch(commands, COUNT, (4, 1, 1), [], second)
    with pytest.raises(InternalError) as caught:
        execute(commands)
    assert "fail of executable 'test kernels' returned -42 in workgroup (3, 4, 2) of command 0" in str(
        caught.value
    )
    assert not second.any()
    commands = CommandList()
    dispatch(commands, COUNT, (4, 1, 1), [], second)
    execute(commands)
    assert (second == 1).all(), "the executor is usable after a failure"


def test_indirect_counts_are_read_when_the_command_runs(execute: Execute) -> None:
    visits, counts = aligned(np.zeros(12, np.uint32)), aligned(np.array([1, 1, 1], np.uint32))
    wanted = np.array([2, 3, 2], np.uint32)
    commands = CommandList()
    commands.update(wanted.tobytes(), whole(counts))
    commands.barrier()
    commands.dispatch_indirect(executable(), COUNT, whole(counts), [], [whole(visits)])
    execute(commands)
    assert (counts == wanted).all() and (visits == 1).all()


@pytest.mark.parametrize("bad", [(1, 1, 65536), (2**32 - 1, 2**32 - 1, 1), (2**31, 2**31, 4)])
def test_indirect_counts_out_of_range(execute: Execute, bad: tuple[int, int, int]) -> None:
    visits, counts = aligned(np.zeros(4, np.uint32)), aligned(np.array(bad, np.uint32))
    commands = CommandList()
    commands.dispatch_indirect(executable(), COUNT, whole(counts), [], [whole(visits)])
    with pytest.raises(OutOfRangeError, match=f"{bad[0]} x {bad[1]} x {bad[2]} workgroups"):
        execute(commands)
    assert not visits.any()


def test_denormals_are_flushed_in_kernels_only(execute: Execute) -> None:
    tiny = np.full(64, 1e-40, np.float32)
    a, b, c = aligned(tiny), aligned(np.ones(64, np.float32)), aligned(np.ones(64, np.float32))
    d, e, f = aligned(np.full(64, 1e-30, np.float32)), aligned(tiny * 1e30), aligned(np.ones(64, np.float32))
    commands = CommandList()
    dispatch(commands, MULTIPLY, (64, 1, 1), [], a, b, c)
    dispatch(commands, MULTIPLY, (64, 1, 1), [], d, e, f)
    execute(commands)
    assert (c == 0).all(), "a denormal operand counts as zero"
    assert (f == 0).all(), "a denormal result becomes zero"
    assert (tiny * np.float32(1) != 0).all(), "the mode of the Python thread is as before"


def test_mode_is_restored_after_a_failure(execute: Execute) -> None:
    visits = aligned(np.zeros(4, np.uint32))
    commands = CommandList()
    dispatch(commands, FAIL, (4, 1, 1), [2, 1], visits)
    with pytest.raises(InternalError):
        execute(commands)
    assert (np.full(64, 1e-40, np.float32) * np.float32(1) != 0).all()


def test_local_memory(execute: Execute) -> None:
    addresses, sizes = aligned(np.zeros(600, np.uint64)), aligned(np.zeros(600, np.uint32))
    commands = CommandList()
    for _ in range(3):
        dispatch(commands, LOCAL, (100, 6, 1), [], addresses, sizes)
    execute(commands)
    assert (sizes == LOCAL_BYTES).all()
    assert (addresses > 0).all() and (addresses % 64 == 0).all()


@settings(max_examples=60)
def _fill(offset: int, length: int, pattern: int, width: int, commands: CommandList, at: int) -> None:
    commands.fill((DIRECT, at + offset, length, ALL), pattern, width)


def _update(offset: int, length: int, text: bytes, commands: CommandList, at: int) -> None:
    commands.update(text, (DIRECT, at + offset, length, ALL))


def _copy(offset: int, length: int, source: int, commands: CommandList, at: int) -> None:
    commands.copy((DIRECT, at + source, length, ALL), (DIRECT, at + offset, length, ALL))


def _count(offset: int, count: int, commands: CommandList, at: int) -> None:
    commands.dispatch(executable(), COUNT, (count, 1, 1), [], [(DIRECT, at + offset, 4 * count, ALL)])


@given(
    data=st.data(),
    steps=st.lists(st.sampled_from(["fill", "copy", "update", "count"]), min_size=1, max_size=12),
)
def test_random_lists_agree_with_numpy(
    data: st.DataObject, steps: Sequence[str], executors: dict[str, Execute]
) -> None:
    size = 4096
    start = np.arange(size, dtype=np.uint64).view(np.uint8)[:size]
    expected = start.copy()
    blocks = {name: aligned(start) for name in EXECUTORS}
    lists = {name: CommandList() for name in blocks}

    def all_lists(record: Callable[[CommandList, int], None]) -> None:
        for name, block in blocks.items():
            record(lists[name], address_of(block))
            lists[name].barrier()

    for step in steps:
        length = data.draw(st.integers(0, 300))
        offset = data.draw(st.integers(0, size - length))
        if step == "fill":
            width = data.draw(st.sampled_from([1, 2, 4]))
            pattern = data.draw(st.integers(0, 2**32 - 1))
            offset, length = offset // width * width, length // width * width
            repeated = pattern.to_bytes(4, "little")[:width] * (length // width)
            expected[offset : offset + length] = np.frombuffer(repeated, np.uint8)
            all_lists(partial(_fill, offset, length, pattern, width))
        elif step == "update":
            text = data.draw(st.binary(min_size=length, max_size=length))
            expected[offset : offset + length] = np.frombuffer(text, np.uint8)
            all_lists(partial(_update, offset, length, text))
        elif step == "copy":
            source = data.draw(st.integers(0, size - length))
            expected[offset : offset + length] = expected[source : source + length].copy()
            all_lists(partial(_copy, offset, length, source))
        else:
            count = length // 4
            offset = min(offset // 64 * 64, size - 320)
            expected[offset : offset + 4 * count].view(np.uint32)[:] += 1
            all_lists(partial(_count, offset, count))
    for name, execute in executors.items():
        execute(lists[name])
        np.testing.assert_array_equal(blocks[name], expected, err_msg=name)


def test_slots_are_patched_per_submission(execute: Execute) -> None:
    first, second = aligned(np.zeros(32, np.uint32)), aligned(np.zeros(32, np.uint32))
    commands = CommandList()
    commands.dispatch(executable(), COUNT, (16, 1, 1), [], [(1, 64, WHOLE_BUFFER, 0)])
    commands.fill((0, 4, 4, 0), 0xAB, 1)
    for target in (first, second, first):
        table = [(address_of(target), 128, ALL), (address_of(target), 128, ALL)]
        executor.require_native_executor().execute(commands, *commands.bind(table))
    assert (first[16:] == 2).all() and (second[16:] == 1).all()
    assert first[1] == second[1] == 0xABABABAB and first[0] == first[2] == 0


def test_bind_refuses_bad_tables() -> None:
    block = zeroed(256)
    commands = CommandList()
    commands.dispatch(executable(), COUNT, (1, 1, 1), [], [(1, 64, 64, 0)])
    whole_table = [(address_of(block), 256, ALL)] * 2
    assert commands.bind(whole_table)[1][0] == 64
    for table in ([], whole_table[:1], [whole_table[0], NO_SLOT]):
        with pytest.raises(InvalidArgumentError, match="slot 1 of the binding table"):
            commands.bind(table)
    with pytest.raises(OutOfRangeError, match="bytes 64 to 128 of slot 1"):
        commands.bind([whole_table[0], (address_of(block), 127, ALL)])
    with pytest.raises(InvalidArgumentError, match="not a multiple of 64"):
        commands.bind([whole_table[0], (address_of(block) + 4, 200, ALL)])


def test_recording_refuses_what_would_crash() -> None:
    block = zeroed(256)
    commands = CommandList()
    with pytest.raises(InvalidArgumentError, match="not a multiple of 64"):
        commands.dispatch(executable(), COUNT, (1, 1, 1), [], [(DIRECT, address_of(block) + 16, 4, ALL)])
    with pytest.raises(OutOfRangeError, match="65535 in z"):
        commands.dispatch(executable(), COUNT, (1, 1, 65536), [], [whole(block)])
    with pytest.raises(OutOfRangeError):
        commands.dispatch(executable(), COUNT, (2**32 - 1, 2**32 - 1, 1), [], [whole(block)])
    assert commands.row_count == 0
    commands.barrier()
    commands.address()
    with pytest.raises(FailedPreconditionError, match="recording had ended"):
        commands.barrier()


def test_the_address_that_a_thread_has_stays_valid_when_another_ends_recording_at_the_same_time() -> None:
    class Overtaken(CommandList):
        """Another thread comes in while the first makes the record."""

        others: ClassVar[list[int]] = []

        @property
        def row_count(self) -> int:
            if not self.others:
                self.others.append(0)
                self.others[0] = self.address()
            return super().row_count

    commands = Overtaken()
    commands.barrier()
    commands.address()
    assert any(
        isinstance(kept, array) and kept.buffer_info()[0] == Overtaken.others[0] for kept in commands.kept
    )


def test_kept_objects_live_as_long_as_the_list() -> None:
    class Owner:
        pass

    import weakref

    commands, owner = CommandList(), Owner()
    reference = weakref.ref(owner)
    commands.keep(owner)
    del owner
    assert reference() is not None
    del commands
    assert reference() is None


@pytest.fixture(scope="module")
def unit() -> Unit:
    (found,) = generate().units
    return found


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_generated_code_is_valid_for_every_machine(machine: str, unit: Unit) -> None:
    """The text must parse, verify and optimise; only this machine's is run."""
    from jitree.codegen.image.compile import Target, optimized_module

    target = Target(f"{machine}-unknown-linux-gnu", "", "")
    module = optimized_module(unit.texts, unit.entries, target)
    defined = {function.name for function in module.functions if not function.is_declaration}
    assert set(unit.entries) <= defined


def test_python_executor_needs_no_compiler() -> None:
    program = """
import sys
import time
import numpy as np
from pathlib import Path
from jitree.hal.executable import ExecutableParameters
from jitree.hal.command_list import DIRECT, CommandList
from jitree.hal.local.executor.calling import executor_in_python
from jitree.loaders.embedded_elf import EmbeddedElfLoader
from jitree.loaders.elf_format import host_architecture
from jitree.regs.memory import address_of, zeroed
if host_architecture().name == "x86_64":
    data = memoryview(Path("tests/data/executables/tiny-3.13.0.so").read_bytes())
    executable = EmbeddedElfLoader().try_load(ExecutableParameters("embedded-elf-x86_64", data))
    blocks = [zeroed(64).view(np.float32) for _ in range(3)]
    blocks[0][:4] = blocks[1][:4] = [1, 2, 3, 4]
    commands = CommandList()
    commands.dispatch(executable, 0, (1, 1, 1), [], [(DIRECT, address_of(b), 16, 3) for b in blocks])
    executor_in_python().execute(commands, *commands.bind(()))
    assert blocks[2][:4].tolist() == [1, 4, 9, 16]
assert not {"numba", "llvmlite"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_two_clocks_are_compared_though_one_reading_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may have the processor between the readings of both."""
    native, readings = executor.require_native_executor(), list[int]()

    def clock() -> int:
        ticks = 3 * time.perf_counter_ns()
        readings.append(ticks)
        time.sleep(0.01 * (len(readings) == 1))
        return ticks

    monkeypatch.setattr(calling, "_CLOCK", lambda address: clock)
    monkeypatch.setattr(calling, "count_by", lambda clock: None)
    late = type(native)(native._image)
    time.sleep(0.002)
    assert late.nanoseconds_per_tick(late.moment()) == pytest.approx(1 / 3, rel=0.01)
    assert late.ticks_per_microsecond == pytest.approx(3000, rel=0.01)


def test_local_memory_that_there_is_no_room_for() -> None:
    with pytest.raises(ResourceExhaustedError, match=f"no room for {1 << 47} bytes"):
        calling._Job().provide_local_memory(1 << 46, 2)
