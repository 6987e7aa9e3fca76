"""Finds in bytecode what a module does not say of its arguments. Their places, and dimensions that are tied,
are found.

Compilers up to release 3.4.0 reuse the hole in front of an aligned 64-bit argument, later ones do not
(:mod:`jitree.vmfb.cconv`), and a module does not record its compiler. The rules differ only when a 32-bit
value follows such a hole. Then the code decides: slots that it reads before it writes them are arguments.

Modules name no dimensions, either. What says that two are the same is ``hal.buffer_view.assert`` of one
argument with a dimension of another, and a comparison of two in front of ``fail``. Both are followed back to
the arguments, on all ways that lead there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from jitree.base.finalizers import SharedWeakKeys
from jitree.errors import StatusError
from jitree.vmfb.cconv import (
    EntryRule,
    RegisterSlot,
    ascending_slots,
    first_fit_slots,
    parse,
    register_counts,
)
from jitree.vmfb.instructions import (
    IMPORT_BIT,
    MOVE_BIT,
    REF_BIT,
    InstructionRecord,
    Moves,
    read_instructions,
)
from jitree.vmfb.schema import FunctionRow, ModuleTables
from jitree.vmfb.words import TAG_REF_COPY, TAG_VALUE32, TAG_VALUE64

if TYPE_CHECKING:
    from jitree.vmfb.program import DecodedModule
    from jitree.vmfb.schema import ModuleTables


_MAXIMUM_PASSES = 64
"""Over the blocks of one function; compiled code settles in two or three."""


def rule_of_code(module: ModuleTables) -> EntryRule:
    """The rule that the code of a module shows; upwards when nothing tells."""
    for function in module.functions:
        rule = _rule_of_function(module, function)
        if rule is not None:
            return rule
    return ascending_slots


def _rule_of_function(module: ModuleTables, function: FunctionRow) -> EntryRule | None:
    """Finds the rule that a function's code shows, else None. None stands for both and for neither."""
    tags = parse(function.cconv).argument_tags or ()
    ascending, first_fit = ascending_slots(tags), first_fit_slots(tags)
    if ascending == first_fit:
        return None
    if register_counts(ascending)[0] > function.value_count >= register_counts(first_fit)[0]:
        return first_fit_slots
    only_ascending = _slot_set(ascending) & ~_slot_set(first_fit)
    only_first_fit = _slot_set(first_fit) & ~_slot_set(ascending)
    try:
        live = _live_at_entry(module, function, only_ascending | only_first_fit)
    except StatusError:
        return None  # damaged code shows nothing; verification will say what is wrong with it
    if live & only_ascending and not live & only_first_fit:
        return ascending_slots
    if live & only_first_fit and not live & only_ascending:
        return first_fit_slots
    return None


# Sets of value slots are integers, one bit a slot.


def _slot_set(registers: Sequence[RegisterSlot]) -> int:
    bits = 0
    for tag, slot in registers:
        if tag != TAG_REF_COPY:
            bits |= (3 if tag == TAG_VALUE64 else 1) << slot
    return bits


def _live_at_entry(module: ModuleTables, function: FunctionRow, universe: int) -> int:
    """Slots of the universe that the function may read before it writes them."""
    blocks: list[list[InstructionRecord]] = []
    for record in read_instructions(bytes(module.body(function)), module.bytecode_version[0]):
        if record.instruction.block_marker or not blocks:
            blocks.append([])
        blocks[-1].append(record)
    live = {block[0].offset: 0 for block in blocks}
    accesses = [[_accesses(module, function, record, universe) for record in block] for block in blocks]
    for _ in range(_MAXIMUM_PASSES):
        changed = False
        for block, of_block in zip(reversed(blocks), reversed(accesses), strict=True):
            bits = _live_out(block[-1], live)
            for reads, writes in reversed(of_block):
                bits = bits & ~writes | reads
            bits &= universe
            changed |= live[block[0].offset] != bits
            live[block[0].offset] = bits
        if not changed:
            break
    return live.get(0, 0)


def _live_out(record: InstructionRecord, live: dict[int, int]) -> int:
    """Lists slots that a block's targets need before its moves."""
    bits = 0
    for target, moves in record.exits():
        bits |= _before_moves(live.get(target, 0), moves)
    return bits


def _before_moves(bits: int, moves: Moves) -> int:
    for source, destination in reversed(moves):
        if not source & REF_BIT:
            bits = bits & ~(1 << destination) | 1 << source
    return bits


