"""Random programs give the same results, the same errors and no leaks on every tier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jitree.dispatch.semantics import SEMANTICS
from jitree.errors import StatusError
from jitree.regs.buffer import VmBuffer
from jitree.regs.list import VmList
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.instructions import INSTRUCTIONS, Instruction
from tests.assembler import Assembler
from tests.dispatch.harness import HostFunctions, Vm, compile_here, load

Prepare = Callable[[BytecodeModule], object]

BANKS = {"i32": range(0, 8), "i64": range(0, 8, 2), "f32": range(8, 12), "f64": range(12, 16, 2)}
"""Registers by kind. Integers alias each other. Floats keep to themselves, since the sign of a NaN that an
operation makes is the processor's choice and must not become a number."""
CONVENTION = "IIIIffffFF"
REGISTERS = "%i0:1, %i2:3, %i4:5, %i6:7, %i8, %i9, %i10, %i11, %i12:13, %i14:15"
REFS = 5
EDGES = [0, 1, 2, 31, 32, 63, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**52, 2**63 - 1, 2**63, 2**64 - 1]
FLOATS = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.0, 1e-310, 1e-40, 3.4e38, 1e300, 2.0**31, 2.0**63, 2.0**64]
SPECIAL = [float("inf"), float("-inf"), float("nan")]

_VALUE_KINDS = frozenset(("r.i32", "r.i64", "r.f32", "r.f64"))


def _is_pure(row: Instruction) -> bool:
    return (
        all(operand.kind in _VALUE_KINDS for operand in row.operands)
        and row.operands[-1].output
        and ".indirect." not in row.mnemonic
        and not _makes_numbers_of_bits(row)
    )


def _makes_numbers_of_bits(row: Instruction) -> bool:
    """Whether the sign of a NaN may become more than that."""
    if row.mnemonic not in SEMANTICS or row.mnemonic.startswith(("abs.", "neg.", "select.")):
        return False
    kinds = zip(row.operands, SEMANTICS[row.mnemonic].argument_types, strict=False)
    return any(operand.kind.startswith("r.f") and kind.startswith("i") for operand, kind in kinds)


PURE = [row for row in INSTRUCTIONS if row.set not in ("exact", "fused") and row.operands and _is_pure(row)]


@dataclass
class Program:
    lines: list[str] = field(default_factory=list)

    def text(self, results: str) -> str:
        return "\n".join([*self.lines, f"return [{results}]"])


def value_register(kind: str) -> st.SearchStrategy[str]:
    return st.sampled_from(BANKS[kind]).map(lambda slot: f"%i{slot}")


@st.composite
def arithmetic(draw: st.DrawFn) -> Program:
    """A straight line of pure instructions with branches forward, over registers that alias each other."""
    program = Program()
    for number in range(draw(st.integers(1, 25))):
        row = draw(st.sampled_from(PURE))
        registers = [draw(value_register(operand.kind.removeprefix("r."))) for operand in row.operands]
        program.lines.append(f"{registers[-1]} = {row.mnemonic} {', '.join(registers[:-1])}")
        if draw(st.integers(0, 5)) == 0:
            moves = [
                f"{draw(value_register('i32'))}->{draw(value_register('i32'))}"
                for _ in range(draw(st.integers(0, 4)))
            ]
            condition = draw(value_register("i32"))
            program.lines.append(f"cond_br {condition}, ^a{number} {{{', '.join(moves)}}}, ^b{number}")
            program.lines += [f"^b{number}:", f"%i0 = not.i32 {condition}", f"br ^a{number}", f"^a{number}:"]
    return program


integers = st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1))
singles = st.one_of(st.sampled_from(FLOATS + SPECIAL), st.floats(width=32))
doubles = st.one_of(st.sampled_from(FLOATS + SPECIAL), st.floats())
inputs = st.tuples(*[{"I": integers, "f": singles, "F": doubles}[kind] for kind in CONVENTION])


def nothing(module: BytecodeModule) -> None:
    """A module needs no preparation on most tiers."""


def comparable(outcome: object) -> object:
    """All NaNs are equal, and zeroes have signs."""
    return [repr(value) for value in outcome] if isinstance(outcome, list) else outcome


def outcome(vm: Vm, name: str, arguments: list[Any]) -> object:
    try:
        return vm.context.invoke(vm.function(name), arguments)
    except StatusError as error:
        return str(error), error.backtrace


def check_arithmetic(program: Program, values: tuple[float, ...], prepare: Prepare, tier: str) -> None:
    module = load(Assembler("m").function("f", f"0{CONVENTION}_{CONVENTION}", program.text(REGISTERS)))
    prepare(module)
    results = [comparable(outcome(Vm(name).add(module), "f", list(values))) for name in ("plain", tier)]
    assert results[0] == results[1]


@settings(max_examples=200, deadline=None)
@given(arithmetic(), inputs)
def test_arithmetic(program: Program, values: tuple[float, ...]) -> None:
    check_arithmetic(program, values, nothing, "fast")


@settings(max_examples=25, deadline=None)
@given(arithmetic(), inputs)
def test_arithmetic_in_native_code(program: Program, values: tuple[float, ...]) -> None:
    check_arithmetic(program, values, compile_here, "native")


