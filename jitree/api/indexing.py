"""Reads and writes what an index selects of an array, and that alone.

Indices are those of numpy that are basic. Where the host sees the memory numpy does it. Elsewhere a part is
a few runs of bytes, which the device copies in the order of its other work.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

from jitree import errors
from jitree.api.array import Array
from jitree.api.calls.conversion import convert_exactly, has_every_value, holds, numbers_of, widened
from jitree.api.calls.refusal import describe, refused
from jitree.api.calls.storage_arguments import require_writable, rewritten
from jitree.api.calls.tensor_packing import LISTS, NUMBERS, as_array
from jitree.api.calls.transfers import BUFFER_USAGE, DEVICE_LOCAL, copy_to_device, copy_view, native_row
from jitree.base.arguments import is_masked, shown
from jitree.base.copying import copy_into
from jitree.base.records import NamedTuple
from jitree.hal.command_buffer import CommandBufferMode, CommandCategory
from jitree.types import format_shaped_type, is_packed

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from jitree.hal.buffer import Buffer, BufferView
    from jitree.hal.device import Device
    from jitree.types import ElementType

_COUNTED: Final = 63
"""Bits of the largest number that numpy counts to."""

T = TypeVar("T")
_ANY_QUEUE: Final = -1
_MOST_RUNS: Final = 256
"""The most runs of a part that is read by itself: copying more takes longer than reading the array."""


def basic(index: Any) -> tuple[Any, ...] | None:
    """Integers, slices, Ellipsis and None, with Ellipsis at least at the end; None for any other index."""
    items = []
    for item in index if isinstance(index, tuple) else (index,):
        if item is not None and item is not Ellipsis and not isinstance(item, slice):
            if isinstance(item, (bool, np.bool_)):
                return None
            try:
                item = operator.index(item)
            except TypeError as error:
                errors.pass_interruption(error)
                return None
        items.append(item)
    return tuple(items) if any(item is Ellipsis for item in items) else (*items, Ellipsis)


def explained(error: Exception, shape: tuple[int, ...], index: Any) -> Exception:
    """What numpy raised for an index. It takes integers beyond 64 bits for no integers: they are outside."""
    items = [item for item in basic(index) or () if item is not None]
    for place, item in enumerate(items):
        if not isinstance(item, int) or item.bit_length() <= _COUNTED:
            continue
        rank, count = len(shape), len(items) - 1
        if count > rank:
            return IndexError(
                f"too many indices for array: array is {rank}-dimensional, but {count} were indexed"
            )
        axis = place if Ellipsis not in items[:place] else rank - len(items) + place
        return IndexError(f"index {shown(item)} is out of bounds for axis {axis} with size {shape[axis]}")
    return error


class _Part(NamedTuple):
    """Elements of an array; bytes."""

    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape


def _select(shape: tuple[int, ...], size: int, index: tuple[Any, ...]) -> _Part:
    """What a basic index selects of elements of ``size`` bytes. IndexError outside."""
    strides = _dense(shape, size)
    whole = as_strided(np.empty(1, np.dtype((np.void, size))), shape, strides)  # no element is ever looked at
    part = whole[index]
    return _Part(part.shape, part.ctypes.data - whole.ctypes.data, part.strides)


def _dense(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    return tuple(size * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _dense_in_both(
    shape: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...], size: int
) -> tuple[int, int]:
    """Counts the axes before those that are dense in both layouts; their bytes."""
    axes, length = len(shape), size
    while axes and (shape[axes - 1] == 1 or first[axes - 1] == second[axes - 1] == length):
        axes -= 1
        length *= shape[axes]
    return axes, length


@errors.memory_errors("copying a part of an array run by run")
def _runs(
    shape: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...], size: int
) -> tuple[int, list[int], list[int]]:
    """How to copy between two layouts of one shape: the length of the runs of bytes that are dense in both,
    and where each begins in the first and in the second."""
    axes, length = _dense_in_both(shape, first, second, size)
    starts = [np.zeros(1, np.int64), np.zeros(1, np.int64)]
    for axis in range(axes):
        steps = np.arange(shape[axis])
        starts = [
            np.add.outer(start, steps * strides[axis]).reshape(-1)
            for start, strides in zip(starts, (first, second), strict=True)
        ]
    return length, starts[0].tolist(), starts[1].tolist()


# -- reading -------------------------------------------------------------------------------------------


def read(array: Array, index: Any) -> Any:
    """Reads the elements that an index selects, where the host does not see them; None if it takes no less to
    read all of them."""
    selection, row, view = basic(index), array.element_type, array.buffer_view
    if selection is None or is_packed(row) or view.buffer.host_address is not None:
        return None
    part = _select(view.shape, row.dtype.itemsize, selection)
    size = row.dtype.itemsize * math.prod(part.shape)
    layouts = part.shape, part.strides, _dense(part.shape, row.dtype.itemsize), row.dtype.itemsize
    axes, _ = _dense_in_both(*layouts)
    if not size or 2 * size > array.nbytes or math.prod(part.shape[:axes]) > _MOST_RUNS:
        return None
    length, starts, targets = _runs(*layouts)
    device = array.device
    if len(starts) == 1:
        data = device.read_buffer(view.buffer.subspan(part.offset + starts[0], length), array.fence)
    else:
        _settle(array)
        packed_runs = device.device_allocator.allocate(DEVICE_LOCAL, BUFFER_USAGE, size)
        _copy(device, view.buffer, part.offset, starts, packed_runs, 0, targets, length)
        data = device.read_buffer(packed_runs)
    elements = data[:size].view(row.dtype).reshape(part.shape)
    is_one = not any(item is Ellipsis for item in (index if isinstance(index, tuple) else (index,)))
    return elements[()] if is_one else elements  # as numpy: a number, where every axis has an integer


# -- writing -------------------------------------------------------------------------------------------


def write(array: Array, index: Any, value: Any) -> None:
    """``array[index] = value`` on the device: after what this thread has submitted, before what it submits
    next."""
    row = array.element_type
    if is_packed(row):
        raise errors.UnimplementedError(
            f"elements of {row.name} share bytes and cannot be assigned one by one; make a new array with "
            "session.to_device"
        )
    view = rewritten(lambda array: array.buffer_view, array)
    require_writable(view, "the array")
    if view.buffer.host_address is not None:
        _write_here(array, view, index, value, row)
        return
    part = _selected(array, row, index, lambda items: _select(view.shape, row.dtype.itemsize, items))
    source = _source(value, array, row)
    shape = _fitting(source.shape, part.shape)
    if part.is_empty:
        return
    _settle(array)
    if isinstance(source, Array):
        _write_there(array, view, part, source.buffer_view, shape)
    else:
        _upload(array, view, part, np.broadcast_to(source.reshape(shape), part.shape), row)


def _selected(array: Array, row: ElementType, index: Any, select: Callable[[tuple[Any, ...]], T]) -> T:
    """What an index selects. OUT_OF_RANGE outside, INVALID_ARGUMENT for what is no index."""
    items = basic(index)
    if items is None:
        raise errors.InvalidArgumentError(
            f"elements of a device array are assigned by integers and slices, but the index is {shown(index)}"
        )
    try:
        return select(items)
    except (IndexError, OverflowError) as error:
        errors.pass_interruption(error)
        shaped, why = format_shaped_type(array.shape, row), explained(error, array.shape, items)
        raise errors.OutOfRangeError(f"assigning elements of a {shaped} array: {why}") from None
    except (TypeError, ValueError) as error:
        errors.pass_interruption(error)
        raise errors.InvalidArgumentError(f"the index {shown(index)}: {error}") from errors.own_error(error)


def _source(value: Any, array: Array, row: ElementType) -> Array | npt.NDArray[Any]:
    """What is assigned, of the array's element type: an array of its device, else one of the host."""
    expected = f"elements of {row.name}"
    exchange = array.device.array_exchange
    if is_masked(value):
        raise refused("the value", expected, value)
    if isinstance(value, Array):
        given_type = value.element_type.code
        if value.device is array.device and not (
            has_every_value(given_type, row.code) and not holds(row.code, given_type)
        ):
            _require_elements(value.element_type, row, value)
            _settle(value)
            return value if value.buffer_view.buffer.host_address is None else value.to_host()
        value = value._implicitly()
    elif exchange is not None and exchange.is_importable(value):
        return _source(Array(exchange.import_view(value), array.device), array, row)
    host = as_array(value)
    if host is not None and not isinstance(value, np.generic):
        given = native_row(host.dtype)
        if given is not None and not holds(row.code, given.code) and has_every_value(given.code, row.code):
            return widened(host, row)
        _require_elements(given, row, value)
        return host.view(row.dtype) if host.dtype != row.dtype else host
    if not isinstance(value, (*NUMBERS, *LISTS)):
        raise refused("the value", expected, value)
    try:
        numbers = numbers_of(value)
    except (ValueError, OverflowError) as error:
        errors.pass_interruption(error)
        raise refused("the value", expected, value, f"; {error}") from errors.own_error(error)
    if native_row(numbers.dtype) is None:
        raise refused("the value", expected, value)
    return convert_exactly(numbers, row.dtype, "the value", expected, value)


