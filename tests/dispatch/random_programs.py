"""Writes random programs, and says what calls of them do that can be seen."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jitree.dispatch.context import Context
from jitree.dispatch.function import VmFunction
from jitree.dispatch.semantics import SEMANTICS
from jitree.errors import StatusError
from jitree.regs.buffer import VmBuffer
from jitree.regs.list import VmList
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.instructions import BY_MNEMONIC
from tests.assembler import Assembler

SINGLES, PAIRS, REFS = range(0, 6), range(6, 14, 2), range(2, 6)
BUFFER, LIST = "%r0", "%r1"
FUEL, ONE, MORE = 14, 15, 16
INTEGERS, FLOATS, FLOAT_PAIRS = (0, 1, 4, 5), range(17, 20), range(20, 26, 2)
"""Of typed programs. The third argument is an i64 in slots 2 and 3."""
SHOWN = 1000
"""Items of a list that are looked at: some programs make millions."""
_STEPS = 60
"""Blocks that a program may execute."""

_ALL = ("i8", "i16", "i32", "i64", "f32", "f64")
_WIDE = ("i32", "i64", "f32", "f64")
_BOTH = ("load", "store")
_MEMORY = (
    *(f"buffer.load.{kind}" for kind in ("i8.u", "i8.s", "i16.u", "i16.s", "i32", "i64", "f32", "f64")),
    *(f"buffer.{access}.{kind}" for access in ("store", "fill") for kind in _ALL),
    "buffer.length", "buffer.copy", "buffer.compare", "buffer.hash", "buffer.clone",
    "list.size", "list.resize", "list.reserve",
    *(f"list.{access}.{kind}" for access in ("get", "set") for kind in _WIDE),
    "list.set.ref", "cmp.eq.ref", "cmp.ne.ref", "cmp.nz.ref", "assign.ref",
    *(f"global.{access}.indirect.{kind}" for access in _BOTH for kind in _WIDE),
)  # fmt: skip
_ARITHMETIC = sorted(
    name for name, row in SEMANTICS.items() if row.result_type.startswith("i") and not name.endswith(".exact")
)
"""Without results of float type: which of two NaNs goes on is open, and would show in the bits."""
_NEW = ("discard.refs", "assign.ref")
"""Not in bytecode 15."""
_WITH_TEXT = ("const", "discard", "typed", "switch", "call", "rodata", "global.ref")


@dataclass
class Writer:
    """Writes the text of a program."""

    pick: Callable[[Sequence[Any]], Any]
    """Chooses one of some."""

    def register(self, kind: str) -> str:
        if kind == "ref":
            return f"%r{self.pick(REFS)}"
        if kind in ("buffer", "list"):  # mostly what it should be
            usual = BUFFER if kind == "buffer" else LIST
            return str(self.pick([usual] * 9 + ["%r2"]))
        return f"%i{self.pick(PAIRS if kind.endswith('64') else SINGLES)}"

    def ref(self) -> str:
        """An operand that may be moved; never out of the two registers that keep a buffer and a list."""
        moved = [f"%R{register}" for register in REFS]
        copied = [f"%r{register}" for register in REFS]
        return str(self.pick([*moved, *copied, BUFFER, BUFFER, LIST]))

    def instruction(self) -> str:
        kind = self.pick(("arithmetic",) * 4 + ("memory",) * 4 + _WITH_TEXT)
        if kind == "arithmetic":
            return self.by_table(self.pick(_ARITHMETIC))
        if kind == "memory":
            return self.by_table(self.pick(_MEMORY))
        return self.special(kind)

    def by_table(self, mnemonic: str) -> str:
        operands, result = [], ""
        for operand in BY_MNEMONIC[mnemonic].operands:
            kind = operand.kind.removeprefix("r.")
            if operand.output:
                result = f"{self.register(kind)} = "
            elif operand.movable:
                operands.append(self.ref())
            else:
                family = mnemonic.split(".")[0] if kind == "ref" else kind
                operands.append(self.register("ref" if family == "cmp" else family))
        return f"{result}{mnemonic} {', '.join(operands)}"

    def special(self, kind: str) -> str:
        i32, i64, ref = (functools.partial(self.register, name) for name in ("i32", "i64", "ref"))
        number = self.pick(range(-3, 21))
        types = ("!vm.buffer", "!vm.list<?>", "!vm.list<i32>")
        name = self.pick(types)
        texts = {
            "const": f"{i32()} = const.i32 {number}\n{i64()} = const.i64 {number}",
            "discard": f"discard.refs [%R{self.pick(REFS)}, {ref()}]",
            "typed": f"{ref()} = cast.any.ref {self.ref()}, {name}\n"
            f"{ref()} = select.ref {i32()}, {name}, {self.ref()}, {self.ref()}\n"
            f"{ref()} = list.get.ref {self.register('list')}, {i32()}, {name}",
            "switch": f"{i32()} = switch.i32 {i32()}, {i32()}, [{i32()}, {i32()}]\n"
            f"{i64()} = switch.i64 {i32()}, {i64()}, []\n"
            f"{ref()} = switch.ref {i32()}, {name}, {self.ref()}, [{self.ref()}, {ref()}]",
            "call": f"[{i32()}, {ref()}, {self.pair()}] = "
            f"call @callee [{i32()}, {self.ref()}, {self.pair()}]",
            "rodata": f"{ref()} = const.ref.rodata 0",
            "global.ref": f"global.store.ref 0, {name}, {self.ref()}\n{ref()} = global.load.ref 0, {name}",
        }
        return texts[kind]

    def pair(self) -> str:
        slot = self.pick(PAIRS)
        return f"%i{slot}:{slot + 1}"

    def moves(self) -> str:
        moves = []
        for _ in range(self.pick(range(0, 4))):
            kind = self.pick(("i32", "i64", "ref"))
            if kind == "ref":
                moves.append(f"{self.ref()}->{self.register('ref')}")
            elif kind == "i32":
                moves.append(f"{self.register('i32')}->{self.register('i32')}")
            else:
                source, target = self.pick(PAIRS), self.pick(PAIRS)
                moves += [f"%i{source + half}->%i{target + half}" for half in (0, 1)]
        return "{" + ", ".join(moves) + "}"

    def program(self) -> str:
        """The body of ``0iiIrr_iIr``: i32 in 0 and 1, i64 in 6, refs in 0 and 1."""
        count = self.pick(range(1, 6))
        names = [f"^b{number}" for number in range(count)]
        lines = [f"%i{FUEL} = const.i32 {_STEPS}", f"%i{ONE} = const.i32 1", "br ^b0"]
        for name in names:
            lines += [f"{name}:", f"%i{FUEL} = sub.i32 %i{FUEL}, %i{ONE}", f"%i{MORE} = cmp.nz.i32 %i{FUEL}"]
            lines += [f"cond_br %i{MORE}, {name}_body, ^end", f"{name}_body:"]
            lines += [self.instruction() for _ in range(self.pick(range(0, 9)))]
            lines.append(self.terminator(names))
        return "\n".join([*lines, "^end:", "return [%i0, %i6:7, %r2]"])

    def terminator(self, names: list[str]) -> str:
        def target() -> str:
            return f"{self.pick([*names, '^end'])} {self.moves()}"

        kind = self.pick(("br", "cond", "compare", "table"))
        if kind == "br":
            return f"br {target()}"
        if kind == "table":
            return f"br_table {self.register('i32')}, {target()}, [{target()}, {target()}]"
        condition = self.register("i32")
        lines = []
        if kind == "compare":
            compares = sorted(name for name in BY_MNEMONIC if name.startswith("cmp."))
            lines.append(self.by_table(self.pick(compares)))
            condition = lines[0].split()[0]
        return "\n".join([*lines, f"cond_br {condition}, {target()}, {target()}"])


_CALLEE = """
    %i1 = add.i32 %i0, %i0
    return [%i1, %r0, %i2:3]
