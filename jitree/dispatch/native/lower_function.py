"""Lowers one function to LLVM IR.

Blocks come one by one, each instruction by its family, then branches.

Of a kernel whose workgroups can be cut into parts, which run at the same time, the guards of all nests come
first, then the loops of all nests. So nothing has happened when a guard fails: in the first part the
interpreter goes on at the first nest with the whole workgroup, and the other parts do nothing. All parts find
the same, since guards look at sizes, addresses and constants only, which no part changes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import LLVM_TYPES, ModuleText
from jitree.codegen.vector_math.ir import FUNCTIONS, calling_shared, function_texts
from jitree.dispatch.native import calls, compiled_site, rows
from jitree.dispatch.native.build import Refusal
from jitree.dispatch.native.calls import Callees
from jitree.dispatch.native.compiled_site import emit_slow
from jitree.dispatch.native.emitter import Emitter, Registers
from jitree.dispatch.native.nests import Nest
from jitree.dispatch.native.nests.cutting import Cut, Start, best_cut
from jitree.dispatch.native.nests.guard import all_of, are_apart
from jitree.dispatch.native.nests.loops import LoopRange
from jitree.dispatch.native.nests.operations import is_pure
from jitree.dispatch.native.nests.passes import BegunNest
from jitree.dispatch.native.nests.writer import Writer, emit_nest, nest_context, nest_label
from jitree.dispatch.native.reading import SLOW
from jitree.dispatch.native.ssa import (
    ENTRY_PC,
    REF,
    RESUME,
    RESUMED,
    Block,
    SsaFunction,
    SsaInstruction,
    Value,
    constant,
    is_neutral,
    operand,
)
from jitree.dispatch.semantics import SEMANTICS, Semantic
from jitree.regs.layout import FRAME, STATE

if TYPE_CHECKING:
    from jitree.dispatch.native.nests import Nest


_EMITTERS: Final[Mapping[str, Callable[[Emitter, SsaInstruction], None]]] = {
    **dict.fromkeys(SLOW, emit_slow),
    **compiled_site.EMITTERS,
    **calls.EMITTERS,
}
_EFFECTS: Final = frozenset((
    *SLOW, "call.internal", "list.alloc", "list.resize",
    *(name for name in _EMITTERS if name.startswith(("buffer.store", "buffer.fill", "buffer.copy",
                                                     "global.store", "list.set"))),
))  # fmt: skip
"""Instructions that must not be executed twice; besides those that make, take or drop references."""
_CONSTANTS: Final = ("const.i32", "const.i64", "const.f32", "const.f64")


def _emit_br(emitter: Emitter, block: Block, instruction: SsaInstruction) -> None:
    target = block.successors[0]
    emitter.retain_all(instruction.retained)
    emitter.drop_all(instruction.dropped)
    emitter.do(f"br label %{emitter.edge(block, target)}")


def _emit_conditional(emitter: Emitter, block: Block, instruction: SsaInstruction) -> None:
    condition = emitter.truth(instruction.operands[0])
    if_true, if_false = (emitter.edge(block, target) for target in block.successors)
    emitter.branch(condition, if_true, if_false)


def _emit_table(emitter: Emitter, block: Block, instruction: SsaInstruction) -> None:
    """index; default, cases"""
    default, *labels = [emitter.edge(block, target) for target in block.successors]
    cases = " ".join(f"i32 {number}, label %{label}" for number, label in enumerate(labels))
    emitter.do(f"switch i32 {operand(instruction.operands[0])}, label %{default} [ {cases} ]")


def _emit_fail(emitter: Emitter, block: Block, instruction: SsaInstruction) -> None:
    if not block.successors:
        _emit_side_exit(emitter, block, instruction)
        return
    emitter.require(emitter.let(f"icmp eq i32 {operand(instruction.operands[0])}, 0"))
    _emit_br(emitter, block, instruction)


def _emit_side_exit(emitter: Emitter, block: Block, instruction: SsaInstruction) -> None:
    emitter.jump(emitter.side_exit())


def _emit_resume(emitter: Emitter, block: Block, instruction: SsaInstruction) -> None:
    """Goes to the place that STATE.pc says."""
    place = emitter.let(f"load i64, ptr {emitter.field('%state', STATE['pc'])}, align 8")
    code = emitter.let(f"ptrtoint ptr {emitter.module_pointer('code')} to i64")
    word = emitter.let(f"lshr i64 {emitter.let(f'sub i64 {place}, {code}')}, 2")
    pairs = zip(instruction.literals, block.successors, strict=True)
    cases = " ".join(f"i64 {pc}, label %{emitter.edge(block, target)}" for pc, target in pairs)
    lost = emitter.fresh("lost")
    emitter.do(f"switch i64 {word}, label %{lost} [ {cases} ]")
    emitter.label(lost)
    emitter.do("unreachable")


BRANCH_EMITTERS: Final[dict[str, Callable[[Emitter, Block, SsaInstruction], None]]] = {
    "br": _emit_br,
    "br.bare": _emit_br,
    "break": _emit_br,
    "cond_br": _emit_conditional,
    "cond_break": _emit_conditional,
    "br_table": _emit_table,
    "fail": _emit_fail,
    "yield": _emit_side_exit,
    RESUME: _emit_resume,
}
"""Emitters of terminators, ``return`` aside."""


def check_supported(function: SsaFunction) -> None:
    """Raises :class:`Refusal` for an instruction that no emitter knows."""
    for block in function.blocks:
        for instruction in block.instructions:
            mnemonic = instruction.mnemonic
            if not (
                mnemonic in _EMITTERS
                or mnemonic in BRANCH_EMITTERS
                or mnemonic.startswith(_CONSTANTS)
                or mnemonic.startswith("switch.")
                or mnemonic == "call.internal"
                or mnemonic in SEMANTICS
            ):
                raise Refusal(f"{mnemonic} is not lowered")


def lower_function(
    function: SsaFunction,
    nests: Iterable[Nest],
    module: ModuleText,
    callees: Callees,
    symbol: str,
    borrowed: Container[Value] = (),
) -> str:
    """The definition of ``@symbol``; ``nests`` of the function are written anew. Others keep references that
    are ``borrowed``."""
    emitter = Emitter(function, module, symbol, callees.asks)
    emitter.borrowed = borrowed
    by_header = {nest.loop.header: nest for nest in nests}
    inside = {block for nest in by_header.values() for block in nest.loop.blocks}
    emitter.headers = {header: nest_label(header) for header in by_header}
    for block in function.blocks:
        if block in by_header:
            emit_nest(emitter, by_header[block])
        elif block not in inside:
            lower_block(emitter, block, callees)
    return emitter.text()


def lower_block(emitter: Emitter, block: Block, callees: Callees) -> None:
    emitter.begin_block(block)
    if block.pc == ENTRY_PC:
        _lower_entry(emitter, block)
    elif any(source.order >= block.order for source in block.predecessors):
        emitter.spend_iteration(block)  # nothing runs for ever that does not come back here
    emitter.safepoint(block.instructions[0])
    for number, instruction in enumerate(block.instructions):
        if instruction is block.terminator and instruction.mnemonic in BRANCH_EMITTERS:
            BRANCH_EMITTERS[instruction.mnemonic](emitter, block, instruction)
            return
        if instruction.mnemonic == "call.internal":
            calls.emit_call(emitter, instruction, block.instructions[number + 1], callees)
        else:
            lower_instruction(emitter, instruction)
        emitter.registers.update(instruction.changes)
        if _has_effect(emitter, instruction) and instruction is not block.terminator:
            emitter.safepoint(block.instructions[number + 1])


def _lower_entry(emitter: Emitter, block: Block) -> None:
    """Writes where callees' frames would be; the fuel; values from the frame where execution resumes."""
    function = emitter.function
    emitter.do(f"%frame.next = getelementptr i8, ptr %frame, i64 {FRAME.size}")
    emitter.do(f"%values.next = getelementptr i8, ptr %values, i64 {4 * function.value_count}")
    emitter.do(f"%refs.next = getelementptr i8, ptr %refs, i64 {8 * function.ref_count}")
    emitter.do("%fuel.at = alloca i64, align 8")
    emitter.do("store i64 %fuel, ptr %fuel.at, align 8")
    for argument in function.arguments:
        emitter.defined(argument)
    for variable, value in block.entry.items():
        if value.operation == RESUMED:
            emitter.define(value, emitter.load(variable))


