"""Text of results, as ``run`` prints it (byte for byte what iree-run-module prints)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import islice

from jitree.tools import host_values as hv

DEFAULT_MAX_ELEMENT_COUNT = 1024


class _Budget:
    """How many elements may still be printed; a negative count is no limit."""

    def __init__(self, count: int) -> None:
        self.left = count if count >= 0 else sys.maxsize


def element_texts(tensor: hv.Tensor) -> Iterator[str]:
    """One text per element: decimal integers, ``%G`` floats, hex of the bytes for everything else."""
    row = tensor.element_type
    if hv.is_float(row):
        return (float_text(value) for value in hv.elements(tensor))
    if hv.is_integer(row):
        return (str(value) for value in hv.elements(tensor))
    return (raw.hex().upper() for raw in hv.element_bytes(tensor))


def float_text(value: float) -> str:
    """C ``%G``: ``0.1``, ``1E+10``, ``-0``, ``NAN``, ``-INF``; unlike Python's it signs a negative NaN."""
    if value != value:
        return "-NAN" if math.copysign(1.0, value) < 0 else "NAN"
    return "%G" % value  # noqa: UP031 - the format is C's


def element_text(tensor: hv.Tensor, index: int) -> str:
    """Text of the element at a flat index."""
    return next(islice(element_texts(tensor), index, None))


def elements_text(tensor: hv.Tensor, max_element_count: int) -> str:
    """The elements with brackets around inner dimensions; elided after ``max_element_count`` of them."""
    return "".join(_dimension(tensor.shape, element_texts(tensor), _Budget(max_element_count)))


def _dimension(shape: tuple[int, ...], texts: Iterator[str], budget: _Budget) -> Iterator[str]:
    if len(shape) <= 1:
        length = shape[0] if shape else 1
        shown = min(length, budget.left)
        budget.left -= shown
        yield " ".join(islice(texts, shown))
        if shown < length:
            yield "..."
        return
    for _ in range(shape[0]):
        yield "["
        yield from _dimension(shape[1:], texts, budget)
        yield "]"


def tensor_text(tensor: hv.Tensor, max_element_count: int = DEFAULT_MAX_ELEMENT_COUNT) -> str:
    """``4xf32=1 2 3 4``."""
    return f"{tensor.shaped_type}={elements_text(tensor, max_element_count)}"


def scalar_text(scalar: hv.Scalar) -> str:
    """``7``, ``9.8596``, ``1e-06``."""
    return str(scalar.value) if isinstance(scalar.value, int) else float_text(scalar.value).lower()


def type_text(value: hv.HostValue) -> str:
    """Name of the value's type, as results and mismatches name it."""
    match value:
        case hv.Scalar():
            return value.type_name
        case hv.Tensor():
            return "hal.buffer_view"
        case hv.Buffer() | hv.Opaque():
            return value.type_name
        case hv.List():
            return "vm.list"
        case hv.Null() | hv.Ignored():
            return "(null)"


def value_text(value: hv.HostValue, max_element_count: int = DEFAULT_MAX_ELEMENT_COUNT) -> str:
    """The text of any value, ending in a newline."""
    match value:
        case hv.Scalar():
            return f"{value.type_name}={scalar_text(value)}\n"
        case hv.Null() | hv.Ignored():
            return "(null)\n"
        case hv.Tensor():
            return f"hal.buffer_view\n{tensor_text(value, max_element_count)}\n"
        case hv.List():
            items = "".join(
                f"child_list[{i}]: {value_text(item, max_element_count)}"
                for i, item in enumerate(value.items)
            )
            return f"vm.list\n{items}\n"
        case hv.Buffer(type_name="vm.buffer"):
            return f"vm.buffer\n{_buffer_text(value, max_element_count)}\n"
        case hv.Buffer() | hv.Opaque():
            return f"{value.type_name}\n(no printer)\n"


def _buffer_text(buffer: hv.Buffer, max_element_count: int) -> str:
    shown = max_element_count if max_element_count >= 0 else len(buffer.data)
    elided = "..." if len(buffer.data) > shown else ""
    return f"{len(buffer.data)} bytes: {buffer.data[:shown].tobytes().hex().upper()}{elided}"
