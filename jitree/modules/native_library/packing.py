"""Values in the buffers of a call: in the order of the calling convention, aligned to 4 bytes.

A span is its number of tuples (i32) and then the tuples; a ref is two words, pointer and type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from jitree.errors import InternalError
from jitree.vmfb.cconv import CallingConvention, Span

_FORMATS: Final = {"i": "i", "I": "q", "f": "f", "F": "d", "r": "QQ"}

Give = Callable[[object], tuple[int, int]]
Take = Callable[[int, int], object]


def size_of(characters: str) -> int:
    return struct.calcsize("<" + "".join(_FORMATS[character] for character in characters))


def _flat(convention: CallingConvention, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(character, value) of everything in the buffer; the count of a span as ``i``."""
    for item, value in zip(convention.arguments, values, strict=True):
        if not isinstance(item, Span):
            yield item, value
            continue
        yield "i", len(value)
        for row in value:
            yield from zip(item.characters, (row,) if len(item.characters) == 1 else row, strict=True)


def pack_arguments(convention: CallingConvention, values: Sequence[Any], give: Give) -> bytes:
    """The arguments of a call; the counts that ``give`` makes are the buffer's then."""
    return _pack(list(_flat(convention, values)), give)


def pack_results(characters: str, values: Sequence[Any], give: Give) -> bytes:
    return _pack(list(zip(characters, values, strict=True)), give)


def _pack(items: list[tuple[str, Any]], give: Give) -> bytes:
    words: list[Any] = []
    for character, value in items:
        if character == "r":
            words += give(value)
        else:
            words.append(value)
    return struct.pack("<" + "".join(_FORMATS[character] for character, _ in items), *words)


def unpack_values(characters: str, data: memoryview, take: Take) -> list[Any]:
    """Values of plain characters. INTERNAL if the buffer has another size."""
    if len(data) != size_of(characters):
        raise InternalError(f"a call with {len(data)} bytes where '{characters}' has {size_of(characters)}")
    words = iter(struct.unpack("<" + "".join(_FORMATS[character] for character in characters), data))
    return [take(next(words), next(words)) if character == "r" else next(words) for character in characters]


def take_values(characters: str, data: memoryview, take: Take, release: Take) -> list[Any]:
    """As :func:`unpack_values`; where ``take`` fails, which then has given its count back, the counts of the
    refs after it go back, too."""
    taken = 0

    def counted(pointer: int, type_word: int) -> object:
        nonlocal taken
        taken += 1
        return take(pointer, type_word)

    def left(pointer: int, type_word: int) -> object:
        nonlocal taken
        taken -= 1
        return release(pointer, type_word) if taken < 0 else None

    try:
        return unpack_values(characters, data, counted)
    except BaseException:
        unpack_values(characters, data, left)
        raise


def unpack_arguments(convention: CallingConvention, data: memoryview, take: Take) -> list[Any]:
    """The arguments of a call from C. INTERNAL if the buffer is too short or too long."""
    values: list[Any] = []
    position = 0

    def read(characters: str) -> list[Any]:
        nonlocal position
        end = position + size_of(characters)
        part, position = data[position:end], end
        return unpack_values(characters, part, take)

    for item in convention.arguments:
        if not isinstance(item, Span):
            values += read(item)
            continue
        count = read("i")[0]
        if not 0 <= count * max(size_of(item.characters), 1) <= len(data):
            raise InternalError(f"a span of {count} tuples in a call with {len(data)} bytes")
        rows = [read(item.characters) for _ in range(count)]
        values.append([row[0] if len(row) == 1 else tuple(row) for row in rows])
    if position != len(data):
        raise InternalError(f"a call with {len(data)} bytes where '{convention.text}' has {position}")
    return values


def refs_of(convention: CallingConvention, data: memoryview) -> Iterator[tuple[int, int]]:
    """The refs among packed arguments, as they are now."""
    found: list[tuple[int, int]] = []

    def note(pointer: int, type_word: int) -> None:
        found.append((pointer, type_word))

    unpack_arguments(convention, data, note)
    return iter(found)
