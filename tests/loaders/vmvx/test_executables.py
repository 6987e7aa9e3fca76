"""VMVX executables: loading, and running on every command executor and tier."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from jitree.dispatch.context import TIERS
from jitree.errors import InvalidArgumentError, NotFoundError, OutOfRangeError, ResourceExhaustedError
from jitree.hal.command_list import CommandList
from jitree.hal.local import executor
from jitree.hal.pipeline_layout import PipelineLayout
from jitree.loaders.vmvx import executable as vmvx_executable
from jitree.loaders.vmvx.arguments import KernelArguments
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from jitree.loaders.vmvx.loader import VmvxLoader
from jitree.regs.machine import Machine
from tests.assembler import Assembler
from tests.dispatch.harness import HostFunctions
from tests.hal.executors import EXECUTORS, Execute, executing
from tests.hal.native_kernels import aligned, whole
from tests.loaders.vmvx.programs import COUNT, NUMBER, kernels, load, load_sample

pytestmark = pytest.mark.usefixtures("images_are_built_here")


@pytest.fixture(scope="module", params=EXECUTORS)
def execute(request: pytest.FixtureRequest) -> Iterator[Execute]:
    with executing(request.param) as execute:
        yield execute


@pytest.fixture(params=dict.fromkeys((*TIERS, "native")))
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(
    execute: Execute,
    executable: object,
    function: int,
    counts: tuple[int, int, int],
    constants: list[int],
    *blocks: np.ndarray,
) -> None:
    commands = CommandList()
    commands.dispatch(executable, function, counts, constants, [whole(b) for b in blocks])  # type: ignore[arg-type]
    execute(commands)


# -- loading ---------------------------------------------------------------------------------------------


def test_what_an_executable_says_about_itself() -> None:
    executable = load_sample("local_memory-3.9.0")
    assert (executable.name, executable.function_count) == ("module", 1)
    assert (executable.function_name(0), executable.lookup("disp")) == ("disp", 0)
    assert (executable.constant_count(0), executable.binding_count(0)) == (1, 2)
    assert executable.local_memory(0) == 8192, "5000 bytes in whole pages"
    with pytest.raises(NotFoundError, match="has no function 'other'; it has disp"):
        executable.lookup("other")
    with pytest.raises(OutOfRangeError):
        executable.entry_point(1)


def test_counts_of_old_executables_come_from_their_layouts() -> None:
    data = kernels().function("old", ENTRY_CONVENTION, COUNT)
    layouts = (PipelineLayout(3, ((0, 0), (0, 1))),) * 3
    assert load(data).constant_count(2) is None
    executable = load(data, layouts=layouts)
    assert (executable.constant_count(2), executable.binding_count(2)) == (3, 2)
    assert executable.constant_count(1) == 1, "what the executable says itself"
    with pytest.raises(InvalidArgumentError, match="exports 3 functions, but 1 pipeline layouts"):
        load(data, layouts=layouts[:1])


def test_internal_exports_are_no_kernels() -> None:
    executable = load(kernels().function("__init", "0v_v", "return []"))
    assert [executable.function_name(i) for i in range(executable.function_count)] == ["count", "fail"]


def test_kernels_that_the_compiler_adds_are_kernels() -> None:
    """Tensors of 64-bit integers are filled by ``__builtin_fill_i64``."""
    executable = load(kernels().function("__builtin_fill_i64", ENTRY_CONVENTION, "return []"))
    assert executable.lookup("__builtin_fill_i64") == 2


def test_wrong_signature() -> None:
    with pytest.raises(InvalidArgumentError, match="'f' of the executable has signature '0r_v'") as caught:
        load(Assembler("m").function("f", "0r_v", "return []"))
    assert "loading an executable of format 'vmvx-bytecode-fb'" in str(caught.value)


@pytest.mark.parametrize("attr", ["local_memory", "constant_count", "binding_count"])
@pytest.mark.parametrize("value", ["-1", "x", "", "99999999999999999999"])
def test_senseless_counts(attr: str, value: str) -> None:
    module = Assembler("m").function("f", ENTRY_CONVENTION, COUNT, attrs={attr: value})
    with pytest.raises(InvalidArgumentError, match=f"states {attr} = '{value}'"):
        load(module)


def test_data_that_is_no_module() -> None:
    with pytest.raises(InvalidArgumentError, match="loading an executable of format"):
        load(b"\0" * 64)


def test_an_import_without_a_provider() -> None:
    with pytest.raises(NotFoundError, match=r"import 'other\.f': no module 'other'"):
        load(kernels().import_function("other.f", "0v_v"))


def test_a_failing_initialiser() -> None:
    module = kernels().function("__init", "0v_v", '%i0 = const.i32 8\nfail %i0, "not today"')
    with pytest.raises(ResourceExhaustedError, match="not today"):
        load(module)


def test_constants_have_to_be_wanted() -> None:
    with pytest.raises(InvalidArgumentError, match="2 specialization constants were supplied"):
        load(kernels(), constants=(1, 2))
    with pytest.raises(InvalidArgumentError, match="none were supplied"):
        load(kernels().function("__set_constants", "0r_v", "return []"))


# -- running ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(1, 1, 1), (7, 1, 1), (5, 3, 1), (3, 4, 5), (1, 1, 9)])
def test_every_workgroup_runs_once(execute: Execute, tier: str, counts: tuple[int, int, int]) -> None:
    executable = load(kernels(), tier)
    visits = aligned(np.zeros(counts[::-1], np.int32))
    for round_number in (1, 2, 3):
        run(execute, executable, 0, counts, [], visits)
        assert (visits == round_number).all()


def test_a_first_dispatch_finds_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of a program takes little longer than the others."""
    executable = load(kernels(), "fast")

    def refuse(*arguments: object) -> None:
        raise AssertionError("made by the first dispatch")

    monkeypatch.setattr(KernelArguments, "__init__", refuse)
    monkeypatch.setattr(Machine, "__init__", refuse)
    visits = aligned(np.zeros(8, np.int32))
    with executing("native") as execute:
        run(execute, executable, 0, (8, 1, 1), [], visits)
    assert visits.all()


