"""Compiled VMVX kernels: worker contexts, workgroups that leave machine code, scratch memory, taking over."""

from __future__ import annotations

import gc
import threading
import time
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import numpy as np
import pytest

from jitree.codegen import image
from jitree.errors import StatusError
from jitree.hal.command_list import CommandList
from jitree.hal.local import executor
from jitree.hal.local.thread_team import Team
from jitree.hal.local.topology import unpinned
from jitree.loaders.vmvx import native, worker
from jitree.loaders.vmvx.context import WorkerContext
from jitree.loaders.vmvx.executable import VmvxExecutable, Workers
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION, MOST_FINISHED
from tests.assembler import Assembler
from tests.hal.native_kernels import aligned, whole
from tests.loaders.vmvx.programs import COUNT, NUMBER, kernels, load

STORE_NUMBER = "buffer.store.i32 %r3, %i12:13, %i10\n"
LEAVES = f"""{NUMBER}
    %i16 = const.i64 8
    %i18 = const.i32 4096
    %r4 = buffer.alloc %i16:17, %i18
    %i20 = const.i64 0
    buffer.store.i32 %r4, %i20:21, %i10
    %i10 = buffer.load.i32 %r4, %i20:21
    {STORE_NUMBER}
    return []
"""
"""Wants scratch memory of an alignment that only the VM gives."""
WIDE: Final = -5_000_000_001
LEAVES_CONSTANTS = f"""
    %i16 = const.i64 8
    %i18 = const.i32 4096
    %i20 = const.i64 {WIDE}
    %i19 = const.i32 -7
    {NUMBER}
    %r4 = buffer.alloc %i16:17, %i18
    %i22 = trunc.i64.i32 %i20:21
    %i10 = add.i32 %i10, %i22
    %i18 = const.i32 32
    %i20 = shr.i64.u %i20:21, %i18
    %i22 = trunc.i64.i32 %i20:21
    %i10 = xor.i32 %i10, %i22
    %i10 = mul.i32 %i10, %i19
    {STORE_NUMBER}
    return []
"""
"""The VM needs constants from in front of what it must not do again."""
SCRATCH = f"""{NUMBER}
    %i16 = const.i64 100
    %i18 = const.i32 16
    %i20 = const.i64 0
    %r4 = buffer.alloc %i16:17, %i18
    %r5 = buffer.alloc %i16:17, %i18
    %i19 = buffer.load.i32 %r4, %i20:21
    %i22 = buffer.load.i32 %r5, %i20:21
    %i19 = or.i32 %i19, %i22
    buffer.store.i32 %r4, %i20:21, %i10
    buffer.store.i32 %r5, %i20:21, %i10
    %i22 = buffer.load.i32 %r5, %i20:21
    %i10 = buffer.load.i32 %r4, %i20:21
    %i10 = sub.i32 %i10, %i22
    %i10 = add.i32 %i10, %i22
    %i10 = or.i32 %i10, %i19
    {STORE_NUMBER}
    return []
"""
"""Two buffers that have to be zero and apart."""
KEEPS = f"""{NUMBER}
    %i20 = const.i64 0
    %r4 = global.load.ref 0, !vm.buffer
    %i14 = cmp.nz.ref %r4
    cond_br %i14, ^kept, ^first
    ^first:
    %i16 = const.i64 8
    %i18 = const.i32 16
    %r4 = buffer.alloc %i16:17, %i18
    global.store.ref 0, !vm.buffer, %r4
    br ^kept
    ^kept:
    %i14 = buffer.load.i32 %r4, %i20:21
    %i15 = const.i32 1
    %i14 = add.i32 %i14, %i15
    buffer.store.i32 %r4, %i20:21, %i14
    %i16 = const.i64 4000000
    %i18 = const.i32 16
    %r5 = buffer.alloc %i16:17, %i18
    buffer.store.i32 %r5, %i20:21, %i10
    buffer.store.i32 %r3, %i12:13, %i14
    return []
"""
"""Counts workgroups in a buffer that a global keeps, beside scratch memory."""
CHANGES_LIST = f"""{NUMBER}
    %i14 = const.i32 1
    list.resize %r2, %i14
    {STORE_NUMBER}
    return []
"""


