"""Describes records in memory that others lay out: fields, numbers in a row, atomic fields.

    class Entry(MemoryRecord):
        count: i64
        parent: Entry

    entry = Entry(address)
    entry.count += 1
    if entry.parent: ...
    layout_of(Entry)["parent"], layout_of(Entry).size

A record is its address: ``Entry(0)`` is none, false, and equal to another none. The class states the fields
in order, from which their places follow: integers, addresses of records, or a record itself where its class
is ``embedded``. As machine code an access is one instruction (:mod:`jitree.codegen.typed`).

``class Entry(MemoryRecord, layout=ENTRY)`` has the fields of a table instead, and states only those that are
records.

``values = Floats(address)``, ``values[3] = values[2]``: numbers of one type next to each other. As machine
code these are pointers, not integers, so that LLVM makes vectors of loops over them.

``atomic_add(team.finished, 1)``: numbers that several threads change. Loads, additions and replacements are
in one order for all threads; a store comes after what its thread did before it. In Python they are ordinary
ones: there, only one thread may use them at a time.
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


class Atomic(MemoryRecord):
    """A field of 64 bits, at a multiple of 8."""

    embedded = True


def atomic_load(word: Atomic) -> int:
    return ctypes.c_int64.from_address(place_of(word)).value


def atomic_store(word: Atomic, value: int) -> None:
    ctypes.c_int64.from_address(place_of(word)).value = value


def atomic_add(word: Atomic, amount: int) -> int:
    """What the number was before."""
    before = atomic_load(word)
    atomic_store(word, before + amount)
    return before


def atomic_replace(word: Atomic, expected: int, value: int) -> bool:
    """Sets the number if it is as expected; whether it was."""
    found = atomic_load(word) == expected
    if found:
        atomic_store(word, value)
    return found


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