def test_zero_workgroups(execute: Execute) -> None:
    visits = aligned(np.zeros(8, np.int32))
    run(execute, load(kernels()), 0, (0, 4, 1), [], visits)
    assert not visits.any()


def test_product(execute: Execute, tier: str) -> None:
    lhs, rhs, out = (aligned(np.random.default_rng(n).random(1000, np.float32)) for n in range(3))
    run(execute, load_sample("mul-3.13.0", tier), 0, (16, 1, 1), [], lhs, rhs, out)
    assert (out == lhs * rhs).all()


def test_constants_of_dispatches(execute: Execute, tier: str) -> None:
    values, out = aligned(np.arange(8, dtype=np.int32)), aligned(np.zeros(8, np.int32))
    run(execute, load_sample("local_memory-3.9.0", tier), 0, (8, 1, 1), [0xFFFFFFFF], values, out)
    assert (out == values * 3 - 1).all()


def test_denormals_are_flushed_on_every_tier(execute: Execute, tier: str) -> None:
    """As compiled kernels do, so that results are the same."""
    tiny = np.full(1000, 1e-40, np.float32)
    small = np.full(1000, 1e-30, np.float32)
    executable = load_sample("mul-3.13.0", tier)
    for lhs, rhs in ((tiny, np.ones(1000, np.float32)), (small, np.full(1000, 1e-10, np.float32))):
        out = aligned(np.ones(1000, np.float32))
        run(execute, executable, 0, (16, 1, 1), [], aligned(lhs), aligned(rhs), out)
        assert (out == 0).all()
    assert (tiny * np.float32(1) != 0).all(), "the mode of the Python thread is as before"


LARGER = """
    %i16 = const.i32 1
    %r4 = list.get.ref %r2, %i16, !vm.buffer
    %i14 = buffer.load.f32 %r3, %i12:13
    %i15 = buffer.load.f32 %r4, %i12:13
    %i16 = cmp.lt.f32.o %i14, %i15
    %i17 = select.f32 %i16, %i15, %i14
    buffer.store.f32 %r3, %i12:13, %i17
"""


def in_a_loop(body: str) -> str:
    return f"""
    %i20 = const.i64 64
    %i22 = const.i64 1
    %i12 = const.i64 0
    br ^head
    ^head:
    %i24 = cmp.lt.i64.s %i12:13, %i20:21
    cond_br %i24, ^body, ^end
    ^body:
    {body}
    %i12 = add.i64 %i12:13, %i22:23
    br ^head
    ^end:
"""


@pytest.mark.parametrize("text,groups", [(LARGER, 64), (in_a_loop(LARGER), 1)], ids=["workgroups", "loop"])
def test_choices_do_not_flush_denormals(execute: Execute, tier: str, text: str, groups: int) -> None:
    """Only arithmetic does; what looks like a maximum is no instruction of the processor."""
    module = kernels().function("larger", ENTRY_CONVENTION, f"{NUMBER}{text}\n    return []")
    executable = load(module, tier)
    values = aligned(np.tile(np.array([1e-40, -1e-40, 2, -2], np.float32), 16))
    others = aligned(np.repeat(np.array([1e-40, -1e-40, 1e-45, 1], np.float32), 16))
    zero = np.float32(0)
    left, right = (np.where(abs(x) < 1e-38, zero, x) for x in (values, others))
    expected = np.where(left < right, others, values)
    run(execute, executable, executable.lookup("larger"), (groups, 1, 1), [], values, others)
    assert (values.view(np.int32) == expected.view(np.int32)).all()


