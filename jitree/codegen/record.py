"""Describes records in memory that others lay out. They have fields, numbers in a row and atomic fields.

    class Entry(MemoryRecord):
        count: i64
        sizes: i32 = Repeated(3)
        parent: Entry

    entry = Entry(address)
    entry.count += 1
    if entry.parent: ...
    layout_of(Entry)["parent"], size_of(Entry)     # in bytes
    view[words_of(Entry).count]

A record is its address: ``Entry(0)`` is none, false, and equal to another none. The class states the fields
in order, from which their places follow: integers, addresses of records, or a record itself where its class
is ``embedded``. A class of a class has the fields of that one first, and may state another class of records
for them. As machine code an access is one instruction (:mod:`jitree.codegen.functions`).

The fields of a class are not looked at when it is made, as every program makes dozens of classes. They are
laid out when code asks for their places, and become attributes with the first record.

``atomic_add(team.finished, 1)``: numbers that several threads change. Loads, additions and replacements are
in one order for all threads; a store comes after what its thread did before it. In Python they are ordinary
ones: there, only one thread may use them at a time.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    u8: TypeAlias = int
    u16: TypeAlias = int
    u32: TypeAlias = int
    i32: TypeAlias = int
    i64: TypeAlias = int
    line: TypeAlias = "Atomic"
    """Kinds of fields, which classes state in annotations that nothing evaluates. A ``line`` is an
    :class:`Atomic` that has two cache lines to itself, which are fetched in pairs."""

_KINDS: Final[dict[str, Any]] = {
    "u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
}  # fmt: skip
_CODES: Final[dict[str, Literal["B", "H", "I", "i", "q"]]] = {"u8": "B", "u16": "H", "u32": "I", "i32": "i"}
"""As :mod:`struct` has them; all others are ``q``."""
_SIZES: Final = {"u8": 1, "u16": 2, "u32": 4, "i32": 4, "i64": 8, "Atomic": 8, "line": 128}


@cache
def memory_as(code: Literal["B", "H", "I", "i", "q"]) -> memoryview:
    """All memory of the process as numbers, whose kind is a letter of :mod:`struct`: looking into it takes a
    third of what an object of ctypes does."""
    return memoryview((ctypes.c_ubyte * (1 << 56)).from_address(0)).cast("B").cast(code)


class Repeated(int):
    """Says how many numbers a field is, one after the other. Its name is the first one's."""


class MemoryRecord:
    """The base of record classes."""

    __slots__ = ("_place_of_this_record",)

    embedded: ClassVar[bool] = False
    """Whether a field of this class is the record, not its address."""
    apart: ClassVar[str] = ""
    """``field: name, ...``: what no access by another name, or by none, overlaps."""

    def __init__(self, place: int) -> None:
        if type(self) not in _fields:
            fields_of(type(self))
        self._place_of_this_record = place

    def __bool__(self) -> bool:
        return self._place_of_this_record != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryRecord) and place_of(self) == place_of(other)

    def __hash__(self) -> int:
        return hash(self._place_of_this_record)

    if TYPE_CHECKING:

        def __index__(self) -> int: ...  # of ``words_of(Entry).parent``

        def __radd__(self, other: int) -> int: ...


AnyRecord = TypeVar("AnyRecord", bound=MemoryRecord)


class _Words:
    """Numbers of fields, as attributes."""


