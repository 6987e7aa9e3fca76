"""Device arrays for other libraries, by DLPack's C exchange interface. Machine code.

These are the functions of ``DLPackExchangeAPI``; each has the Exports record as one more argument. They
return 0, or -1 with an exception set. Python exports arrays whose memory the host does not see at once.
"""

from __future__ import annotations

from jitree.api.calls.native.arrays import BY_CODE, dtype_of, dtype_row, handle_of, readable, visible
from jitree.api.calls.native.copies import tensor_of
from jitree.api.calls.native.layout import (
    CAPSULE_CONTEXT_AT,
    CAPSULE_POINTER_AT,
    TENSOR_ON_HOST,
    Conversion,
    Exports,
    Ndarray,
    Owners,
    Python,
    Tensor,
    VersionedTensor,
)
from jitree.api.calls.native.python import (
    drop,
    forgets_error,
    invoke_with,
    invoke_with_number,
    is_instance,
    retained,
)
from jitree.codegen.primitives import call, call_int, load64, stack, store64
from jitree.codegen.record import layout_of, place_of, size_of
from jitree.hal.timeline_record import DEFAULT_ORDER, EXPORTED_BY_CODE, Timeline
from jitree.modules.hal.native.buffers import place_number
from jitree.regs.layout import PLACE_SHIFT, Entry
from jitree.types import BY_NAME

_TENSOR_SIZE = size_of(Tensor)
_TENSOR_AT = layout_of(VersionedTensor)["tensor"]
_OWNER_AT = _TENSOR_AT + size_of(Tensor)
_PYTHON_AT = _OWNER_AT + 8
_SHAPE_AT = _OWNER_AT + 16
"""What follows the tensor in the memory of one that a consumer has: its owner, the Python record, dimensions
and strides."""
_MAJOR = 1
_MINOR = 2
_I64 = BY_NAME["i64"].code


def export_managed(array: int, out: int, record: int) -> int:
    """``managed_tensor_from_py_object_no_sync``: a tensor that keeps the array's memory."""
    exports = Exports(record)
    python = exports.python
    tensor = Tensor(stack(_TENSOR_SIZE))
    if describes(python, array, tensor) or is_given(python, array, tensor):
        managed = managed_of(python, array, tensor)
    else:
        managed = managed_of_capsule(python, invoke_with(python, exports.export_slowly, array))
    store64(out, managed)
    return 0 if managed != 0 else -1


def export_tensor(array: int, out: int, record: int) -> int:
    """``dltensor_from_py_object_no_sync``: where the array lies, which keeps its dimensions and strides."""
    exports = Exports(record)
    python = exports.python
    tensor = Tensor(out)
    if describes(python, array, tensor) or is_given(python, array, tensor):
        return 0 if keeps_dimensions(python, array, tensor) else -1
    capsule = invoke_with(python, exports.export_slowly, array)
    if capsule == 0:
        return -1
    exported = tensor_of(python, capsule)
    is_exported = bool(exported)
    if is_exported:
        call(python.copy_memory, out, place_of(exported), _TENSOR_SIZE)
        is_exported = keeps_dimensions(python, array, tensor)
    drop(python, capsule)
    return 0 if is_exported else -1


def import_managed(managed: int, out: int, record: int) -> int:
    """``managed_tensor_to_py_object_no_sync``: an Array, to which the tensor belongs."""
    exports = Exports(record)
    python = exports.python
    array = invoke_with_number(python, exports.import_slowly, managed)
    store64(out, array)
    return 0 if array != 0 else -1


def current_work_stream(kind: int, number: int, out: int, record: int) -> int:
    """Gives the default order: what is exported is there for work that follows in it."""
    store64(out, 0)
    return 0


