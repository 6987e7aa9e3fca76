"""Rows of tables in memory."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator


def rows_of(layout: struct.Struct, data: bytes | memoryview | array[int]) -> Iterator[tuple[Any, ...]]:
    """As ``layout.iter_unpack``, of a copy. Python's garbage collector takes a memoryview apart that such an
    iterator still has, and crashes as the iterator goes. A frame that an interrupt has left has its iterators
    for as long as the error lives, which may end in a circle."""
    return layout.iter_unpack(bytes(data))
