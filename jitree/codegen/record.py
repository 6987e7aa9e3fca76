"""Records in memory that others lay out: fields as attributes, in Python and as machine code.

    class Entry(MemoryRecord):
        count: i64
        parent: Entry

    entry = Entry(address)
    entry.count += 1
    if entry.parent: ...
    layout_of(Entry)["parent"], layout_of(Entry).size

A record is its address: ``Entry(0)`` is none, false, and equal to another none. The class states the fields
in order, from which their places follow: integers, addresses of records, or a record itself where its class
is ``embedded``. As machine code an access is one instruction (:mod:`jitree.codegen.typed_records`).

``class Entry(MemoryRecord, layout=ENTRY)`` has the fields of a table instead, and states only those that are
records.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias, overload

from jitree.base.layout import KINDS, Record

if TYPE_CHECKING:
    u8: TypeAlias = int
    u32: TypeAlias = int
    i32: TypeAlias = int
    i64: TypeAlias = int
    """Kinds of fields, which classes state in annotations that nothing evaluates."""

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

    layout_of_fields: ClassVar[Record]
    fields_of_layout: ClassVar[dict[str, RecordField]]
    embedded: ClassVar[bool] = False
    """Whether a field of this class is the record, not its address."""

    def __init__(self, place: int) -> None:
        self._place_of_this_record = place

    def __init_subclass__(
        cls, layout: Record | None = None, apart: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        stated: dict[str, str] = cls.__annotations__
        cls.layout_of_fields = layout or _laid_out(cls.__name__, stated)
        cls.fields_of_layout = {}
        for name, kind in cls.layout_of_fields.types.items():
            target = stated.get(name) if stated.get(name) not in KINDS else None
            field = RecordField(cls.layout_of_fields[name], kind, cls, target, apart.get(name))
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


def _laid_out(name: str, stated: Mapping[str, str]) -> Record:
    """The fields of a class one after the other; those that are records take a word."""
    kinds = ((kind if kind in KINDS else "i64", field) for field, kind in stated.items())
    return Record(name, "\n".join(f"{kind} {field}" for kind, field in kinds))


def layout_of(record: type[MemoryRecord]) -> Record:
    """Where the fields of a class are."""
    return record.layout_of_fields


def place_of(record: MemoryRecord) -> int:
    """Where a record lies; 0 of none."""
    place: int = record._place_of_this_record
    return place
