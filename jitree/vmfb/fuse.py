"""Finding superinstructions in decoded words (see :mod:`jitree.vmfb.superinstructions`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from jitree.vmfb.blocks import CodeBlock, Edge
from jitree.vmfb.superinstruction_table import KEYS, LOOPS, TREE, Links
from jitree.vmfb.words import OPCODE, TAG_VALUE32, TAG_VALUE64

_BR: Final = OPCODE["br"]
_TAG_LETTERS: Final = {TAG_VALUE32: "w", TAG_VALUE64: "d"}
_BARE: Final = OPCODE["br.bare"]
_COND_BR: Final = OPCODE["cond_br"]
_COND_BR_SIZE: Final = 4


def carry_comparisons(blocks: Sequence[CodeBlock]) -> None:
    """Gives branches to a block that only compares and branches a copy of that (see
    :class:`~jitree.vmfb.superinstructions.Loop`)."""
    headers = {block.offset: block for block in blocks if _is_header(block)}
    for block in blocks:
        branch = block.exit
        if branch.words[0] not in (_BR, _BARE) or branch.edges[0].target not in headers:
            continue
        header = headers[branch.edges[0].target]
        opcode = LOOPS.get((_shape(branch.words, 0), header.words[0]))
        if opcode is not None:
            branch.words[0] = opcode
            branch.words.extend(header.words[1:])
            for edge in header.exit.edges:
                branch.edges.append(Edge(len(branch.words), edge.target, edge.moves))
                branch.words.append(0)


def _is_header(block: CodeBlock) -> bool:
    """Whether the block is one instruction and a ``cond_br`` on its result."""
    branch = block.exit
    return block.starts == [0] and branch.words[0] == _COND_BR and branch.words[1] == block.words[-1]


def _shape(words: Sequence[int], at: int) -> str:
    """The shape of a branch."""
    if words[at] == _BARE:
        return "br:"
    tags = words[at + 3 : at + 3 + 3 * words[at + 2] : 3]
    return "br:" + "".join(_TAG_LETTERS.get(tag, "?") for tag in tags)


def fuse(words: list[int], starts: Iterable[int]) -> None:
    """Rewrites opcode words in place to the longest superinstructions; ``starts`` are the indices of all."""
    starts = list(starts)
    keys = _keys(words, starts)
    found = [(start, _longest(words, keys, start)) for start in starts if keys[start] in TREE]
    for start, opcode in found:
        if opcode >= 0:
            words[start] = opcode


def _keys(words: Sequence[int], starts: Sequence[int]) -> list[int]:
    """The key of the part at each instruction; what lies between is of no meaning."""
    keys = list(words)
    for start in starts:
        if words[start] == _BR:
            keys[start] = KEYS.get(_shape(words, start), _BR)
        elif words[start] == _COND_BR and words[start + 2] == _COND_BR_SIZE:
            keys[start] = KEYS["cond_br:true"]
        elif words[start] == _COND_BR and words[start + 3] == _COND_BR_SIZE:
            keys[start] = KEYS["cond_br:false"]
    return keys


def _longest(words: Sequence[int], keys: Sequence[int], start: int) -> int:
    """The opcode word of the longest superinstruction at an instruction, -1 if there is none."""
    longest = -1
    results: list[tuple[int, int]] = []
    nodes, at = TREE, start
    while True:
        for node in nodes.get(keys[at], ()):
            if not node[2] or _links_hold(node[2], words, at, results):
                break
        else:
            return longest
        size, slots, _, opcode, following = node
        if opcode >= 0:
            longest = opcode
        if following is None:
            return longest
        at += size
        results.append((words[at - 1], slots))
        nodes = following


def _links_hold(links: Links, words: Sequence[int], at: int, results: list[tuple[int, int]]) -> bool:
    """Whether each linked operand names what the earlier part wrote, not overwritten since. ``results`` are
    (slot, number of slots) that each part so far has written."""
    for position, number in links:
        slot, width = results[number]
        if words[at + position] != slot:
            return False
        for other, other_width in results[number + 1 :]:
            if other < slot + width and slot < other + other_width:
                return False
    return True
