"""Makes the arrays that calls return, and what numpy sees of them. Machine code.

Arrays have an owner, a capsule that owns a reference to a handle, and so have the numpy arrays over their
memory, as their base: when the last of them is gone the handle is given back. That may happen at any time,
in any thread that has the GIL; the next call puts it into effect.
"""

from __future__ import annotations

from jitree.api.calls.native.layout import (
    CAPSULE_CONTEXT_AT,
    CAPSULE_POINTER_AT,
    MAXIMUM_RANK,
    MAXIMUM_RETURNED,
    NDARRAY_PLAIN,
    RETURNED,
    CallRecord,
    Dtype,
    Owners,
    Python,
)
from jitree.api.calls.native.python import call_with_self, drop, invoke, invoke_with, is_instance, retained
from jitree.codegen.primitives import call, load64, stack, store64
from jitree.codegen.record import layout_of, place_of, size_of
from jitree.hal.enums import READING, MemoryAccess
from jitree.modules.hal.native.entries import release
from jitree.modules.hal.native.layout import HandlePoolRecord
from jitree.regs.layout import PLACE_SHIFT, Entry
from jitree.types import ENCODING_DENSE

_DTYPE_SIZE = size_of(Dtype)
BY_CODE, BY_DTYPE, BY_TENSOR_TYPE = (
    layout_of(Dtype)["code"],
    layout_of(Dtype)["dtype"],
    layout_of(Dtype)["tensor_type"],
)
"""Fields of DTYPE that :func:`dtype_row` looks at."""
_READ_WRITE = int(MemoryAccess.READ | MemoryAccess.WRITE)


def new_owner(owners: Owners, handle: Entry) -> int:
    """Takes over a reference to a handle, in any case. 0 with an exception set."""
    python = Python(owners.python)
    owner = call(python.new_capsule, place_of(handle), python.owner_name, python.destroy_owner)
    if owner == 0:
        give_back_handle(owners, handle)
        return 0
    call(python.set_context, owner, place_of(owners))
    retained(python, owners.keeper)
    return owner


def handle_of(owner: int) -> int:
    return load64(owner + CAPSULE_POINTER_AT)


def destroy_owner(owner: int) -> None:
    """The destructor of owners."""
    owners = Owners(load64(owner + CAPSULE_CONTEXT_AT))
    give_back_handle(owners, Entry(handle_of(owner)))
    drop(Python(owners.python), owners.keeper)


def give_back_handle(owners: Owners, handle: Entry) -> None:
    count = owners.count
    if count == MAXIMUM_RETURNED:
        attend(owners, handle)
        return
    store64(place_of(owners) + RETURNED + 8 * count, place_of(handle))
    owners.count = count + 1
    if handle.length >= owners.large:
        attend(owners, Entry(0))


def attend(owners: Owners, handle: Entry) -> None:
    """Calls the Python functions of the record, whatever exception is on its way."""
    python = Python(owners.python)
    error = stack(24)
    call(python.fetch_error, error, error + 8, error + 16)
    if handle:
        finish(python, put_off(python, owners, handle))
    finish(python, invoke(python, owners.attend))
    call(python.restore_error, load64(error), load64(error + 8), load64(error + 16))


def put_off(python: Python, owners: Owners, handle: Entry) -> int:
    """Notes a handle in Python's memory: no interrupt comes before that, and no end of the stack."""
    number = call(python.new_long, place_of(handle))
    if number == 0:
        return 0
    handles = call(python.new_tuple, 1)
    if handles == 0:
        drop(python, number)
        return 0
    call(python.set_item, handles, 0, number)
    result = invoke_with(python, owners.put_off, handles)
    drop(python, handles)
    return result


def finish(python: Python, result: int) -> None:
    """Drops what a function gave, or the error that it ended with."""
    if result == 0:
        call(python.clear_error)
    else:
        drop(python, result)


def take_back(owners: Owners, handle_pool: HandlePoolRecord, released: int) -> None:
    """Drops the references that were given back. Objects of Python's whose last ones they were join the list
    at ``released``. The context must be idle."""
    count = owners.count
    for index in range(count):
        release(handle_pool, Entry(load64(place_of(owners) + RETURNED + 8 * index)), released)
    owners.count = 0