def _accesses(
    module: ModuleTables, function: FunctionRow, record: InstructionRecord, universe: int
) -> tuple[int, int]:
    """(slots read, slots written) by an instruction, moves on its branches aside."""
    reads = writes = 0
    tags = _list_tags(module, function, record)
    for operand, value in zip(record.instruction.operands, record.operands, strict=True):
        bits = 0
        if operand.kind in ("r.i32", "r.f32"):
            bits = 1 << value
        elif operand.kind in ("r.i64", "r.f64"):
            bits = 3 << value
        elif operand.kind in ("list.i32", "list.f32"):
            bits = _slot_set([(TAG_VALUE32, slot) for slot in value])
        elif operand.kind in ("list.i64", "list.f64"):
            bits = _slot_set([(TAG_VALUE64, slot) for slot in value])
        elif operand.kind == "list.any":
            of_list = tags.get(operand.name, [TAG_VALUE32] * len(value))
            registers = zip(of_list, value, strict=False)
            bits = _slot_set([(tag, slot) for tag, slot in registers if not slot & REF_BIT])
        if operand.output:
            writes |= bits & universe
        else:
            reads |= bits & universe
    return reads, writes


def _list_tags(
    module: ModuleTables, function: FunctionRow, record: InstructionRecord
) -> dict[str, Sequence[int]]:
    """Maps operand names to register tags in call and return lists."""
    operands = record.named
    if record.instruction.mnemonic == "return":
        return {"values": parse(function.cconv).result_tags}
    if "args" not in operands:
        return {}
    callee = operands["callee"]
    table = module.imports if callee & IMPORT_BIT else module.functions
    ordinal = callee & ~IMPORT_BIT
    cconv = parse((table[ordinal].cconv or "") if ordinal < len(table) else "")
    arguments = cconv.argument_tags
    if arguments is None:
        arguments = cconv.flat_tags(operands.get("segments", ()), len(operands["args"]))
    return {"args": arguments, "outs": cconv.result_tags}


_MOST_BYTES: Final = 1 << 14
"""The most bytes of a function that is read: more in Python takes longer than a failure is to take."""
_MOST_WORK: Final = 1 << 16
"""Bytes of blocks, and registers, that are looked at, again and again in loops."""
_ASSERT, _DIMENSION = ".buffer_view.assert", ".buffer_view.dim"
_FIRST_SIZE: Final = 4
"""Argument of the assertion that is the first dimension."""
_COMPARISONS: Final = {f"cmp.{name}.{kind}": name for name in ("eq", "ne") for kind in ("i32", "i64")}
_EXTENSIONS: Final = ("trunc.i64.i32", "trunc.i64.i32.exact", "ext.i32.i64.s", "ext.i32.i64.u")
_OPPOSITE: Final = {"eq": "ne", "ne": "eq"}
_JOINS: Final = {"and.i32": "eq", "or.i32": "ne"}
"""All of several are equal, or some of them are not."""

_Value = tuple[object, ...]
"""("argument", number), ("dimension", argument, axis), ("number", value), ("high",): the upper half of one;
("eq", *pairs): all these pairs are equal; ("ne", *pairs): some are not."""
_UNKNOWN: Final[_Value] = ("",)
_HIGH: Final[_Value] = ("high",)
_State = dict[int, _Value]
Pair = tuple[_Value, _Value]
_found: Final[SharedWeakKeys[DecodedModule, dict[tuple[int, int], list[str]]]] = SharedWeakKeys()
"""What has been looked for, which takes a millisecond: programs try again."""


def tied(module: ModuleTables, program: DecodedModule, ordinal: int, offset: int) -> list[str]:
    """What the instruction there requires of dimensions of arguments; nothing if it is no such assertion."""
    known = _found.setdefault(program, {})
    if (ordinal, offset) not in known:
        known[ordinal, offset] = _find(module, program, ordinal, offset)
    return known[ordinal, offset]


def _find(module: ModuleTables, program: DecodedModule, ordinal: int, offset: int) -> list[str]:
    function = module.functions[ordinal]
    body = bytes(module.body(function))
    if len(body) > _MOST_BYTES:
        return []
    blocks = list[list[InstructionRecord]]()
    for record in read_instructions(body, module.bytecode_version[0]):
        if record.instruction.block_marker:
            blocks.append([])
        blocks[-1].append(record)
    slots = [slot | REF_BIT for _, slot in program.functions[ordinal].argument_slots]
    types = program.functions[ordinal].cconv.arguments
    start: _State = {slot: ("argument", index) for index, slot in enumerate(slots) if types[index] == "r"}
    names = [row.full_name for row in module.imports]
    flow = _Origins(names, {block[0].offset: block for block in blocks}, start)
    if not flow.is_short:
        return []
    return [f"{_text(one)} has to equal {_text(other)}" for one, other in flow.required(offset)]


def _text(value: _Value) -> str:
    _, argument, axis = value
    return f"dimension {axis} of argument {argument}"


