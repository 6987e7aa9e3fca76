"""Wraps references, and checks the arguments of native functions.

A function that is native in iree.runtime raises TypeError for an argument of another kind; so do those here.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import islice
from typing import Any, ClassVar, Final, ParamSpec, Self, TypeVar

import numpy as np

from jitree.base.arguments import is_released, shown
from jitree.errors import own_error, pass_interruption
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.fence import Fence
from jitree.regs.buffer import VmBuffer as VmBytes
from jitree.regs.list import VmList

_NAMES = {
    VmBytes: "vm.buffer",
    VmList: "vm.list",
    Buffer: "hal.buffer",
    BufferView: "hal.buffer_view",
    Fence: "hal.fence",
}


class VmRef:
    """A reference of any type."""

    __slots__ = ("raw",)

    def __init__(self, raw: object) -> None:
        self.raw = raw
        """What the program refers to."""

    @property
    def __iree_vm_ref__(self) -> VmRef:
        return self

    def isinstance(self, cls: Any) -> bool:
        """Whether :meth:`deref` to a class succeeds. TypeError for what is no class."""
        _require_class(cls)
        return cls.__iree_vm_cast__(self) is not None

    def deref(self, value: Any, optional: bool = False) -> Any:
        """The object as an instance of a class that has ``__iree_vm_cast__``.

        TypeError if it is of another type; None then with ``optional``.
        """
        _require_class(value)
        found = value.__iree_vm_cast__(self)
        if found is None and not optional:
            raise TypeError("Cannot dereference to specific type")
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VmRef) and self.raw is other.raw

    def __hash__(self) -> int:
        return hash(id(self.raw))

    def __repr__(self) -> str:
        if self.raw is None:
            return "<VmRef NULL>"
        return f"<VmRef {_NAMES.get(type(self.raw), type(self.raw).__name__)} at {id(self.raw):#x}>"


def _require_class(cls: Any) -> None:
    if not isinstance(cls, type):
        raise TypeError(f"expected a class but got {shown(cls)}")
    cls.__iree_vm_type__  # type: ignore[attr-defined]  # noqa: B018  # those without are no types of the VM


class Reference:
    """Wraps objects of one class of jitree's. All wrappers of one object are equal."""

    wrapped: ClassVar[type]

    raw: Any
    """What it wraps."""

    def __init__(self) -> None:
        """For those that only functions make."""
        raise TypeError(f"{type(self).__name__}: no constructor defined")

    @classmethod
    def of(cls, raw: Any) -> Self:
        made = cls.__new__(cls)
        made.raw = raw
        return made

    @classmethod
    def __iree_vm_type__(cls) -> int:
        return id(cls.wrapped)

    @classmethod
    def __iree_vm_cast__(cls, ref: VmRef, /) -> Self | None:
        """None for a reference of another type."""
        if not isinstance(ref, VmRef):
            raise TypeError(f"__iree_vm_cast__(): expected a VmRef but got {type(ref).__name__}")
        return cls.of(ref.raw) if isinstance(ref.raw, cls.wrapped) else None

    @property
    def __iree_vm_ref__(self) -> VmRef:
        return VmRef(self.raw)

    @property
    def ref(self) -> VmRef:
        return VmRef(self.raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and self.raw is other.raw

    def __hash__(self) -> int:
        return hash(id(self.raw))


def raw_of(value: Any) -> Any:
    """What a reference, or an object with ``__iree_vm_ref__``, refers to. AttributeError for others."""
    ref = None if value is None else value.__iree_vm_ref__
    if ref is not None and not isinstance(ref, VmRef):
        raise TypeError(f"__iree_vm_ref__ of {type(value).__name__} is no VmRef but a {type(ref).__name__}")
    return None if ref is None else ref.raw


_MOST_DIMENSIONS: Final = 64
P = ParamSpec("P")
R = TypeVar("R")
Kind = Callable[[Any], Any]
"""Gives the value that the function gets. TypeError for one of another kind."""


def takes(*kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Kinds of the arguments of a function, ``self`` left out."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        first = len(names) - len(kinds)
        by_name = dict(zip(names[first:], kinds, strict=True))

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            values = list(given)
            place: Any = first
            try:
                for kind in kinds[: len(values) - first]:
                    values[place] = kind(values[place])
                    place += 1
                for place in named:
                    named[place] = by_name.get(place, anything)(named[place])
            except TypeError as error:
                pass_interruption(error)
                name = names[place] if type(place) is int else place
                raise TypeError(
                    f"{function.__name__}(): incompatible function arguments: {name}: {error}"
                ) from None
            return function(*values, **named)

        return call

    return decorate


def a(*kinds: type) -> Kind:
    """An instance of one of the classes."""

    def check(value: Any) -> Any:
        if isinstance(value, kinds):
            return value
        raise TypeError(f"expected {' or '.join(kind.__name__ for kind in kinds)} but got {_name(value)}")

    return check


def of(kind: type) -> Kind:
    """A wrapper of objects of a class of jitree's."""

    def check(value: Any) -> Any:
        if isinstance(value, Reference) and isinstance(value.raw, kind):
            return value
        raise TypeError(f"expected a wrapped {kind.__name__} but got {_name(value)}")

    return check


def optional(kind: Kind) -> Kind:
    return lambda value: None if value is None else kind(value)


def integer(low: int, high: int) -> Kind:
    """An integer, or a member of an enumeration. No texts, and no floating-point numbers."""

    def check(value: Any) -> int:
        number = value.value if isinstance(value, Enum) else operator.index(value)
        if low <= number <= high:
            return int(number)
        raise TypeError(f"{number} is not from {low} to {high}")

    return check


def anything(value: Any) -> Any:
    return value


def something(value: Any) -> Any:
    if value is None:
        raise TypeError("expected an object but got None")
    return value


def array(value: Any) -> np.ndarray[Any, Any]:
    """An array over an object with Python's buffer protocol; ValueError for one that is not in C's order."""
    made = np.asarray(value if isinstance(value, (np.ndarray, np.generic)) else _view(value))
    if made.dtype.hasobject:
        raise TypeError("expected memory but got objects of Python")
    if not made.flags.c_contiguous:
        raise ValueError("ndarray is not C-contiguous")
    if not made.dtype.isnative:
        raise ValueError(f"elements of type {made.dtype} are not in this machine's order of bytes")
    return made


def _view(value: Any) -> memoryview:
    if is_released(value):
        raise ValueError("the memory is released")
    try:
        return memoryview(value)
    except TypeError as error:
        raise TypeError(f"expected memory but got {_name(value)}") from own_error(error)


def memory(value: Any) -> memoryview:
    """The bytes of what :func:`array` takes."""
    return array(value).reshape(-1).view(np.uint8).data


def number(value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError(f"expected a number but got {_name(value)}")
    return float(value)


def dtype(value: Any) -> np.dtype[Any]:
    something(value)
    try:
        made: np.dtype[Any] = np.dtype(value)
    except (TypeError, ValueError) as error:
        pass_interruption(error)
        raise TypeError(f"expected a type of elements but got {shown(value)}: {error}") from own_error(error)
    return made


def sizes(value: Any) -> tuple[int, ...]:
    """Dimensions of an array."""
    given = tuple(islice(sequence(value), _MOST_DIMENSIONS + 1))
    if len(given) > _MOST_DIMENSIONS:
        raise TypeError(f"no array has more than {_MOST_DIMENSIONS} dimensions")
    return tuple([size(item) for item in given])


def sequence(value: Any) -> Sequence[Any]:
    if is_released(value) or not isinstance(value, Sequence):
        raise TypeError(f"expected a sequence but got {_name(value)}")
    return value


def path(value: Any) -> str | os.PathLike[str]:
    """ValueError for a text that no file can have as its name."""
    if "\0" in os.fsdecode(a(str, bytes, os.PathLike)(value)):
        raise ValueError(f"{shown(value)} is no name of a file")
    found: str | os.PathLike[str] = value
    return found


def function(value: Any) -> Any:
    if not callable(value):
        raise TypeError(f"expected a function but got {_name(value)}")
    return value


size: Final = integer(0, 2**64 - 1)
i64: Final = integer(-(2**63), 2**63 - 1)
bits: Final = integer(-(2**31), 2**31 - 1)
"""Members of an enumeration of single bits."""
element: Final = integer(0, 2**32 - 1)
"""The number of an element type."""
text: Final = a(str)
flag: Final = a(bool)


def _name(value: object) -> str:
    return type(value).__name__
