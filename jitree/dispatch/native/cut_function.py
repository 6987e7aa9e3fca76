"""Lowers a kernel whose workgroups can be cut into parallel parts.

The parts run at the same time.

The guards of all nests come first, then the loops of all nests. So nothing has happened when a guard fails:
in the first part the interpreter goes on at the first nest with the whole workgroup, and the other parts do
nothing. All parts find the same, since guards look at sizes, addresses and constants only, which no part
changes.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import ModuleText
from jitree.dispatch.native.calls import Callees
from jitree.dispatch.native.emitter import Emitter, Registers
from jitree.dispatch.native.lower_function import BRANCH_EMITTERS, lower_block, lower_instruction
from jitree.dispatch.native.nest_context import nest_context, nest_label
from jitree.dispatch.native.nests import Nest
from jitree.dispatch.native.nests.cutting import Cut, best_cut
from jitree.dispatch.native.nests.guard import are_apart
from jitree.dispatch.native.nests.loops import LoopRange
from jitree.dispatch.native.nests.operations import is_pure
from jitree.dispatch.native.nests.passes import BegunNest
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.ssa import Block, SsaFunction, SsaInstruction, Value

PARAMETERS: Final = ("part", "parts")
"""Parameters of such a function after the kernel's: which part of the workgroup it runs, of how many."""
_CONSTANTS: Final = 1
"""The kernel's argument whose elements nothing changes while it runs."""


class _Effect(NamedTuple):
    """An instruction between two nests that is done when the first one's loops are."""

    instruction: SsaInstruction
    registers: Registers


def find_cut(function: SsaFunction, nests: list[Nest]) -> Cut | None:
    """How a kernel's workgroups are cut; None if they are not."""
    inside = {block for nest in nests for block in nest.loop.blocks}
    others = [block for block in function.blocks if block not in inside]
    if not nests or any(len(block.successors) > 1 for block in others):
        return None
    first, last = nests[0].loop.header.order, nests[-1].loop.header.order
    scratch = {
        value
        for block in others
        for instruction in block.instructions
        if instruction.mnemonic == "buffer.alloc"
        for value in instruction.results
    }
    for block in others:
        if not _is_allowed(function, block, scratch, first < block.order < last, block.order > last):
            return None
    return best_cut(nests, scratch)


def _is_allowed(
    function: SsaFunction, block: Block, scratch: set[Value], is_between: bool, is_last: bool
) -> bool:
    """Whether parts may all run a block outside of nests, whatever else they run."""
    for instruction in block.instructions:
        mnemonic = instruction.mnemonic
        if is_pure(instruction) or mnemonic in ("br", "br.bare", "return", "discard.refs"):
            continue
        if mnemonic.startswith("buffer.store.") and instruction.operands[0] in scratch and not is_last:
            continue
        is_constant = (
            mnemonic.startswith("buffer.load.") and instruction.operands[0] is function.arguments[_CONSTANTS]
        )
        is_input = mnemonic in ("list.get.ref", "const.ref.rodata", "buffer.alloc")
        if is_between or is_last or not (is_constant or is_input):
            return False
    return True


def lower_cut_function(
    function: SsaFunction,
    cut: Cut,
    module: ModuleText,
    callees: Callees,
    symbol: str,
    borrowed: Container[Value] = (),
) -> str:
    """The definition of ``@symbol``, with more parameters: see PARAMETERS."""
    emitter = Emitter(function, module, symbol, callees.asks, PARAMETERS)
    emitter.borrowed = borrowed
    by_header = {part.nest.loop.header: number for number, part in enumerate(cut.nests)}
    inside = {block for part in cut.nests for block in part.nest.loop.blocks}
    emitter.filled = cut.filled
    emitter.headers = {header: nest_label(header) for header in by_header}
    nests = _CutNests(emitter, cut)
    for block in function.blocks:
        if block in by_header:
            nests.begin(by_header[block])
        elif block in inside:
            continue
        elif nests.are_open:
            nests.postpone(block)
        else:
            lower_block(emitter, block, callees)
    return emitter.text()


