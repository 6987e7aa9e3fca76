"""Text of results, as ``run`` prints it (byte for byte what iree-run-module prints)."""

from __future__ import annotations

from jitree.base import elements
from jitree.base.elements import DEFAULT_MAX_ELEMENT_COUNT
from jitree.tools import host_values as hv


def scalar_text(scalar: hv.Scalar) -> str:
    """``7``, ``9.8596``, ``1e-06``."""
    return str(scalar.value) if isinstance(scalar.value, int) else elements.float_text(scalar.value).lower()


def type_text(value: hv.HostValue) -> str:
    """Name of the value's type, as results and mismatches name it."""
    match value:
        case hv.Scalar():
            return value.type_name
        case hv.HostTensor():
            return "hal.buffer_view"
        case hv.HostBuffer() | hv.Opaque():
            return value.type_name
        case hv.HostList():
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
        case hv.HostTensor():
            return f"hal.buffer_view\n{value.text(max_element_count)}\n"
        case hv.HostList():
            items = "".join(
                f"child_list[{i}]: {value_text(item, max_element_count)}"
                for i, item in enumerate(value.items)
            )
            return f"vm.list\n{items}\n"
        case hv.HostBuffer(type_name="vm.buffer"):
            return f"vm.buffer\n{_buffer_text(value, max_element_count)}\n"
        case hv.HostBuffer() | hv.Opaque():
            return f"{value.type_name}\n(no printer)\n"


def _buffer_text(buffer: hv.HostBuffer, max_element_count: int) -> str:
    shown = max_element_count if max_element_count >= 0 else len(buffer.data)
    elided = "..." if len(buffer.data) > shown else ""
    return f"{len(buffer.data)} bytes: {buffer.data[:shown].tobytes().hex().upper()}{elided}"