def of_two(instruction: str) -> str:
    return f"""
    %i16 = const.i32 1
    %r4 = list.get.ref %r2, %i16, !vm.buffer
    %i14 = buffer.load.f32 %r3, %i12:13
    %i15 = buffer.load.f32 %r4, %i12:13
    {instruction}
    buffer.store.f32 %r3, %i12:13, %i17
"""


@pytest.mark.parametrize("in_vectors", [False, True], ids=["workgroups", "loop"])
@pytest.mark.parametrize("instruction", ["%i17 = log1p.f32 %i14", "%i17 = pow.f32 %i14, %i15"])
def test_functions_take_denormals_for_zeros(
    execute: Execute, tier: str, instruction: str, in_vectors: bool
) -> None:
    """All alike, those as well that give their argument back or look at its sign."""
    text = of_two(instruction)
    text, groups = (in_a_loop(text), 1) if in_vectors else (text, 64)
    module = kernels().function("function", ENTRY_CONVENTION, f"{NUMBER}{text}\n    return []")
    executable = load(module, tier)
    tiny = np.array([1e-45, -1e-45, 1e-40, -1e-40, 1.17e-38, -1.17e-38, 2, -0.5], np.float32)
    values, others = (
        np.tile(tiny, 8),
        np.repeat(np.array([2e-38, -2e-38, 1.5, -1.5, 3, -3, 2, 1e-40], "f4"), 8),
    )
    results = []
    for flush in (False, True):
        given = [
            aligned(np.where(flush & (abs(x) < 1.1754944e-38), np.copysign(0, x), x))
            for x in (values, others)
        ]
        run(execute, executable, executable.lookup("function"), (groups, 1, 1), [], *given)
        results.append(given[0].view(np.int32))
    assert (results[0] == results[1]).all()


@pytest.mark.parametrize("in_vectors", [False, True], ids=["workgroups", "loop"])
@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_the_least_and_greatest_of_denormals_is_zero(
    execute: Execute, tier: str, kind: str, name: str, in_vectors: bool
) -> None:
    left, right, result = ("%i14", "%i16", "%i18") if kind == "f32" else ("%i14:15", "%i16:17", "%i18:19")
    text = f"""
    %i28 = const.i32 1
    %r4 = list.get.ref %r2, %i28, !vm.buffer
    {left} = buffer.load.{kind} %r3, %i12:13
    {right} = buffer.load.{kind} %r4, %i12:13
    {result} = {name}.{kind} {left}, {right}
    buffer.store.{kind} %r3, %i12:13, {result}
    """
    text, groups = (in_a_loop(text), 1) if in_vectors else (text, 64)
    module = kernels().function("extreme", ENTRY_CONVENTION, f"{NUMBER}{text}\n    return []")
    executable = load(module, tier)
    element = np.float32 if kind == "f32" else np.float64
    least, normal = np.finfo(element).smallest_subnormal, np.finfo(element).smallest_normal
    numbers = np.array([least, -least, normal / 2, -normal / 2, 0, -0.0, 2, -0.5], element)
    values, others = np.tile(numbers, 8), np.repeat(numbers, 8)
    of_left, of_right = (np.where(abs(x) < normal, np.copysign(0, x), x) for x in (values, others))
    expected = np.where(of_right < of_left if name == "min" else of_left < of_right, of_right, of_left)
    expected = expected.astype(element)
    given = aligned(values), aligned(others)
    run(execute, executable, executable.lookup("extreme"), (groups, 1, 1), [], *given)
    assert (given[0].view(np.uint8) == expected.view(np.uint8)).all()


@pytest.mark.parametrize("workgroup", [(0, 0, 0), (3, 4, 2), (6, 4, 2)])
def test_failures_are_those_of_the_vm(execute: Execute, tier: str, workgroup: tuple[int, int, int]) -> None:
    executable = load(kernels(), tier)
    x, y, z = workgroup
    with pytest.raises(ResourceExhaustedError, match="no room for this") as caught:
        run(execute, executable, 1, (7, 5, 3), [x + 7 * (y + 5 * z)], aligned(np.zeros(1, np.int32)))
    text = str(caught.value)
    assert f"in workgroup ({x}, {y}, {z}) of fail of executable 'kernels'" in text
    assert caught.value.backtrace, "where in the kernel"
    visits = aligned(np.zeros(4, np.int32))
    run(execute, executable, 0, (4, 1, 1), [], visits)
    assert (visits == 1).all(), "the executable is usable after a failure"


