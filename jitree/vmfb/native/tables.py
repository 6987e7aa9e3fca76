"""Tells the machine code of loading about instructions, as halfwords.

They come from the instruction table.

They come with the image. Only the builder and tests import this.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from jitree.codegen.record import layout_of, size_of, words_of
from jitree.vmfb.instructions import BY_MNEMONIC, INSTRUCTIONS, SETS, Instruction, Operand
from jitree.vmfb.native import layout
from jitree.vmfb.native.layout import COND_BR_KEYS, Node, OperandPlan, Tables
from jitree.vmfb.superinstructions import LOOP_OPCODE, SHAPES, SUPERINSTRUCTIONS, Part
from jitree.vmfb.tables import FIRST_LOCATION, schema_words
from jitree.vmfb.words import BASE_OPCODE, EXACT, OPCODE, SUMS, TRUNCATION

SPECIAL: Final = {
    "br": layout.SPECIAL_BR,
    "yield": layout.SPECIAL_JUMP,
    "break": layout.SPECIAL_JUMP,
    "cond_br": layout.SPECIAL_COND_BR,
    "cond_break": layout.SPECIAL_COND_BREAK,
    "br_table": layout.SPECIAL_BR_TABLE,
    "fail": layout.SPECIAL_FAIL,
    "return": layout.SPECIAL_RETURN,
    "call": layout.SPECIAL_CALL,
    "call.variadic": layout.SPECIAL_CALL_VARIADIC,
    "call.yieldable": layout.SPECIAL_CALL_YIELDABLE,
    "call.variadic.yieldable": layout.SPECIAL_CALL_VARIADIC_YIELDABLE,
}
KINDS: Final = {
    "r.i32": layout.KIND_VALUE, "r.f32": layout.KIND_VALUE, "r.i64": layout.KIND_PAIR,
    "r.f64": layout.KIND_PAIR, "imm.i32": layout.KIND_LITERAL32, "imm.f32": layout.KIND_LITERAL32,
    "imm.i64": layout.KIND_LITERAL64, "imm.f64": layout.KIND_LITERAL64, "imm.func": layout.KIND_IMPORT,
    "imm.gref": layout.KIND_REF_GLOBAL, "imm.rodata": layout.KIND_RODATA, "imm.type": layout.KIND_TYPE,
    "string": layout.KIND_STRING, "list.i32": layout.KIND_LIST_VALUE, "list.f32": layout.KIND_LIST_VALUE,
    "list.i64": layout.KIND_LIST_PAIR, "list.f64": layout.KIND_LIST_PAIR, "list.ref": layout.KIND_LIST_REF,
    "list.any": layout.KIND_LIST_ANY,
}  # fmt: skip
_VARIANTS: Final = (*SHAPES[1:], "cond_br:true", "cond_br:false")
_BRANCH_KEYS: Final = {name: len(BASE_OPCODE) + number for number, name in enumerate(_VARIANTS)}
"""Keys of branches by shape and next block. The keys of all other parts are opcode words."""
_KEYS: Final = {
    **OPCODE, **{loop.name: opcode for loop, opcode in LOOP_OPCODE.items()},
    "br:": OPCODE["br.bare"], **_BRANCH_KEYS,
}  # fmt: skip


class _Prefix:
    """The first parts of a superinstruction, of which ``part`` is the last."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.opcode = 0
        self.following: dict[int, list[_Prefix]] = {}


def generate() -> bytes:
    """The TABLES record and all that it leads to."""
    named, words = words_of(Tables), array("H", bytes(size_of(Tables) + 2 * 256 * len(SETS)))
    words[named.marker] = BY_MNEMONIC["block"].opcode
    for row in INSTRUCTIONS:
        if row.set in SETS and not row.block_marker:
            place = size_of(Tables) // 2 + 256 * SETS.index(row.set) + row.opcode
            words[place] = _add(words, _plan(row))
    words[named.shapes] = _add(words, _shape_keys())
    loops = [_add(words, rows) if rows else 0 for rows in _loops()]
    words[named.loops] = _add(words, loops)
    roots = [0] * (len(BASE_OPCODE) + len(_BRANCH_KEYS) + 1)
    for key, prefixes in _tree().items():
        roots[key] = _add_row(words, prefixes)
    words[named.roots] = _add(words, roots)
    words[named.schema] = _add(words, schema_words())
    words[named.unions] = FIRST_LOCATION
    return words.tobytes() + bytes(8)


