"""Lays out memory that calls share with Python, CPython and numpy.

Fields that name functions, types and objects hold their addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.codegen.record import MemoryRecord, Repeated, layout_of
from jitree.regs.layout import EXTENSION_SIZE, FRAME, STATE_WORDS, FrameRecord, GateRecord

if TYPE_CHECKING:
    from jitree.codegen.record import i32, i64
    from jitree.modules.hal.native.entries import State
    from jitree.modules.hal.native.layout import HandlePoolRecord
    from jitree.regs.layout import Entry


class Python(MemoryRecord):
    """Tells machine code what it needs of Python; one for the process."""

    retain: i64  # Py_IncRef
    drop: i64  # Py_DecRef
    save_thread: i64  # PyEval_SaveThread
    restore_thread: i64  # PyEval_RestoreThread
    vectorcall: i64  # PyObject_Vectorcall
    call_method: i64  # PyObject_VectorcallMethod
    get_attribute: i64  # PyObject_GetAttr
    capsule_pointer: i64  # PyCapsule_GetPointer
    length: i64  # PyObject_Size
    long_value: i64  # PyLong_AsLongLongAndOverflow
    new_long: i64  # PyLong_FromLongLong
    new_float: i64  # PyFloat_FromDouble
    new_tuple: i64  # PyTuple_New
    set_item: i64  # PyTuple_SetItem
    get_item: i64  # PyTuple_GetItem
    new_object: i64  # PyType_GenericAlloc
    new_capsule: i64  # PyCapsule_New
    set_context: i64  # PyCapsule_SetContext
    fetch_error: i64  # PyErr_Fetch
    restore_error: i64  # PyErr_Restore
    clear_error: i64  # PyErr_Clear
    error_occurred: i64  # PyErr_Occurred
    error_matches: i64  # PyErr_ExceptionMatches
    normalize_error: i64  # PyErr_NormalizeException
    set_traceback: i64  # PyException_SetTraceback
    is_subtype: i64  # PyType_IsSubtype
    list_item: i64  # PyList_GetItem
    allocate: i64  # PyMem_RawMalloc
    free: i64  # PyMem_RawFree
    no_memory: i64  # PyErr_NoMemory
    is_initialized: i64  # Py_IsInitialized
    ensure_lock: i64  # PyGILState_Ensure
    release_lock: i64  # PyGILState_Release
    new_memoryview: i64  # PyMemoryView_FromObject
    copy_memory: i64  # memcpy
    new_array: i64  # PyArray_NewFromDescr
    set_base: i64  # PyArray_SetBaseObject
    copy_into: i64  # PyArray_CopyInto
    destroy_owner: i64  # the destructor of owners, machine code itself
    destroy_managed: i64  # the deleter of exported tensors, machine code itself
    owner_name: i64  # their capsule's name, a C string
    none: i64
    not_implemented: i64
    true: i64
    false: i64
    exception_type: i64  # Exception
    cancelled_type: i64  # CancelledError
    pass_interruption: i64  # errors.pass_interruption
    int_type: i64
    float_type: i64
    array_type: i64  # jitree.Array
    ndarray_type: i64
    generic_type: i64  # of numpy's scalars
    as_array: i64  # numpy.asarray
    list_type: i64
    array_device: i64  # offsets of slots in an Array
    array_dimensions: i64
    array_elements: i64
    array_fence: i64
    array_keeper: i64
    array_owner: i64
    array_passed_as: i64
    array_view: i64
    function_type: i64  # jitree.Function
    function_direct: i64  # offset of the slot in a Function
    direct_record: i64  # offset of the slot in a DirectCall
    donation_type: i64  # jitree.calls.Donation
    donation_array: i64  # offset of the slot in a Donation
    out_name: i64  # "out"
    dlpack_name: i64  # "__dlpack__"
    dlpack_device_name: i64  # "__dlpack_device__"
    dlpack_names: i64  # the names of its arguments, ("max_version",)
    order_names: i64  # ("stream", "max_version"),
    old_order_names: i64  # and before DLPack 1.0: ("stream",)
    dlpack_version: i64  # (1, 0)
    versioned_name: i64  # of a DLPack capsule, C strings
    unversioned_name: i64
    exchanges: i64  # address of Exchange records
    writes: i64  # address of how often programs may have written to arrays of devices
    ended: i64  # address of what is not 0 while there may be a block that is over its time
    pending: i64  # address of what pending calls do to memory (jitree.hal.memory_order)
    tuple_type: i64
    call_slowly: i64  # Python methods that do what machine code does not: Function.__call__,
    submit_slowly: i64  # AsynchronousFunction.submit as soon as there is such a function,
    attempt_slowly: i64  # Function.attempt,
    array_slowly: i64  # Array.__array__,
    buffer_slowly: i64  # Array.__buffer__
    dtype_count: i64
    dtypes: i64  # address of Dtype records


class Dtype(MemoryRecord):
    """Describes an element type (:mod:`jitree.types`), and numpy's dtype of its arrays.

    Of several with one dtype the first is that of numpy arrays."""

    code: i64
    dtype: i64
    tensor_type: i64  # Tensor.type of such arrays, or 0
    item_size: i64  # bytes
    numbers: i64  # what its elements are: PASS_I64 or PASS_F*; NO_NUMBERS = neither
    low: i64  # of integers: the least and the largest
    high: i64


MAXIMUM_DTYPES: Final = 64


class Exchange(MemoryRecord):
    """Locates arrays of another library's type."""

    type: i64  # 0: the record is free
    describe: i64  # dltensor_from_py_object_no_sync; 0: only by `__dlpack__`
    find_order: i64  # current_work_stream, or 0
    names: i64  # how that is called: Python.dlpack_names, or 0 before DLPack 1.0
    lazy_attribute: i64  # name of an attribute, and
    lazy_method: i64  # of methods that give False for arrays whose memory holds their elements, or 0
    lazy_complex: i64  # the same for arrays of complex numbers