class Layout:
    """Where the fields of a class are, in their order; inherited ones come first."""

    __slots__ = ("kinds", "offsets", "size", "stated", "words")

    def __init__(self, record: type[MemoryRecord]) -> None:
        base = record.__mro__[1]
        first = None if base is MemoryRecord else layout_of(base)
        position: int = 0 if first is None else first.size
        self.offsets: dict[str, int] = {} if first is None else dict(first.offsets)
        self.kinds: dict[str, str] = {} if first is None else dict(first.kinds)
        """What the numbers are; of records, and of their addresses, ``i64``."""
        self.stated: dict[str, tuple[type[MemoryRecord], str]] = {} if first is None else dict(first.stated)
        """What a class says of them, and which one."""
        self.words: Any = _Words()
        named = vars(sys.modules[record.__module__])
        for name, kind in record.__annotations__.items():
            self.stated[name] = record, kind
            if name not in self.offsets:
                size = _SIZES.get(kind) or (
                    size_of(named[kind]) if kind in named and named[kind].embedded else 8
                )
                position += -position % (size if kind in _SIZES else 8)
                self.offsets[name] = position
                self.kinds[name] = kind if kind in _CODES else "i64"
                position += size * int(record.__dict__.get(name, 1))
        for name, offset in self.offsets.items():
            setattr(self.words, name, offset // _SIZES[self.kinds[name]])
        self.size: int = (position + 7) // 8 * 8

    def __getitem__(self, field: str) -> int:
        """Where a field begins, in bytes."""
        return self.offsets[field]

    def packer(self) -> struct.Struct:
        """All fields in order; each lies at a multiple of its size without gaps."""
        return struct.Struct("<" + "".join(_CODES.get(kind, "q") for kind in self.kinds.values()))


class RecordField:
    """A field: ``entry.count``."""

    def __init__(self, record: type[MemoryRecord], name: str) -> None:
        layout = layout_of(record)
        kind = layout.kinds[name]
        self._owner, self._stated = layout.stated[name]
        self._kind = _KINDS[kind]
        self.offset: Final = layout.offsets[name]
        self.width: Final = ctypes.sizeof(self._kind)
        """Bytes of the field."""
        self.signed: Final = kind[0] != "u"
        names = dict(item.split(": ") for item in record.apart.split(", ") if item)
        self.apart: Final = names.get(name)
        self._numbers = memory_as(_CODES.get(kind, "q"))

    @cached_property
    def target(self) -> type[MemoryRecord] | None:
        """The class of records that the field points to; None for a number."""
        if self._stated in _KINDS:
            return None
        return Atomic if self._stated == "line" else _named(self._owner, self._stated)

    def attribute(self) -> property:
        """The field of a record in Python."""
        offset, shift, kind, numbers = self.offset, self.width.bit_length() - 1, self._kind, self._numbers
        inside = self.width - 1

        def number(record: MemoryRecord) -> int:
            place = record._place_of_this_record + offset
            found: int = kind.from_address(place).value if place & inside else numbers[place >> shift]
            return found

        def pointed(record: MemoryRecord) -> MemoryRecord:
            target = self.target
            assert target is not None
            return target(record._place_of_this_record + offset if target.embedded else number(record))

        def store(record: MemoryRecord, value: int | MemoryRecord) -> None:
            number = place_of(value) if isinstance(value, MemoryRecord) else value
            kind.from_address(record._place_of_this_record + offset).value = number

        return property(number if self._stated in _KINDS else pointed, store)


_fields: Final[dict[type[MemoryRecord], dict[str, RecordField]]] = {MemoryRecord: {}}


layout_of = cast("Callable[[type[MemoryRecord]], Layout]", cache(Layout))
"""Where the fields of a class are."""


def size_of(record: type[MemoryRecord]) -> int:
    """Bytes of a record, a multiple of 8."""
    return layout_of(record).size


def words_of(record: type[AnyRecord]) -> AnyRecord:
    """The number of each field, as an attribute: its place in a view of records as numbers of its width."""
    words: AnyRecord = layout_of(record).words
    return words


def fields_of(record: type[MemoryRecord]) -> dict[str, RecordField]:
    """The fields, which are attributes of the class's records from then on."""
    found = _fields.get(record)
    if found is None:
        found = _fields[record] = {name: RecordField(record, name) for name in layout_of(record).offsets}
        for name, field in found.items():
            setattr(record, name, field.attribute())
    return found


def _named(owner: type[MemoryRecord], name: str) -> type[MemoryRecord]:
    """A class by its name in the module of another one; one whose module that does not import when it runs
    is the only one of its name in the package."""
    found: type[MemoryRecord] | None = vars(sys.modules[owner.__module__]).get(name)
    if found is None:
        known: list[type[MemoryRecord]] = [MemoryRecord]
        for record in known:
            known += record.__subclasses__()
        package = owner.__module__.partition(".")[0]
        alike = {
            item for item in known if (item.__module__.partition(".")[0], item.__name__) == (package, name)
        }
        (found,) = alike
        assert not found.embedded, f"{owner.__name__} is laid out without {name}"
    return found


def place_of(record: MemoryRecord) -> int:
    """Where a record lies; 0 of none."""
    place: int = record._place_of_this_record
    return place


class Atomic(MemoryRecord):
    """A field of 64 bits, at a multiple of 8."""

    embedded = True
    number: i64


def atomic_load(word: Atomic) -> int:
    return word.number


def atomic_store(word: Atomic, value: int) -> None:
    word.number = value


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
