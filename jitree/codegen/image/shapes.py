"""Compiles once what texts have in common that differ in numbers only.

Models repeat their layers: kernels of these differ in distances inside their buffers, in what bounds are
compared with, and in tables for leaving machine code. One text serves all of them: a symbol stands for each
such number, and linking puts the number of each kernel into the instructions, as it does with addresses.
They take no register and no memory then, and LLVM writes what it would for a number that it knows: additions,
distances from pointers and comparisons of 64 bits are the same instructions for all numbers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple

if TYPE_CHECKING:
    from jitree.codegen.image.compile import Target
    from jitree.codegen.image.generated import Generated, Unit

MACHINE: Final = "x86_64"
"""Where instructions hold such numbers: of aarch64 each would take several, or memory."""
_NEAR: Final = 256
"""Recipes are alike that differ in no more than one byte of so many."""
_LEAST, _LIMIT = 1, 1 << 31
"""Numbers that a symbol may stand for: LLVM takes addresses for not zero, instructions hold 32 bits."""

_NUMBER: Final = re.compile(
    r"(  %\S+ = (?:add (?:nuw |nsw )*i64 %\S+, |getelementptr (\w+), ptr %\S+, i64 "
    r"|icmp \w+ i64 (?:%\S+, )?))(\d+)((?:, %\S+)?)"
)
"""A line with a number that may be a symbol: its beginning, what a pointer points to, the number, the end."""
_TABLE: Final = re.compile(r"@(\S+) = internal unnamed_addr constant (\[\d+ x i64\]) \[ (.*) \]")
_SIZES: Final = {"i8": 1, "half": 2, "i16": 2, "float": 4, "i32": 4, "double": 8, "i64": 8, "ptr": 8}
"""Bytes of what pointers point to. A symbol counts bytes: no instruction multiplies it."""
_WORD: Final = (1 << 64) - 1
_RANGE: Final = f"!absolute_symbol !{{i64 0, i64 {_LIMIT}}}"

Values = Mapping[str, int | bytes]
"""What symbols of a shape are for one text: numbers, and the bytes of tables."""


def alike(sources: Sequence[tuple[bytes, ...]]) -> list[list[int]]:
    """Lists, for each image's data, numbers of those that hardly differ from it.

    Its own number is among them. The first bytes are a text; what follows says which part of it the image is
    of, and is the same of those that are alike. One without data is like no other.
    """
    found: list[list[int]] = []
    groups: dict[tuple[object, ...], list[list[int]]] = {}
    for number, (text, *part) in enumerate(source or (b"",) for source in sources):
        same_length = groups.setdefault((len(text), *part), []) if text else []
        for group in same_length:
            if any(_is_near(sources[other][0], text) for other in group):
                break
        else:
            group = []
            same_length.append(group)
        group.append(number)
        found.append(group)
    return found


def _is_near(one: bytes, other: bytes) -> bool:
    """Whether few bytes differ, of as many."""
    return one is other or _differing(one, other) * _NEAR <= len(one)


def _differing(one: bytes, other: bytes) -> int:
    return len(one) - (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(len(one)).count(0)


class _LineFrame(NamedTuple):
    """A line without its number or table."""

    head: str
    kind: str
    """What a pointer points to, a table is."""
    tail: str
    symbol: str = ""
    """Of a table."""


class _OwnLine(NamedTuple):
    """A line of which texts of a shape have their own number or table."""

    symbol: str
    frame: _LineFrame

    def line(self) -> str:
        """What it is in the shape."""
        head, kind, tail, table = self.frame
        if table:
            return f"@{table} = external hidden unnamed_addr constant {kind}"
        if kind:
            head = head.replace(f"getelementptr {kind},", "getelementptr i8,", 1)
        return f"{head}ptrtoint (ptr @{self.symbol} to i64){tail}"


class TextShape:
    """Texts but for some numbers, and their machine code."""

    def __init__(self, unit: Unit, places: Mapping[int, _OwnLine]) -> None:
        """``unit`` has one of the texts, with ``places`` among its lines."""
        self._unit = unit
        self._lines = unit.texts[0].split("\n")
        self._places = places
        self._code: bytes | None = None

    def values(self, made: Generated) -> Values | None:
        """What the symbols are for another text; None if that has another shape."""
        unit = _unit(made)
        if unit is None or unit[1:] != self._unit[1:]:
            return None
        lines, values = unit.texts[0].split("\n"), dict[str, int | bytes]()
        if len(lines) != len(self._lines):
            return None
        for number, line in enumerate(lines):
            place = self._places.get(number)
            if place is None:
                if line != self._lines[number]:
                    return None
                continue
            frame, value = _read(line)
            if frame != place.frame or values.setdefault(place.symbol, value) != value:
                return None
        return values

    def code(self, target: Target) -> bytes:
        """Its object file, which refers to the symbols."""
        from jitree.codegen.image.compile import compile_unit

        if self._code is None:
            self._code = compile_unit(self._unit._replace(texts=["\n".join(self._text())]), target)
        return self._code

    def _text(self) -> Iterator[str]:
        for number, line in enumerate(self._lines):
            yield self._places[number].line() if number in self._places else line
        numbers = {place.symbol for place in self._places.values() if not place.frame.symbol}
        for symbol in sorted(numbers):  # unnamed: two may be the same number
            yield f"@{symbol} = external hidden unnamed_addr global i8, {_RANGE}"


def shapes_of(made: Iterable[Generated]) -> list[TextShape]:
    """Finds texts that differ only in numbers which symbols can stand for."""
    left, shapes = list(filter(None, map(_unit, made))), list[TextShape]()
    while left:
        first, *others = left
        same = [other for other in others if other[1:] == first[1:] and _places([first, other]) is not None]
        places = _places([first, *same]) if same else None
        if places is not None:
            shapes.append(TextShape(first, places))
        left = [other for other in others if other not in same]
    return shapes


def _unit(made: Generated) -> Unit | None:
    """The only unit, of one text, that begins with a copy of a base."""
    if made.base is None or len(made.units) != 1 or len(made.units[0].texts) != 1:
        return None
    return made.units[0]


def _places(units: Sequence[Unit]) -> dict[int, _OwnLine] | None:
    """Where texts differ, by the number of the line; None if they do not in numbers only."""
    texts = [unit.texts[0].split("\n") for unit in units]
    if len(set(map(len, texts))) != 1:
        return None
    places, symbols = dict[int, _OwnLine](), dict[tuple[int | bytes, ...], str]()
    for number, lines in enumerate(zip(*texts, strict=True)):
        if len(set(lines)) == 1:
            continue
        frames, values = zip(*map(_read, lines), strict=True)
        frame = frames[0]
        if frame is None or len(set(frames)) != 1:
            return None
        symbol = frame.symbol or symbols.setdefault(values, f"number.{len(symbols)}")
        places[number] = _OwnLine(symbol, frame)
    return places


def _read(line: str) -> tuple[_LineFrame | None, int | bytes]:
    """A line without its number or table, and that; no line if no symbol can stand for it."""
    found = _NUMBER.fullmatch(line)
    if found:
        head, kind, number, tail = found.groups()
        value = int(number) * (1 if kind is None else _SIZES.get(kind, 0))
        return (_LineFrame(head, kind or "", tail) if _LEAST <= value < _LIMIT else None), value
    table = _TABLE.fullmatch(line)
    if table:
        symbol, kind, items = table.groups()
        rows = [int(item.removeprefix("i64 ")) & _WORD for item in items.split(", ")]
        return _LineFrame("", kind, "", symbol), struct.pack(f"<{len(rows)}Q", *rows)
    return None, 0
