"""States the tables of a module's FlatBuffer, also as halfwords for machine code.

Fields are in slot order, as in IREE's ``bytecode_module_def.fbs``. :mod:`jitree.vmfb.native.checking`
verifies by the halfwords.
"""

from __future__ import annotations

from array import array
from typing import Final

from jitree.codegen.record import size_of
from jitree.vmfb.native import layout
from jitree.vmfb.native.layout import Field

LOCATION_TYPES: Final = ("NONE", "CallSiteLocDef", "FileLineColLocDef", "FusedLocDef", "NameLocDef")
"""Tables of the union of locations, by its tag."""

TABLES: Final[dict[str, tuple[tuple[int, str, str], ...]]] = {
    "module": (
        (0, "name", "text"),
        (1, "version", "u32"),
        (2, "requirements", "features"),
        (3, "attrs", "attr*"),
        (4, "types", "type*"),
        (5, "dependencies", "dependency*"),
        (6, "imported_functions", "import*"),
        (7, "exported_functions", "export*"),
        (8, "function_signatures", "signature*"),
        (9, "rodata_segments", "rodata*"),
        (10, "rwdata_segments", "rwdata*"),
        (11, "module_state", "state"),
        (12, "function_descriptors", "descriptors"),
        (13, "bytecode_version", "u32"),
        (14, "bytecode_data", "bytes"),
        (15, "debug_database", "debug"),
    ),
    "attr": ((0, "key", "text"), (1, "value", "text")),
    "type": ((0, "full_name", "text"),),
    "dependency": ((0, "name", "text"), (1, "minimum_version", "u32"), (2, "flags", "binding")),
    "import": ((0, "full_name", "text"), (1, "signature", "signature"), (2, "flags", "binding")),
    "export": ((0, "local_name", "text"), (1, "internal_ordinal", "i32")),
    "signature": ((0, "calling_convention", "text"), (1, "attrs", "attr*")),
    "rodata": (
        (0, "compression_type_type", "u8"),
        (1, "compression_type", "compression"),
        (2, "embedded_data", "bytes"),
        (3, "external_data_offset", "u64"),
        (4, "external_data_length", "u64"),
    ),
    "rwdata": ((0, "byte_size", "i32"),),
    "state": ((0, "global_bytes_capacity", "i32"), (1, "global_ref_count", "i32")),
    "debug": (
        (0, "location_table_type", "location_types"),
        (1, "location_table", "locations"),
        (2, "functions", "source_map*"),
    ),
    "source_map": ((0, "local_name", "text"), (1, "locations", "source_locations")),
    "CallSiteLocDef": ((0, "callee", "i32"), (1, "caller", "i32")),
    "FileLineColLocDef": ((0, "filename", "text"), (1, "line", "i32"), (2, "column", "i32")),
    "FusedLocDef": ((0, "metadata", "text"), (1, "locations", "i32s")),
    "NameLocDef": ((0, "name", "text"), (1, "child_location", "i32")),
}
"""(slot, name, kind) of each table's fields. A kind that ends in ``*`` is a vector of that
table, the name of a table is that, and the others are in ``KINDS``."""

KINDS: Final[dict[str, tuple[str, int]]] = {
    "u8": ("scalar", 1), "u32": ("scalar", 4), "i32": ("scalar", 4), "u64": ("scalar", 8),
    "features": ("scalar", 4), "binding": ("scalar", 4), "text": ("text", 1), "bytes": ("vector", 1),
    "i32s": ("vector", 4), "descriptors": ("vector", 20), "source_locations": ("vector", 8),
    "location_types": ("vector", 1), "locations": ("unions", 0), "compression": ("union", 0),
}  # fmt: skip
"""What lies in the file for each kind of field, and the bytes of it or of its elements. The slot in front of
unions has their tags."""

NAMES: Final = tuple(TABLES)
FIRST_LOCATION: Final = NAMES.index(LOCATION_TYPES[1])
_FIELD_KINDS: Final = {
    "scalar": layout.FIELD_SCALAR,
    "text": layout.FIELD_TEXT,
    "vector": layout.FIELD_VECTOR,
    "union": layout.FIELD_UNION,
    "unions": layout.FIELD_UNIONS,
}


def schema_words() -> array[int]:
    words = array("H", bytes(2 * len(NAMES)))
    for number, name in enumerate(NAMES):
        words[number] = len(words)
        for slot, _, kind in TABLES[name]:
            found, size = _field(kind)
            words.extend((found, slot, size, 0))
        words.extend([0] * (size_of(Field) // 2))
    return words


def _field(kind: str) -> tuple[int, int]:
    """``kind`` and ``size`` of a Field."""
    if kind.endswith("*"):
        return layout.FIELD_TABLES, NAMES.index(kind[:-1])
    if kind not in KINDS:
        return layout.FIELD_TABLE, NAMES.index(kind)
    found, size = KINDS[kind]
    return _FIELD_KINDS[found], len(LOCATION_TYPES) - 1 if found == "unions" else size
