"""Numbers of one type next to each other in memory: ``values = Floats(address)``, ``values[3] = values[2]``.

As machine code these are pointers, not integers, so that LLVM makes vectors of loops over them.
"""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar, Final

from jitree.codegen.record import MemoryRecord, place_of


class ElementMemory(MemoryRecord):
    """The base of the classes, one for each type."""

    kind: ClassVar[Any]
    width: ClassVar[int]
    """Bytes of an element."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.width = ctypes.sizeof(cls.kind)

    def __getitem__(self, index: int) -> Any:
        return self.kind.from_address(place_of(self) + self.width * index).value

    def __setitem__(self, index: int, value: float) -> None:
        self.kind.from_address(place_of(self) + self.width * index).value = value


class Bytes(ElementMemory):
    kind = ctypes.c_int8


class Halves(ElementMemory):
    kind = ctypes.c_int16


class Words(ElementMemory):
    kind = ctypes.c_int32


class Longs(ElementMemory):
    kind = ctypes.c_int64


class Floats(ElementMemory):
    kind = ctypes.c_float


NUMBERS: Final = {Bytes: "int8", Halves: "int16", Words: "int32", Longs: "int64", Floats: "float32"}
"""The types of elements, as Numba names them."""
