"""Lays out records in memory that Python and machine code share.

Offsets follow from tables of fields.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

_CODES: Final = {"u8": "B", "u16": "H", "u32": "I", "i32": "i", "i64": "q"}
_SIZES: Final = {kind: struct.calcsize(code) for kind, code in _CODES.items()} | {"line": 128}
KINDS: Final = frozenset(_SIZES)
"""Of fields. A ``line`` is an i64 that many processors write: it has two cache lines to itself, which are
fetched in pairs."""


class Record:
    """Byte offsets of named fields (``record["name"]``) and the record's size, a multiple of 8. The field
    ``i64*3 sizes`` is three numbers, and ``sizes`` names the first."""

    offsets: dict[str, int]
    types: dict[str, str]
    words: dict[str, int]
    size: int

    def __init__(self, name: str, fields: str) -> None:
        self.name = name
        self._fields = fields

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Lays the fields out when something of that is first asked for: programs use few records."""
            if name not in Record.__annotations__:
                raise AttributeError(f"a record has no {name}", name=name, obj=self)
            self._lay_out()
            return self.__dict__[name]

    def _lay_out(self) -> None:
        offsets: dict[str, int] = {}
        types: dict[str, str] = {}
        words: dict[str, int] = {}
        position = 0
        for line in self._fields.strip().splitlines():
            kind, field = line.split(None, 2)[:2]
            count = 1
            if kind not in _SIZES:
                kind, _, digits = kind.partition("*")
                count = int(digits)
            size = _SIZES[kind]
            position += -position % size
            offsets[field] = position
            types[field] = kind
            words[field] = position // min(size, 8)
            position += size * count
        self.offsets, self.types, self.words, self.size = offsets, types, words, (position + 7) // 8 * 8

    def packer(self) -> struct.Struct:
        """All fields in order; each lies at a multiple of its size without gaps."""
        return struct.Struct("<" + "".join(_CODES[kind] for kind in self.types.values()))

    def __getitem__(self, field: str) -> int:
        return self.offsets[field]

    def word(self, field: str) -> int:
        """Index of the field in a view of the record as integers of the field's own width."""
        return self.words[field]


def rows_of(layout: struct.Struct, data: bytes | memoryview | array[int]) -> Iterator[tuple[Any, ...]]:
    """As ``layout.iter_unpack``, of a copy. Python's garbage collector takes a memoryview apart that such an
    iterator still has, and crashes as the iterator goes. A frame that an interrupt has left has its iterators
    for as long as the error lives, which may end in a circle."""
    return layout.iter_unpack(bytes(data))
