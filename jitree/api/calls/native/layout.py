"""Memory that machine code of calls shares with Python, and where CPython and numpy keep what it reads.

Fields that name functions, types and objects hold their addresses.
"""

from __future__ import annotations

from typing import Final

from jitree.base.layout import Record
from jitree.regs.layout import EXTENSION_SIZE, FRAME, STATE

PYTHON: Final = Record(
    "python",
    """
    i64 retain              # Py_IncRef
    i64 drop                # Py_DecRef
    i64 save_thread         # PyEval_SaveThread
    i64 restore_thread      # PyEval_RestoreThread
    i64 vectorcall          # PyObject_Vectorcall
    i64 call_method         # PyObject_VectorcallMethod
    i64 get_attribute       # PyObject_GetAttr
    i64 capsule_pointer     # PyCapsule_GetPointer
    i64 length              # PyObject_Size
    i64 long_value          # PyLong_AsLongLongAndOverflow
    i64 new_long            # PyLong_FromLongLong
    i64 new_float           # PyFloat_FromDouble
    i64 new_tuple           # PyTuple_New
    i64 set_item            # PyTuple_SetItem
    i64 get_item            # PyTuple_GetItem
    i64 new_object          # PyType_GenericAlloc
    i64 new_capsule         # PyCapsule_New
    i64 set_context         # PyCapsule_SetContext
    i64 fetch_error         # PyErr_Fetch
    i64 restore_error       # PyErr_Restore
    i64 clear_error         # PyErr_Clear
    i64 error_occurred      # PyErr_Occurred
    i64 error_matches       # PyErr_ExceptionMatches
    i64 normalize_error     # PyErr_NormalizeException
    i64 set_traceback       # PyException_SetTraceback
    i64 is_subtype          # PyType_IsSubtype
    i64 list_item           # PyList_GetItem
    i64 allocate            # PyMem_RawMalloc
    i64 free                # PyMem_RawFree
    i64 no_memory           # PyErr_NoMemory
    i64 is_initialized      # Py_IsInitialized
    i64 ensure_lock         # PyGILState_Ensure
    i64 release_lock        # PyGILState_Release
    i64 new_memoryview      # PyMemoryView_FromObject
    i64 copy_memory         # memcpy
    i64 new_array           # PyArray_NewFromDescr
    i64 set_base            # PyArray_SetBaseObject
    i64 copy_into           # PyArray_CopyInto
    i64 destroy_owner       # the destructor of owners, machine code itself
    i64 destroy_managed     # the deleter of exported tensors, machine code itself
    i64 owner_name          # their capsule's name, a C string
    i64 none
    i64 true
    i64 false
    i64 exception_type      # Exception
    i64 cancelled_type      # CancelledError
    i64 pass_interruption   # errors.pass_interruption
    i64 int_type
    i64 float_type
    i64 array_type          # jitree.Array
    i64 ndarray_type
    i64 generic_type        # of numpy's scalars
    i64 as_array            # numpy.asarray
    i64 list_type
    i64 array_device        # offsets of slots in an Array
    i64 array_dimensions
    i64 array_elements
    i64 array_fence
    i64 array_keeper
    i64 array_owner
    i64 array_passed_as
    i64 array_view
    i64 function_type       # jitree.Function
    i64 function_direct     # offset of the slot in a Function
    i64 direct_record       # offset of the slot in a DirectCall
    i64 donation_type       # jitree.calls.Donation
    i64 donation_array      # offset of the slot in a Donation
    i64 out_name            # "out"
    i64 dlpack_name         # "__dlpack__"
    i64 dlpack_device_name  # "__dlpack_device__"
    i64 dlpack_names        # the names of its arguments, ("max_version",)
    i64 stream_names        # on a GPU: ("stream", "max_version"),
    i64 old_stream_names    # and before DLPack 1.0: ("stream",)
    i64 dlpack_version      # (1, 0)
    i64 versioned_name      # of a DLPack capsule, C strings
    i64 unversioned_name
    i64 exchanges           # address of EXCHANGE records
    i64 writes              # address of how often programs may have written to arrays of devices
    i64 ended               # address of what is not 0 while there may be a block that is over its time
    i64 pending             # address of what pending calls do to memory (jitree.hal.memory_order)
    i64 tuple_type
    i64 call_slowly         # Python methods that do what machine code does not: Function.__call__,
    i64 submit_slowly       # AsynchronousFunction.submit as soon as there is such a function,
    i64 attempt_slowly      # Function.attempt,
    i64 array_slowly        # Array.__array__,
    i64 buffer_slowly       # Array.__buffer__
    i64 dtype_count
    i64 dtypes              # address of DTYPE records
    """,
)
"""What machine code needs of Python; one for the process."""

