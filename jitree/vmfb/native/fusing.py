"""Finding superinstructions in words. Machine code; see :mod:`jitree.vmfb.superinstructions`."""

from __future__ import annotations

from jitree.codegen.primitives import load32, store32
from jitree.codegen.record import place_of
from jitree.vmfb.native.exits import BR
from jitree.vmfb.native.joining import COND_BR, shape_of
from jitree.vmfb.native.layout import COND_BR_KEYS, NODE, PART
from jitree.vmfb.native.records import Decoder, FoundPart, Node, entry, halfword

NODE_SIZE = NODE.size
PART_SIZE = PART.size
COND_BR_SIZE = 4


def fuse(decoder: Decoder, index: int) -> None:
    """Rewrites opcode words from an instruction on to the longest superinstructions."""
    while index < decoder.instruction_count:
        word = decoder.words + 4 * load32(decoder.instruction_words + 4 * index)
        opcode = longest(decoder, word)
        if opcode != 0:
            store32(word, opcode)
        index += 1


def longest(decoder: Decoder, word: int) -> int:
    """The opcode of the longest superinstruction at an instruction; 0 if there is none."""
    opcode = 0
    parts = 0
    row = entry(decoder, decoder.tables.roots, key_of(decoder, word))
    while row != 0:
        node = holding_node(decoder, row, word, parts)
        if not node:
            return opcode
        if node.opcode != 0:
            opcode = node.opcode
        word += 4 * node.size
        part = part_at(decoder, parts)
        part.slot = load32(word - 4)
        part.width = node.width
        parts += 1
        row = 0 if node.following == 0 else following_row(decoder, node.following, key_of(decoder, word))
    return opcode


def part_at(decoder: Decoder, index: int) -> FoundPart:
    return FoundPart(decoder.parts + index * PART_SIZE)


def key_of(decoder: Decoder, word: int) -> int:
    """The key of the part at an instruction."""
    opcode = load32(word)
    if opcode == BR:
        key = entry(decoder, decoder.tables.shapes, shape_of(word))
        return key if key != 0 else opcode
    if opcode == COND_BR:
        if load32(word + 8) == COND_BR_SIZE:
            return entry(decoder, decoder.tables.shapes, COND_BR_KEYS)
        if load32(word + 12) == COND_BR_SIZE:
            return entry(decoder, decoder.tables.shapes, COND_BR_KEYS + 1)
    return opcode


def following_row(decoder: Decoder, place: int, key: int) -> int:
    """The row of the next parts with a key: pairs of both, a key of 0 at the end."""
    pair = place_of(decoder.tables) + 2 * place
    while halfword(pair) != 0:
        if halfword(pair) == key:
            return halfword(pair + 2)
        pair += 4
    return 0


def holding_node(decoder: Decoder, row: int, word: int, parts: int) -> Node:
    """The first node of a row, which ends in 0, whose links hold; Node(0) if none does."""
    place = place_of(decoder.tables) + 2 * row
    while halfword(place) != 0:
        node = Node(place_of(decoder.tables) + 2 * halfword(place))
        if links_hold(decoder, node, word, parts):
            return node
        place += 2
    return Node(0)


def links_hold(decoder: Decoder, node: Node, word: int, parts: int) -> bool:
    """Whether each linked operand names what the earlier part wrote, not overwritten since."""
    link = place_of(node) + NODE_SIZE
    end = link + 4 * node.links
    while link < end:
        number = halfword(link + 2)
        part = part_at(decoder, number)
        slot = part.slot
        if load32(word + 4 * halfword(link)) != slot:
            return False
        number += 1
        while number < parts:
            other = part_at(decoder, number)
            if other.slot < slot + part.width and slot < other.slot + other.width:
                return False
            number += 1
        link += 4
    return True
