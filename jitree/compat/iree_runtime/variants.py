"""``vm.list`` and ``vm.buffer``."""

from __future__ import annotations

import operator
from reprlib import recursive_repr
from typing import Any, Self

import numpy as np

from jitree.compat.iree_runtime.arguments import a, flag, i64, number, of, size, something, takes
from jitree.compat.iree_runtime.references import Reference, VmRef, raw_of
from jitree.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from jitree.hal.buffer import BufferView
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
    """Bytes that programs and Python share. An array, since that has Python's buffer protocol in every
    version of Python."""

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
