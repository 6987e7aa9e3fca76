"""Buffers, their views, and lists, of the HAL and the VM."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from reprlib import recursive_repr
from typing import Any, Final, Self

import numpy as np

from jitree.compat.iree_runtime.arguments import (
    Reference,
    VmRef,
    a,
    dtype,
    element,
    flag,
    i64,
    integer,
    number,
    of,
    raw_of,
    size,
    sizes,
    something,
    takes,
)
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    PermissionDeniedError,
)
from jitree.hal import enums
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.fence import Fence
from jitree.regs.buffer import VmBuffer as VmBytes
from jitree.regs.layout import LIST_F32, LIST_F64, LIST_I8, LIST_I16, LIST_I32, LIST_I64
from jitree.regs.list import VmList
from jitree.types import element_type

_VALUE_NAMES = {
    LIST_I8: "i8", LIST_I16: "i16", LIST_I32: "i32", LIST_I64: "i64", LIST_F32: "f32", LIST_F64: "f64",
}  # fmt: skip


def _place(value: Any) -> int:
    """The index of an element, whether there is one or not."""
    return operator.index(value)


class VmVariantList(Reference):
    """A list of values of any type; integers are i64, floats f64."""

    __slots__ = ()
    wrapped = VmList

    @takes(size)
    def __init__(self, capacity: int) -> None:
        self.raw = VmList(capacity=capacity)

    @property
    def size(self) -> int:
        return len(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    @takes(i64)
    def push_int(self, value: int) -> None:
        self.raw.append(value)

    @takes(number)
    def push_float(self, value: float) -> None:
        self.raw.append(value)

    @takes(of(VmList))
    def push_list(self, value: VmVariantList) -> None:
        self.raw.append(value.raw)

    @takes(something)
    def push_ref(self, ref: Any) -> None:
        """Takes an object with ``__iree_vm_ref__``."""
        self.raw.append(raw_of(ref))

    @takes(_place)
    def get_variant(self, index: int) -> Any:
        """An integer, a float, a :class:`VmRef`, or None for a null reference."""
        value = self._at(index)
        return value if value is None or isinstance(value, (int, float)) else VmRef(value)

    @takes(_place)
    def get_as_ref(self, index: int) -> VmRef:
        """ValueError for an element that is no reference, or a null reference."""
        value = self._at(index)
        if value is None or isinstance(value, (int, float)):
            raise ValueError("list element is not a ref")
        return VmRef(value)

    @takes(_place)
    def get_as_list(self, index: int) -> VmVariantList:
        """RuntimeError for a number, ValueError for a reference of another type."""
        value = self._at(index)
        if isinstance(value, (int, float)):
            raise FailedPreconditionError("Could not access list element: it is not a reference")
        if not isinstance(value, VmList):
            raise InvalidArgumentError("Could not deref list (wrong type?): ref type mismatch")
        return VmVariantList.of(value)

    @takes(_place, something)
    def get_as_object(self, index: int, cls: Any) -> Any:
        """The element as an instance of ``cls``, None if it is of another type."""
        a(type)(cls)
        return self.get_as_ref(index).deref(cls, optional=True)

    @takes(_place)
    def get_serialized_trace_value(self, index: int) -> dict[str, Any]:
        """The element as upstream's trace files write it."""
        value = self._at(index)
        if isinstance(value, (int, float)):
            return {_VALUE_NAMES[self.raw.tag(index)]: value, "type": "value"}
        if value is None:
            return {"type": "null"}
        if isinstance(value, VmList):
            inner = VmVariantList.of(value)
            return {
                "type": "vm.list",
                "items": [inner.get_serialized_trace_value(place) for place in range(len(inner))],
            }
        if isinstance(value, BufferView):
            return {
                "type": "hal.buffer_view",
                "shape": list(value.shape),
                "element_type": element_type(value.element_type).name,
                "contents": value.buffer.host_array().tobytes(),
            }
        raise ValueError("Unsupported VM to Python Type Conversion")

    def values(self) -> list[Any]:
        """The elements as jitree has them."""
        return list(self.raw)

    def _at(self, index: int) -> Any:
        if not 0 <= index < len(self.raw):
            raise OutOfRangeError(
                f"Could not access list element: index {index} out of bounds ({len(self.raw)})"
            )
        return self.raw[index]

    def __repr__(self) -> str:
        return f"<VmVariantList({len(self)}): [{_elements(self.raw)}]>"


@recursive_repr("...circular...")
def _elements(raw: VmList) -> str:
    return ", ".join([_described(value) for value in raw])


def _described(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:f}"
    if value is None:
        return "None"
    if isinstance(value, VmList):
        return f"List[{_elements(value)}]"
    if isinstance(value, BufferView):
        return f"HalBufferView({'x'.join(map(str, value.shape))}:0x{shown_type(value.element_type)})"
    if isinstance(value, Fence):
        return f"fence({len(value.timepoints)})"
    return f"Unknown({id(value)})"


def shown_type(code: int) -> str:
    """An element type as iree.runtime prints it: its bytes, the lowest first."""
    return (code & 0xFFFFFFFF).to_bytes(4, "little").hex()


class VmBuffer(Reference, np.ndarray[Any, np.dtype[np.uint8]]):  # type: ignore[misc]  # arrays have no hash
    """Bytes that programs and Python share.

    An array, since that has Python's buffer protocol in every version of Python.
    """

    wrapped = VmBytes

    @takes(size, size, flag)
    def __new__(cls, length: int, alignment: int = 0, mutable: bool = True) -> Self:
        if alignment & (alignment - 1):
            raise InvalidArgumentError(f"alignment {alignment} is no power of two")
        made = VmBytes(length, alignment)
        if not mutable:
            made.data.flags.writeable = False
            made = VmBytes.alias(made.data)
        return cls.of(made)

    def __init__(self, length: int, alignment: int = 0, mutable: bool = True) -> None:
        """Nothing is left to do: arrays are made by ``__new__``."""

    @classmethod
    def of(cls, raw: VmBytes) -> Self:
        made = raw.data.view(cls)
        made.raw = raw
        return made

    def __repr__(self) -> str:
        return f"<VmBuffer size {self.nbytes} at {id(self):#x}>"

    __str__ = __repr__


