"""Represents a function in static single assignment form, with its dominators and loops.

It is what the native tier analyses and emits. Registers become values by *typed views*: the register bank is
seen as separate variables for each slot and type (``i32``, ``f32`` slots; ``i64``, ``f64`` even slots;
``ref`` registers), and an instruction reads and writes the variables its operand kinds name.
:mod:`jitree.dispatch.native.build` makes a :class:`SsaFunction`, after it has proved that every read sees the
view that was written last.

References are owned by registers. The builder resolves who owns what: an instruction says which references
it has to retain before it and drop after it, so that emitting code needs no registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final

from jitree.base.records import NamedTuple
from jitree.vmfb.words import signed

VALUE_TYPES: Final = ("i32", "f32", "i64", "f64")
REF: Final = "ref"

ARGUMENT: Final = "argument"
"""Operation of a function's arguments; ``literals`` is (position,)."""
PHI: Final = "phi"
"""Operation of a block parameter: one operand for each of the block's predecessors, in their order."""
ZERO: Final = "zero"
"""Operation of what a register holds that was never written: 0, or the null reference."""
RESUMED: Final = "resumed"
"""Operation of a value that is read from the frame where execution resumes in the middle of a function."""


class Variable(NamedTuple):
    """A register seen as one type."""

    type: str
    """``i32 f32 i64 f64 ref``"""
    slot: int


variable_of: Final = cache(Variable)
"""The variable of a type and a slot, of which there is one in all functions."""


class Value:
    """A value; identity is equality."""

    __slots__ = ("block", "known", "literals", "name", "number", "operands", "operation", "pc", "type")

    def __init__(
        self,
        number: int,
        type: str,
        operation: str,
        operands: list[Value],
        literals: tuple[int, ...],
        pc: int,
        block: Block,
    ) -> None:
        self.number = number
        """Unique in the function."""
        self.name = f"%v{number}"
        """What it is called in LLVM IR."""
        self.type = type
        """``i32 f32 i64 f64 ref``"""
        self.operation = operation
        """A mnemonic of the instruction table, or one of the constants above."""
        self.operands = operands
        """The instruction's register inputs in table order (of calls: the arguments)."""
        self.literals = literals
        """The instruction's immediates in table order: integers as signed numbers, floats as their bits."""
        self.pc = pc
        """Word index of the instruction; of a block parameter, of the block's first instruction."""
        self.block = block
        self.known: tuple[int, int] | None = None
        """The least and the greatest number that it can be; computed on the first question."""

    def __repr__(self) -> str:
        return (
            f"<{self.name}:{self.type} = {self.operation} {[v.name for v in self.operands]} {self.literals}>"
        )


class SsaInstruction:
    """An instruction in its block. Pure ones have one result, which has the same operands and literals."""

    __slots__ = (
        "changes", "dropped", "inputs", "literals", "live", "mnemonic", "operands", "outputs", "pc",
        "results", "retained",
    )  # fmt: skip

    def __init__(
        self,
        pc: int,
        mnemonic: str,
        operands: tuple[Value, ...],
        literals: tuple[int, ...],
        results: tuple[Value, ...],
        retained: tuple[Value, ...],
        dropped: tuple[Value, ...],
        changes: tuple[tuple[Variable, Value], ...],
        inputs: tuple[Variable, ...],
        outputs: tuple[Variable, ...],
        live: int,
    ) -> None:
        self.pc = pc
        self.mnemonic = mnemonic
        self.operands = operands
        self.literals = literals
        self.results = results
        self.retained = retained
        """References among the operands that need one more count before the instruction."""
        self.dropped = dropped
        """References that have one less afterwards: overwritten ones, discarded ones, at a return all."""
        self.changes = changes
        """What the registers hold afterwards that differs: results, and null where a reference was moved
        away."""
        self.inputs = inputs
        """The register of each operand."""
        self.outputs = outputs
        """The registers that it writes."""
        self.live = live
        """Set of variables (bits by :meth:`SsaFunction.bit`) whose values are needed from here on; no
        refs."""


