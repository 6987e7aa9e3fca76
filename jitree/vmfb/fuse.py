"""Finding fused forms in decoded words (see :mod:`jitree.vmfb.forms`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

from jitree.vmfb.blocks import Block, Edge
from jitree.vmfb.forms import FUSED_FORMS, SHAPES, Part
from jitree.vmfb.isa import BY_MNEMONIC
from jitree.vmfb.words import FIRST_FUSED, LOOP_OPCODE, OPCODE, TAG_VALUE32, TAG_VALUE64

_BR: Final = OPCODE["br"]
_TAG_LETTERS: Final = {TAG_VALUE32: "w", TAG_VALUE64: "d"}
_BARE: Final = OPCODE["br.bare"]
_COND_BR: Final = OPCODE["cond_br"]
_COND_BR_SIZE: Final = 4
_VARIANTS: Final = (*SHAPES[1:], "cond_br:true", "cond_br:false")
_KEYS: Final = (
    OPCODE
    | {"br:": _BARE}
    | {loop.name: opcode for loop, opcode in LOOP_OPCODE.items()}
    | {name: -1 - number for number, name in enumerate(_VARIANTS)}
)
"""Part name → key: the opcode word, or a negative number for a special case of an instruction."""
_LOOPS: Final = {(loop.shape, OPCODE[loop.compare]): opcode for loop, opcode in LOOP_OPCODE.items()}


@cache
def _sizes(name: str) -> tuple[int, int]:
    """(words of a part, slots that it writes)."""
    row = BY_MNEMONIC.get(name)
    operands = row.operands if row else ()  # special cases of branches end a form
    size = 1 + sum(2 if operand.kind in ("imm.i64", "imm.f64") else 1 for operand in operands)
    return size, 2 if operands and operands[-1].kind in ("r.i64", "r.f64") else 1


class _Node:
    """A state of matching: some parts of a form have been seen, ``part`` is the last."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.size, self.result_width = _sizes(part.name)
        self.opcode = -1
        """Opcode word of the form that ends here."""
        self.following: dict[int, list[_Node]] = {}
        """By key of the next part; those with most links first."""

    def result(self, words: Sequence[int], at: int) -> tuple[int, int]:
        """(slot, number of slots) that the part at this place writes."""
        return words[at + self.size - 1], self.result_width


def _add(nodes: dict[int, list[_Node]], part: Part) -> _Node:
    row = nodes.setdefault(_KEYS[part.name], [])
    for node in row:
        if node.part == part:
            return node
    node = _Node(part)
    row.append(node)
    if part.links:
        row.sort(key=_by_links)
    return node


def _by_links(node: _Node) -> int:
    return -len(node.part.links)


def _tree() -> dict[int, list[_Node]]:
    root: dict[int, list[_Node]] = {}
    for number, form in enumerate(FUSED_FORMS):
        nodes = root
        for part in form:
            node = _add(nodes, part)
            nodes = node.following
        node.opcode = FIRST_FUSED + number
    return root


_TREE: Final = _tree()


def carry_comparisons(blocks: Sequence[Block]) -> None:
    """Gives branches to a block that only compares and branches a copy of that (see
    :class:`~jitree.vmfb.forms.Loop`)."""
    headers = {block.offset: block for block in blocks if _is_header(block)}
    for block in blocks:
        leave = block.exit
        if leave.words[0] not in (_BR, _BARE) or leave.edges[0].target not in headers:
            continue
        header = headers[leave.edges[0].target]
        opcode = _LOOPS.get((_shape(leave.words, 0), header.words[0]))
        if opcode is not None:
            leave.words[0] = opcode
            leave.words.extend(header.words[1:])
            for edge in header.exit.edges:
                leave.edges.append(Edge(len(leave.words), edge.target, edge.moves))
                leave.words.append(0)


def _is_header(block: Block) -> bool:
    """Whether the block is one instruction and a ``cond_br`` on its result."""
    leave = block.exit
    return block.starts == [0] and leave.words[0] == _COND_BR and leave.words[1] == block.words[-1]


def _shape(words: Sequence[int], at: int) -> str:
    """The shape of a branch."""
    if words[at] == _BARE:
        return "br:"
    tags = words[at + 3 : at + 3 + 3 * words[at + 2] : 3]
    return "br:" + "".join(_TAG_LETTERS.get(tag, "?") for tag in tags)


def fuse(words: list[int], starts: Iterable[int]) -> None:
    """Rewrites opcode words in place to the longest forms; ``starts`` are the indices of all instructions."""
    starts = list(starts)
    keys = _keys(words, starts)
    found = [(start, _longest(words, keys, start)) for start in starts if keys[start] in _TREE]
    for start, opcode in found:
        if opcode >= 0:
            words[start] = opcode


def _keys(words: Sequence[int], starts: Sequence[int]) -> list[int]:
    """The key of the part at each instruction; what lies between is of no meaning."""
    keys = list(words)
    for start in starts:
        if words[start] == _BR:
            keys[start] = _KEYS.get(_shape(words, start), _BR)
        elif words[start] == _COND_BR and words[start + 2] == _COND_BR_SIZE:
            keys[start] = _KEYS["cond_br:true"]
        elif words[start] == _COND_BR and words[start + 3] == _COND_BR_SIZE:
            keys[start] = _KEYS["cond_br:false"]
    return keys


def _longest(words: Sequence[int], keys: Sequence[int], start: int) -> int:
    """The opcode word of the longest form at an instruction, -1 if there is none."""
    opcode = -1
    matched: list[tuple[_Node, int]] = []
    nodes, at = _TREE, start
    while True:
        node = next((n for n in nodes.get(keys[at], ()) if _links_hold(n, words, at, matched)), None)
        if node is None:
            return opcode
        if node.opcode >= 0:
            opcode = node.opcode
        if not node.following:
            return opcode
        matched.append((node, at))
        nodes, at = node.following, at + node.size


def _links_hold(node: _Node, words: Sequence[int], at: int, matched: list[tuple[_Node, int]]) -> bool:
    """Whether each linked operand names what the earlier part wrote, not overwritten since."""
    for position, number in node.part.links:
        slot, width = matched[number][0].result(words, matched[number][1])
        if words[at + position] != slot:
            return False
        for later, place in matched[number + 1 :]:
            other, other_width = later.result(words, place)
            if other < slot + width and slot < other + other_width:
                return False
    return True