DTYPE: Final = Record(
    "dtype",
    """
    i64 code
    i64 dtype
    i64 tensor_type         # TENSOR.type of such arrays, or 0
    i64 item_size           # bytes
    i64 numbers             # what its elements are: PASS_I64 or PASS_F*; NO_NUMBERS = neither
    i64 low                 # of integers: the least and the largest
    i64 high
    """,
)
"""An element type (:mod:`jitree.types`), and numpy's dtype of its arrays. Of several with one dtype the first
is that of numpy arrays."""
MAXIMUM_DTYPES: Final = 64

EXCHANGE: Final = Record(
    "exchange",
    """
    i64 type                # 0: the record is free
    i64 describe            # dltensor_from_py_object_no_sync; 0: only by `__dlpack__`
    i64 find_stream         # current_work_stream, or 0
    i64 names               # how that is called: PYTHON.dlpack_names, or 0 before DLPack 1.0
    i64 lazy_attribute      # name of an attribute, and
    i64 lazy_method         # of methods that give False for arrays whose memory holds their elements, or 0
    i64 lazy_complex        # the same for arrays of complex numbers
    """,
)
"""A type of arrays of another library, and how to find out where an array of it lies."""
MAXIMUM_EXCHANGES: Final = 16

TENSOR: Final = Record(
    "tensor",
    """
    i64 data
    i32 device_kind
    i32 device_number
    i32 rank
    i32 type                # code, bits, lanes: 8, 8, 16 bits
    i64 shape
    i64 strides             # in elements; 0 = dense
    i64 byte_offset
    """,
)
"""DLTensor of DLPack."""
VERSIONED: Final = Record(
    "versioned",
    """
    i32 major
    i32 minor
    i64 context
    i64 deleter
    i64 flags
    i64 tensor
    """,
)
"""DLManagedTensorVersioned, whose TENSOR begins at ``tensor``; one without a version begins with it."""
READ_ONLY_TENSOR: Final = 1
"""DLPACK_FLAG_BITMASK_READ_ONLY"""
TENSOR_ON_HOST: Final = 1
"""kDLCPU"""
TENSOR_ON_CUDA: Final = 2
"""kDLCUDA"""

CONVERSION: Final = Record(
    "conversion",
    """
    i64 make                # managed_tensor_to_py_object_no_sync
    i64 find_stream         # current_work_stream, or 0
    """,
)
"""How arrays become those of another library."""

EXPORTS: Final = Record(
    "exports",
    """
    i64 python              # the PYTHON record
    i64 export_slowly       # Python functions: give a capsule of an array,
    i64 import_slowly       # an array over a tensor,
    i64 allocate_slowly     # a capsule of new memory, or None when they have told why there is none
    """,
)
"""What the exchange interface of device arrays needs."""

LARGEST_COPIED: Final = 4 << 20
"""Bytes. Copying more takes so long that other threads should have Python meanwhile."""
LARGEST_UPLOADED: Final = 1 << 20
"""Bytes that machine code copies to a device by pinned memory; more is left to Python, and to the driver."""
MOST_SHARED: Final = 4096
"""Bytes of small arrays of one call that go to a device together."""

MAXIMUM_RETURNED: Final = 1020
OWNERS: Final = Record(
    "owners",
    """
    i64 keeper              # the Python object that the record belongs to; owners keep it
    i64 python              # the PYTHON record
    i64 attend              # Python function, see Owners.attend
    i64 extension           # bytes from an entry of the table to its extension
    i64 handle_pool         # the HANDLE_POOL record of the table where it has a stream's memory, else 0
    i64 ahead               # address of MOST_AHEAD AHEAD records
    i64 count               # handles in `returned`
    """
    f"i64*{MAXIMUM_RETURNED} returned",
)
"""Handles of one table that owners have given back. Touched by the thread that holds the GIL, so that owners
may die at any time: also while machine code of the context runs."""
RETURNED: Final = OWNERS["returned"]

