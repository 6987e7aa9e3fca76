"""The tensors that expectations are about, on the host."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from jitree.base import elements
from jitree.base.elements import Bytes
from jitree.base.records import NamedTuple
from jitree.errors import OutOfRangeError
from jitree.hal.buffer import BufferView
from jitree.hal.device import Device
from jitree.types import ElementType, element_type


class CheckedTensor(NamedTuple):
    row: ElementType
    shape: tuple[int, ...]
    data: Bytes
    """Exactly as many bytes as the shape needs."""

    @property
    def text(self) -> str:
        """``2x2xf32=[1 2][3 4]``"""
        return elements.tensor_text(self.row, self.shape, self.data)

    def values(self) -> npt.NDArray[Any]:
        """Flat; small floating-point types as f32."""
        return elements.values(self.row, self.data, elements.count_elements(self.shape))

    def element_texts(self) -> list[str]:
        return list(elements.element_texts(self.row, self.data, elements.count_elements(self.shape)))


def read(view: BufferView, device: Device) -> CheckedTensor:
    """The contents of a view. OUT_OF_RANGE when the buffer is shorter than the shape needs."""
    row = element_type(view.element_type)
    length = row.byte_length(view.shape)
    data = device.read_buffer(view.buffer)
    if len(data) < length:
        raise OutOfRangeError(f"a tensor of {length} bytes in a buffer of {len(data)} bytes")
    return CheckedTensor(row, view.shape, data[:length])