class Finishes:
    """Counts the workgroups that Python has finished."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        finish = WorkerContext.finish

        def counted(context: WorkerContext, *arguments: object) -> None:
            self.count += 1
            finish(context, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(WorkerContext, "finish", counted)


@pytest.fixture
def finishes(monkeypatch: pytest.MonkeyPatch) -> Finishes:
    return Finishes(monkeypatch)


@pytest.fixture
def vm_spans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each span that the VM runs."""
    spans: list[int] = []
    run = Workers.run

    def counted(*arguments: object) -> int:
        spans.append(1)
        return run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Workers, "run", counted)
    return spans


def run(executable: VmvxExecutable, count: int, function: int = 0) -> np.ndarray:
    """What a grid of workgroups makes of a block of -1."""
    block = aligned(np.full(count, -1, np.int32))
    commands = CommandList()
    commands.dispatch(executable, function, (count, 1, 1), [], [whole(block)])
    executor.require_native_executor().execute(commands, *commands.bind(()))
    return block


def kernel(text: str, **module: Any) -> VmvxExecutable:
    return load(Assembler("kernels", **module).function("f", ENTRY_CONVENTION, text), "native")


def test_compiled_kernels_need_no_python(finishes: Finishes, vm_spans: list[int]) -> None:
    assert (run(load(kernels(), "native"), 50) == 0).all()
    assert (finishes.count, vm_spans) == (0, [])


def test_workgroups_leave_from_wherever_their_kernel_lies(finishes: Finishes) -> None:
    """The machine code of each is the same in all modules; what it leaves to the VM is not."""
    module = Assembler("kernels")
    for number, text in enumerate((COUNT, LEAVES_CONSTANTS, COUNT, LEAVES)):
        module.function(f"f{number}", ENTRY_CONVENTION, text)
    executable = load(module, "native")
    assert (run(executable, 9, 3) == np.arange(9)).all()
    assert np.array_equal(run(executable, 9, 1), run(kernel(LEAVES_CONSTANTS), 9))
    assert finishes.count == 3 * MOST_FINISHED


@pytest.mark.parametrize("count", [1, MOST_FINISHED - 1, MOST_FINISHED, MOST_FINISHED + 1, 30])
def test_workgroups_that_leave_are_finished(finishes: Finishes, vm_spans: list[int], count: int) -> None:
    executable = kernel(LEAVES)
    for _ in range(3):
        assert (run(executable, count) == np.arange(count)).all()
    assert finishes.count == 3 * min(count, MOST_FINISHED)
    assert len(vm_spans) == (3 if count > MOST_FINISHED else 0)


def test_workgroups_leave_constants_of_all_widths(finishes: Finishes) -> None:
    numbers = np.arange(3, dtype=np.int64) + WIDE
    expected = ((numbers & 0xFFFFFFFF) ^ (WIDE >> 32 & 0xFFFFFFFF)) * -7
    assert np.array_equal(run(kernel(LEAVES_CONSTANTS), 3), expected.astype(np.int32))
    assert finishes.count


def test_scratch_memory(finishes: Finishes) -> None:
    executable = kernel(SCRATCH)
    for _ in range(3):
        assert (run(executable, 300) == np.arange(300)).all()
    assert finishes.count == 0


def test_too_much_scratch_memory(finishes: Finishes) -> None:
    executable = kernel(SCRATCH.replace("const.i64 100", "const.i64 9000000"))
    assert (run(executable, 3) == np.arange(3)).all()
    assert finishes.count == 3


