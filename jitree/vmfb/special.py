"""Reading of instructions with operands of variable size, calls aside: exits, messages, lists.

Each function takes the walk, the opcode word and the position of the operands, and returns the position
after the instruction. A terminator sets ``walk.exit`` to its words and edges. The words are laid out as
:mod:`jitree.vmfb.words` says.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Final

from jitree.vmfb.blocks import Edge, branch_words
from jitree.vmfb.operand_classes import TYPE
from jitree.vmfb.words import TAG_REF_COPY, TAG_VALUE32, TAG_VALUE64

if TYPE_CHECKING:
    from jitree.vmfb.operands import OperandReader


def _br(walk: OperandReader, opcode: int, at: int) -> int:
    edge, at = walk.edge(1, at)
    walk.exit = branch_words(edge.moves), [Edge(1, edge.target, [])]
    return at


def _jump_with_moves(walk: OperandReader, opcode: int, at: int) -> int:
    """``yield`` and ``break``: displacement, count, moves."""
    edge, at = walk.edge(1, at)
    walk.exit = [opcode, 0, len(edge.moves) // 3, *edge.moves], [Edge(1, edge.target, [])]
    return at


def _cond_br(walk: OperandReader, opcode: int, at: int) -> int:
    condition = walk.value(walk.halfword(at))
    if_true, at = walk.edge(2, at + 2)
    if_false, at = walk.edge(3, at)
    walk.exit = [opcode, condition, 0, 0], [if_true, if_false]
    return at


def _cond_break(walk: OperandReader, opcode: int, at: int) -> int:
    condition = walk.value(walk.halfword(at))
    edge, at = walk.edge(2, at + 2)
    walk.exit = [opcode, condition, 0, 0], [edge, Edge(3, edge.target, edge.moves)]
    return at


def _br_table(walk: OperandReader, opcode: int, at: int) -> int:
    index = walk.value(walk.halfword(at))
    default, at = walk.edge(2, at + 2)
    count = walk.halfword(at)
    at += 2
    edges = [default]
    for case in range(count):
        edge, at = walk.edge(4 + case, at)
        edges.append(edge)
    walk.exit = [opcode, index, 0, count] + [0] * count, edges
    return at


def _fail(walk: OperandReader, opcode: int, at: int) -> int:
    status = walk.value(walk.halfword(at))
    message, at = walk.string(at + 2)
    edges = [Edge(3, at, [])] if at < len(walk.body) else []
    walk.exit = [opcode, status, message, 0], edges
    return at


def _return(walk: OperandReader, opcode: int, at: int) -> int:
    entries, at = walk.entries(at)
    values = walk.registers("return", entries, walk.signature.cconv.result_tags, True)
    walk.exit = [opcode, len(values), *chain.from_iterable(values)], []
    return at


def _message(walk: OperandReader, opcode: int, at: int) -> int:
    """``trace`` and ``print``."""
    message, at = walk.string(at)
    entries, at = walk.entries(at)
    walk.words += (opcode, message, len(entries))
    for entry in entries:
        walk.words += walk.any_register(entry, True)
    return at


def _discard(walk: OperandReader, opcode: int, at: int) -> int:
    entries, at = walk.entries(at)
    walk.words += (opcode, len(entries))
    for entry in entries:
        walk.words += (walk.ref(entry), entry >> 14 & 1)
    return at


def _switch(tag: int) -> Callable[[OperandReader, int, int], int]:
    """index, default, count, cases, out; refs with the type in front of the default."""

    def read(walk: OperandReader, opcode: int, at: int) -> int:
        words = walk.words
        words += (opcode, walk.value(walk.halfword(at)))
        at += 2
        if tag == TAG_REF_COPY:
            words.append(walk.ordinal(walk.word(at), TYPE))
            at += 4
        default = walk.halfword(at)
        cases, at = walk.entries(at + 2)
        words.append(walk.register(default, tag, False)[1])
        if tag == TAG_REF_COPY:
            words.append(default >> 14 & int(walk.moves_honoured))
        words.append(len(cases))
        for case in cases:
            words.append(walk.register(case, tag, False)[1])
            if tag == TAG_REF_COPY:
                words.append(case >> 14 & 1)
        words.append(walk.register(walk.halfword(at), tag, False)[1])
        return at + 2

    return read


SPECIAL_INSTRUCTIONS: Final = {
    "br": _br,
    "cond_br": _cond_br,
    "br_table": _br_table,
    "yield": _jump_with_moves,
    "break": _jump_with_moves,
    "cond_break": _cond_break,
    "fail": _fail,
    "return": _return,
    "trace": _message,
    "print": _message,
    "discard.refs": _discard,
    "switch.i32": _switch(TAG_VALUE32),
    "switch.i64": _switch(TAG_VALUE64),
    "switch.f32": _switch(TAG_VALUE32),
    "switch.f64": _switch(TAG_VALUE64),
    "switch.ref": _switch(TAG_REF_COPY),
}
"""Reader of each mnemonic."""