MAXIMUM_EXCHANGES: Final = 16


class Tensor(MemoryRecord):
    """Is DLTensor of DLPack."""

    embedded = True

    data: i64
    device_kind: i32
    device_number: i32
    rank: i32
    type: i32  # code, bits, lanes: 8, 8, 16 bits
    shape: i64
    strides: i64  # in elements; 0 = dense
    byte_offset: i64


class VersionedTensor(MemoryRecord):
    """Is DLManagedTensorVersioned; one without a version begins with its tensor."""

    major: i32
    minor: i32
    context: i64
    deleter: i64
    flags: i64
    tensor: Tensor


READ_ONLY_TENSOR: Final = 1
"""DLPACK_FLAG_BITMASK_READ_ONLY"""
TENSOR_ON_HOST: Final = 1
"""kDLCPU"""


class Conversion(MemoryRecord):
    """Says how arrays become those of another library."""

    make: i64  # managed_tensor_to_py_object_no_sync
    find_order: i64  # current_work_stream, or 0


class Exports(MemoryRecord):
    """Tells the exchange interface of device arrays what it needs."""

    python: Python  # the Python record
    export_slowly: i64  # Python functions: give a capsule of an array,
    import_slowly: i64  # an array over a tensor,
    allocate_slowly: i64  # a capsule of new memory, or None when they have told why there is none


LARGEST_COPIED: Final = 4 << 20
"""Bytes. Copying more takes so long that other threads should have Python meanwhile."""
LARGEST_UPLOADED: Final = 1 << 20
"""Bytes that machine code copies to a device by pinned memory; more is left to Python, and to the driver."""
MOST_SHARED: Final = 4096
"""Bytes of small arrays of one call that go to a device together."""

MAXIMUM_RETURNED: Final = 1020


class Owners(MemoryRecord):
    """Lists handles of one table that owners have given back.

    Touched by the thread that holds the GIL, so that owners may die at any time: also while machine code of
    the context runs."""

    keeper: i64  # the Python object that the record belongs to; owners keep it
    python: i64  # the Python record
    put_off: i64  # Python functions: notes one more handle, in a tuple, which is a function in C,
    attend: i64  # and takes back what was given back
    extension: i64  # bytes from an entry of the table to its extension
    handle_pool: HandlePoolRecord  # of the table where it has memory of a device with a timeline, else 0
    large: i64  # bytes from which memory is given back at once if that is possible, not by the next call
    ahead: Ahead  # address of MOST_AHEAD Ahead records
    count: i64  # handles in `returned`
    returned: i64 = Repeated(MAXIMUM_RETURNED)


RETURNED: Final = layout_of(Owners)["returned"]