def test_scratch_memory_that_the_program_keeps(finishes: Finishes) -> None:
    executable = kernel(KEEPS, ref_global_count=1)
    assert (run(executable, 100) == np.arange(1, 101)).all()
    assert (run(executable, 100) == np.arange(101, 201)).all()
    assert finishes.count == 1, "when the memory that it keeps from being reset was used up"


def test_failures_after_finished_workgroups(finishes: Finishes) -> None:
    text = LEAVES.replace(
        "return []", 'cond_br %i10, ^bad, ^good\n^bad:\nfail %i10, "left and failed"\n^good:\nreturn []'
    )
    with pytest.raises(StatusError) as caught:
        run(kernel(text), 9)
    assert str(caught.value).startswith("CANCELLED; left and failed")
    assert "in workgroup (1, 0, 0) of f of executable 'kernels'" in str(caught.value)
    assert finishes.count == 2


def test_kernels_that_change_lists_stay_on_the_vm(vm_spans: list[int]) -> None:
    assert (run(kernel(CHANGES_LIST), 7) == np.arange(7)).all()
    assert vm_spans == [1]


def test_every_thread_has_a_worker_context(vm_spans: list[int]) -> None:
    executable = load(kernels(), "native")
    native = executor.require_native_executor()
    blocks = [aligned(np.zeros(5000, np.int32)) for _ in range(6)]

    def work(visits: np.ndarray) -> None:
        commands = CommandList()
        for _ in range(50):
            commands.dispatch(executable, 0, (5000, 1, 1), [], [whole(visits)])
        native.execute(commands, *commands.bind(()))

    threads = [threading.Thread(target=work, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all((block == 50).all() for block in blocks)
    assert vm_spans == []


def test_without_room_for_contexts_the_vm_runs(monkeypatch: pytest.MonkeyPatch, vm_spans: list[int]) -> None:
    executable = load(kernels(), "native")
    monkeypatch.setattr(native, "MAXIMUM_CONTEXTS", 1)
    (context,) = executable._compiled._contexts.values()  # type: ignore[union-attr]
    context._record[0] = 1
    try:
        assert (run(executable, 9) == 0).all()
    finally:
        context._record[0] = 0
    assert vm_spans == [1]


def test_a_worker_context_is_made_when_none_is_idle() -> None:
    """Making one holds up all threads, and those that wait for it find others idle after it."""
    executable = load(kernels(), "native")
    assert (run(executable, 9) == 0).all()
    compiled = executable._compiled
    assert compiled is not None
    (context,) = compiled._contexts.values()
    assert compiled._add_context() and len(compiled._contexts) == 1
    context._record[0] = 1
    assert compiled._add_context() and len(compiled._contexts) == 2
    context._record[0] = 0


def test_a_worker_context_is_idle_for_others_when_machine_code_sees_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a thread that needs one finds it in Python and not in machine code, and asks again and again,
    deeper each time."""
    executable = load(kernels(), "native")
    assert (run(executable, 9) == 0).all()
    compiled = executable._compiled
    assert compiled is not None
    (context,) = compiled._contexts.values()
    context._record[0] = 1
    seen = []

    def ask() -> None:
        seen.append(compiled._add_context() and list(compiled._table[:1]))

    other = threading.Thread(target=ask)

    def publish() -> None:
        monkeypatch.undo()
        other.start()
        other.join(0.2)

    monkeypatch.setattr(native, "order_stores", publish)
    assert compiled._add_context()
    other.join()
    assert seen == [[2]]
    context._record[0] = 0


def test_a_worker_context_has_as_many_handles_as_kernels_have_bindings() -> None:
    module = Assembler("one").function("f", ENTRY_CONVENTION, COUNT, attrs={"binding_count": "1"})
    executable = load(module, "native")
    assert (run(executable, 9) == 0).all()
    assert executable._compiled is not None
    (context,) = executable._compiled._contexts.values()
    assert len(context._arguments.elements) == 1


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The native executor is there already."""
    executor.require_native_executor()
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path))
    yield


