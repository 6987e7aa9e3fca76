"""Answer ``hal.buffer_view.*`` and ``hal.buffer.*``: tensors, and scalars in buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jitree.errors import ResourceExhaustedError
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.checks import (
    DIMENSION,
    ENCODING,
    RANK,
    VIEW_RANK,
    buffer_refusal,
    refused,
    require,
    scalar_refusal,
    tensor_refusal,
)
from jitree.hal.checks import compatible_elements as compatible_elements
from jitree.hal.checks import type_text as type_text
from jitree.hal.device import Device
from jitree.hal.enums import MAXIMUM_RANK, MemoryAccess
from jitree.modules.import_rows import text

if TYPE_CHECKING:
    from jitree.hal.allocator import Allocator
    from jitree.modules.hal.module import HalState
    from jitree.regs.buffer import VmBuffer

MAXIMUM_TRACED: Final = 128


def create(
    state: HalState,
    buffer: Buffer,
    offset: int,
    length: int,
    element_type: int,
    encoding: int,
    shape: Sequence[int],
) -> BufferView:
    """OUT_OF_RANGE where the shape does not fit into the range: the program has computed both, of sizes that
    may have wrapped."""
    if len(shape) > MAXIMUM_RANK:
        raise refused(VIEW_RANK, rank=len(shape))
    return BufferView(buffer.subspan(offset, length), tuple(shape), element_type, encoding)


def assert_(
    state: HalState,
    view: BufferView,
    message: VmBuffer,
    element_type: int,
    encoding: int,
    shape: Sequence[int],
) -> None:
    """What a program demands of an argument."""
    if view.encoding == encoding and view.element_type == element_type and view.shape == tuple(shape):
        return
    check_view(view, text(message), element_type, encoding, shape)


def check_view(
    view: BufferView, subject: str, element_type: int, encoding: int, shape: Sequence[int | None]
) -> None:
    """Raises INVALID_ARGUMENT unless a view has that type and shape.

    Opaque encodings pass, and integers and opaque elements of equal width. None is a dimension of any size.
    """
    refusal = tensor_refusal(view.encoding, encoding, view.element_type, element_type)
    if refusal:
        types = view.element_type, element_type
        actual, wanted = (view.encoding, encoding) if refusal == ENCODING else types
        raise refused(refusal, subject=subject, actual=actual, wanted=wanted)
    check_shape(view.shape, subject, shape)


def check_shape(actual: Sequence[int], subject: str, expected: Sequence[int | None]) -> None:
    """INVALID_ARGUMENT unless the shapes agree; None is a dimension of any size."""
    shapes = {"actual_shape": _shape_text(actual), "wanted_shape": _shape_text(expected)}
    if len(actual) != len(expected):
        ranks = {"actual": _rank_text(len(actual)), "wanted": _rank_text(len(expected))}
        raise refused(RANK, subject=subject, **ranks, **shapes)
    for index, (have, want) in enumerate(zip(actual, expected, strict=True)):
        if want is not None and have != want:
            raise refused(DIMENSION, subject=subject, index=index, actual=have, wanted=want, **shapes)


def _shape_text(shape: Sequence[int | None]) -> str:
    return "x".join("?" if size is None else str(size) for size in shape)


def _rank_text(rank: int) -> str:
    return str(rank) if rank else "0 (scalar)"


def trace(state: HalState, key: VmBuffer, views: Sequence[BufferView]) -> None:
    """Hands tensors to the host's sink; nothing happens without one."""
    if len(views) > MAXIMUM_TRACED:
        raise ResourceExhaustedError(f"a trace of {len(views)} buffer views; at most {MAXIMUM_TRACED}")
    if state.trace_sink is not None:
        state.trace_sink(text(key), views)


# -- buffers -------------------------------------------------------------------------------------------


def buffer_assert(
    state: HalState,
    buffer: Buffer,
    message: VmBuffer,
    allocator: Allocator,
    minimum_length: int,
    memory_types: int,
    usage: int,
) -> None:
    """What a program demands of a caller's buffer: length, and all of the memory and usage bits."""
    refusal = buffer_refusal(
        buffer.byte_length, minimum_length, buffer.memory_type, memory_types, buffer.allowed_usage, usage
    )
    if refusal:
        wanted = {"least": minimum_length, "memory_types": memory_types, "usage": usage}
        raise refused(refusal, subject=text(message), buffer=buffer, **wanted)


def buffer_load(state: HalState, source: Buffer, offset: int, length: int) -> int:
    """1 to 4 bytes, little endian, extended with zeros. Waits for nothing but what calls have owed."""
    data = _scalar(source, offset, length, MemoryAccess.READ)
    return int.from_bytes(data, "little", signed=length == 4)


def buffer_store(state: HalState, value: int, target: Buffer, offset: int, length: int) -> None:
    """The low 1 to 4 bytes of the value."""
    data = _scalar(target, offset, length, MemoryAccess.WRITE)
    data[:] = (value & 0xFFFFFFFF).to_bytes(4, "little")[:length]


def _scalar(buffer: Buffer, offset: int, length: int, access: int) -> memoryview:
    available = buffer.byte_length
    refusal = scalar_refusal(available, offset, length, access, buffer.allowed_access)
    require(refusal, available=available, offset=offset, length=length, access=access)
    view = buffer.host_view()[offset : offset + length]
    device = buffer.allocation.device()
    if isinstance(device, Device):
        device.await_owed()
    return view