def _has_effect(emitter: Emitter, instruction: SsaInstruction) -> bool:
    made = (value for value in instruction.results if value.type == REF)
    return instruction.mnemonic in _EFFECTS or any(
        emitter.is_counted(value) for value in (*instruction.retained, *instruction.dropped, *made)
    )


def lower_instruction(emitter: Emitter, instruction: SsaInstruction) -> None:
    mnemonic = instruction.mnemonic
    emit = _EMITTERS.get(mnemonic)
    if emit is not None:
        emit(emitter, instruction)
    elif mnemonic.startswith("switch."):
        _lower_switch(emitter, instruction)
    elif not mnemonic.startswith(_CONSTANTS):
        _lower_scalar(emitter, instruction)


def _lower_scalar(emitter: Emitter, instruction: SsaInstruction) -> None:
    mnemonic, result = instruction.mnemonic, instruction.results[0]
    arguments = [operand(value) for value in instruction.operands]
    if result.type in ("f32", "f64"):
        folds = all(constant(value) is not None for value in instruction.operands)
        arguments = [
            rows.fenced(emitter.let, emitter.module.declare, value.type, 1, text)
            if value.type.startswith("f") and (folds or is_neutral(value))
            else text
            for value, text in zip(instruction.operands, arguments, strict=True)
        ]
    semantic = SEMANTICS[mnemonic]
    emitter.require_valid(mnemonic, semantic, arguments)
    condition = rows.condition(emitter.let, emitter.module.declare, mnemonic, arguments)
    if condition is not None:
        emitter.conditions[result] = condition
        emitter.define(result, f"zext i1 {condition} to i32")
        return
    if semantic.math_function is not None:
        emitter.define(result, _call(semantic, emitter.math(semantic.math_function), arguments) + " #4")
    elif mnemonic in FUNCTIONS:
        symbol = f'@"math.{mnemonic}"'
        for text in calling_shared(function_texts(mnemonic, symbol, 1, "internal")):
            emitter.module.define(text)
        emitter.define(result, _call(semantic, symbol, arguments))
    else:
        emitter.name(result, rows.result(emitter.let, emitter.module.declare, mnemonic, arguments, 1))