@st.composite
def references(draw: st.DrawFn) -> Program:
    """Moves, lists, globals, calls and failures over a few refs."""
    program = Program()
    ref = st.integers(0, REFS - 1)

    def operand() -> str:
        return f"%{draw(st.sampled_from('rR'))}{draw(ref)}"

    def typed() -> str:
        return draw(st.sampled_from(["!vm.buffer", "!vm.buffer", "!vm.list<?>"]))

    def element() -> str:
        return draw(st.sampled_from(["!vm.opaque", "!vm.buffer", "i32"]))

    def index() -> str:
        return f"%i{draw(st.integers(0, 3))}"

    lines = [
        lambda: f"%r{draw(ref)} = assign.ref {operand()}",
        lambda: f"%r{draw(ref)} = const.ref.rodata 0",
        lambda: f"%r{draw(ref)} = const.ref.zero",
        lambda: f"discard.refs [{operand()}, {operand()}]",
        lambda: f"%r{draw(ref)} = select.ref {index()}, {typed()}, {operand()}, {operand()}",
        lambda: f"%r{draw(ref)} = switch.ref {index()}, {typed()}, {operand()}, [{operand()}, {operand()}]",
        lambda: f"%r{draw(ref)} = cast.any.ref {operand()}, {typed()}",
        lambda: f"global.store.ref {draw(st.integers(0, 1))}, {typed()}, {operand()}",
        lambda: f"%r{draw(ref)} = global.load.ref {draw(st.integers(0, 1))}, {typed()}",
        lambda: f"%r{draw(ref)} = list.alloc {element()}, {index()}",
        lambda: f"%r{draw(ref)} = buffer.alloc %i4, %i1",
        lambda: f"list.resize %r{draw(ref)}, {index()}",
        lambda: f"list.set.ref %r4, {index()}, {operand()}",
        lambda: f"list.set.i32 %r4, {index()}, {index()}",
        lambda: f"%i6 = list.get.i32 %r4, {index()}",
        lambda: f"%r{draw(ref)} = list.get.ref %r4, {index()}, {typed()}",
        lambda: f"%i6 = cmp.eq.ref %r{draw(ref)}, %r{draw(ref)}",
        lambda: f"[%r{draw(ref)}, %r{draw(ref)}] = call @swap [{operand()}, {operand()}]",
        lambda: f"[%r{draw(ref)}] = call @n.f [{operand()}, {index()}]",
        lambda: f'trace "t" [{operand()}]',
    ]  # fmt: skip
    for number in range(draw(st.integers(1, 20))):
        program.lines.append(draw(st.sampled_from(lines))())
        if draw(st.integers(0, 6)) == 0:
            moves = ", ".join(f"{operand()}->%r{draw(ref)}" for _ in range(draw(st.integers(0, 4))))
            program.lines += [f"br ^n{number} {{{moves}}}", f"^n{number}:"]
    return program


def choose(thing: object, number: int) -> object:
    return thing if number % 2 else None


def shape(value: object) -> object:
    """A value without identities."""
    if isinstance(value, VmList):
        return ("list", [shape(item) for item in value] if value.size < 10 else value.size)
    return ("buffer", bytes(value)) if isinstance(value, VmBuffer) else value


@settings(max_examples=150, deadline=None)
@given(references(), st.sampled_from([15, 16, 17]))
def test_references(program: Program, bytecode: int) -> None:
    check_references(program, bytecode, nothing, "fast")


@settings(max_examples=25, deadline=None)
@given(references(), st.sampled_from([15, 16, 17]))
def test_references_in_native_code(program: Program, bytecode: int) -> None:
    check_references(program, bytecode, compile_here, "native")


def check_references(program: Program, bytecode: int, prepare: Prepare, tier: str) -> None:
    if bytecode == 15:
        program.lines = [line for line in program.lines if "discard" not in line and "assign" not in line]
        program.lines.append("%r0 = const.ref.zero")
    module = Assembler("m", bytecode=bytecode, ref_global_count=2).import_function("n.f", "0ri_r")
    module.rodata(b"constant")
    results = ", ".join(f"%r{n}" for n in range(REFS))
    # r4 is a list that holds no lists: a list that holds itself is never freed, here as upstream.
    setup = "%i1 = const.i32 1\n%i2 = const.i32 2\n%i3 = const.i32 3\n%i4 = const.i64 4\n"
    module.function("f", f"0rrrrr_{'r' * REFS}", setup + program.text(results))
    module.function("swap", "0rr_rr", "return [%R1, %r0]", exported=False)
    loaded = load(module)
    prepare(loaded)
    outcomes = []
    for name in ("plain", tier):
        vm = Vm(name).add(HostFunctions("n", [("f", "0ri_r", choose)]), loaded)
        items = VmList(1)
        items.resize(3)
        arguments: list[Any] = [VmBuffer(1), VmBuffer(2), None, VmList("i64"), items]
        result = outcome(vm, "f", arguments)
        outcomes.append([shape(item) for item in result] if isinstance(result, list) else result)
        del result, arguments, items
        vm.context.close()
        vm.context.table.drain_deferred()
        assert vm.context.table.live_count == 0, name
    assert outcomes[0] == outcomes[1]
