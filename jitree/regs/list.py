"""``vm.list``: growable lists of values or references, in memory that machine code indexes directly.

A slot is a tag and 64 bits (:data:`jitree.regs.layout.LIST_SLOT`). A list belongs to no handle table until
VM code first sees it: until then the references it holds are Python objects, afterwards they are handles of
that table.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.arguments import integer, natural, shown
from jitree.base.copying import ranges
from jitree.base.finalizers import Finalizer, Unique
from jitree.codegen.record import words_of
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    ResourceExhaustedError,
)
from jitree.regs.layout import (
    LIST_EMPTY,
    LIST_F32,
    LIST_F64,
    LIST_I64,
    LIST_REF,
    LIST_SLOT,
    LIST_VARIANT,
    VALUE_TYPE_CODES,
    Entry,
)
from jitree.regs.memory import UNBOUNDED, Bounds, address_of
from jitree.regs.ref_types import LIST_NAME, convert, from_bits, to_bits

if TYPE_CHECKING:
    from jitree.regs.handles import HandleTable

_ENTRY: Final = words_of(Entry)

MAXIMUM_CAPACITY: Final = 1 << 26
"""Slots of one list, 1 GiB. Programs keep a handful; more is a program gone wrong, which must not take the
machine's memory with it."""

_WORDS: Final = LIST_SLOT.size // 8
_FEW_WORDS: Final = 256  # quicker looked at one by one
PART_SIZE: Final = 1 << 18  # elements that are made or dropped at once, in some milliseconds
_NAMES: Final = {code: name for name, code in VALUE_TYPE_CODES.items()} | {LIST_VARIANT: "?"}
_FLOATS: Final = LIST_F32, LIST_F64
_INTEGERS: Final = tuple(code for code in VALUE_TYPE_CODES.values() if code not in _FLOATS)
_LEAST_CODE: Final = min(LIST_EMPTY, LIST_REF, *_NAMES)


class _Held:
    """The handles that slots hold when they are asked for: what is dropped when the list dies."""

    __slots__ = ("words",)

    def __init__(self, words: memoryview) -> None:
        self.words = words

    def __iter__(self) -> Iterator[int]:
        return iter(_handles(self.words))


def _new_slots(capacity: int) -> tuple[memoryview, int]:
    """The words of empty slots, and their address."""
    if capacity > MAXIMUM_CAPACITY:
        raise ResourceExhaustedError(f"a vm.list of {capacity} elements; the limit is {MAXIMUM_CAPACITY}")
    if capacity * _WORDS <= _FEW_WORDS:
        words = array("q", bytes(capacity * LIST_SLOT.size))
        return memoryview(words), words.buffer_info()[0]
    slots = np.zeros(capacity * _WORDS, np.int64)
    return slots.data, address_of(slots)


def _handles(slots: memoryview) -> list[int]:
    if len(slots) <= _FEW_WORDS:
        words = slots.tolist()
        if LIST_REF not in words:
            return []
        return [bits for tag, bits in zip(words[::2], words[1::2], strict=True) if tag == LIST_REF and bits]
    tags, bits = np.asarray(slots).reshape(-1, _WORDS).T
    found: list[int] = bits[(tags == LIST_REF) & (bits != 0)].tolist()
    return found


_NO_WORDS: Final = np.zeros(0, np.int64).data