def _call(semantic: Semantic, function: str, arguments: Iterable[str]) -> str:
    """A call of a C function, or of one of vector mathematics."""
    kinds = [LLVM_TYPES[kind] for kind in semantic.argument_types]
    typed = ", ".join(f"{kind} {argument}" for kind, argument in zip(kinds, arguments, strict=True))
    return f"call {LLVM_TYPES[semantic.result_type]} {function}({typed})"


def _lower_switch(emitter: Emitter, instruction: SsaInstruction) -> None:
    """index, default, cases: the default for any other index"""
    index, default, *cases = instruction.operands
    result = instruction.results[0]

    kind = LLVM_TYPES[result.type]
    chosen = operand(default)
    for number, case in enumerate(cases):
        matches = emitter.let(f"icmp eq i32 {operand(index)}, {number}")
        chosen = emitter.let(f"select i1 {matches}, {kind} {operand(case)}, {kind} {chosen}")
    emitter.name(result, chosen)


PARAMETERS: Final = ("part", "parts")
"""Parameters of such a function after the kernel's: which part of the workgroup it runs, of how many."""
_OF_MODULE: Final = 1
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
            mnemonic.startswith("buffer.load.") and instruction.operands[0] is function.arguments[_OF_MODULE]
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
    emitter.filled = cut.filled - _stored_outside(function, inside, cut.nests[0].nest.loop.header.order)
    emitter.headers = {header: nest_label(header) for header in by_header}
    stored = _stored_outside(function, inside)
    nests = _CutNests(emitter, cut, [start for start in cut.starts if start.buffer not in stored])
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


def _stored_outside(function: SsaFunction, inside: Container[Block], end: int | None = None) -> set[Value]:
    """The buffers that are stored to outside of nests, in blocks before ``end``: a side exit in front of all
    nests may not zero them, and sums in them begin with what is stored."""
    return {
        instruction.operands[0]
        for block in function.blocks
        if block not in inside and (end is None or block.order < end)
        for instruction in block.instructions
        if instruction.mnemonic.startswith("buffer.store.")
    }


class _CutNests:
    """The nests of one function, and what is between them."""

    def __init__(self, emitter: Emitter, cut: Cut, starts: Sequence[Start]) -> None:
        self._emitter = emitter
        self._cut = cut
        self._starts = starts
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
        """Decides what runs after the last guard, and writes it in order."""
        emitter = self._emitter
        start, end, going = self._decide(writer)
        emitter.raw(writer.taken())
        # What leaves from here is a store between nests that fails. The interpreter does it again, and fails
        # in the same way: that ends the program, and nobody reads what is not filled yet.
        emitter.filled = ()
        storing = {start.storing for start in self._starts}
        nests = zip(self._cut.nests, self._begun, self._effects, strict=True)
        for number, (part, begun, effects) in enumerate(nests):
            text = begun.writer
            here, after = text.fresh("loops"), text.fresh("after")
            emitter.jump(here)
            text.label(here)
            if number not in storing:
                constants = {one.buffer: one.constant for one in self._starts if one.summing == number}
                runs = going if begun.runs == "true" else text.let(f"and i1 {going}, {begun.runs}")
                with text.maybe(runs, []):
                    begun.loops(None if part.level is None else LoopRange(part.level, start, end), constants)
            text.jump(after)
            emitter.raw(text.taken())
            emitter.label(after)
            for effect in effects:
                emitter.registers = effect.registers
                emitter.safepoint(effect.instruction)
                lower_instruction(emitter, effect.instruction)

    def _decide(self, writer: Writer) -> tuple[str, str, str]:
        """Gives the cut loop's first iteration, its end, and whether anything runs."""
        last, begun = self._cut.nests[-1], self._begun[-1]
        assert last.level is not None
        count = begun.extent(last.level)
        is_first = writer.let("icmp eq i64 %part, 0")
        fits = all_of(writer, [nest.fits for nest in self._begun])
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
        return all_of(writer, conditions)

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
