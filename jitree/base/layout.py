"""Records in memory that Python and machine code share: tables of fields, from which offsets follow."""

from __future__ import annotations

import struct
from typing import Final

_CODES: Final = {"u8": "B", "u16": "H", "u32": "I", "i32": "i", "i64": "q"}
_SIZES: Final = {kind: struct.calcsize(code) for kind, code in _CODES.items()} | {"line": 128}
"""A ``line`` is an i64 that many processors write: it has two cache lines to itself, which are fetched in
pairs."""


class Record:
    """Byte offsets of named fields (``record["name"]``) and the record's size, a multiple of 8. The field
    ``i64*3 sizes`` is three numbers, and ``sizes`` names the first."""

    def __init__(self, name: str, fields: str) -> None:
        self.name = name
        self.offsets: dict[str, int] = {}
        self.types: dict[str, str] = {}
        position = 0
        for line in fields.strip().splitlines():
            kind, field = line.split(None, 2)[:2]
            count = 1
            if kind not in _SIZES:
                kind, _, digits = kind.partition("*")
                count = int(digits)
            size = _SIZES[kind]
            position += -position % size
            self.offsets[field] = position
            self.types[field] = kind
            position += size * count
        self.size = (position + 7) // 8 * 8

    def packer(self) -> struct.Struct:
        """All fields in order; each lies at a multiple of its size without gaps."""
        return struct.Struct("<" + "".join(_CODES[kind] for kind in self.types.values()))

    def __getitem__(self, field: str) -> int:
        return self.offsets[field]

    def word(self, field: str) -> int:
        """Index of the field in a view of the record as integers of the field's own width."""
        return self.offsets[field] // min(_SIZES[self.types[field]], 8)
