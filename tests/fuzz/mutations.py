"""Ways to damage a module file. Each takes the bytes and a random generator and returns new bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from jitree.vmfb.instructions import INSTRUCTIONS
from tests.fuzz.fields import DESCRIPTOR_FIELDS, Layout

Mutation = Callable[[bytearray, Layout, random.Random], None]

INTERESTING = {
    1: (0, 1, 0x7F, 0x80, 0xFF),
    2: (0, 1, 2, 0x3FFF, 0x4000, 0x7FFE, 0x7FFF, 0x8000, 0xBFFF, 0xC000, 0xFFFF),
    4: (0, 1, 4, 0xFFFFFE, 0x7FFFFFFC, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFC, 0xFFFFFFFF),
    8: (0, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
}
"""Values at the edges of their fields, by width in bytes."""


def mutate(data: bytes, layout: Layout, rng: random.Random) -> bytes:
    """One to four damages of a kind each."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(MUTATIONS)(damaged, layout, rng)
    return bytes(damaged)


def edges(data: bytearray, places: Sequence[int], rng: random.Random) -> None:
    """One to four words at some of the places."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        position, width = rng.choice(places), rng.choice((1, 2, 4, 8))
        _write(data, position, width, _value(data, position, width, rng))


def fewer_changes(whole: bytes, damaged: bytes) -> Iterator[bytes]:
    """Files with a part of the damage only: with half of it, a quarter, down to all but one byte."""
    if len(whole) != len(damaged):
        yield from (damaged + whole[len(damaged) :],) if len(damaged) < len(whole) else ()
        return
    changed = [at for at in range(len(whole)) if whole[at] != damaged[at]]
    size = len(changed) // 2
    while size:
        for start in range(0, len(changed), size):
            mended = bytearray(damaged)
            for at in changed[start : start + size]:
                mended[at] = whole[at]
            yield bytes(mended)
        size //= 2


def _write(data: bytearray, position: int, width: int, value: int) -> None:
    if position + width <= len(data):
        data[position : position + width] = (value % (1 << 8 * width)).to_bytes(width, "little")


def _value(data: bytearray, position: int, width: int, rng: random.Random) -> int:
    """An edge value, something near the present one, or anything."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.choice(INTERESTING[width])
    if kind == 1:
        present = int.from_bytes(data[position : position + width], "little")
        return present + rng.choice((-8, -4, -2, -1, 1, 2, 4, 8))
    return rng.getrandbits(8 * width)


def truncate(data: bytearray, layout: Layout, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def flip_bits(data: bytearray, layout: Layout, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 3)):
        position = rng.choice(layout.flatbuffer)
        if position < len(data):
            data[position] ^= 1 << rng.randrange(8)


def edit_table_word(data: bytearray, layout: Layout, rng: random.Random) -> None:
    """Offsets, vtables, counts and scalars of the tables, at any alignment of 2."""
    width = rng.choice((2, 4, 4, 8))
    position = rng.choice(layout.flatbuffer) & ~1
    _write(data, position, width, _value(data, position, width, rng))


def edit_container(data: bytearray, layout: Layout, rng: random.Random) -> None:
    """The header in front of the FlatBuffer, its prefix, root offset and identifier."""
    position = rng.randrange(layout.flatbuffer.start + 8)
    width = rng.choice((1, 2, 4))
    _write(data, position, width, _value(data, position, width, rng))


def edit_descriptor(data: bytearray, layout: Layout, rng: random.Random) -> None:
    offset, width = rng.choice(DESCRIPTOR_FIELDS)
    position = rng.choice(layout.descriptors) + offset
    _write(data, position, width, _value(data, position, width, rng))


def edit_opcode(data: bytearray, layout: Layout, rng: random.Random) -> None:
    """A byte of a body becomes an opcode of some instruction."""
    _write(data, rng.choice(rng.choice(layout.bodies)), 1, rng.choice(INSTRUCTIONS).opcode)


def edit_operand(data: bytearray, layout: Layout, rng: random.Random) -> None:
    """Registers, counts, targets and ordinals, wherever they lie in a body."""
    width = rng.choice((1, 2, 2, 4))
    position = rng.choice(rng.choice(layout.bodies))
    _write(data, position, width, _value(data, position, width, rng))


def splice(data: bytearray, layout: Layout, rng: random.Random) -> None:
    """Copies a piece of a body over another place."""
    source, target = (rng.choice(rng.choice(layout.bodies)) for _ in range(2))
    length = rng.randint(1, 24)
    if max(source, target) + length <= len(data):
        data[target : target + length] = data[source : source + length]


def edit_field(data: bytearray, layout: Layout, rng: random.Random) -> None:
    """A register, a branch, a type, a size or a word of a table."""
    place = rng.choice(layout.fields[rng.choice(layout.kinds)])
    _write(data, place.position, place.width, _value(data, place.position, place.width, rng))


def edit_text(data: bytearray, layout: Layout, rng: random.Random) -> None:
    """A character of a name, calling convention or attribute."""
    position = rng.choice(layout.letters)
    if position < len(data):
        data[position] = rng.choice(b"0irIfFCDv_.!<>\0\xff")


MUTATIONS: tuple[Mutation, ...] = (
    truncate, flip_bits, edit_table_word, edit_container, edit_descriptor,
    edit_opcode, edit_opcode, edit_operand, edit_operand, edit_field, edit_field, edit_field,
    splice, edit_text,
)  # fmt: skip
