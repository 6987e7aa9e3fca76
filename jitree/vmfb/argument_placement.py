"""Finds which of two compiler rules placed the arguments of a module's functions.

Compilers up to release 3.4.0 reuse the hole in front of an aligned 64-bit argument, later ones do not
(:mod:`jitree.vmfb.cconv`), and a module does not record its compiler. The rules differ only when a 32-bit
value follows such a hole. Then the code decides: slots that it reads before it writes them are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitree.errors import StatusError
from jitree.vmfb.cconv import (
    EntryRule,
    RegisterSlot,
    ascending_slots,
    first_fit_slots,
    parse,
    register_counts,
)
from jitree.vmfb.instructions import IMPORT_BIT, REF_BIT, InstructionRecord, Moves, read_instructions
from jitree.vmfb.schema import FunctionRow, ModuleTables
from jitree.vmfb.words import TAG_REF_COPY, TAG_VALUE32, TAG_VALUE64

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
    """The rule that the code of one function shows, None when both or neither would do."""
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
    """Slots that the targets of a block's last instruction need, seen in front of the moves to them."""
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
    """Tags of the registers in the lists of a call or return, by operand name."""
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
