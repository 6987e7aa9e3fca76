"""Names types of references, one table per instance, and encodes values in list slots.

A ref register is untyped; what it points to carries the number of its type. The two types that the
instruction set knows are fixed, modules register theirs by name (``hal.buffer`` …). A Python class whose
instances (and those of subclasses) are references of a type says so in ``VM_TYPE``, or is registered with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from jitree import errors
from jitree.base.arguments import object_of
from jitree.base.finalizers import guard
from jitree.errors import InvalidArgumentError, NotFoundError, pass_interruption
from jitree.regs.layout import (
    KIND_BUFFER,
    KIND_FIRST_REGISTERED,
    KIND_LIST,
    LIST_F32,
    LIST_F64,
    LIST_I8,
    LIST_I16,
    LIST_I32,
    LIST_I64,
    TYPE_OPAQUE,
    VALUE_TYPE_CODES,
)
from jitree.vmfb.words import signed

BUFFER_NAME: Final = "vm.buffer"
LIST_NAME: Final = "vm.list"
_OPAQUE_NAMES: Final = ("vm.opaque", "vm.ref<?>", "?")

_INTEGER_BITS: Final = {LIST_I8: 8, LIST_I16: 16, LIST_I32: 32, LIST_I64: 64}
_F32: Final = struct.Struct("<f")
_F64: Final = struct.Struct("<d")


def stated_type(value: object) -> str | None:
    """Returns the reference type name that a class or base states."""
    return getattr(type(value), "VM_TYPE", None)


class RefTypes:
    """Type numbers by name and by class."""

    def __init__(self) -> None:
        self._lock = guard()
        self._ids: dict[str, int] = {BUFFER_NAME: KIND_BUFFER, LIST_NAME: KIND_LIST}
        self._names: dict[int, str] = {KIND_BUFFER: BUFFER_NAME, KIND_LIST: LIST_NAME}
        self._classes: dict[type, int] = {}
        self._cache: dict[type, int] = {}

    def declare(self, names: Iterable[str]) -> None:
        """Makes types known whose classes state their names: those need not be imported for it."""
        with self._lock:
            new = [name for name in dict.fromkeys(names) if name not in self._ids]
            first = KIND_FIRST_REGISTERED + len(self._ids)
            numbers = range(first, first + len(new))
            self._names.update(zip(numbers, new, strict=True))
            self._ids.update(zip(new, numbers, strict=True))
            if new:
                self._cache = {}

    def register(self, name: str, cls: type) -> int:
        """The type number of ``name`` (without ``!``), whose objects are instances of ``cls``.

        Registering the same pair again returns the same number; ALREADY_EXISTS if the name or the class
        belongs to another one.
        """
        name = object_of("name", name, str).removeprefix("!")
        object_of("cls", cls, type)
        with self._lock:
            known, owner = self._ids.get(name), self._number_of(cls)
            if known is not None and known == owner:
                return known
            if known is not None or owner is not None:
                other = name if known is not None else self._names[owner or 0]
                raise errors.AlreadyExistsError(
                    f"ref type '{name}' of class {cls.__name__}: '{other}' is registered differently"
                )
            self.declare((name,))
            number = self._classes[cls] = self._ids[name]
            return number

    def _number_of(self, cls: type) -> int | None:
        """Returns the number of a class, or of its stated type."""
        number = self._classes.get(cls)
        return self._ids.get(vars(cls).get("VM_TYPE", "")) if number is None else number

    def lookup(self, name: str) -> int:
        """The number of a registered type; NOT_FOUND if there is none of that name."""
        number = self._ids.get(name.removeprefix("!")) if type(name) is str else None
        if number is None:
            object_of("name", name, str)
            known = ", ".join(sorted(self._ids))
            raise NotFoundError(f"ref type '{name}' is not registered; registered are {known}")
        return number

    def resolve(self, type_name: str) -> int:
        """The type id of an entry of a module's type table (``i32``, ``!vm.list<i8>``, ``!hal.buffer``):
        a LIST_* code for value types, TYPE_OPAQUE, or the number of a ref type. NOT_FOUND if unknown."""
        code = VALUE_TYPE_CODES.get(type_name)
        if code is not None:
            return code
        name = type_name.removeprefix("!")
        if name in _OPAQUE_NAMES:
            return TYPE_OPAQUE
        if name.startswith(LIST_NAME):
            return KIND_LIST
        if name.startswith("vm.ref<"):
            return self.resolve(name.removeprefix("vm.ref<").removesuffix(">"))
        return self.lookup(name)

    def name(self, number: int) -> str:
        """The name of a type id for messages."""
        if number == TYPE_OPAQUE:
            return "vm.opaque"
        return self._names.get(number, f"type {number}")

    def id_of(self, obj: object) -> int:
        """Returns an object's type number, by the nearest registered class.

        INVALID_ARGUMENT if the object cannot be a reference.
        """
        cls = type(obj)
        number = self._cache.get(cls)
        if number is None:
            for base in cls.__mro__:
                number = self._number_of(base)
                if number is not None:
                    self._cache[cls] = number
                    return number
            raise InvalidArgumentError(
                f"a value of class {cls.__module__}.{cls.__qualname__} cannot be passed as a reference: "
                "its class is not a registered ref type"
            )
        return number


def _f32_bits(value: float) -> int:
    try:
        return int.from_bytes(_F32.pack(value), "little")
    except OverflowError as error:  # beyond binary32: infinity, as the conversion instruction gives
        pass_interruption(error)
        return 0x7F800000 if value > 0 else 0xFF800000


def to_bits(code: int, value: float) -> int:
    """The slot contents of a value of a LIST_* value code; integers are truncated and sign extended."""
    bits = _INTEGER_BITS.get(code)
    if bits is not None:
        return signed(int(value), bits)
    if code == LIST_F32:
        return _f32_bits(value)
    return int.from_bytes(_F64.pack(value), "little", signed=True)


def from_bits(code: int, bits: int) -> int | float:
    """The value of slot contents of a LIST_* value code."""
    if code == LIST_F32:
        return float(_F32.unpack(struct.pack("<I", bits & 0xFFFFFFFF))[0])
    if code == LIST_F64:
        return float(_F64.unpack(struct.pack("<q", bits))[0])
    return bits


def convert(source: int, bits: int, target: int) -> int:
    """Slot contents of code ``target`` from those of code ``source``: integers change width, floats convert,
    and between integers and floats the result is 0."""
    if source == target:
        return bits
    if target in _INTEGER_BITS:
        return signed(bits, _INTEGER_BITS[target]) if source in _INTEGER_BITS else 0
    return 0 if source in _INTEGER_BITS else to_bits(target, from_bits(source, bits))