def test_bindings_end_where_they_say(execute: Execute, tier: str) -> None:
    visits = aligned(np.zeros(4, np.int32))
    with pytest.raises(OutOfRangeError, match=r"in workgroup \(4, 0, 0\)"):
        run(execute, load(kernels(), tier), 0, (5, 1, 1), [], visits)


def test_specialization_constants_reach_every_worker(execute: Execute, tier: str) -> None:
    module = kernels()
    module.globals_size = 4
    module.function(
        "__set_constants",
        "0r_v",
        "%i0 = const.i64 1\n%i2 = buffer.load.i32 %r0, %i0:1\nglobal.store.i32 0, %i2\nreturn []",
    ).function(
        "store",
        ENTRY_CONVENTION,
        f"{NUMBER}%i14 = global.load.i32 0\nbuffer.store.i32 %r3, %i12:13, %i14\nreturn []",
    )
    out = aligned(np.zeros(200, np.int32))
    executable = load(module, tier, constants=(5, 0xFFFFFFF9))
    assert executable.function_count == 3
    for _ in range(3):
        run(execute, executable, 2, (200, 1, 1), [], out)
    assert (out == -7).all()


def test_modules_of_the_session_are_called(execute: Execute, tier: str) -> None:
    threads = set()

    def twice(value: int) -> int:
        threads.add(threading.get_ident())
        return 2 * value

    module = (
        Assembler("m")
        .import_function("user.twice", "0i_i")
        .function(
            "f",
            ENTRY_CONVENTION,
            f"{NUMBER}[%i14] = call @user.twice [%i10]\nbuffer.store.i32 %r3, %i12:13, %i14\nreturn []",
        )
    )
    out = aligned(np.zeros(100, np.int32))
    run(
        execute,
        load(module, tier, modules=[HostFunctions("user", [("twice", "0i_i", twice)])]),
        0,
        (100, 1, 1),
        [],
        out,
    )
    assert (out == 2 * np.arange(100)).all() and threads


def test_exceptions_of_user_modules_pass(execute: Execute) -> None:
    def bad() -> None:
        raise KeyError("lost")

    module = (
        Assembler("m")
        .import_function("user.bad", "0v_v")
        .function("f", ENTRY_CONVENTION, "[] = call @user.bad []\nreturn []")
    )
    executable = load(module, modules=[HostFunctions("user", [("bad", "0v_v", bad)])])
    with pytest.raises(KeyError, match="lost"):
        run(execute, executable, 0, (1, 1, 1), [])


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("mm_microkernels-20240129.785", ([], [32768, 0], [32768, 0, 81920, 0], [81920, 0])),
        ("mm_microkernels-20240828.999", ([], [], [], [])),
    ],
    ids=["old pack", "new pack"],
)
def test_microkernels(execute: Execute, tier: str, name: str, constants: tuple[list[int], ...]) -> None:
    """exp(lhs @ rhs) by pack, mmt4d and unpack, through one scratch buffer."""
    generator = np.random.default_rng(7)
    lhs, rhs = (aligned(generator.random(shape, np.float32) / 8) for shape in ((64, 128), (128, 96)))
    scratch, out = aligned(np.zeros(26624, np.float32)), aligned(np.zeros((64, 96), np.float32))
    executable = load_sample(name, tier)
    blocks = ((lhs, scratch), (rhs, scratch), (scratch, scratch), (scratch, out))
    for function, words in enumerate(constants):
        grid = (2, 1, 1) if function == 3 else (1, 1, 1)
        run(execute, executable, function, grid, words, *blocks[function])
    np.testing.assert_allclose(out, np.exp(lhs @ rhs), rtol=1e-5)


def test_many_threads_at_once() -> None:
    """Every call has a worker of its own."""
    native = executor.require_native_executor()
    executable = load(kernels(), "fast")
    blocks = [aligned(np.zeros(50, np.int32)) for _ in range(6)]

    def work(visits: np.ndarray) -> None:
        commands = CommandList()
        for _ in range(20):
            commands.dispatch(executable, 0, (50, 1, 1), [], [whole(visits)])
        native.execute(commands, *commands.bind(()))

    threads = [threading.Thread(target=work, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all((block == 20).all() for block in blocks)


def test_nothing_is_left_of_an_executable() -> None:
    executable = load(kernels())
    assert isinstance(executable, vmvx_executable.VmvxExecutable)
    workers = weakref.ref(executable._workers)
    gc.disable()
    try:
        del executable
        assert workers() is None, "no reference cycles"
    finally:
        gc.enable()


def test_formats() -> None:
    loader = VmvxLoader()
    assert loader.query_support("vmvx-bytecode-fb")
    assert not loader.query_support("embedded-elf-x86_64")