class _CutNests:
    """The nests of one function, and what is between them."""

    def __init__(self, emitter: Emitter, cut: Cut) -> None:
        self._emitter = emitter
        self._cut = cut
        self._begun: list[BegunNest] = []
        self._effects: list[list[_Effect]] = []
        """Effects that come after each nest."""
        self._deopt = ""

    @property
    def are_open(self) -> bool:
        """Whether the first one has begun, and not all."""
        return 0 < len(self._begun) < len(self._cut.nests)

    def begin(self, number: int) -> None:
        """Writes the guard of a nest, and after the last one all loops."""
        nest, emitter = self._cut.nests[number].nest, self._emitter
        context = nest_context(emitter, nest.loop, self._deopt)
        self._deopt = context.deopt
        begun = nest.begin(context, [room for at, room in self._cut.rooms if at == number])
        self._begun.append(begun)
        self._effects.append([])
        if len(self._begun) == len(self._cut.nests):
            self._finish(begun.writer)
        else:
            emitter.raw(begun.writer.taken())
        emitter.jump(context.done)
        emitter.label(context.done)
        emitter.jump(context.exit)

    def postpone(self, block: Block) -> None:
        """Writes a block between two nests but for its effects."""
        emitter = self._emitter
        emitter.begin_block(block)
        for instruction in block.instructions:
            if instruction is block.terminator:
                BRANCH_EMITTERS[instruction.mnemonic](emitter, block, instruction)
            elif is_pure(instruction):
                lower_instruction(emitter, instruction)
            else:
                self._effects[-1].append(_Effect(instruction, dict(emitter.registers)))
            emitter.registers.update(instruction.changes)

    def _finish(self, writer: Writer) -> None:
        """Decides, after the last guard, what runs, and writes the loops and effects in their order."""
        emitter = self._emitter
        start, end, going = self._decide(writer)
        emitter.raw(writer.taken())
        for part, begun, effects in zip(self._cut.nests, self._begun, self._effects, strict=True):
            text = begun.writer
            here, after = text.fresh("loops"), text.fresh("after")
            emitter.jump(here)
            text.label(here)
            runs = going if begun.runs == "true" else text.let(f"and i1 {going}, {begun.runs}")
            with text.maybe(runs, []):
                begun.loops(None if part.level is None else LoopRange(part.level, start, end))
            text.jump(after)
            emitter.raw(text.taken())
            emitter.label(after)
            for effect in effects:
                emitter.registers = effect.registers
                emitter.safepoint(effect.instruction)
                lower_instruction(emitter, effect.instruction)

    def _decide(self, writer: Writer) -> tuple[str, str, str]:
        """The first iteration of the loop that is cut, the one after the last, and whether anything runs."""
        last, begun = self._cut.nests[-1], self._begun[-1]
        assert last.level is not None
        count = begun.extent(last.level)
        is_first = writer.let("icmp eq i64 %part, 0")
        fits = _all(writer, [nest.fits for nest in self._begun])
        refused, fitting, cut, divide, join = map(
            writer.fresh, ("refused", "fitting", "cut", "divide", "join")
        )
        writer.branch(fits, fitting, refused)
        writer.label(refused)
        writer.branch(is_first, self._deopt, join)
        writer.label(fitting)
        writer.branch(writer.let("icmp ugt i64 %parts, 1"), cut, join)
        writer.label(cut)
        writer.branch(self._may_be_cut(writer), divide, join)
        writer.label(divide)
        first, end = self._range(writer, count)
        writer.jump(join)
        writer.label(join)
        ways = [refused, fitting, cut]
        starts = ", ".join(f"[ 0, %{way} ]" for way in ways)
        ends = ", ".join(f"[ {count}, %{way} ]" for way in ways)
        start = writer.let(f"phi i64 {starts}, [ {first}, %{divide} ]")
        stop = writer.let(f"phi i64 {ends}, [ {end}, %{divide} ]")
        going = writer.let(
            f"phi i1 [ false, %{refused} ], [ true, %{fitting} ], [ {is_first}, %{cut} ], [ true, %{divide} ]"
        )
        some = writer.let(f"icmp slt i64 {start}, {stop}")
        return start, stop, writer.let(f"and i1 {going}, {some}")

    def _may_be_cut(self, writer: Writer) -> str:
        """Whether no part touches what is another's."""
        conditions = [room for begun in self._begun for room in begun.rooms]
        for (one, left), (other, right) in self._cut.apart:
            ranges = self._begun[one].ranges[left], self._begun[other].ranges[right]
            conditions.append(are_apart(writer, *ranges))
        return _all(writer, conditions)

    def _range(self, writer: Writer, count: str) -> tuple[str, str]:
        """The iterations of a loop that this part runs: an even share in units of the cut."""
        unit = self._cut.unit
        rounded = writer.let(f"add i64 {writer.intrinsic('smax', 'i64', 1, [count, '0'])}, {unit - 1}")
        units = writer.let(f"udiv i64 {rounded}, {unit}")
        places = []
        for part in ("%part", writer.let("add i64 %part, 1")):
            share = writer.let(f"udiv i64 {writer.let(f'mul i64 {units}, {part}')}, %parts")
            places.append(writer.let(f"mul i64 {share}, {unit}"))
        return places[0], writer.intrinsic("smin", "i64", 1, [places[1], count])


def _all(writer: Writer, conditions: list[str]) -> str:
    result = "true"
    for condition in conditions:
        result = condition if result == "true" else writer.let(f"and i1 {result}, {condition}")
    return result