def _require_elements(given: ElementType | None, row: ElementType, value: object) -> None:
    if given is None or given.bits != row.bits or not holds(row.code, given.code):
        raise errors.InvalidArgumentError(
            f"an array with elements of {row.name} is assigned {describe(value)}, which has others: assign "
            f'x.astype("{row.dtype.name}")'
        )


def _fitting(given: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a value without leading ones that the part does not have. INVALID_ARGUMENT for one that
    does not fit."""
    shape = given
    while len(shape) > len(wanted) and shape[0] == 1:
        shape = shape[1:]
    fits = len(shape) <= len(wanted) and all(
        have in (1, want) for have, want in zip(shape, wanted[len(wanted) - len(shape) :], strict=True)
    )
    if not fits:
        raise errors.InvalidArgumentError(f"elements of shape {wanted} are assigned a value of shape {given}")
    return shape


def _settle(array: Array) -> None:
    """Waits for what computes an array, unless the device does it first anyway."""
    if array.fence is not None and not array.device.follows(array.fence):
        array.wait()


def _write_here(array: Array, view: BufferView, index: Any, value: Any, row: ElementType) -> None:
    """Writes to memory that the host sees."""
    size = row.byte_length(view.shape)
    memory = view.buffer.host_array()[:size].view(row.dtype).reshape(view.shape)
    part = _selected(array, row, index, memory.__getitem__)
    source = _source(value, array, row)
    elements = source.to_host() if isinstance(source, Array) else source
    shape = _fitting(elements.shape, part.shape)
    _settle(array)
    array.device.finish_submitted()
    if shape == part.shape:
        copy_into(part, elements.reshape(shape))
    else:
        copy_into(part, np.broadcast_to(elements.reshape(shape), part.shape))


def _write_there(
    array: Array, view: BufferView, part: _Part, source: BufferView, shape: tuple[int, ...]
) -> None:
    device, size = array.device, array.element_type.dtype.itemsize
    if _share_memory(view.buffer, source.buffer):
        source = copy_view(source, device)
    spread = as_strided(np.empty(1, np.dtype((np.void, size))), shape, _dense(shape, size))
    strides = np.broadcast_to(spread, part.shape).strides
    length, targets, sources = _runs(part.shape, part.strides, strides, size)
    _copy(device, source.buffer, 0, sources, view.buffer, part.offset, targets, length)


def _upload(array: Array, view: BufferView, part: _Part, source: npt.NDArray[Any], row: ElementType) -> None:
    size = row.dtype.itemsize
    length, targets, _ = _runs(part.shape, part.strides, _dense(part.shape, size), size)
    if len(targets) > 1:
        _write_there(array, view, part, copy_to_device(source, row, array.device), part.shape)
        return
    data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
    array.device.write_buffer(view.buffer.subspan(part.offset + targets[0], length), data)


def _share_memory(first: Buffer, second: Buffer) -> bool:
    return first.address < second.address + second.byte_length and (
        second.address < first.address + first.byte_length
    )


def _copy(
    device: Device,
    source: Buffer,
    source_offset: int,
    sources: list[int],
    target: Buffer,
    target_offset: int,
    targets: list[int],
    length: int,
) -> None:
    """Copies runs of bytes, in the order of the device's other work."""
    commands = device.create_command_buffer(CommandBufferMode.ONE_SHOT, CommandCategory.TRANSFER)
    for start, end in zip(sources, targets, strict=True):
        commands.copy_buffer(
            (0, source, source_offset + start, length), (0, target, target_offset + end, length)
        )
    commands.finalize()
    device.queue_execute(_ANY_QUEUE, None, None, commands)