def _add(words: array[int], more: Sequence[int]) -> int:
    """Adds words; the place where they are now."""
    words.extend(more)
    return len(words) - len(more)


def _plan(row: Instruction) -> list[int]:
    special = SPECIAL.get(row.mnemonic, layout.SPECIAL_NONE)
    kinds = [] if special else [_kind(row, operand) for operand in row.operands]
    plan = struct.pack("<3H2B", row.index, row.since, special, len(kinds), _size_rule(row.index))
    assert len(plan) == size_of(OperandPlan)
    return [*array("H", plan), *kinds]


def _size_rule(opcode: int) -> int:
    if opcode in SUMS or opcode == TRUNCATION:
        return layout.SIZES_WITH_ARGUMENTS
    return layout.SIZES_ALWAYS if opcode in EXACT else 0


def _kind(row: Instruction, operand: Operand) -> int:
    if operand.kind == "imm.gbyte":
        return layout.KIND_GLOBAL64 if row.mnemonic.endswith("64") else layout.KIND_GLOBAL32
    if operand.kind != "r.ref":
        return KINDS[operand.kind]
    if operand.output:
        return layout.KIND_REF
    return layout.KIND_REF_MOVABLE if operand.movable else layout.KIND_REF_KEPT


def _shapes() -> list[str]:
    """Shapes of branches by their number, ``?`` for those that have none."""
    names = ["?"] * COND_BR_KEYS
    for number in range(1, COND_BR_KEYS):
        names[number] = "br:" + f"{number:b}"[1:].replace("0", "w").replace("1", "d")
    return names


def _shape_keys() -> list[int]:
    names = (*_shapes(), "cond_br:true", "cond_br:false")
    return [_KEYS.get(name, 0) for name in names]


def _loops() -> list[list[int]]:
    """Loops by shape: comparison and opcode each, and a 0."""
    found = []
    for shape in _shapes():
        rows = [(OPCODE[loop.compare], opcode) for loop, opcode in LOOP_OPCODE.items() if loop.shape == shape]
        found.append([*(number for row in rows for number in row), 0] if rows else [])
    return found


def _tree() -> dict[int, list[_Prefix]]:
    """The first parts of superinstructions by key; their opcode words follow those of loops."""
    root: dict[int, list[_Prefix]] = {}
    for opcode, parts in enumerate(SUPERINSTRUCTIONS, len(BASE_OPCODE) - len(SUPERINSTRUCTIONS)):
        prefixes = root
        for part in parts:
            prefix = _prefix_of(prefixes.setdefault(_KEYS[part.name], []), part)
            prefixes = prefix.following
        prefix.opcode = opcode
    return root


def _prefix_of(row: list[_Prefix], part: Part) -> _Prefix:
    """Finds the entry that ends in a part, by its key. Those with most links are first."""
    for prefix in row:
        if prefix.part == part:
            return prefix
    made = _Prefix(part)
    row.append(made)
    row.sort(key=lambda prefix: -len(prefix.part.links))
    return made


def _add_row(words: array[int], prefixes: Iterable[_Prefix]) -> int:
    return _add(words, [*(_add_prefix(words, prefix) for prefix in prefixes), 0])


def _add_prefix(words: array[int], prefix: _Prefix) -> int:
    place = 0
    if prefix.following:
        rows = [(key, _add_row(words, prefixes)) for key, prefixes in prefix.following.items()]
        place = _add(words, [*(number for row in rows for number in row), 0])
    size, width = _sizes(prefix.part.name)
    links = prefix.part.links
    values = {
        "size": size, "width": width, "opcode": prefix.opcode, "following": place, "links": len(links),
    }  # fmt: skip
    flat = [number for link in links for number in link]
    padding = [0] * (size_of(Node) // 2 - len(values))
    return _add(words, [*(values[field] for field in layout_of(Node).offsets), *padding, *flat])


def _sizes(name: str) -> tuple[int, int]:
    """(words of a part, slots that it writes)."""
    row = BY_MNEMONIC.get(name)
    operands = row.operands if row else ()  # special cases of branches end a superinstruction
    size = 1 + sum(2 if operand.kind in ("imm.i64", "imm.f64") else 1 for operand in operands)
    return size, 2 if operands and operands[-1].kind in ("r.i64", "r.f64") else 1
