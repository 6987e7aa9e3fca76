"""The native tier: what is compiled, how it is entered and left in the middle, what it does when it
cannot."""

from __future__ import annotations

from typing import Any, Final

import pytest

from jitree.base.platform import processor
from jitree.codegen.record import words_of
from jitree.dispatch.linking import BytecodeInstance
from jitree.dispatch.native import engine, tiering
from jitree.errors import StatusError
from jitree.regs import machine
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import FunctionEntry
from jitree.regs.records import ModuleRecord
from tests.assembler import Assembler
from tests.dispatch.harness import TIERS, HostFunctions, Vm, load

_FUNCTION: Final = words_of(FunctionEntry)

SUM = """
    %i1 = const.i32 1
    br ^head
    ^head:
    %i3 = cmp.lt.i32.s %i2, %i0
    cond_br %i3, ^body, ^end
    ^body:
    %i4 = add.i32 %i4, %i2
    %i2 = add.i32 %i2, %i1
    br ^head
    ^end:
    return [%i4]
"""
"""0 + 1 + … below the argument; the loop header is the block ``^head``."""
DEEP = """
    cond_br %i0, ^more, ^end
    ^end:
    return [%i0]
    ^more:
    %i1 = const.i32 -1
    %i2 = add.i32 %i0, %i1
    [%i3] = call @f [%i2]
    %i3 = add.i32 %i3, %i0
    return [%i3]
"""


def record_of(vm: Vm) -> ModuleRecord:
    """The state of the module that was added last."""
    instance = vm.context._instances[-1]
    assert isinstance(instance, BytecodeInstance)
    return instance.record


def is_native(vm: Vm, ordinal: int = 0) -> bool:
    return bool(record_of(vm).function(ordinal).memory[_FUNCTION.native])


@pytest.fixture
def native() -> Vm:
    return Vm("native")


def test_functions_are_compiled_when_a_module_is_loaded(native: Vm) -> None:
    assert native.run("0i_i", SUM, [10]) == [45]
    assert is_native(native)
    assert native.context.tier == "native"


def test_a_register_read_as_another_type_is_refused(native: Vm) -> None:
    """The reason is kept; the interpreter runs the function, and others of the module stay native."""
    module = Assembler("m").function("f", "0i_f", "return [%i0]").function("g", "0i_i", "return [%i0]")
    native.add(module)
    assert native.call("f", 0x3F800000) == [1.0]
    assert native.call("g", 7) == [7]
    assert [is_native(native, 0), is_native(native, 1)] == [False, True]
    refusals = tiering.native_module(record_of(native)).refusals
    assert list(refusals) == [0]
    assert "another type" in refusals[0]


def test_a_compiled_function_calls_one_that_is_not(native: Vm) -> None:
    module = Assembler("m").function("bits", "0i_f", "return [%i0]", exported=False)
    module.function("f", "0ir_fr", "[%i1] = call @bits [%i0]\nreturn [%i1, %r0]")
    buffer = VmBuffer(1)
    assert native.add(module).call("f", 0x40000000, buffer) == [2.0, buffer]


def test_a_loop_that_turns_hot_moves_over_in_its_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "FUEL", 1000)
    monkeypatch.setattr(machine, "TIME", 0)
    vm = Vm("auto")
    vm.add(Assembler("m").function("f", "0i_i", SUM))
    record = record_of(vm)
    tiering.native_module(record).provider.wait()
    assert not is_native(vm)
    assert vm.call("f", 50_000) == [sum(range(50_000)) & 0x7FFFFFFF]
    assert is_native(vm)


def test_places_of_a_loop(native: Vm) -> None:
    native.add(Assembler("m").function("f", "0i_i", SUM))
    record = record_of(native)
    module = tiering.native_module(record)
    (header,) = module.places(0)
    function = record.function(0)
    assert module.resume_address(function, header)
    assert not module.resume_address(function, header + 1)