class _Origins:
    """What registers hold at the start of each block, whatever the way to it."""

    def __init__(self, imports: list[str], blocks: dict[int, list[InstructionRecord]], start: _State) -> None:
        self._imports = imports
        self._blocks = blocks
        self._starts: dict[int, _State] = {0: start}
        pending, self._work = [0], 0
        while pending and self.is_short:
            block = blocks[pending.pop()]
            state = self._run(block, None)
            self._work += block[-1].offset - block[0].offset + len(state)
            for target, moves in block[-1].exits():
                entry = dict(state)
                for source, destination in moves:
                    _put(entry, _slot(destination), entry.get(_slot(source)))
                known = self._starts.get(target, entry)
                joined = {slot: value for slot, value in known.items() if entry.get(slot) == value}
                if joined != self._starts.get(target):
                    self._starts[target] = joined
                    pending.append(target)

    @property
    def is_short(self) -> bool:
        """Whether all has been looked at: a hostile program may take as long as it likes."""
        return self._work < _MOST_WORK

    def required(self, offset: int) -> list[Pair]:
        """The pairs of dimensions that are not all equal where the instruction there fails."""
        [block] = [block for block in self._blocks.values() if block[0].offset <= offset <= block[-1].offset]
        [record] = [record for record in block if record.offset == offset]
        if self._callee(record).endswith(_ASSERT):
            return list(self._asserted(record, self._run(block, record)))
        return self._compared(block[0].offset) if record.instruction.mnemonic == "fail" else []

    def _asserted(self, record: InstructionRecord, state: _State) -> Iterator[Pair]:
        words = record.named["args"]
        view = _read(state, words[0], False)
        for axis, size in enumerate(_read(state, word, True) for word in words[_FIRST_SIZE:]):
            own = ("dimension", *view[1:], axis)
            if view[:1] == ("argument",) and size[:1] == ("dimension",) and size != own:
                yield own, size

    def _compared(self, target: int) -> list[Pair]:
        """What is false on the ways to a block; nothing if another reason may lead there."""
        found = list[Pair]()
        for start in self._starts:
            block = self._blocks[start]
            exits = [place for place, _ in block[-1].exits()]
            if target not in exits:
                continue
            kind, *pairs = self._run(block, None).get(block[-1].operands[0], _UNKNOWN)
            is_condition = block[-1].instruction.mnemonic == "cond_br" and exits[0] != exits[1]
            if not is_condition or kind != ("ne" if exits[0] == target else "eq"):
                return []
            found += pairs  # type: ignore[arg-type]
        return found

    def _callee(self, record: InstructionRecord) -> str:
        is_call = record.instruction.mnemonic.startswith("call") and record.operands[0] & IMPORT_BIT
        return self._imports[record.operands[0] & ~IMPORT_BIT] if is_call else ""

    def _run(self, block: list[InstructionRecord], end: InstructionRecord | None) -> _State:
        """What registers hold in front of an instruction, or after the block."""
        state = dict(self._starts[block[0].offset])
        for record in block:
            if record is end:
                break
            made = self._made(record, state)
            for row, value in zip(record.instruction.operands, record.operands, strict=True):
                if row.output:
                    for word in value if isinstance(value, tuple) else (value,):
                        _put(state, _slot(word), made)
                        if not word & REF_BIT and not row.kind.endswith("32"):
                            _put(state, word + 1, made and _HIGH)
        return state

    def _made(self, record: InstructionRecord, state: _State) -> _Value | None:
        mnemonic, operands = record.instruction.mnemonic, record.operands
        if mnemonic in ("const.i32", "const.i32.zero"):
            return ("number", operands[0] if len(operands) > 1 else 0)
        if self._callee(record).endswith(_DIMENSION):
            view, axis = (_read(state, word, False) for word in record.named["args"])
            return ("dimension", view[1], axis[1]) if (view[0], axis[0]) == ("argument", "number") else None
        if mnemonic in _EXTENSIONS:
            value = _read(state, operands[0], mnemonic.startswith("trunc"))
            return value if value[0] == "dimension" else None
        if mnemonic in _COMPARISONS or mnemonic in _JOINS or mnemonic == "xor.i32":
            return _condition(
                mnemonic, *(_read(state, word, mnemonic.endswith("64")) for word in operands[:2])
            )
        return None


def _condition(mnemonic: str, one: _Value, other: _Value) -> _Value | None:
    if mnemonic == "xor.i32":
        opposite = _OPPOSITE.get(str(one[0])) if other == ("number", 1) else None
        return (opposite, *one[1:]) if opposite else None
    if mnemonic in _JOINS:
        return (*one, *other[1:]) if one[0] == other[0] == _JOINS[mnemonic] else None
    return (_COMPARISONS[mnemonic], (one, other)) if one[0] == other[0] == "dimension" else None


def _read(state: _State, word: int, is_wide: bool) -> _Value:
    """What a register holds; of 64 bits if both halves are those of one value."""
    value = state.get(_slot(word), _UNKNOWN)
    return _UNKNOWN if is_wide and state.get(word + 1) != _HIGH else value


def _slot(word: int) -> int:
    return word & ~MOVE_BIT if word & REF_BIT else word


def _put(state: _State, slot: int, value: _Value | None) -> None:
    if value is None:
        state.pop(slot, None)
    else:
        state[slot] = value