class Block:
    """A run of instructions; the last one is the terminator."""

    __slots__ = (
        "dominator", "entry", "instructions", "order", "parameters", "pc", "predecessors", "successors",
    )  # fmt: skip

    def __init__(self, pc: int, order: int) -> None:
        self.pc = pc
        """Word index of the first instruction. Unique, but for the block ``ENTRY_PC`` in front of all."""
        self.order = order
        """Position in reverse postorder."""
        self.parameters: list[Value] = []
        self.instructions: list[SsaInstruction] = []
        self.predecessors: list[Block] = []
        """One for each edge; a block that branches here twice is in it twice."""
        self.successors: list[Block] = []
        """Blocks in the order of the terminator: ``cond_br`` if true, if false; ``br_table`` default,
        cases."""
        self.dominator: Block | None = None
        """The block's immediate dominator; None of the entry."""
        self.entry: dict[Variable, Value] = {}
        """What the registers hold at the beginning: every live variable and every ref."""

    @property
    def terminator(self) -> SsaInstruction:
        return self.instructions[-1]

    @property
    def label(self) -> str:
        """The label of the block in LLVM IR, without ``%``."""
        return f"b{self.pc}" if self.pc != ENTRY_PC else "entry"

    def dominates(self, other: Block) -> bool:
        walk: Block | None = other
        while walk is not None and walk.order > self.order:
            walk = walk.dominator
        return walk is self


ENTRY_PC: Final = -1
"""``pc`` of the block in front of a function's first instruction; it ends with a ``br.bare``, or, where
execution resumes, with a ``resume`` that has an edge to each place."""
RESUME: Final = "resume"
"""Mnemonic of that terminator; ``literals`` are the word indices of the places."""


class SsaLoop:
    """A natural loop."""

    __slots__ = ("blocks", "children", "header", "parent")

    def __init__(self, header: Block, blocks: set[Block]) -> None:
        self.header = header
        self.blocks = blocks
        """All blocks of the loop, those of inner loops as well."""
        self.parent: SsaLoop | None = None
        self.children: list[SsaLoop] = []

    @property
    def latches(self) -> list[Block]:
        """The blocks that its back edges come from."""
        return [block for block in self.header.predecessors if block in self.blocks]

    @property
    def exits(self) -> list[tuple[Block, Block]]:
        """(from, to) of each edge out."""
        return [
            (block, target)
            for block in sorted(self.blocks, key=lambda block: block.order)
            for target in block.successors
            if target not in self.blocks
        ]


def with_inner(loops: Sequence[SsaLoop]) -> Iterator[SsaLoop]:
    """Loops and all inside them, inner ones after those that hold them."""
    waiting = list(loops)
    while waiting:
        loop = waiting.pop(0)
        yield loop
        waiting += loop.children


class SsaFunction(NamedTuple):
    """A function, or the part of it that is reachable from where execution resumes."""

    ordinal: int
    value_count: int
    """Value slots of the frame."""
    ref_count: int
    arguments: tuple[Value, ...]
    result_types: tuple[str, ...]
    blocks: list[Block]
    """Blocks in reverse postorder; the first is the entry."""
    loops: list[SsaLoop]
    """Outermost ones; inner ones are their ``children``."""
    record: int
    """The number of its record at run time, or OF_SPAN (:mod:`~jitree.dispatch.native.source`)."""

    @property
    def entry(self) -> Block:
        return self.blocks[0]

    def bit(self, variable: Variable) -> int:
        """The position of a value variable in sets of variables."""
        return VALUE_TYPES.index(variable.type) * self.value_count + variable.slot

    def variables(self, bits: int) -> Iterator[Variable]:
        """The members of a set of value variables."""
        while bits:
            low = bits & -bits
            kind, slot = divmod(low.bit_length() - 1, self.value_count)
            yield variable_of(VALUE_TYPES[kind], slot)
            bits ^= low

    def all_loops(self) -> Iterator[SsaLoop]:
        """Inner ones after those that hold them."""
        return with_inner(self.loops)

    def values(self) -> Iterator[Value]:
        for block in self.blocks:
            yield from block.parameters
            for instruction in block.instructions:
                yield from instruction.results