def test_much_used_kernels_are_taken_over(
    empty_cache: None, monkeypatch: pytest.MonkeyPatch, vm_spans: list[int]
) -> None:
    monkeypatch.setattr(native, "INTERPRETED_FIRST", 0)
    executable = load(Assembler("mine").function("f", ENTRY_CONVENTION, SCRATCH), "auto")
    deadline = time.monotonic() + 60
    while not executable._compiled.ready and time.monotonic() < deadline:  # type: ignore[union-attr]
        assert (run(executable, 5) == np.arange(5)).all()
        time.sleep(0.05)
    vm_spans.clear()
    assert (run(executable, 5) == np.arange(5)).all()
    assert vm_spans == []


def test_kernels_that_are_used_little_are_not_compiled(empty_cache: None, tmp_path: Path) -> None:
    executable = load(kernels("little"), "auto")
    assert (run(executable, 5) == 0).all()
    assert not list(tmp_path.glob("vmvx_kernels-*"))


def test_nothing_is_left_of_a_compiled_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    close = WorkerContext.close

    def note(context: WorkerContext) -> None:
        closed.append(context.address)
        close(context)

    monkeypatch.setattr(WorkerContext, "close", note)
    executable = kernel(KEEPS, ref_global_count=1)
    run(executable, 3)
    assert executable._compiled is not None
    (address,) = executable._compiled._contexts
    gc.disable()
    try:
        del executable
        assert address in closed, "no reference cycles"
    finally:
        gc.enable()


def test_kernels_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is for any machine but for tables in registers; the code of each kernel needs nothing from
    outside."""
    from jitree.base.platform import processor
    from jitree.codegen.image import build
    from jitree.codegen.image.compile import Target
    from jitree.loaders.vmvx.build import generate
    from jitree.loaders.vmvx.kernels import recipes
    from jitree.vmfb.decode import BytecodeModule
    from tests.loaders.samples import sample

    monkeypatch.setattr(processor, "words", lambda name: frozenset())
    recipe = recipes(BytecodeModule.load(sample("vmvx_mm-3.13.0.fb"), "executable"))[0]
    generated = generate(*recipe.data)
    target = Target("aarch64-linux-gnu", "generic", "")
    monkeypatch.setattr(build, "target_here", lambda: target)
    flat = build.build(generated, target)
    assert set(flat.entries) == set(generated.entries) != set()


def test_each_kernel_is_an_image_that_has_nothing_of_others() -> None:
    from jitree.codegen.image.keys import key_of
    from jitree.loaders.vmvx.build import generate
    from jitree.loaders.vmvx.kernels import recipes as recipes_of
    from jitree.vmfb.decode import BytecodeModule

    def recipes(*texts: str) -> list[image.Recipe]:
        module = Assembler("some")
        for number, text in enumerate(texts):
            module.function(f"f{number}", ENTRY_CONVENTION, text)
        return recipes_of(BytecodeModule.load(module.build(), "executable"))

    first, second = recipes(COUNT, SCRATCH)
    made = [generate(*recipe.data) for recipe in (first, second)]
    assert [generated.entries for generated in made] == [("workgroup",)] * 2
    texts = [generated.units[0].texts[0] for generated in made]
    assert [text.count("define internal fastcc { i64 } @f") for text in texts] == [1, 1]
    (alone,) = recipes(SCRATCH)
    assert key_of(alone) == key_of(second) != key_of(first), "wherever it lies in its module"


def test_kernels_are_compiled_while_the_program_goes_on(empty_cache: None) -> None:
    """Loading does not wait; the first dispatch does."""
    executables = [
        load(Assembler(name).function("f", ENTRY_CONVENTION, SCRATCH), "native") for name in ("one", "two")
    ]
    compiled = [executable._compiled for executable in executables]
    builds = [provider for item in compiled if item is not None for provider in item._batch.providers]
    assert [provider.is_building for provider in builds] == [True, True]
    assert all((run(executable, 5) == np.arange(5)).all() for executable in executables)
    assert all(item.ready for item in compiled if item is not None)


@pytest.mark.parametrize(("loop", "question"), [(None, "get"), (object(), "find")])
def test_compiling_begins_at_once_where_the_vm_has_no_machine_code(
    loop: object, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One workgroup in Python takes longer than compiling all kernels."""
    batch = Mock(providers=[])
    monkeypatch.setattr(image, "get", lambda recipe: loop)
    native.CompiledKernels(batch, Mock(), (), (), Mock(), Mock()).serve(array("q"))
    assert [call[0] for call in batch.method_calls] == [question]


