"""Finding fused forms in decoded words (see :mod:`jitree.vmfb.forms`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from jitree.vmfb.forms import FUSED_FORMS, SHAPES, Part
from jitree.vmfb.isa import BY_MNEMONIC
from jitree.vmfb.words import FIRST_FUSED, OPCODE, TAG_VALUE32, TAG_VALUE64

_BR: Final = OPCODE["br"]
_TAG_LETTERS: Final = {TAG_VALUE32: "w", TAG_VALUE64: "d"}
_KEYS: Final = (
    OPCODE | {"br:": OPCODE["br.bare"]} | {shape: -1 - number for number, shape in enumerate(SHAPES[1:])}
)
"""Part name → key: the opcode word, or a negative number for a branch with moves."""
_MAXIMUM_MOVES: Final = max(map(len, SHAPES)) - len("br:")


class _Node:
    """A state of matching: some parts of a form have been seen, ``part`` is the last."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.is_branch = part.name.startswith("br:")
        operands = () if self.is_branch else BY_MNEMONIC[part.name].operands
        self.size = 1 + sum(2 if operand.kind in ("imm.i64", "imm.f64") else 1 for operand in operands)
        self.result_width = 2 if operands and operands[-1].kind in ("r.i64", "r.f64") else 1
        self.opcode = -1
        """Opcode word of the form that ends here."""
        self.following: dict[int, list[_Node]] = {}
        """By key of the next part; those with most links first."""

    def next_place(self, words: Sequence[int], at: int) -> int:
        """Where the next part begins."""
        return at + (words[at + 1] if self.is_branch else self.size)

    def writes(self, words: Sequence[int], at: int) -> list[tuple[int, int]]:
        """(slot, number of slots) that the part at this place writes; its result is the only or last one."""
        if not self.is_branch:
            return [(words[at + self.size - 1], self.result_width)]
        letters = self.part.name.removeprefix("br:")
        return [(words[at + 5 + 3 * n], 2 if letter == "d" else 1) for n, letter in enumerate(letters)]


def _add(nodes: dict[int, list[_Node]], part: Part) -> _Node:
    row = nodes.setdefault(_KEYS[part.name], [])
    for node in row:
        if node.part == part:
            return node
    node = _Node(part)
    row.append(node)
    row.sort(key=lambda other: -len(other.part.links))
    return node


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
        if words[start] == _BR and words[start + 2] <= _MAXIMUM_MOVES:
            tags = words[start + 3 : start + 3 + 3 * words[start + 2] : 3]
            keys[start] = _KEYS.get("br:" + "".join(_TAG_LETTERS.get(tag, "?") for tag in tags), _BR)
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
        nodes, at = node.following, node.next_place(words, at)


def _links_hold(node: _Node, words: Sequence[int], at: int, matched: list[tuple[_Node, int]]) -> bool:
    """Whether each linked operand names what the earlier part wrote, not overwritten since."""
    for position, number in node.part.links:
        slot, width = matched[number][0].writes(words, matched[number][1])[-1]
        if words[at + position] != slot:
            return False
        for later, place in matched[number + 1 :]:
            for other, other_width in later.writes(words, place):
                if other < slot + width and slot < other + other_width:
                    return False
    return True