AHEAD: Final = Record(
    "ahead",
    """
    i64 view                # handle of the array that the last call gave: a reference if there is a copy
    i64 copy                # reference to a buffer in pinned memory with its elements; 0 = there is none
    i64 worked              # STREAM.worked at the end of that call: as long as it is that, both have the same
    i64 wanted              # 1 = the host has read the array that a call gave before anything else
    """,
)
"""A result of calls that the host may read: then the next call has its elements copied to the host."""
MOST_AHEAD: Final = 64
LARGEST_AHEAD: Final = 1 << 16
"""Bytes of such a result."""

MAXIMUM_RANK: Final = EXTENSION_SIZE // 8 - 1
"""The highest rank of arrays whose dimensions lie in the table."""

CALL: Final = Record(
    "call",
    """
    i64 python              # the PYTHON record
    i64 gate                # the GATE record of the context
    i64 owners              # the OWNERS record of the context's table
    i64 state               # STATE of the machine of direct calls
    i64 run                 # machine code: `i64 (state)`
    i64 frame               # the host's FRAME
    i64 refs                # its first ref register
    i64 ref_count
    i64 argument_count
    i64 arguments           # address of ARGUMENT records
    i64 result_count
    i64 results             # address of RESULT records
    i64 device              # of the arrays that are returned
    i64 deferred            # HandleTable.deferred
    i64 order               # Python functions: puts arguments with names in order,
    i64 lock                # of the context; its methods:
    i64 acquire
    i64 release
    i64 acquire_code        # C functions of these: `(lock, tuple of arguments, 0)`, `(lock, 0)`;
    i64 release_code        # 0 = they are called in another way
    i64 at_once             # the arguments for taking the lock without waiting
    i64 wait_at_gate        # of the invoker
    i64 require_faultless
    i64 drain               # of the table: frees what machine code has released,
    i64 drain_deferred      # and what others have dropped
    i64 go_on               # of the DirectCall: the rest of a call that machine code has left,
    i64 set_aside           # the same without waiting: gives None, or what completes it when it is awaited,
    i64 give_up             # its end if that was interrupted before it began
    i64 give_up_work        # tells the work that reaches a fence (or its handle): the caller gets an error
    i64 take_reference      # a result that is no array
    i64 supply              # makes sure that there is memory for an argument of some size
    i64 signal              # address of the register of a fence that is reached at the end, 0 = none
    i64 workspace           # address of the register of memory for intermediate results, 0 = none
    i64 sizes               # the SIZES record of what that memory must have, 0 = Python looks at it
    i64 pending             # of the DirectCall: gives the fence of a handle, None if it has been reached,
    i64 pending_submission  # the same of a submission, whose number it is given
    i64 wait_for            # waits for it, without the lock: is given it and AWAITED.cancels,
    i64 when_reached        # or gives what waits for it when it is awaited
    i64 fence               # of the arrays that are returned by the call in progress, or None
    i64 rewrites            # 1 = the program writes to arrays of a device that the host may have read
    i64 lent                # handles of memory that was lent to the call, linked in their extensions
    i64 producer            # the stream of another library that the device's now comes after,
    i64 producer_type       # and the EXCHANGE record of the library's type: it is asked once a call
    i64 uploads             # 1 = elements of the host go to a device without being told to
    i64 staging             # address of MOST_SHARED bytes for small arrays that go to a device together, or 0
    i64 shared              # the storage that these share there, 0 = there are none yet
    i64 shared_size         # bytes of it that they take
    i64 keep_lent           # Python function: has such a handle keep its owner for longer than the call
    i64 wait_for_submission # waits for a submission: is given its number and AWAITED.cancels
    i64 last_wait           # STATE.last_wait of such calls
    i64 beside              # the most that pending calls may do to memory while such calls begin
    i64 extents             # where a call that goes on notes addresses and lengths of its arguments, or 0
    i64 goes_on             # 1 = the caller may go on before the call in progress has ended
    i64 hold                # gives a blank entry that keeps a numpy array; 0 = none is written in place
    """
    f"i64*{FRAME.size // 8} begun_frame\ni64*{STATE.word('module') - STATE.word('pc') + 1} begun_state",
)
"""One function, as direct calls need it. ``begun_frame`` and ``begun_state`` are what the host's frame and
the words of STATE from ``pc`` to ``module`` hold when the function begins."""