def test_threads_share_what_the_vm_runs_in_long_spans(vm_spans: list[int]) -> None:
    """All threads wait for the Python of each span: 5,000 workgroups of a microsecond are some spans, not
    eight for each thread, from the first time on."""
    executable = load(kernels(), "fast")
    block = aligned(np.full(5_000, -1, np.int32))
    commands = CommandList()
    commands.dispatch(executable, 0, (5_000, 1, 1), [], [whole(block)])
    executor.require_native_executor()
    team = Team("test-team", unpinned(16), 100)
    try:
        for _ in range(2):
            vm_spans.clear()
            block[:] = -1
            team.execute(commands, *commands.bind(()))
            assert (block == 0).all()
            assert len(vm_spans) < 60
    finally:
        team.close()


def test_threads_wait_for_little_python(vm_spans: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker makes what a kernel is called with once, not for every span; and only for kernels that run,
    and the first."""
    made: list[str] = []

    def noted(name: str, make: Any, *arguments: Any) -> object:
        made.append(name)
        return make(*arguments)

    for name in ("read_grid", "GridCall", "KernelArguments"):
        monkeypatch.setattr(worker, name, partial(noted, name, getattr(worker, name)))
    monkeypatch.setattr("jitree.loaders.vmvx.executable._LONGEST_WAIT", 60)
    monkeypatch.setattr("jitree.loaders.vmvx.executable._WORTH_A_WORKER", 1 << 60)
    executable = load(kernels(), "fast")
    assert executable.function_count > 1 and sorted(made) == ["GridCall", "KernelArguments"]
    executor.require_native_executor()
    team = Team("test-team", unpinned(4), 100)
    try:
        for turn in (1, 2):
            block, commands = aligned(np.full(5_000, -1, np.int32)), CommandList()
            commands.dispatch(executable, 0, (5_000, 1, 1), [], [whole(block)])
            team.execute(commands, *commands.bind(()))
            assert (block == 0).all()
            assert len(vm_spans) > turn and made.count("read_grid") == turn
    finally:
        team.close()
    assert (made.count("GridCall"), made.count("KernelArguments")) == (1, 1)


@pytest.mark.parametrize(
    "change", ["%i14 = const.i32 0\nlist.resize %r2, %i14", "global.store.ref 0, !vm.buffer, %r3"]
)
def test_dispatches_do_not_meet_what_others_have_changed(change: str) -> None:
    """A kernel that empties its list of bindings, or keeps a binding, has others in the next dispatch, and
    what it keeps has no bytes then."""
    text = f"""{NUMBER}
        %r4 = global.load.ref 0, !vm.buffer
        %i14 = cmp.nz.ref %r4
        cond_br %i14, ^other, ^own
        ^other:
        %i20:21 = buffer.length %r4
        %i14 = trunc.i64.i32 %i20:21
        buffer.store.i32 %r3, %i12:13, %i14
        return []
        ^own:
        {STORE_NUMBER}
        {change}
        return []"""
    program = Assembler("kernels", ref_global_count=1).function("f", ENTRY_CONVENTION, text)
    executable = load(program, "fast")
    blocks = [run(executable, 1) for _ in range(3)]
    assert [block.tolist() for block in blocks] == [[0], [0], [0]]
