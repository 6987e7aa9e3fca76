"""The schema of modules for :mod:`jitree.vmfb.native.checking`, as halfwords."""

from __future__ import annotations

from array import array
from typing import Final

from jitree.vmfb.native import layout
from jitree.vmfb.native.layout import FIELD
from jitree.vmfb.tables import KINDS, LOCATION_TYPES, TABLES

NAMES: Final = tuple(TABLES)
FIRST_LOCATION: Final = NAMES.index(LOCATION_TYPES[1])
_FIELD_KINDS: Final = {
    "scalar": layout.FIELD_SCALAR,
    "text": layout.FIELD_TEXT,
    "vector": layout.FIELD_VECTOR,
    "union": layout.FIELD_UNION,
    "unions": layout.FIELD_UNIONS,
}


def encode() -> array[int]:
    words = array("H", bytes(2 * len(NAMES)))
    for number, name in enumerate(NAMES):
        words[number] = len(words)
        for slot, _, kind in TABLES[name]:
            found, size = _field(kind)
            words.extend((found, slot, size, 0))
        words.extend([0] * (FIELD.size // 2))
    return words


def _field(kind: str) -> tuple[int, int]:
    """FIELD.kind and FIELD.size."""
    if kind.endswith("*"):
        return layout.FIELD_TABLES, NAMES.index(kind[:-1])
    if kind not in KINDS:
        return layout.FIELD_TABLE, NAMES.index(kind)
    found, size = KINDS[kind]
    return _FIELD_KINDS[found], len(LOCATION_TYPES) - 1 if found == "unions" else size