AWAITED: Final = Record(
    "awaited",
    """
    i64 what                # a fence, an object of Python's, or the STREAM of a submission; 0 = nothing
    i64 submission          # its number; 0 = it is a fence
    i64 cancels             # GATE.cancels as the call began
    """,
)
"""What a call waits for when it has given the lock up."""

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

ARGUMENT: Final = Record(
    "argument",
    """
    i64 kind                # PASS_*
    i64 position            # among the arguments of a call
    i64 name                # of the parameter, in Python
    i64 storage             # n + 1: of the n-th result that is put into an argument's memory
    i64 place               # address of the register
    i64 low                 # integers that are passed as they are
    i64 high
    i64 numbers             # of tensors: PASS_I64 or PASS_F*, as which numbers become elements
    i64 convert             # Python function that gives the number, the numpy array, the handle to pass
    i64 marker              # of arrays: what `_passed_as` of those is that are known to fit
    i64 accept              # Python function: whether an array fits
    i64 dtype               # of numpy arrays that are copied; 0 = none are
    i64 item_size           # bytes
    i64 element_type
    i64 tensor_type         # TENSOR.type of such arrays; 0 = none are
    i64 unsigned_dtype      # of integers without a sign, booleans: that of unsigned ones; 0 = of others
    i64 unsigned_tensor     # … their TENSOR.type
    i64 boolean_dtype       # of integers of 8 bits: numpy's bool; 0 = of others
    i64 rank
    i64 is_written          # 1 = the program is declared to write to it
    i64 in_place            # of storage: bits of the positions whose arguments may be the same memory
    i64 noted               # of references: address of HandlePacker.noted
    i64 is_array            # 1 = of references that may be arrays
    i64 source              # where the elements of this call's array lie that were copied; 0 = none were
    """
    f"i64*{MAXIMUM_RANK} dimensions",
)
"""A parameter, in the order in which they are passed. Dimensions are -1 where any size fits."""

SIZES: Final = Record(
    "sizes",
    """
    i64 count
    i64 width               # words of a key: dimensions and numbers
    i64 rows                # address of keys, each with the bytes that are needed after it
    """,
)
"""What calls are known to need of memory for intermediate results."""

RESULT: Final = Record(
    "result",
    """
    i64 kind                # PASS_*
    i64 place               # address of the register
    i64 convert             # Python function (value, device, fence) that makes what is returned, or 0
    i64 view_kind           # type number of buffer views
    i64 ahead               # address of an AHEAD record; 0 = none
    i64 unused              # of an i32: how many of its highest bits the declared type does not have
    """,
)

# -- of CPython and numpy ------------------------------------------------------------------------------

TYPE_AT: Final = 8
"""``ob_type`` of any object, after a reference count of 8 bytes."""
FLOAT_AT: Final = 16
"""``ob_fval`` of a float."""
CAPSULE_POINTER_AT: Final = 16
CAPSULE_CONTEXT_AT: Final = 32
NDARRAY: Final = Record(
    "ndarray",
    """
    i64 count
    i64 type
    i64 data
    i32 rank
    i64 dimensions
    i64 strides
    i64 base
    i64 dtype
    i32 flags
    """,
)
"""``PyArrayObject_fields``, part of numpy's C interface. ``cpython_layout.py`` looks whether this
interpreter's objects are so before any of it is used."""
NDARRAY_CONTIGUOUS: Final = 1
NDARRAY_WRITABLE: Final = 0x400
NDARRAY_PLAIN: Final = 0x501
"""Contiguous, aligned, writable: the flags of new arrays."""