class Ahead(MemoryRecord):
    """Follows a result of calls that the host may read. The next call has its elements copied to the host."""

    view: Entry  # handle of the array that the last call gave: a reference if there is a copy
    copy: Entry  # reference to a buffer in pinned memory with its elements; 0 = there is none
    worked: i64  # Timeline.worked at the end of that call: as long as it is that, both have the same
    wanted: i64  # 1 = the host has read the array that a call gave before anything else


MOST_AHEAD: Final = 64
LARGEST_AHEAD: Final = 1 << 16
"""Bytes of such a result."""

MAXIMUM_RANK: Final = EXTENSION_SIZE // 8 - 1
"""The highest rank of arrays whose dimensions lie in the table."""


class CallRecord(MemoryRecord):
    """Describes one function, as direct calls need it."""

    python: i64  # the Python record
    gate: GateRecord  # of the context
    owners: Owners  # the Owners record of the context's table
    state: State  # of the machine of direct calls
    run: i64  # machine code: `i64 (state)`
    frame: FrameRecord  # the host's
    refs: i64  # its first ref register
    ref_count: i64
    argument_count: i64
    arguments: i64  # address of Argument records
    result_count: i64
    results: i64  # address of Result records
    device: i64  # of the arrays that are returned
    deferred: i64  # HandleTable.deferred
    order: i64  # Python functions: puts arguments with names in order,
    lock: i64  # of the context; its methods:
    acquire: i64
    release: i64
    acquire_code: i64  # C functions of these: `(lock, tuple of arguments, 0)`, `(lock, 0)`;
    release_code: i64  # 0 = they are called in another way
    at_once: i64  # the arguments for taking the lock without waiting
    wait_at_gate: i64  # of the invoker
    require_faultless: i64
    drain: i64  # of the table: frees what machine code has released,
    drain_deferred: i64  # and what others have dropped
    go_on: i64  # of the DirectCall: the rest of a call that machine code has left,
    set_aside: i64  # the same without waiting: gives None, or what completes it when it is awaited,
    give_up: i64  # its end if that was interrupted before it began
    give_up_work: i64  # tells the work that reaches a fence (or its handle): the caller gets an error
    take_reference: i64  # a result that is no array
    supply: i64  # makes sure that there is memory for an argument of some size
    signal: i64  # address of the register of a fence that is reached at the end, 0 = none
    workspace: i64  # address of the register of memory for intermediate results, 0 = none
    sizes: Sizes  # the Sizes record of what that memory must have, 0 = Python looks at it
    pending: i64  # of the DirectCall: gives the fence of a handle, None if it has been reached,
    pending_submission: i64  # the same of a submission, whose number it is given
    wait_for: i64  # waits for it, without the lock: is given it and AwaitedRecord.cancels,
    when_reached: i64  # or gives what waits for it when it is awaited
    wrap: i64  # of the table: the handle of what Python has packed,
    rows: i64  # or, where this is not 0, what makes `rows` of all that it has packed: a word each
    fence: i64  # of the arrays that are returned by the call in progress, or None
    rewrites: i64  # 1 = the program writes to arrays of a device that the host may have read
    lent: Entry  # handles of memory that was lent to the call, linked in their extensions
    producer: i64  # the order of another library that the device's now comes after,
    producer_type: i64  # and the Exchange record of the library's type: it is asked once a call
    uploads: i64  # 1 = elements of the host go to a device without being told to
    staging: i64  # address of MOST_SHARED bytes for small arrays that go to a device together, or 0
    shared: Entry  # the storage that these share there, 0 = there are none yet
    shared_size: i64  # bytes of it that they take
    keep_lent: i64  # Python function: has such a handle keep its owner for longer than the call
    wait_for_submission: i64  # waits for a submission: is given its number and AwaitedRecord.cancels
    last_wait: i64  # STATE.last_wait of such calls
    beside: i64  # the most that pending calls may do to memory while such calls begin
    extents: i64  # where a call that goes on notes addresses and lengths of its arguments, or 0
    goes_on: i64  # 1 = the caller may go on before the call in progress has ended
    hold: i64  # gives a blank entry that keeps a numpy array; 0 = none is written in place
    told: i64  # address of a word that is not 0 while readers are told of calls,
    tell: i64  # and a Python function that tells them that one begins
    begun_frame: i64 = Repeated(FRAME.size // 8)  # what the host's frame holds when the function begins,
    begun_state: i64 = Repeated(int(STATE_WORDS.module) - STATE_WORDS.pc + 1)  # and its state


class AwaitedRecord(MemoryRecord):
    """Says what a call waits for when it has given the lock up."""

    what: i64  # a fence, an object of Python's, or the Timeline of a submission; 0 = nothing
    submission: i64  # its number; 0 = it is a fence
    cancels: i64  # GATE.cancels as the call began


COPIED: Final = 1
"""A bit in a row, which is the address of an Ndarray record then: elements to be copied."""

PASS_I32: Final = 0
PASS_I64: Final = 1
PASS_F32: Final = 2
PASS_F64: Final = 3
PASS_ARRAY: Final = 4
PASS_CONSUMED: Final = 5
"""A kind of argument: an array that the program may overwrite."""
PASS_REFERENCE: Final = 6
"""A kind of argument: a reference to what Python makes of the value."""
PASS_BITS: Final = 7
"""A number whose bits Python makes, in an i32."""
PASS_F16: Final = 8
PASS_BF16: Final = 9
"""Floats, whose bits are in an i32."""
NO_NUMBERS: Final = 0
"""The value of ``numbers`` in an ARGUMENT whose numbers Python converts."""


class Argument(MemoryRecord):
    """Is a parameter, in the order in which they are passed."""

    kind: i64  # PASS_*
    position: i64  # among the arguments of a call
    name: i64  # of the parameter, in Python
    storage: i64  # n + 1: of the n-th result that is put into an argument's memory
    place: i64  # address of the register
    low: i64  # integers that are passed as they are; of memory for intermediate results the fewest bytes
    high: i64
    numbers: i64  # of tensors: PASS_I64 or PASS_F*, as which numbers become elements
    convert: i64  # Python function that packs a number, or gives the handle to pass; 0 = there is none
    marker: i64  # of arrays: what `_passed_as` of those is that are known to fit
    accept: i64  # Python function: whether an array fits
    dtype: i64  # of numpy arrays that are copied; 0 = none are
    item_size: i64  # bytes
    element_type: i64
    tensor_type: i64  # Tensor.type of such arrays; 0 = none are
    unsigned_dtype: i64  # of integers without a sign, booleans: that of unsigned ones; 0 = of others
    unsigned_tensor: i64  # … their Tensor.type
    boolean_dtype: i64  # of integers of 8 bits: numpy's bool; 0 = of others
    rank: i64
    is_written: i64  # 1 = the program is declared to write to it
    in_place: i64  # of storage: bits of the positions whose arguments may be the same memory
    noted: i64  # of references with `convert`: address of NotingPacker.noted
    source: i64  # where the elements of this call's array lie that were copied; 0 = none were
    is_array: i64  # 1 = of references that may be arrays
    dimensions: i64 = Repeated(MAXIMUM_RANK)  # -1 where any size fits


class Sizes(MemoryRecord):
    """Lists what calls are known to need of memory for intermediate results."""

    count: i64
    width: i64  # words of a key: dimensions and numbers
    rows: i64  # address of keys, each with the bytes that are needed after it


class Result(MemoryRecord):
    """Is a result, in the order in which they are returned."""

    kind: i64  # PASS_*
    place: i64  # address of the register
    convert: i64  # Python function (value, device, fence) that makes what is returned, or 0
    view_kind: i64  # type number of buffer views
    ahead: Ahead  # address of an Ahead record; 0 = none
    unused: i64  # of an i32: how many of its highest bits the declared type does not have


# -- of CPython and numpy ------------------------------------------------------------------------------

TYPE_AT: Final = 8
"""``ob_type`` of any object, after a reference count of 8 bytes."""
FLOAT_AT: Final = 16
"""``ob_fval`` of a float."""
CAPSULE_POINTER_AT: Final = 16
CAPSULE_CONTEXT_AT: Final = 32


class Ndarray(MemoryRecord):
    """Is ``PyArrayObject_fields``, part of numpy's C interface.

    ``cpython_layout.py`` looks whether this interpreter's objects are so before any of it is used."""

    count: i64
    type: i64
    data: i64
    rank: i32
    dimensions: i64
    strides: i64
    base: i64
    dtype: i64
    flags: i32


NDARRAY_CONTIGUOUS: Final = 1
NDARRAY_WRITABLE: Final = 0x400
NDARRAY_PLAIN: Final = 0x501
"""Contiguous, aligned, writable: the flags of new arrays."""