_SHOWN_FIRST: Final = ("DEVICE_LOCAL", "HOST_LOCAL", "ALL", "TRANSFER", "DISPATCH_STORAGE", "DISPATCH_IMAGE",
                       "MAPPING")  # fmt: skip
"""Names of several bits that stand for their parts."""


def _flag_names(flags: Any, bits: int) -> str:
    """Names sets of bits, then single bits in no set, as iree.runtime does."""
    members = {name: int(value) for name, value in flags.__members__.items()}
    found: list[str] = []
    rest = bits
    for name in (*(name for name in _SHOWN_FIRST if name in members), *members):
        value = members[name]
        if value and name not in found and bits & value == value and rest & value:
            found.append(name)
            rest &= ~value
    return "|".join(sorted(found, key=_place_in(members)) or ["NONE"])


def _place_in(members: dict[str, int]) -> Any:
    return lambda name: (name not in ("DEVICE_LOCAL", "HOST_LOCAL"), members[name] & -members[name])


def described(buffer: Buffer) -> str:
    """Bytes and properties of a buffer, as iree.runtime prints them."""
    return (
        f"{buffer.byte_length} bytes (at offset {buffer.byte_offset} into {buffer.allocation.byte_length}), "
        f"memory_type={_flag_names(enums.MemoryType, buffer.memory_type)}, "
        f"allowed_access={_flag_names(enums.MemoryAccess, buffer.allowed_access)}, "
        f"allowed_usage={_flag_names(enums.BufferUsage, buffer.allowed_usage)}"
    )


class Shape:
    """Dimensions of a view that a buffer is to have."""

    __slots__ = ("indices",)

    @takes(sizes)
    def __init__(self, indices: Sequence[int], /) -> None:
        self.indices = indices


class MappedMemory:
    """Memory of a buffer as the host sees it."""

    __slots__ = ("__weakref__", "_bytes")

    @takes(a(Buffer))
    def __init__(self, buffer: Buffer) -> None:
        """PERMISSION_DENIED for memory that the host cannot see."""
        self._bytes = buffer.host_array()

    @takes(sizes, dtype)
    def asarray(self, shape: Sequence[int], numpy_dtype_descr: Any) -> Any:
        """The elements, over the memory itself, which lives as long as the array.

        OUT_OF_RANGE for more than there is.
        """
        kind = numpy_dtype_descr
        if kind.hasobject or not kind.itemsize:
            raise TypeError(f"asarray(): elements of type {kind} are no memory of a device")
        needed = math.prod(shape) * kind.itemsize
        if needed > len(self._bytes):
            raise OutOfRangeError(
                f"{len(self._bytes)} bytes of mapped memory have no room for {shape} of {kind}, "
                f"which takes {needed}"
            )
        return self._bytes[:needed].view(kind).reshape(shape)


class HalBuffer(Reference):
    """A range of device memory."""

    __slots__ = ()
    wrapped = Buffer

    def byte_length(self) -> int:
        return int(self.raw.byte_length)

    def memory_type(self) -> int:
        return int(self.raw.memory_type)

    def allowed_usage(self) -> int:
        return int(self.raw.allowed_usage)

    @takes(size, size)
    def fill_zero(self, byte_offset: int, byte_length: int) -> None:
        """OUT_OF_RANGE outside of the buffer, PERMISSION_DENIED where the host cannot write."""
        length = self.raw.range(byte_offset, byte_length)
        memory = self.raw.host_array()
        if not memory.flags.writeable:
            raise PermissionDeniedError(f"fill_zero: a buffer that is read-only: {described(self.raw)}")
        memory[byte_offset : byte_offset + length] = 0

    def map(self) -> MappedMemory:
        return MappedMemory(self.raw)

    @takes(a(Shape), integer(1, 2**24))
    def create_view(self, shape: Shape, element_size: int) -> HalBufferView:
        """A view of opaque elements of so many bytes."""
        return HalBufferView(self, shape.indices, element_size * 8)

    def __repr__(self) -> str:
        return f"<HalBuffer {described(self.raw)}>"


class HalBufferView(Reference):
    """A buffer with shape and element type."""

    __slots__ = ()
    wrapped = BufferView

    @takes(of(Buffer), sizes, element)
    def __init__(self, buffer: HalBuffer, shape: Sequence[int], element_type: int) -> None:
        """OUT_OF_RANGE for a buffer that is too short: kernels rely on it."""
        if not element_type:
            raise InvalidArgumentError("HalBufferView(): elements of no type")
        self.raw = BufferView(buffer.raw, tuple(shape), element_type)

    @property
    def shape(self) -> list[int]:
        return list(self.raw.shape)

    @property
    def element_type(self) -> int:
        return int(self.raw.element_type)

    @property
    def byte_length(self) -> int:
        """Bytes of its elements."""
        from jitree.types import element_type

        return element_type(self.raw.element_type).byte_length(self.raw.shape)

    def get_buffer(self) -> HalBuffer:
        return HalBuffer.of(self.raw.buffer)

    def map(self) -> MappedMemory:
        return MappedMemory(self.raw.buffer)

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.raw.shape))
        return (
            f"<HalBufferView ({shape}), element_type=0x{shown_type(self.raw.element_type)}, "
            f"{described(self.raw.buffer)}>"
        )