def allocate_managed(prototype: int, out: int, context: int, set_error: int, record: int) -> int:
    """``managed_tensor_allocator``, which the caller need not have the GIL for. ``set_error`` has been called
    if it fails."""
    exports = Exports(record)
    python = exports.python
    arguments = stack(24)
    lock = call_int(python.ensure_lock)
    store64(arguments, call(python.new_long, prototype))
    store64(arguments + 8, call(python.new_long, context))
    store64(arguments + 16, call(python.new_long, set_error))
    capsule = call(python.vectorcall, exports.allocate_slowly, arguments, 3, 0)
    for index in range(3):
        drop(python, load64(arguments + 8 * index))
    managed = 0
    if capsule == python.none:
        drop(python, capsule)
    else:
        managed = managed_of_capsule(python, capsule)
    store64(out, managed)
    call(python.release_lock, lock)
    return 0 if managed != 0 else -1


def destroy_managed(managed: int) -> None:
    """The deleter of tensors, which any thread may call. Nothing is freed where the interpreter has ended."""
    python = Python(load64(managed + _PYTHON_AT))
    if call_int(python.is_initialized) == 0:
        return
    lock = call_int(python.ensure_lock)
    drop(python, load64(managed + _OWNER_AT))
    call(python.release_lock, lock)
    call(python.free, managed)


def convert_array(self: int, array: int) -> int:
    """Converts an Array, as a builtin with a Conversion record: the other library's array over the memory,
    None where that takes Python."""
    python = Python(load64(self + CAPSULE_POINTER_AT))
    conversion = Conversion(load64(self + CAPSULE_CONTEXT_AT))
    tensor = Tensor(stack(_TENSOR_SIZE))
    if describes(python, array, tensor) or (
        works_in_default_order(python, conversion, array) and is_given(python, array, tensor)
    ):
        managed = managed_of(python, array, tensor)
    else:
        return retained(python, python.none) if call(python.error_occurred) == 0 else 0
    if managed == 0:
        return 0
    made = stack(8)
    store64(made, 0)
    if call_int(conversion.make, managed, made) == 0 and load64(made) != 0:
        return load64(made)
    return retained(python, python.none) if forgets_error(python) else 0


# -- arrays on a device --------------------------------------------------------------------------------


def timeline_of(python: Python, array: int) -> Timeline:
    """The timeline in whose memory an Array lies, as far as its handle tells; else 0."""
    if not is_instance(python, array, python.array_type):
        return Timeline(0)
    owner = load64(array + python.array_owner)
    if owner == 0 or owner == python.none or load64(array + python.array_fence) != python.none:
        return Timeline(0)
    handle_pool = Owners(load64(owner + CAPSULE_CONTEXT_AT)).handle_pool
    if not handle_pool or not handle_pool.queue or handle_pool.queue.open == 0:
        return Timeline(0)
    place = Entry(handle_of(owner)).access >> PLACE_SHIFT
    is_here = place != 0 and place == place_number(handle_pool.queue)
    return handle_pool.queue.timeline if is_here else Timeline(0)


def works_in_default_order(python: Python, conversion: Conversion, array: int) -> bool:
    """Whether the other library submits to the device's default order. That is always there: another one may
    be gone when the memory comes back."""
    timeline = timeline_of(python, array)
    if not timeline or conversion.find_order == 0:
        return False
    place = stack(8)
    store64(place, 0)
    if call_int(conversion.find_order, timeline.kind, timeline.ordinal, place) != 0:
        forgets_error(python)
        return False
    return load64(place) == 0 or load64(place) == DEFAULT_ORDER


def is_given(python: Python, array: int, tensor: Tensor) -> bool:
    """As :func:`describes`, of an Array in the memory of a device. Work that follows in the default order
    finds its elements there, and may write to them: what the host has read is old from now on."""
    timeline = timeline_of(python, array)
    if not timeline:
        return False
    handle = readable(python, array)
    if not handle or not fill_tensor(python, array, handle, tensor):
        return False
    if call(timeline.precede, place_of(timeline), DEFAULT_ORDER) == 0:
        return False
    tensor.device_kind = timeline.kind
    tensor.device_number = timeline.ordinal
    timeline.exports = EXPORTED_BY_CODE
    store64(python.writes, load64(python.writes) + 1)
    return True


