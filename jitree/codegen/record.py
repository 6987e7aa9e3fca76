"""Records in memory that others lay out: fields as attributes, in Python and as machine code.

    class Entry(MemoryRecord, layout=ENTRY):
        parent: Entry

    entry = Entry(address)
    entry.count += 1
    if entry.parent: ...

A record is its address: ``Entry(0)`` is none, false, and equal to another none. Fields are integers, but for
those that the class says are records: these are addresses of records, or the record itself where that is
``embedded``. As machine code an access is one instruction (:mod:`jitree.codegen.typed_records`).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self, overload


class Layout(Protocol):
    """What :class:`jitree.base.layout.Record` states of a record."""

    name: str
    types: dict[str, str]

    def __getitem__(self, field: str) -> int: ...


_KINDS: Final[dict[str, Any]] = {
    "u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "i32": ctypes.c_int32,
}  # fmt: skip
"""Those of fields that are not 64 bits wide."""


class RecordField:
    """A field: ``entry.count``. ``Entry.count`` is this object, which knows its ``offset``."""

    def __init__(
        self, offset: int, kind: str, owner: type[MemoryRecord], target: str | None, apart: str | None
    ) -> None:
        self._kind = _KINDS.get(kind, ctypes.c_int64)
        self.offset: Final = offset
        self.width: Final = ctypes.sizeof(self._kind)
        """Bytes of the field."""
        self.signed: Final = kind in ("i32", "i64", "line")
        self.apart: Final = apart
        """The name of what no access by another name, or by none, overlaps."""
        self._owner = owner
        self._target = target

    def target(self) -> type[MemoryRecord] | None:
        """The class of records that the field points to; None for a number."""
        if self._target is None:
            return None
        found: type[MemoryRecord] = getattr(sys.modules[self._owner.__module__], self._target)
        return found

    @overload
    def __get__(self, record: None, owner: type[MemoryRecord]) -> Self: ...

    @overload
    def __get__(self, record: MemoryRecord, owner: type[MemoryRecord]) -> int | MemoryRecord: ...

    def __get__(self, record: MemoryRecord | None, owner: type[MemoryRecord]) -> Any:
        if record is None:
            return self
        target, place = self.target(), place_of(record) + self.offset
        if target is not None and target.embedded:
            return target(place)
        number: int = self._kind.from_address(place).value
        return number if target is None else target(number)

    def __set__(self, record: MemoryRecord, value: int | MemoryRecord) -> None:
        number = place_of(value) if isinstance(value, MemoryRecord) else value
        self._kind.from_address(place_of(record) + self.offset).value = number


class MemoryRecord:
    """The base of record classes."""

    __slots__ = ("_place_of_this_record",)

    fields_of_layout: ClassVar[dict[str, RecordField]]
    embedded: ClassVar[bool] = False
    """Whether a field of this class is the record, not its address."""

    def __init__(self, place: int) -> None:
        self._place_of_this_record = place

    def __init_subclass__(
        cls, layout: Layout | None = None, apart: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        cls.fields_of_layout = {}
        if layout is not None:
            for name, kind in layout.types.items():
                target = cls.__annotations__.get(name)
                field = RecordField(layout[name], kind, cls, target, apart.get(name))
                cls.fields_of_layout[name] = field
                setattr(cls, name, field)

    def __bool__(self) -> bool:
        return self._place_of_this_record != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryRecord) and place_of(self) == place_of(other)

    def __hash__(self) -> int:
        return hash(self._place_of_this_record)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> int: ...  # fields that the class does not name

        def __setattr__(self, name: str, value: Any) -> None: ...


def place_of(record: MemoryRecord) -> int:
    """Where a record lies; 0 of none."""
    place: int = record._place_of_this_record
    return place