class VmList(Unique):
    """Holds a list of a program. It is of values of one type, of references, or of anything.

    From Python it reads like a sequence (integers, floats, objects, None) and is filled by :meth:`append`. A
    list that VM code uses belongs to that context's thread. OUT_OF_RANGE for an index outside.

    >>> items = jitree.VmList("i32")
    >>> items.append(3)
    >>> items.append(-1)
    >>> list(items), len(items)
    ([3, -1], 2)
    """

    VM_TYPE: Final = LIST_NAME
    """The type by which programs refer to it."""
    __slots__ = (
        "__weakref__", "_address", "_charge", "_ending", "_objects", "capacity", "element_type",
        "handle", "held", "size", "table", "words",
    )  # fmt: skip

    def __init__(self, element_type: int | str = LIST_VARIANT, capacity: int = 0) -> None:
        """``element_type``: the name of a value type, the number of a reference type, or a LIST_* code;
        without one elements may be anything. ``capacity``: slots that it has room for. INVALID_ARGUMENT for
        other types, RESOURCE_EXHAUSTED for a huge capacity.
        """
        if isinstance(element_type, str):
            if element_type not in VALUE_TYPE_CODES:
                known = ", ".join(VALUE_TYPE_CODES)
                raise InvalidArgumentError(f"no value type '{element_type}'; there are: {known}")
            element_type = VALUE_TYPE_CODES[element_type]
        elif type(element_type) is not int or not _LEAST_CODE <= element_type < 1 << 63:
            raise InvalidArgumentError(
                "element_type: expected the name of a value type or the number of a type but got "
                f"{shown(element_type)}"
            )
        self.element_type = element_type
        """A LIST_* code, or the number of a reference type."""
        self.size = 0
        """How many elements it has."""
        self.capacity = 0
        """How many slots it has room for."""
        self.table: HandleTable | None = None
        """Whose handles the references in the slots are; None while they are Python objects."""
        self.handle = 0
        """The list's own entry in that table while VM code refers to it."""
        self.held: _Held | None = None
        """The references of a list that is in a table."""
        self._ending: Finalizer | None = None
        """What drops these references when the list dies."""
        self._objects: dict[int, object] = {}
        self._charge: object = None
        """What counts the memory of the slots (:class:`jitree.regs.memory.Bounds`)."""
        if type(capacity) is not int or capacity < 0:
            capacity = natural("capacity", capacity)
        if capacity:
            self._use(*_new_slots(capacity))
        else:
            self._address, self.words = 0, _NO_WORDS

    @classmethod
    def of_values(cls, element_type: int, code: int, bits: Sequence[int]) -> VmList:
        """Makes a list of values of one kind.

        ``element_type``: as of the class. ``code``: the LIST_* code of the values, which its elements can
        have. ``bits``: as slots have them. It raises nothing.
        """
        made = cls(element_type)
        if bits:
            words = array("q", (code, 0)) * len(bits)
            words[1::_WORDS] = array("q", bits)
            made.words, made._address = memoryview(words), words.buffer_info()[0]
            made.size = made.capacity = len(bits)
        return made

    @classmethod
    def of_references(cls, element_type: int, objects: Sequence[object]) -> VmList:
        """Makes a list of references to ``objects``, of an ``element_type`` as of the class.

        INVALID_ARGUMENT for one of another type comes when VM code sees the list.
        """
        made = cls(element_type)
        if objects:
            words = array("q", (LIST_REF, 0)) * len(objects)
            made.words, made._address = memoryview(words), words.buffer_info()[0]
            made.size = made.capacity = len(objects)
            made._objects = dict(enumerate(objects))
        return made

    @classmethod
    def over(cls, words: array[int], element_type: int, size: int, table: HandleTable, handle: int) -> VmList:
        """The object of a handle whose slots machine code has written.

        ``words``: the slots, ``size`` of them filled with elements of ``element_type``; ``table`` and
        ``handle``: whose they are. They are the entry's as long as the table does not have the object: the
        next thing is :meth:`hold`. It raises nothing.
        """
        made = cls(element_type)
        made.words, made._address = memoryview(words), words.buffer_info()[0]
        made.size, made.capacity = size, len(words) // _WORDS
        made.table, made.handle = table, handle
        return made

    # -- handle table ------------------------------------------------------------------------------

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """Shows VM code of ``table`` the list, by its entry at ``address``.

        FAILED_PRECONDITION while another context uses it, INVALID_ARGUMENT for an element of another type.
        """
        if self.table is None and not self.holds_references:
            self.table = table
        elif self.table is not table:
            if self.handle:
                raise FailedPreconditionError("the vm.list is in use by another context")
            self._unbind()
            self._bind(table)
        self.handle = address
        table.i32[((address - table.base) >> 2) + _ENTRY.element_type] = self.element_type
        self._publish()

    def leave_entry(self, table: HandleTable) -> None:
        """VM code of ``table`` no longer refers to the list. It raises nothing."""
        self.handle = 0

    def _bind(self, table: HandleTable) -> None:
        """INVALID_ARGUMENT for an element that cannot be one; the list stays as it was."""
        slots, words, handles = np.asarray(self.words), np.array(self.words), list[int]()
        try:
            self.table = table
            self.hold()
            for index, obj in self._objects.items():
                handles += (table.wrap(obj),)
                self._check_type(handles[-1])
                words[index * _WORDS + 1] = handles[-1]
        except BaseException:
            self.table = None
            table.release_all(handles)
            raise
        slots[:] = words
        self._objects = {}
        if self.held is not None:
            self.held.words = self.words

    def hold(self) -> None:
        """Drops the handles that ``held`` shows by then when the list dies."""
        if self.holds_references and self.table is not None:
            self.held = _Held(_NO_WORDS)
            self._ending = Finalizer(partial(self.table.deferred.append, self.held))

    def _unbind(self) -> None:
        table, self.table = self.table, None
        if self._ending is not None:
            self._ending.cancel()
        if table is not None:
            for index in range(self.size):
                if self.words[index * _WORDS] == LIST_REF:
                    handle = self.words[index * _WORDS + 1]
                    self._objects[index] = table.object(handle)
                    table.deferred += ((handle,),)
                    self.words[index * _WORDS + 1] = 0

    def _publish(self) -> None:
        table = self.table
        if self.handle and table is not None:
            word = (self.handle - table.base) >> 3
            table.i64[word + _ENTRY.address], table.i64[word + _ENTRY.length] = self._address, self.size
            table.i32[2 * word + _ENTRY.rank] = self.capacity

    @property
    def holds_references(self) -> bool:
        """Whether elements may be references."""
        return self.element_type > 0 or self.element_type in (LIST_VARIANT, LIST_REF)

    # -- size --------------------------------------------------------------------------------------

    def reserve(self, capacity: int, bounds: Bounds = UNBOUNDED) -> None:
        """Makes room for ``capacity`` slots; the size stays.

        ``bounds``: those of its maker, while it is in no table. INVALID_ARGUMENT for a negative number,
        RESOURCE_EXHAUSTED beyond 2**26 slots or what the bounds allow.
        """
        capacity = natural("capacity", capacity)
        if capacity <= self.capacity:
            return
        charge = (self.table.bounds if self.table else bounds).charge(capacity * LIST_SLOT.size)
        words, address = _new_slots(capacity)
        if self.size:
            np.asarray(words)[: self.size * _WORDS] = self.words[: self.size * _WORDS]
        self._use(words, address)
        self._publish()
        self._charge = charge

    def _use(self, words: memoryview, address: int) -> None:
        self._address = address
        self.words = words
        """Tag and bits of each slot, alternating. Those from ``size`` on are 0."""
        self.capacity = len(words) // _WORDS
        if self.held is not None:
            self.held.words = self.words

    def resize(self, size: int, look: Callable[[], object] = bool) -> None:
        """Makes the list have ``size`` elements. New ones are zero, null or (of any type) empty.

        Dropped ones release what they held. ``look`` may end it between parts of many elements: none of the
        new are there then, or some are dropped. Errors as of :meth:`reserve`.
        """
        size = natural("size", size)
        if size > self.capacity:
            self.reserve(max(size, min(2 * self.capacity, MAXIMUM_CAPACITY)))
        for part in ranges(size - self.size, PART_SIZE, look):
            self._clear(self.size + part.start, self.size + part.stop)
        self.size = max(size, self.size)
        self._publish()
        while size < self.size:
            self._shrink(max(size, self.size - PART_SIZE))
            if size < self.size:
                look()

    def _clear(self, first: int, last: int) -> None:
        """Makes slots those of new elements."""
        if self.element_type != LIST_VARIANT:
            tag = LIST_REF if self.element_type > 0 else self.element_type
            np.asarray(self.words)[first * _WORDS : last * _WORDS : _WORDS] = tag

    def _shrink(self, size: int) -> None:
        slots = self.words[size * _WORDS : self.size * _WORDS]
        dropped = _handles(slots) if self.table is not None and self.holds_references else []
        if self._objects:
            self._objects = {index: obj for index, obj in self._objects.items() if index < size}
        table, cleared = self.table, np.asarray(slots)
        if table is not None:
            table.owed += dropped
            if self.handle:
                table.i64[((self.handle - table.base) >> 3) + _ENTRY.length] = size
        cleared[:] = 0
        self.size = size
        if table is not None:
            table.release_owed()

    # -- elements as VM code sees them ---------------------------------------------------------------

    def get_bits(self, index: int, code: int) -> int:
        """The slot contents of an element, converted to a value code.

        ``index``: from 0 on. ``code``: a LIST_* code. Integers change width, floats are rounded; between both
        it is 0. OUT_OF_RANGE, or FAILED_PRECONDITION if the element is empty or a reference.
        """
        tag = self._tag(index)
        if tag in (LIST_EMPTY, LIST_REF):
            what = "empty" if tag == LIST_EMPTY else "a reference"
            raise FailedPreconditionError(
                f"list element {index} is {what}, not a value of type {_NAMES[code]}"
            )
        return convert(tag, self.words[index * _WORDS + 1], code)

    def set_bits(self, index: int, code: int, bits: int) -> None:
        """Stores slot contents, converted to the list's element type.

        ``index``: from 0 on. ``code``: the LIST_* code that ``bits`` are of. OUT_OF_RANGE, or
        FAILED_PRECONDITION if the list holds references.
        """
        self._tag(index)
        if self.element_type > 0 or self.element_type == LIST_REF:
            raise FailedPreconditionError(f"a value of type {_NAMES[code]} stored into a list of references")
        target = code if self.element_type == LIST_VARIANT else self.element_type
        converted = convert(code, bits, target)
        if self.words[index * _WORDS] == LIST_REF:
            self.set_handle(index, 0)
        self.words[index * _WORDS] = target
        self.words[index * _WORDS + 1] = converted

    def get_handle(self, index: int, type_id: int) -> int:
        """Returns a borrowed handle of an element; 0 if null or of another type.

        ``index``: from 0 on. ``type_id``: the number of the type. OUT_OF_RANGE, or FAILED_PRECONDITION if the
        element is a value.
        """
        tag = self._tag(index)
        if tag not in (LIST_EMPTY, LIST_REF):
            raise FailedPreconditionError(
                f"list element {index} is a value of type {_NAMES[tag]}, not a reference"
            )
        handle: int = self.words[index * _WORDS + 1]
        if not handle or self.table is None or self.table.kind(handle) != type_id:
            return 0
        return handle

    def set_handle(self, index: int, handle: int) -> None:
        """Stores another reference, by its ``handle``, at ``index``.

        OUT_OF_RANGE, FAILED_PRECONDITION if the list holds values, INVALID_ARGUMENT for another type.
        """
        self._tag(index)
        if not self.holds_references:
            raise FailedPreconditionError(f"a reference stored into a list of {_NAMES[self.element_type]}")
        self._check_type(handle)
        self._objects.pop(index, None)
        words, slot = self.words, index * _WORDS
        if words[slot] != LIST_REF:
            words[slot + 1] = 0
            words[slot] = LIST_REF
        if self.table is not None:
            self.table.put(words, slot + 1, handle)

    def _tag(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise OutOfRangeError(f"list index {index} out of bounds: the list has {self.size} elements")
        return self.words[index * _WORDS]

    def _check_type(self, handle: int) -> None:
        table = self.table
        if handle and self.element_type > 0 and table is not None and table.kind(handle) != self.element_type:
            expected = table.ref_types.name(self.element_type)
            actual = table.ref_types.name(table.kind(handle))
            raise InvalidArgumentError(f"a reference of type {actual} stored into a list of {expected}")

    # -- elements as Python sees them ----------------------------------------------------------------

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> object:
        """Returns an integer, float, object, or None for null or empty."""
        index = self._place(index)
        tag = self._tag(index)
        if tag not in (LIST_EMPTY, LIST_REF):
            return from_bits(tag, self.words[index * _WORDS + 1])
        if self.table is None:
            return self._objects.get(index)
        return self.table.object(self.words[index * _WORDS + 1])

    def __iter__(self) -> Iterator[object]:
        return (self[index] for index in range(self.size))

    def __setitem__(self, index: int, value: object) -> None:
        """Stores a value: an integer, a float, an object or None, as the list's element type.

        Integers change width as programs do, and may wrap; integers become floats in a list of those, which
        are rounded. INVALID_ARGUMENT for a float in a list of integers, and for integers beyond 64 bits,
        FAILED_PRECONDITION for an object in a list of values and a value in a list of references.
        """
        index = self._place(index)
        if isinstance(value, (int, float)):
            is_integer = not isinstance(value, float)
            if is_integer and not -(1 << 63) <= value < 1 << 64:
                raise InvalidArgumentError(f"value: expected an integer of 64 bits but got {shown(value)}")
            if not is_integer and self.element_type in _INTEGERS:
                raise InvalidArgumentError(f"value: a list of {_NAMES[self.element_type]} has no {value}")
            code = LIST_I64 if is_integer and self.element_type not in _FLOATS else LIST_F64
            self.set_bits(index, code, to_bits(code, value))
        elif self.table is not None:
            handle = self.table.wrap(value)
            try:
                self.set_handle(index, handle)
            finally:
                self.table.owed += (handle,)
                self.table.release_owed()
        else:
            self.set_handle(index, 0)
            if value is not None:
                self._objects[index] = value

    def append(self, value: object) -> None:
        """Adds an element as ``list[i] = value`` stores it.

        INVALID_ARGUMENT for what does not fit the element type: the list stays as it was. RESOURCE_EXHAUSTED
        beyond 2**26 slots.
        """
        self.resize(self.size + 1)
        try:
            self[self.size - 1] = value
        except BaseException:
            self.resize(self.size - 1)
            raise

    def tag(self, index: int) -> int:
        """The LIST_* code of what an element holds: LIST_EMPTY, LIST_REF or a value code.

        ``index``: negative ones count from the end. OUT_OF_RANGE outside.
        """
        return self._tag(self._place(index))

    def _place(self, index: Any) -> int:
        """The place of an element, which Python may count from the end."""
        place = integer("index", index)
        return place if place >= 0 else place + self.size

    def __repr__(self) -> str:
        name = _NAMES.get(self.element_type, f"type {self.element_type}")
        return f"<VmList<{name}> of {self.size}>"


def without_lists(values: Iterable[object]) -> Iterator[object]:
    """The values, and those that lists among them have, however deep; each list is looked into once."""
    waiting = [iter(values)]
    seen: dict[int, VmList] = {}
    while waiting:
        for value in waiting[-1]:
            if not isinstance(value, VmList):
                yield value
            elif id(value) not in seen:
                seen[id(value)] = value
                waiting.append(iter(value))
                break
        else:
            waiting.pop()