def constant(value: Value) -> str | None:
    """A value that is a constant as LLVM operand; None for others."""
    operation = value.operation
    if operation == ZERO or operation == "const.ref.zero":
        return {"ref": "null", "f32": "0.0", "f64": "0.0"}.get(value.type, "0")
    if not operation.startswith("const.") or operation == "const.ref.rodata":
        return None
    bits = value.literals[0] if value.literals else 0
    if value.type == "f32":
        return f"bitcast (i32 {signed(bits, 32)} to float)"
    if value.type == "f64":
        return f"bitcast (i64 {signed(bits, 64)} to double)"
    return str(signed(bits, 32 if value.type == "i32" else 64))


def operand(value: Value) -> str:
    """A value as LLVM operand."""
    return constant(value) or value.name


def is_neutral(value: Value) -> bool:
    """Whether a float constant would let LLVM drop arithmetic. These are 0.0, 1.0 and their negatives."""
    bits = value.literals[0] if value.literals else 0
    one, sign = {"f32": (0x3F800000, 1 << 31), "f64": (0x3FF0000000000000, 1 << 63)}.get(value.type, (0, 0))
    return one != 0 and constant(value) is not None and bits & (sign - 1) in (0, one)


def reverse_postorder(entry: int, successors: Callable[[int], Sequence[int]]) -> list[int]:
    """Orders nodes before those that follow, but for back edges."""
    seen = {entry}
    finished: list[int] = []
    stack = [(entry, iter(successors(entry)))]
    while stack:
        node, rest = stack[-1]
        following = next(rest, None)
        if following is None:
            finished.append(node)
            stack.pop()
        elif following not in seen:
            seen.add(following)
            stack.append((following, iter(successors(following))))
    return finished[::-1]


def set_dominators(blocks: Sequence[Block]) -> None:
    """Finds every block's immediate dominator; the blocks are in reverse postorder and know their place."""
    entry = blocks[0]
    entry.dominator = entry
    changed = True
    while changed:
        changed = False
        for block in blocks[1:]:
            common: Block | None = None
            for predecessor in block.predecessors:
                if predecessor.dominator is not None:
                    common = predecessor if common is None else _common(common, predecessor)
            if common is not block.dominator:
                block.dominator = common
                changed = True
    entry.dominator = None


def _common(one: Block, other: Block) -> Block:
    while one is not other:
        while one.order > other.order:
            assert one.dominator is not None
            one = one.dominator
        while other.order > one.order:
            assert other.dominator is not None
            other = other.dominator
    return one


def find_loops(blocks: Sequence[Block]) -> list[SsaLoop]:
    """The outermost natural loops, with those inside them."""
    outermost: list[SsaLoop] = []
    nearest: dict[Block, SsaLoop] = {}
    for block in blocks:
        latches = [source for source in block.predecessors if block.dominates(source)]
        if latches:
            loop = SsaLoop(block, _body(block, latches))
            loop.parent = nearest.get(block)  # in the order of headers: those around it come first
            siblings = outermost if loop.parent is None else loop.parent.children
            siblings.append(loop)
            nearest |= dict.fromkeys(loop.blocks, loop)
    return outermost


def are_deep(blocks: Sequence[Block], most: int) -> bool:
    """Whether more than so many loops are around a block, on an average.

    The blocks know their place in reverse postorder. It says little: what follows a loop may come before its
    body there. So blocks of loops are counted, until they are too many.
    """
    left = (most + 1) * len(blocks)
    for block in blocks:
        latches = [source for source in block.predecessors if source.order >= block.order]
        left -= len(_body(block, latches)) if latches else 0
        if left <= 0:
            return True
    return False


def _body(header: Block, latches: Sequence[Block]) -> set[Block]:
    body = {header}
    waiting = list(latches)
    while waiting:
        block = waiting.pop()
        if block not in body:
            body.add(block)
            waiting += block.predecessors
    return body