BRANCHING = """
    %i1 = const.i32 1
    br ^head
    ^head:
    %i3 = cmp.lt.i32.s %i2, %i0
    cond_br %i3, ^body, ^end
    ^body:
    %i5 = and.i32 %i2, %i1
    cond_br %i5, ^odd, ^even
    ^odd:
    %i4 = add.i32 %i4, %i2
    br ^next
    ^even:
    %i4 = sub.i32 %i4, %i1
    br ^next
    ^next:
    %i2 = add.i32 %i2, %i1
    br ^head
    ^end:
    return [%i4]
"""
"""A loop that may be left, when the time is over, at a branch after its header."""


@pytest.mark.parametrize("is_left", [True, False])
def test_a_loop_that_ran_out_of_time_goes_on(is_left: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left only where Python wants that; then it is entered again at its next turn."""
    monkeypatch.setattr(engine, "may_go_on", lambda machine: not is_left)
    monkeypatch.setattr(machine, "FUEL", 1001)
    monkeypatch.setattr(machine, "TIME", 0)
    found: list[bool] = []
    resume_address = tiering.resume_address

    def look(*arguments: Any) -> int:
        address = resume_address(*arguments)
        found.append(address != 0)
        return address

    monkeypatch.setattr(tiering, "resume_address", look)
    vm = Vm("native")
    count = 20_000
    expected = sum(range(1, count, 2)) - count // 2
    assert vm.run("0i_i", BRANCHING, [count]) == [expected]
    assert sum(found) > 10 * is_left - 1 and len(found) <= 5 * sum(found)


@pytest.mark.parametrize("depth", [10, 3000, 8000])
def test_recursion_deeper_than_the_processors_stack(vm: Vm, depth: int) -> None:
    vm.add(Assembler("m").function("f", "0i_i", DEEP))
    assert vm.call("f", depth) == [depth * (depth + 1) // 2]


FAILING: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "an allocation": ("0rii_v", "%i2 = const.i64 -1\n%r1 = buffer.alloc %i2, %i1", (VmBuffer(4), 1, 16)),
    "a division": ("0rii_v", "%i2 = div.i32.s %i0, %i1", (VmBuffer(4), 1, 0)),
    "an access": ("0rii_v", "%i2 = const.i64 9\nbuffer.store.i32 %r0, %i2, %i0", (VmBuffer(4), 1, 0)),
    "an import": ("0rii_v", "[] = call @n.fail [%i0]", (VmBuffer(4), 1, 0)),
    "a status": ("0rii_v", 'fail %i0, "no"\n^next:', (VmBuffer(4), 5, 0)),
}


@pytest.mark.parametrize("what", FAILING)
def test_failures_in_callees_are_the_same_on_every_tier(what: str) -> None:
    """Message, backtrace, and what was stored before."""
    cconv, text, arguments = FAILING[what]

    def fail(value: int) -> None:
        raise ValueError(f"not {value}")

    seen = []
    for tier in TIERS:
        module = Assembler("m", globals_size=4).import_function("n.fail", "0i_v")
        module.function("inner", cconv, f"{text}\nreturn []", exported=False)
        module.function("middle", cconv, "[] = call @inner [%r0, %i0, %i1]\nreturn []", exported=False)
        outer = "%i2 = const.i32 77\nglobal.store.i32 0, %i2\n[] = call @middle [%r0, %i0, %i1]\nreturn []"
        module.function("f", cconv, outer).function("stored", "0v_i", "%i0 = global.load.i32 0\nreturn [%i0]")
        vm = Vm(tier).add(HostFunctions("n", [("fail", "0i_v", fail)]), module)
        with pytest.raises((StatusError, ValueError)) as failure:
            vm.call("f", *arguments)
        lines = getattr(failure.value, "backtrace", None) or failure.value.__notes__
        seen.append((str(failure.value), lines, vm.call("stored")))
    assert seen[0] == seen[1] == seen[2]
    assert "m.@1+00000001" in str(seen[0][1])


def test_what_python_executes_in_between_sees_and_changes_registers(vm: Vm) -> None:
    """An import in a loop, with references that it gives and takes."""
    module = Assembler("m").import_function("n.same", "0ri_ri")
    module.function("f", "0ri_ri", """
        %i1 = const.i32 1
        br ^head
        ^head:
        %i3 = cmp.lt.i32.s %i2, %i0
        cond_br %i3, ^body, ^end
        ^body:
        [%r1, %i4] = call @n.same [%r0, %i2]
        %r0 = assign.ref %R1
        %i5 = add.i32 %i5, %i4
        %i2 = add.i32 %i2, %i1
        br ^head
        ^end:
        return [%R0, %i5]
    """)  # fmt: skip
    buffers = [VmBuffer(1), VmBuffer(1)]

    def same(buffer: VmBuffer, value: int) -> tuple[VmBuffer, int]:
        return buffers[1 - buffers.index(buffer)], 10 * value

    vm.add(HostFunctions("n", [("same", "0ri_ri", same)]), module)
    assert vm.call("f", buffers[0], 5) == [buffers[1], 100]


def test_builds_for_aarch64(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of this program does not depend on the machine, and the linker knows every relocation."""
    from jitree.codegen.image import build
    from jitree.codegen.image.compile import Target
    from jitree.dispatch.native.lower import program
    from jitree.dispatch.native.source import encode, from_program

    module = load(Assembler("m").function("f", "0i_i", DEEP).function("sum", "0i_i", SUM))
    generated = program(encode(from_program(module.program)))
    target = Target("aarch64-linux-gnu", "generic", "")
    monkeypatch.setattr(build, "target_here", lambda: target)
    flat = build.build(generated, target)
    assert set(flat.entries) == {"enter.0", "enter.1", "resume.1"}
    assert all(offset % 4 == 0 for offset in flat.entries.values())


@pytest.mark.parametrize(
    "name,kind", [("min.f32", "f"), ("max.f32", "f"), ("min.f64", "F"), ("max.f64", "F")]
)
def test_least_and_greatest_flush_denormals_on_aarch64(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice alone leaves their bits as they are there; an instruction follows that does not."""
    from jitree.codegen.image.compile import optimized_module, target_machine, target_of
    from jitree.dispatch.native.lower import program
    from jitree.dispatch.native.source import encode, from_program

    monkeypatch.setattr(processor, "machine", lambda: "aarch64")
    result, left, right = ("%i4", "%i0", "%i1") if kind == "f" else ("%i4:5", "%i0:1", "%i2:3")
    text = f"""
        {result} = {name} {left}, {right}
        return [{result}]
    """
    module = load(Assembler("m").function("f", f"0{kind}{kind}_{kind}", text))
    [unit] = program(encode(from_program(module.program))).units
    target = target_of("aarch64", "generic")
    optimized = optimized_module(unit.texts, unit.entries, target, unit.pipeline)
    assert "\tfminnm\t" in str(target_machine(target).emit_assembly(optimized))


def _loop(number: int) -> str:
    return f"""
        %i2 = const.i32 0
        br ^head{number}
        ^head{number}:
        %i3 = cmp.lt.i32.s %i2, %i0
        cond_br %i3, ^body{number}, ^end{number}
        ^body{number}:
        %i2 = add.i32 %i2, %i1
        br ^head{number}
        ^end{number}:
    """


@pytest.mark.parametrize(
    "text,reason",
    [
        ("".join(map(_loop, range(40))), "40 loops after each other"),
        ("\n".join(f"br ^b{n}\n^b{n}:" for n in range(1200)) + _loop(0), "branches"),
        ("%i2 = add.i32 %i2, %i1\n" * 30_000 + _loop(0), "30008 instructions"),
    ],
    ids=["loops", "blocks", "instructions"],
)
def test_what_would_take_long_to_compile_stays_with_the_interpreter(
    native: Vm, text: str, reason: str
) -> None:
    module = Assembler("m").function("f", "0i_i", f"%i1 = const.i32 1\n{text}\nreturn [%i2]")
    assert native.add(module).call("f", 3) == [3]
    assert not is_native(native)
    assert reason in tiering.native_module(record_of(native)).refusals[0]
