"""Calling conventions: ``0`` argument characters, then ``_`` and result characters.

==========  ==========================================================
``i f``     32-bit value, one slot
``I F``     64-bit value, an even pair of slots
``r``       ref
``v``       nothing (how an empty side is written)
``C … D``   in imports' arguments: a span, the characters repeated
==========  ==========================================================

Registers are described by the tags of :mod:`jitree.vmfb.words`; a ref is always ``TAG_REF_COPY`` here, since
whether a reference moves is a matter of one call and not of the convention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError
from jitree.vmfb.words import TAG_REF_COPY, TAG_VALUE32, TAG_VALUE64

TAGS: Final[dict[str, int]] = {
    "i": TAG_VALUE32,
    "f": TAG_VALUE32,
    "I": TAG_VALUE64,
    "F": TAG_VALUE64,
    "r": TAG_REF_COPY,
}
TYPE_NAMES: Final[dict[str, str]] = {"i": "i32", "f": "f32", "I": "i64", "F": "f64", "r": "!vm.ref<?>"}


_CACHED_CONVENTIONS = 1024


class Span(NamedTuple):
    """A variadic argument: any number of tuples of these characters."""

    characters: str


Item = str | Span
"""A top-level argument: one character or a span."""

RegisterSlot = tuple[int, int]
"""(tag, register ordinal)"""
EntryRule = Callable[[tuple[int, ...]], tuple[RegisterSlot, ...]]
"""Argument tags → (tag, register) of each."""


class CallingConvention(NamedTuple):
    """A parsed calling convention. ``v`` is dropped from both sides."""

    text: str
    arguments: tuple[Item, ...]
    results: str
    argument_tags: tuple[int, ...] | None
    """Tag of each argument; None when there are spans and the call's segment counts are needed."""
    result_tags: tuple[int, ...]

    @property
    def has_spans(self) -> bool:
        return self.argument_tags is None

    def flat_tags(self, segments: Sequence[int], register_count: int) -> tuple[int, ...]:
        """Tag of each register of a variadic call with ``register_count`` of them.

        ``segments`` has one count per argument; the count of an argument that is not a span is ignored.
        OUT_OF_RANGE when the numbers do not agree.
        """
        if len(segments) != len(self.arguments):
            raise OutOfRangeError(
                f"segment list has {len(segments)} entries, {self.text!r} has {len(self.arguments)} arguments"
            )
        parts = [
            (item.characters, count) if isinstance(item, Span) else (item, 1)
            for item, count in zip(self.arguments, segments, strict=True)
        ]
        needed = sum(len(characters) * count for characters, count in parts)
        if needed != register_count:  # before anything of that size is made
            raise OutOfRangeError(
                f"argument list has {register_count} entries, {self.text!r} with these segments needs "
                f"{needed}"
            )
        return tuple(TAGS[character] for characters, count in parts for character in characters * count)

    def __str__(self) -> str:
        """``(i32, tuple<i32, !vm.ref<?>>...) -> (f32)``"""
        results = ", ".join(TYPE_NAMES[character] for character in self.results)
        return f"({', '.join(map(item_text, self.arguments))}) -> ({results})"


def item_text(item: Item) -> str:
    """``i32``, ``tuple<i32, !vm.ref<?>>...``"""
    if isinstance(item, Span):
        return f"tuple<{', '.join(TYPE_NAMES[character] for character in item.characters)}>..."
    return TYPE_NAMES[item]


@lru_cache(maxsize=_CACHED_CONVENTIONS)
def parse(text: str) -> CallingConvention:
    """Parses a calling convention; the empty string is ``() -> ()``.

    Raises UNIMPLEMENTED for another convention version than 0, INVALID_ARGUMENT for malformed text.
    """
    if text and text[0] != "0":
        raise UnimplementedError(
            f"convention version {text[0]!r} is not supported", f"calling convention {text!r}"
        )
    before, _, results = text[1:].replace("v", "").partition("_")
    arguments = _items(before, text) if "C" in before else tuple(before)
    plain = [item for item in arguments if isinstance(item, str)]
    spans = [character for item in arguments if isinstance(item, Span) for character in item.characters]
    unknown = {*plain, *spans, *results} - TAGS.keys()
    if unknown:
        raise InvalidArgumentError(
            f"unexpected character {min(unknown)!r}, expected one of v i I f F r",
            f"calling convention {text!r}",
        )
    tags = tuple(TAGS[item] for item in plain) if len(plain) == len(arguments) else None
    return CallingConvention._make((text, arguments, results, tags, tuple(map(TAGS.__getitem__, results))))


def _items(characters: str, text: str) -> tuple[Item, ...]:
    """Arguments among which are spans."""
    items: list[Item] = []
    position = 0
    while position < len(characters):
        if characters[position] == "C":
            end = characters.find("D", position)
            if end < 0:
                raise InvalidArgumentError("span without its closing 'D'", f"calling convention {text!r}")
            if end == position + 1:
                raise InvalidArgumentError("empty span", f"calling convention {text!r}")
            items.append(Span(characters[position + 1 : end]))
            position = end + 1
        else:
            items.append(characters[position])
            position += 1
    return tuple(items)


@lru_cache(maxsize=_CACHED_CONVENTIONS)
def ascending_slots(tags: tuple[int, ...]) -> tuple[RegisterSlot, ...]:
    """Registers of entry arguments as compilers from release 3.5.0 on number them: always upwards, 64-bit
    values rounded up to an even slot, the hole lost."""
    slots: list[RegisterSlot] = []
    value = ref = 0
    for tag in tags:
        if tag == TAG_REF_COPY:
            slots.append((tag, ref))
            ref += 1
        elif tag == TAG_VALUE64:
            value += value & 1
            slots.append((tag, value))
            value += 2
        else:
            slots.append((tag, value))
            value += 1
    return tuple(slots)


def first_fit_slots(tags: tuple[int, ...]) -> tuple[RegisterSlot, ...]:
    """Registers of entry arguments as compilers up to release 3.4.0 number them: a 32-bit value goes back
    into the hole that a 64-bit value left."""
    slots: list[RegisterSlot] = []
    value = ref = 0
    holes: list[int] = []
    for tag in tags:
        if tag == TAG_REF_COPY:
            slots.append((tag, ref))
            ref += 1
        elif tag == TAG_VALUE64:
            if value & 1:
                holes.append(value)
                value += 1
            slots.append((tag, value))
            value += 2
        elif holes:
            slots.append((tag, holes.pop(0)))
        else:
            slots.append((tag, value))
            value += 1
    return tuple(slots)


@lru_cache(maxsize=_CACHED_CONVENTIONS)
def register_counts(slots: tuple[RegisterSlot, ...]) -> tuple[int, int]:
    """(value slots, refs) that entry arguments occupy."""
    values = max((slot + 1 + (tag == TAG_VALUE64) for tag, slot in slots if tag != TAG_REF_COPY), default=0)
    refs = sum(tag == TAG_REF_COPY for tag, _ in slots)
    return values, refs
