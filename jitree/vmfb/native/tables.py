"""Makes what the machine code of loading knows of instructions, as halfwords, from the instruction table.

They come with the image. Only the builder and tests import this.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from jitree.vmfb.isa import BY_MNEMONIC, INSTRUCTIONS, SETS, Instruction, Operand
from jitree.vmfb.native import layout, schema
from jitree.vmfb.native.layout import COND_BR_KEYS, NODE, PLAN, TABLES
from jitree.vmfb.superinstruction_table import KEYS, LOOPS, TREE, Node
from jitree.vmfb.words import BASE_OPCODE

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
_KEY_BASE: Final = len(BASE_OPCODE)
"""Keys of branches by shape are negative in ``superinstruction_table.py``: here they follow the opcodes."""


def generate() -> bytes:
    """The TABLES record and all that it leads to."""
    words = array("H", bytes(TABLES.size + 2 * 256 * len(SETS)))
    words[TABLES.word("marker")] = BY_MNEMONIC["block"].opcode
    for row in INSTRUCTIONS:
        if row.set in SETS and not row.block_marker:
            place = TABLES.size // 2 + 256 * SETS.index(row.set) + row.opcode
            words[place] = _add(words, _plan(row))
    words[TABLES.word("shapes")] = _add(words, _shape_keys())
    loops = [_add(words, rows) if rows else 0 for rows in _loops()]
    words[TABLES.word("loops")] = _add(words, loops)
    roots = [0] * (_KEY_BASE + len(KEYS))
    for key, nodes in TREE.items():
        roots[_key(key)] = _add_row(words, nodes)
    words[TABLES.word("roots")] = _add(words, roots)
    words[TABLES.word("schema")] = _add(words, schema.encode())
    words[TABLES.word("unions")] = schema.FIRST_LOCATION
    return words.tobytes() + bytes(8)


def _add(words: array[int], more: Sequence[int]) -> int:
    """Where they are now."""
    words.extend(more)
    return len(words) - len(more)


def _plan(row: Instruction) -> list[int]:
    special = SPECIAL.get(row.mnemonic, layout.SPECIAL_NONE)
    kinds = [] if special else [_kind(row, operand) for operand in row.operands]
    values = {"opcode": row.index, "since": row.since, "special": special, "count": len(kinds)}
    return [*(values[field] for field in PLAN.offsets), *kinds]


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
    return [_key(KEYS[name]) if name in KEYS else 0 for name in names]


def _loops() -> list[list[int]]:
    """By shape: comparison and opcode each, and a 0."""
    found = []
    for shape in _shapes():
        rows = [(compare, opcode) for (of, compare), opcode in LOOPS.items() if of == shape]
        found.append([*(number for row in rows for number in row), 0] if rows else [])
    return found


def _key(key: int) -> int:
    return key if key >= 0 else _KEY_BASE - key - 1


def _add_row(words: array[int], nodes: Sequence[Node]) -> int:
    return _add(words, [*(_add_node(words, node) for node in nodes), 0])


def _add_node(words: array[int], node: Node) -> int:
    size, width, links, opcode, following = node
    place = 0
    if following is not None:
        rows = [(_key(key), _add_row(words, nodes)) for key, nodes in following.items()]
        place = _add(words, [*(number for row in rows for number in row), 0])
    values = {
        "size": size, "width": width, "opcode": max(opcode, 0), "following": place, "links": len(links),
    }  # fmt: skip
    flat = [number for link in links for number in link]
    padding = [0] * (NODE.size // 2 - len(values))
    return _add(words, [*(values[field] for field in NODE.offsets), *padding, *flat])