"""


Arguments = tuple[int, int, int]
Outcome = tuple[Any, ...]


def outcome(module: BytecodeModule, tier: str, arguments: Arguments) -> Outcome:
    """What a call does that can be seen."""
    (seen,) = outcomes(module, tier, [arguments])
    return seen


def outcomes(module: BytecodeModule, tier: str, calls: Sequence[Arguments]) -> list[Outcome]:
    """What calls, one after the other, do that can be seen: globals keep what they are given."""
    with Context(RefTypes(), tier=tier) as context:
        context.register([module])
        function = context.lookup("m.f")
        return [_called(context, function, arguments) for arguments in calls]


def _called(context: Context, function: VmFunction, arguments: Arguments) -> Outcome:
    buffer = VmBuffer(64)
    items = VmList("i32")
    for value in range(4):
        items.append(value)
    before = context.table.live_count
    result: tuple[Any, ...]
    try:
        *values, ref = context.invoke(function, [*arguments, buffer, items])
        result = ("done", values, _describe(ref))
        del ref
    except StatusError as error:
        result = (error.code, error.message, tuple(error.backtrace))
    held = context.table.live_count - before
    memory = bytes(buffer), len(items), [_describe(item) for item in islice(items, SHOWN)]
    return result, memory, held


def _describe(ref: object) -> object:
    if isinstance(ref, VmBuffer):
        return bytes(ref)
    return [str(type(item)) for item in islice(ref, SHOWN)] if isinstance(ref, VmList) else ref


def program(text: str, bytecode: int = 17) -> Assembler:
    """The module of what a writer has written."""
    if bytecode == 15:
        text = "\n".join(line for line in text.splitlines() if not line.split("= ")[-1].startswith(_NEW))
    made = Assembler("m", globals_size=16, ref_global_count=1, bytecode=bytecode)
    made.rodata(b"constant bytes: a piece of data.")
    made.function("f", "0iiIrr_iIr", text, value_count=20, ref_count=8)
    return made.function("callee", "0irI_irI", _CALLEE)


class TypedWriter(Writer):
    """Floats have registers of their own, so that functions are not refused."""

    def register(self, kind: str) -> str:
        if kind == "f32":
            return f"%i{self.pick(FLOATS)}"
        if kind == "f64":
            return f"%i{self.pick(FLOAT_PAIRS)}"
        if kind == "i32":
            return f"%i{self.pick(INTEGERS)}"
        return super().register(kind)


_DEEP_CALLEE = """
    cond_br %i0, ^deeper, ^end
    ^deeper:
    %i1 = const.i32 7
    %i0 = and.i32 %i0, %i1
    %i1 = const.i32 -1
    %i0 = add.i32 %i0, %i1
    [%i0, %r1, %i2:3] = call @callee [%i0, %r0, %i2:3]
    %r0 = assign.ref %R1
    br ^end
    ^end:
    %i1 = add.i32 %i0, %i0
    return [%i1, %r0, %i2:3]
"""


def typed_program(text: str) -> Assembler:
    """The module of what a typed writer has written."""
    made = Assembler("m", globals_size=16, ref_global_count=1)
    made.rodata(b"constant bytes: a piece of data.")
    made.function("f", "0iiIrr_iIr", text, value_count=26, ref_count=8)
    return made.function("callee", "0irI_irI", _DEEP_CALLEE)


assert not {*INTEGERS, *(slot + half for slot in PAIRS for half in (0, 1))} & {*FLOATS, *FLOAT_PAIRS}
