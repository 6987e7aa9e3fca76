"""Joins blocks of a draft to words, and finds superinstructions in them.

Machine code; see :mod:`jitree.vmfb.superinstructions`.
"""

from __future__ import annotations

from jitree.codegen.primitives import load32, store32
from jitree.codegen.record import place_of, size_of
from jitree.vmfb.native.layout import COND_BR_KEYS, BlockRecord, Decoder, FoundPart, Moves, Node
from jitree.vmfb.native.operands import BARE, BR, MOVES_SIZE, block_at, edge_at, entry, halfword
from jitree.vmfb.words import OPCODE, TAG_VALUE64

COND_BR = OPCODE["cond_br"]
MOST_MOVES = 3
"""The most moves of a branch whose shape has a number."""

NODE_SIZE = size_of(Node)
PART_SIZE = size_of(FoundPart)
COND_BR_SIZE = 4


def words_so_far(decoder: Decoder) -> int:
    return (decoder.next_word - decoder.words) >> 2


def append(decoder: Decoder, word: int) -> None:
    store32(decoder.next_word, word)
    decoder.next_word += 4


def join(decoder: Decoder) -> bool:
    """Appends the function; false if an edge leads to no block."""
    if not edges_lead_to_blocks(decoder):
        return False
    number = 1
    while number <= decoder.block_count:
        place_block(decoder, number)
        number += 1
    number = 1
    while number <= decoder.block_count:
        block = block_at(decoder, number)
        patch_edges(decoder, block, number, 0)
        if block.header != 0:
            patch_edges(decoder, block, block.header, block.carried)
        number += 1
    forget_marks(decoder)
    return True


def edges_lead_to_blocks(decoder: Decoder) -> bool:
    index = 0
    while index < decoder.edge_count:
        target = edge_at(decoder, index).target
        if target >= decoder.length or load32(decoder.marks + 4 * target) == 0:
            return False
        index += 1
    return True


def forget_marks(decoder: Decoder) -> None:
    number = 1
    while number <= decoder.block_count:
        store32(decoder.marks + 4 * block_at(decoder, number).offset, 0)
        number += 1


def end_of(decoder: Decoder, number: int, following: int, count: int) -> int:
    """Where what belongs to a block ends: where that of the next one begins, if there is one."""
    return following if number < decoder.block_count else count


def place_block(decoder: Decoder, number: int) -> None:
    """Copies words, and says where its instructions and call sites are now."""
    block = block_at(decoder, number)
    following = block_at(decoder, number + 1)
    block.place = words_so_far(decoder)
    shift = block.place - block.first_word
    copy_words(decoder, decoder.draft + 4 * block.first_word, decoder.draft + 4 * block.end_word)
    block.exit_place = block.exit_word + shift
    index = block.first_instruction
    end = end_of(decoder, number, following.first_instruction, decoder.draft_count)
    while index < end:
        add_instruction(
            decoder,
            load32(decoder.draft_starts + 4 * index) + shift,
            load32(decoder.draft_offsets + 4 * index),
        )
        index += 1
    index = block.first_site
    end = end_of(decoder, number, following.first_site, decoder.site_count)
    while index < end:
        place = decoder.site_words + 4 * index
        store32(place, load32(place) + shift)
        index += 1
    carry_comparison(decoder, block)


def copy_words(decoder: Decoder, source: int, end: int) -> None:
    while source < end:
        append(decoder, load32(source))
        source += 4


def add_instruction(decoder: Decoder, word: int, offset: int) -> None:
    place = 4 * decoder.instruction_count
    store32(decoder.instruction_words + place, word)
    store32(decoder.instruction_offsets + place, offset)
    decoder.instruction_count += 1


def carry_comparison(decoder: Decoder, block: BlockRecord) -> None:
    """Copies a block of comparison and branch into what branches there."""
    branch = decoder.draft + 4 * block.exit_word
    block.header = 0
    rows = entry(decoder, decoder.tables.loops, shape_of(branch))
    if rows == 0:
        return
    number = load32(decoder.marks + 4 * edge_at(decoder, block.first_edge).target)
    header = block_at(decoder, number)
    ends = decoder.draft + 4 * header.exit_word
    opcode = paired(decoder, rows, load32(decoder.draft + 4 * header.first_word))
    if opcode == 0 or load32(ends) != COND_BR or load32(ends + 4) != load32(ends - 4):
        return
    if instructions_of(decoder, number) != 2:
        return
    store32(decoder.words + 4 * block.exit_place, opcode)
    copy_words(decoder, decoder.draft + 4 * header.first_word + 4, ends)
    block.header = number
    block.carried = words_so_far(decoder) - block.exit_place
    append(decoder, 0)
    append(decoder, 0)


def instructions_of(decoder: Decoder, number: int) -> int:
    following = block_at(decoder, number + 1).first_instruction
    first = block_at(decoder, number).first_instruction
    return end_of(decoder, number, following, decoder.draft_count) - first


def paired(decoder: Decoder, place: int, key: int) -> int:
    """Finds what a key is paired with, before a key of 0; 0 if it is not there."""
    pair = place_of(decoder.tables) + 2 * place
    while halfword(pair) != 0:
        if halfword(pair) == key:
            return halfword(pair + 2)
        pair += 4
    return 0


def shape_of(branch: int) -> int:
    """The number of a branch's shape: the kinds of its moves in binary after a one; 0 if it has none."""
    opcode = load32(branch)
    if opcode == BARE:
        return 1
    count = load32(branch + 8)
    if opcode != BR or count > MOST_MOVES:
        return 0
    shape = 1
    index = 0
    while index < count:
        tag = load32(branch + 12 + 12 * index)
        if tag > TAG_VALUE64:
            return 0
        shape = 2 * shape + tag
        index += 1
    return shape


def patch_edges(decoder: Decoder, block: BlockRecord, number: int, carried: int) -> None:
    """Writes displacements of a block's edges to its exit. That is its own, or another's that carries them
    from a position on."""
    index = block_at(decoder, number).first_edge
    end = end_of(decoder, number, block_at(decoder, number + 1).first_edge, decoder.edge_count)
    while index < end:
        edge = edge_at(decoder, index)
        position = edge.position if carried == 0 else carried
        target = block_at(decoder, load32(decoder.marks + 4 * edge.target)).place
        if edge.moves:
            target = stub_of(decoder, block, edge.moves, target)
        store32(decoder.words + 4 * (block.exit_place + position), target - block.exit_place)
        carried += 1 if carried != 0 else 0
        index += 1


def stub_of(decoder: Decoder, block: BlockRecord, moves: Moves, target: int) -> int:
    """Returns the branch with an edge's moves, shared by its carriers."""
    if moves.stub == 0:
        moves.stub = words_so_far(decoder)
        add_instruction(decoder, moves.stub, block.exit_offset)
        append(decoder, BR)
        append(decoder, target - moves.stub)
        append(decoder, moves.count)
        place = place_of(moves) + MOVES_SIZE
        copy_words(decoder, place, place + 12 * moves.count)
    return moves.stub


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
        row = 0 if node.following == 0 else paired(decoder, node.following, key_of(decoder, word))
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