def new_result(python: Python, record: CallRecord, handle: Entry) -> int:
    """An Array that takes over a reference to the handle of a view. 0 with an exception set."""
    owners = record.owners
    owner = new_owner(owners, handle)
    if owner == 0:
        return 0
    array = call(python.new_object, python.array_type, 0)
    if array == 0:
        drop(python, owner)
        return 0
    none = python.none
    store64(array + python.array_owner, owner)
    store64(array + python.array_keeper, retained(python, owners.keeper))
    store64(array + python.array_device, retained(python, record.device))
    store64(array + python.array_elements, retained(python, none))
    store64(array + python.array_fence, retained(python, record.fence))
    store64(array + python.array_passed_as, retained(python, none))
    store64(array + python.array_view, retained(python, none))
    return array


def array_method(self: int, arguments: int, count: int, names: int, python: Python) -> int:
    """``Array.__array__``: ``self`` is the array."""
    if count == 0 and names == 0:
        elements = elements_of(python, self)
        if elements != 0:
            return elements
    return call_with_self(python, python.array_slowly, self, arguments, count, names)


def buffer_method(self: int, arguments: int, count: int, names: int, python: Python) -> int:
    """As :func:`array_method`, for ``Array.__buffer__``: from Python 3.12 on numpy looks at arrays by it."""
    elements = elements_of(python, self) if count == 1 and names == 0 else 0
    if elements != 0:
        view = call(python.new_memoryview, elements)
        drop(python, elements)
        if view != 0:
            return view
        call(python.clear_error)  # elements of a type that buffers do not have
    return call_with_self(python, python.buffer_slowly, self, arguments, count, names)


def find_elements(self: int, array: int) -> int:
    """A builtin of one argument, an Array: its elements, or None where that takes more than a look at its
    handle."""
    python = Python(load64(self + CAPSULE_POINTER_AT))
    elements = elements_of(python, array)
    return elements if elements != 0 else retained(python, python.none)


def elements_of(python: Python, array: int) -> int:
    """A new numpy array over the memory of an Array's handle. 0 without an exception if there is no such."""
    handle = visible(python, array)
    if not handle:
        return 0
    owner = load64(array + python.array_owner)
    dimensions = place_of(handle) + Owners(load64(owner + CAPSULE_CONTEXT_AT)).extension
    dtype = dtype_of(python, handle.element_type)
    return over_memory(python, dtype, handle.rank, dimensions, 0, handle.address, owner) if dtype != 0 else 0


def visible(python: Python, array: int) -> Entry:
    """Returns the handle of an Array that the host may write. Its elements are there. 0 where more than a
    look at the handle is needed to tell."""
    handle = readable(python, array)
    is_seen = bool(handle) and handle.access >> PLACE_SHIFT == 0
    return handle if is_seen else Entry(0)


def readable(python: Python, array: int) -> Entry:
    """As :func:`visible`, in whatever memory."""
    if not is_instance(python, array, python.array_type):
        return Entry(0)
    none = python.none
    owner = load64(array + python.array_owner)
    if owner == 0 or owner == none or load64(array + python.array_fence) != none:
        return Entry(0)
    if load64(python.pending) > READING:  # a pending call may write there: Python waits for it
        return Entry(0)
    handle = Entry(handle_of(owner))
    dimensions = place_of(handle) + Owners(load64(owner + CAPSULE_CONTEXT_AT)).extension
    if handle.encoding != ENCODING_DENSE or handle.rank > MAXIMUM_RANK:
        return Entry(0)
    if load64(dimensions + 8 * MAXIMUM_RANK) & _READ_WRITE != _READ_WRITE:
        return Entry(0)
    # Python writes the address of a view last.
    return handle if handle.address != 0 else Entry(0)


def dtype_of(python: Python, code: int) -> int:
    """Returns the numpy dtype of an element type, 0 without one. Elements of less than a byte are no array as
    they lie there."""
    row = dtype_row(python, BY_CODE, code)
    return row.dtype if row else 0


def dtype_row(python: Python, field: int, value: int) -> Dtype:
    """Finds the first element type with a value in a field. The field is ``BY_…``; 0 if there is none."""
    place = python.dtypes
    for _ in range(python.dtype_count):
        if load64(place + field) == value:
            return Dtype(place)
        place += _DTYPE_SIZE
    return Dtype(0)


def over_memory(
    python: Python, dtype: int, rank: int, dimensions: int, strides: int, address: int, base: int
) -> int:
    """Makes a numpy array over memory that ``base`` keeps. It is contiguous where ``strides``, in bytes, is
    0; 0 without an exception if it fails."""
    made = call(
        python.new_array,
        python.ndarray_type,
        retained(python, dtype),
        rank,
        dimensions,
        strides,
        address,
        NDARRAY_PLAIN,
        0,
    )
    if made == 0:
        call(python.clear_error)
        return 0
    call(python.set_base, made, retained(python, base))
    return made
