"""Verifying the FlatBuffer of a file as a whole."""

from __future__ import annotations

from typing import Final

import numpy as np

from jitree.base.memory import address_of
from jitree.codegen.record import layout_of, size_of, words_of
from jitree.errors import InvalidArgumentError
from jitree.vmfb.native.code import compiled, interpreted
from jitree.vmfb.native.layout import Finding, Verifier

_SHARING: Final = 8
"""Offsets may point anywhere forward, so a small file can describe a huge tree by sharing its parts. Writers
share little; what is looked at may exceed the file by this factor."""
_SLACK: Final = 4096
_MOST_FINDINGS: Final = 1000
_WHAT: Final = (
    "table header out of range or unaligned",
    "vtable offset out of range or unaligned",
    "vtable size out of range or unaligned",
    "table size out of range",
    "table out of range",
    "field out of range or unaligned",
    "null offset",
    "vector header out of range or unaligned",
    "vector out of range",
    "string not zero terminated",
    "a union and its type do not belong together",
    "more content than the file can hold: its parts overlap",
)
"""What is wrong, by the number that machine code gives (FOUND_*)."""


def require_whole(flatbuffer: memoryview) -> None:
    """INVALID_ARGUMENT if any table is damaged, also one that is never read."""
    found = _findings(flatbuffer, 1)
    if len(found):
        raise InvalidArgumentError(f"FlatBuffer verification failed: {_text(found[0])}")


def table_findings(flatbuffer: memoryview) -> list[str]:
    """All that is wrong with the tables of a file."""
    found = [_text(finding) for finding in _findings(flatbuffer, _MOST_FINDINGS)]
    if len(found) == _MOST_FINDINGS:
        found.append(f"there may be more than these {_MOST_FINDINGS} faults in tables")
    return found


def _findings(flatbuffer: memoryview, most: int) -> list[list[int]]:
    """The fields of Finding records."""
    code = compiled() or interpreted()
    content = np.frombuffer(flatbuffer, np.uint8)
    findings = np.zeros((most, size_of(Finding) // 8), np.int64)
    record = np.zeros(size_of(Verifier) // 8, np.int64)
    values = {
        "data": address_of(content),
        "length": len(content),
        "tables": code.tables,
        "budget": _SHARING * len(content) + _SLACK,
        "findings": address_of(findings),
        "most": most,
    }
    named = words_of(Verifier)
    for name, value in values.items():
        record[getattr(named, name)] = value
    count = code.verify(address_of(record))
    return findings.view(np.int32)[:count].tolist()  # type: ignore[no-any-return]


def _text(finding: list[int]) -> str:
    from jitree.vmfb.tables import TABLES as NAMED

    what, table, slot, place = finding[: len(layout_of(Finding).offsets)]
    name, fields = list(NAMED.items())[table]
    where = next((f"{name}.{field}" for number, field, _ in fields if number == slot), name)
    return f"{_WHAT[what]} (at byte {place}, {where})"
