"""Wraps buffers that code in libraries made as Python buffers."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

from jitree.base.finalizers import uninterrupted
from jitree.errors import FailedPreconditionError, InvalidArgumentError
from jitree.hal.buffer import Allocation, Buffer
from jitree.modules.native_library import hal_layout as layout
from jitree.modules.native_library.interface import read_memory, take_status
from jitree.modules.native_library.layout import DESTROY
from jitree.modules.native_library.machine_code import machine_code

ALIGNMENT: Final = 64
"""The alignment of memory that kernels get."""
READ_WRITE: Final = 3


class LibraryBuffer:
    """A count of a buffer that code in a library made."""

    def __init__(self, pointer: int, library: object) -> None:
        machine_code().add(pointer, 1)
        self.pointer = pointer
        self.library = library

    def release(self) -> None:
        release(self.pointer)


def buffer_of(pointer: int, buffer: layout.HalBuffer, library: object) -> Buffer:
    """Over the memory of a buffer that code in a library made."""
    whole: layout.HalBuffer = read(layout.HalBuffer, buffer.allocated or 0)
    functions = buffer.functions or 0
    inside = buffer.byte_offset + buffer.byte_length <= whole.byte_length
    if not inside or read_memory(functions, 8 * layout.BUFFER_FUNCTIONS) is None:
        raise other_layout(f"a buffer of {buffer.byte_length} bytes")
    places = (layout.Properties.from_address(pointer + offset) for offset in layout.PROPERTIES)
    properties = next((place for place in places if place.plausible), None)
    if properties is None:
        raise other_layout("a buffer in memory that the host cannot see, or one")
    map_range = (ctypes.c_void_p * layout.BUFFER_FUNCTIONS).from_address(functions)[layout.MAP] or 0
    if read_memory(map_range, 1) is None:
        raise other_layout("a buffer without a function that maps it, or one")
    mapped = layout.Mapped()
    failure = take_status(
        layout.MAP_RANGE(map_range)(
            pointer, layout.MAP_PERSISTENTLY, properties.allowed_access & READ_WRITE, buffer.byte_offset,
            buffer.byte_length, mapped,
        )
    )  # fmt: skip
    if failure is not None:
        raise failure.with_context("mapping a buffer that the C module made")
    address = mapped.contents.data or 0
    if buffer.byte_length and (not address or address % ALIGNMENT):
        raise InvalidArgumentError(
            f"the C module gave a buffer at address {address:#x}; programs need memory that is aligned "
            f"to {ALIGNMENT} bytes"
        )
    counted = LibraryBuffer(pointer, library)
    return Buffer(Allocation(
        address, buffer.byte_length, properties.memory_type, properties.allowed_usage,
        properties.allowed_access, host_address=address, source=counted,
        release=uninterrupted(counted.release),
    ))  # fmt: skip


def destroy(pointer: int) -> None:
    """No ref of an object is left: its own code frees it. What has no code for that stays."""
    functions = layout.Resource.from_address(pointer).functions or 0
    code = read_memory(functions, ctypes.sizeof(ctypes.c_void_p))
    if code is not None and read_memory(int.from_bytes(code, sys.byteorder), 1) is not None:
        DESTROY(int.from_bytes(code, sys.byteorder))(pointer)


def release(pointer: int) -> None:
    """Gives a count of an object back that is no view."""
    if machine_code().add(pointer, -1) == 1:
        destroy(pointer)


def read(structure: Any, pointer: int) -> Any:
    """A structure where there is memory for it."""
    if not pointer or pointer % 8 or read_memory(pointer, ctypes.sizeof(structure)) is None:
        raise other_layout(f"an object at address {pointer:#x}")
    return structure.from_address(pointer)


def other_layout(what: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"the C module gave {what}, which is not laid out as HAL objects of the releases {layout.RELEASES} "
        "are; build it against one of these releases"
    )