# -- tensors -------------------------------------------------------------------------------------------


def describes(python: Python, array: int, tensor: Tensor) -> bool:
    """Whether an Array's memory is seen by the host; then the tensor says where, but for its strides."""
    handle = visible(python, array)
    return bool(handle) and fill_tensor(python, array, handle, tensor)


def fill_tensor(python: Python, array: int, handle: Entry, tensor: Tensor) -> bool:
    row = dtype_row(python, BY_CODE, handle.element_type)
    if not row or row.tensor_type == 0:
        return False
    owner = load64(array + python.array_owner)
    tensor.data = handle.address
    tensor.device_kind = TENSOR_ON_HOST
    tensor.device_number = 0
    tensor.rank = handle.rank
    tensor.type = row.tensor_type
    tensor.shape = place_of(handle) + Owners(load64(owner + CAPSULE_CONTEXT_AT)).extension
    tensor.strides = 0
    tensor.byte_offset = 0
    return True


def keeps_dimensions(python: Python, array: int, tensor: Tensor) -> bool:
    """Puts dimensions and strides into memory that the array keeps. False with an exception set."""
    rank = tensor.rank
    kept = Ndarray(load64(array + python.array_dimensions))
    if not kept or place_of(kept) == python.none:
        count = stack(8)
        store64(count, 2 * rank)
        dtype = retained(python, dtype_of(python, _I64))
        kept = Ndarray(call(python.new_array, python.ndarray_type, dtype, 1, count, 0, 0, 0, 0))
        if not kept:
            return False
        store64(array + python.array_dimensions, place_of(kept))
    write_dimensions(python, tensor, kept.data)
    return True


def write_dimensions(python: Python, tensor: Tensor, place: int) -> None:
    """Writes an Array's dimensions and dense strides."""
    rank = tensor.rank
    call(python.copy_memory, place, tensor.shape, 8 * rank)
    stride = 1
    for index in range(rank - 1, -1, -1):
        store64(place + 8 * (rank + index), stride)
        stride *= load64(place + 8 * index)
    tensor.shape = place
    tensor.strides = place + 8 * rank


def new_managed(python: Python, owner: int, tensor: Tensor, flags: int) -> int:
    """A tensor for a consumer, which takes over an owner of its memory. 0 with an exception set."""
    place = call(python.allocate, _SHAPE_AT + 16 * tensor.rank)
    if place == 0:
        drop(python, owner)
        return call(python.no_memory)
    managed = VersionedTensor(place)
    managed.major = _MAJOR
    managed.minor = _MINOR
    managed.context = place
    managed.deleter = python.destroy_managed
    managed.flags = flags
    store64(place + _OWNER_AT, owner)
    store64(place + _PYTHON_AT, place_of(python))
    call(python.copy_memory, place + _TENSOR_AT, place_of(tensor), _TENSOR_SIZE)
    write_dimensions(python, Tensor(place + _TENSOR_AT), place + _SHAPE_AT)
    return place


def managed_of(python: Python, array: int, tensor: Tensor) -> int:
    """A tensor that keeps an Array's memory. 0 with an exception set."""
    return new_managed(python, retained(python, load64(array + python.array_owner)), tensor, 0)


def managed_of_capsule(python: Python, capsule: int) -> int:
    """A tensor that keeps a capsule of DLPack, which it takes over. 0 with an exception set."""
    if capsule == 0:
        return 0
    managed = VersionedTensor(call(python.capsule_pointer, capsule, python.versioned_name))
    if managed:
        return new_managed(python, capsule, Tensor(place_of(managed) + _TENSOR_AT), managed.flags)
    tensor = tensor_of(python, capsule) if forgets_error(python) else Tensor(0)
    if tensor:
        return new_managed(python, capsule, tensor, 0)
    drop(python, capsule)
    return 0
