"""Tensors on the host: what tools print and compare, and what expectations of programs are about."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from jitree.base import elements
from jitree.base.elements import DEFAULT_MAX_ELEMENT_COUNT, Bytes
from jitree.base.records import NamedTuple
from jitree.types import ElementType, format_shaped_type

Mask = npt.NDArray[np.bool_]


class HostTensor(NamedTuple):
    """A dense row-major tensor; ``data`` holds its bytes (elements below 8 bits packed, low bits first)."""

    element_type: ElementType
    shape: tuple[int, ...]
    data: Bytes

    @property
    def element_count(self) -> int:
        return elements.count_elements(self.shape)

    @property
    def values(self) -> npt.NDArray[Any]:
        """The elements as a flat array, see :func:`jitree.base.elements.values`."""
        return elements.values(self.element_type, self.data, self.element_count)

    @property
    def shaped_type(self) -> str:
        return format_shaped_type(self.shape, self.element_type)

    def text(self, max_element_count: int = DEFAULT_MAX_ELEMENT_COUNT) -> str:
        """``4xf32=1 2 3 4``; elided after ``max_element_count`` elements."""
        contents = elements.elements_text(self.element_type, self.shape, self.data, max_element_count)
        return f"{self.shaped_type}={contents}"

    def element_text(self, index: int) -> str:
        """Text of the element at a flat index."""
        texts = elements.element_texts(self.element_type, self.data, self.element_count)
        return next(islice(texts, index, None))

    def has_bits_of(self, other: HostTensor) -> Mask:
        """Which elements are those of a tensor of as many elements of that size, bit for bit."""
        if elements.is_packed(self.element_type):
            return np.asarray(self.values == other.values)
        size = self.element_type.bits // 8
        equal = np.asarray(self.data).reshape(-1, size) == np.asarray(other.data).reshape(-1, size)
        return np.asarray(equal.all(axis=1))


def near(left: npt.NDArray[Any], right: npt.NDArray[Any], atol: float, rtol: float) -> Mask:
    """Which numbers differ by at most ``atol + rtol * abs(right)``; NaN equals NaN."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(left - right) <= atol + rtol * np.abs(right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    return np.asarray(same | close & np.isfinite(right))
