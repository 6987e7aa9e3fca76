"""Finds what machine code of calls needs of CPython and numpy.

That is where this interpreter's objects keep what it reads, found by looking at some; the C functions that it
calls; the types that it compares with; and the methods that become machine code.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Iterable
from functools import cache
from itertools import repeat
from types import BuiltinMethodType, FunctionType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.api.array import WRITES, Array, replace_methods
from jitree.api.calls.declaration import OUT
from jitree.api.calls.native import RECIPE
from jitree.api.calls.native.acceptance import (
    DLPACK,
    DLPACK_DEVICE,
    NAMES,
    OLD_ORDER_NAMES,
    ORDER_NAMES,
    VERSION,
    Producers,
    numbers_of,
)
from jitree.api.calls.native.handle_owners import Keeper
from jitree.api.calls.native.layout import (
    CAPSULE_CONTEXT_AT,
    CAPSULE_POINTER_AT,
    FLOAT_AT,
    MAXIMUM_DTYPES,
    NDARRAY_CONTIGUOUS,
    TYPE_AT,
    Conversion,
    Dtype,
    Ndarray,
    Python,
)
from jitree.api.calls.tensor_packing import Donation
from jitree.api.function import Function
from jitree.base.cancel_scopes import ENDED
from jitree.base.dlpack_names import NAME, VERSIONED_NAME, tensor_type
from jitree.base.finalizers import guard
from jitree.base.memory import STRIDE, bound_together, can_bind
from jitree.base.platform import UNAME
from jitree.codegen import image
from jitree.codegen.record import layout_of, size_of, words_of
from jitree.errors import CancelledError, InternalError, pass_interruption
from jitree.hal.buffer import PENDING
from jitree.types import ELEMENT_TYPES, ElementType

if TYPE_CHECKING:
    from jitree.api.asynchronous import AsynchronousFunction

_CONVERSION: Final = words_of(Conversion)

_HEADER_SIZE: Final = 16
"""``object.__basicsize__`` of CPython with the GIL."""
_WORD: Final = 8
METH_KEYWORDS: Final = 3
"""The C function of a method takes the object, a tuple of arguments, and those with names or 0."""
METH_NOARGS: Final = 4
"""It takes the object and 0."""

_FUNCTIONS: Final = {
    "retain": "Py_IncRef", "drop": "Py_DecRef",
    "save_thread": "PyEval_SaveThread", "restore_thread": "PyEval_RestoreThread",
    "vectorcall": "PyObject_Vectorcall", "call_method": "PyObject_VectorcallMethod",
    "get_attribute": "PyObject_GetAttr", "capsule_pointer": "PyCapsule_GetPointer", "length": "PyObject_Size",
    "long_value": "PyLong_AsLongLongAndOverflow", "new_long": "PyLong_FromLongLong",
    "new_float": "PyFloat_FromDouble", "new_tuple": "PyTuple_New", "set_item": "PyTuple_SetItem",
    "get_item": "PyTuple_GetItem", "new_object": "PyType_GenericAlloc",
    "new_capsule": "PyCapsule_New", "set_context": "PyCapsule_SetContext",
    "new_memoryview": "PyMemoryView_FromObject",
    "fetch_error": "PyErr_Fetch", "restore_error": "PyErr_Restore", "clear_error": "PyErr_Clear",
    "error_occurred": "PyErr_Occurred", "error_matches": "PyErr_ExceptionMatches",
    "normalize_error": "PyErr_NormalizeException", "set_traceback": "PyException_SetTraceback",
    "is_subtype": "PyType_IsSubtype", "list_item": "PyList_GetItem",
    "allocate": "PyMem_RawMalloc", "free": "PyMem_RawFree", "no_memory": "PyErr_NoMemory",
    "is_initialized": "Py_IsInitialized", "ensure_lock": "PyGILState_Ensure",
    "release_lock": "PyGILState_Release", "copy_memory": "memcpy",
}  # fmt: skip
_NUMPY_FUNCTIONS: Final = {"new_array": 94, "set_base": 282, "copy_into": 50}
"""PyArray_NewFromDescr, PyArray_SetBaseObject, PyArray_CopyInto, in the table of
numpy's C interface."""
_ARRAY_SLOTS: Final = (
    "_device", "_dimensions", "_elements", "_fence", "_keeper", "_owner", "_passed_as", "_view",
)  # fmt: skip
_METHODS: Final = "array_method", "buffer_method", "function_method", "attempt_method", "submit_method"
"""Functions of the image that are methods, of four arguments and the Python record."""
_DESTRUCTORS: Final = "destroy_owner", "destroy_managed"
_PYTHON: Final = words_of(Python)
_NUMBERS: Final = "numbers", "low", "high"
"""The last fields of DTYPE, in their order."""
_OWNER_NAME: Final = ctypes.c_char_p(b"jitree.owner")
_VERSIONED_NAME: Final = ctypes.c_char_p(VERSIONED_NAME)
_UNVERSIONED_NAME: Final = ctypes.c_char_p(NAME)
_ONE_ARGUMENT: Final = 0x8
"""METH_O"""
_ANY_ARGUMENTS: Final = 0x82
"""METH_FASTCALL | METH_KEYWORDS"""


@cache
def c_function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A function of Python's C interface. Types of functions are circles of objects: each is made once."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


def new_capsule(pointer: int, context: int = 0, name: ctypes.c_char_p | None = None) -> object:
    """A capsule; its name has to last as long."""
    capsule = c_function(
        "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
    )(pointer, name, None)
    c_function("PyCapsule_SetContext", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(capsule, context)
    return capsule


def slot_offsets(cls: type[object], names: Iterable[str]) -> dict[str, int]:
    """Bytes from an object to its slots (``__slots__``), by their names."""
    obj = object.__new__(cls)
    offsets = {}
    for name in names:
        mark = object()
        setattr(obj, name, mark)
        words = array("q", ctypes.string_at(id(obj), cls.__basicsize__))
        offsets[name] = _WORD * words.index(id(mark))
        delattr(obj, name)
    return offsets


def method_code(method: object, convention: int) -> int:
    """Returns the C function's address of a method, else 0. 0 stands for methods that are called in another
    way."""
    if not isinstance(method, BuiltinMethodType):
        return 0
    if c_function("PyCFunction_GetFlags", ctypes.c_int, ctypes.py_object)(method) != convention:
        return 0
    address: int = c_function("PyCFunction_GetFunction", ctypes.c_void_p, ctypes.py_object)(method)
    return address


def is_known() -> bool:
    """Whether objects are as :mod:`jitree.api.calls.native.layout` says."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != _HEADER_SIZE:
        return False
    number, capsule = 0.1, new_capsule(_HEADER_SIZE, _WORD)
    return (
        _word(number, TYPE_AT) == id(float)
        and ctypes.c_double.from_address(id(number) + FLOAT_AT).value == number
        and _word(capsule, CAPSULE_POINTER_AT) == _HEADER_SIZE
        and _word(capsule, CAPSULE_CONTEXT_AT) == _WORD
        and _knows_arrays()
    )


def _knows_arrays() -> bool:
    array = np.empty((3, 5), np.float32)
    row, column = _flags(array), _flags(array.T)
    dimensions = (ctypes.c_int64 * 2).from_address(_word(array, layout_of(Ndarray)["dimensions"]))
    return (
        _word(array, layout_of(Ndarray)["data"]) == array.ctypes.data
        and ctypes.c_int32.from_address(id(array) + layout_of(Ndarray)["rank"]).value == 2
        and tuple(dimensions) == array.shape
        and _word(array, layout_of(Ndarray)["dtype"]) == id(array.dtype)
        and (row & NDARRAY_CONTIGUOUS, column & NDARRAY_CONTIGUOUS) == (NDARRAY_CONTIGUOUS, 0)
    )


def _flags(array: np.ndarray[Any, Any]) -> int:
    return ctypes.c_int32.from_address(id(array) + layout_of(Ndarray)["flags"]).value


def _word(obj: object, offset: int) -> int:
    return ctypes.c_int64.from_address(id(obj) + offset).value


class _Definition(ctypes.Structure):
    """A ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


class CInterface:
    """Holds this process's Python record, and the image that uses it. It is what needs no look into
    objects."""

    keeper_class = Keeper
    row_maker: Callable[..., Any] | None = None
    """What makes rows of a function's arguments, and arrays, where machine code looks into no object."""
    make: Callable[..., Any]
    """(a DirectCall, its arguments): see function.py"""
    run: Callable[..., Any]
    """(a DirectCall, what Python has packed of all arguments): see function.py"""
    new_owner: Callable[[int, int], object]
    """(Owners record, handle): an owner, which takes over the caller's reference to the handle."""

    def __init__(self, code: image.Image) -> None:
        self.code: Final = code
        self._words = array("q", bytes(size_of(Python)))
        self._dtypes = array("q", bytes(size_of(Dtype) * MAXIMUM_DTYPES))
        self._kept: list[object] = []
        self.producers = Producers()
        """Types of other libraries' arrays that machine code knows."""
        self.record: int = self._words.buffer_info()[0]
        """The address of the Python record."""
        self._set(addresses())
        self._set({"dtypes": self._dtypes.buffer_info()[0], "exchanges": self.producers.address})
        for row in ELEMENT_TYPES:
            if row.numpy_name in np.sctypeDict:
                self.learn(row)
        self.take_back: Callable[[int, int, int], int] = self._c_function("take_back", ctypes.c_int64, 3)
        """(Owners record, HandlePoolRecord record, address of a list of released handles): see arrays.py"""

    def _set(self, values: dict[str, int]) -> None:
        offsets = layout_of(Python).offsets
        for field, value in values.items():
            self._words[offsets[field] // 8] = value

    def _c_function(self, symbol: str, result: Any, arguments: int) -> Callable[..., Any]:
        return ctypes.PYFUNCTYPE(result, *[ctypes.c_int64] * arguments)(self.code.addresses[symbol])

    def learn(self, row: ElementType) -> None:
        """Lets machine code make numpy arrays of a type of whole bytes."""
        count, width = self._words[_PYTHON.dtype_count], size_of(Dtype) // 8
        if row.bits % 8 or count == MAXIMUM_DTYPES or row.code in self._dtypes[: count * width : width]:
            return
        self._kept.append(dtype := row.dtype)
        numbers = map(numbers_of(row).get, _NUMBERS, repeat(0))
        words = array("q", (row.code, id(dtype), tensor_type(row) or 0, dtype.itemsize, *numbers))
        self._dtypes[count * width : (count + 1) * width] = words
        self._words[_PYTHON.dtype_count] = count + 1


class Interface(CInterface):
    """Holds what machine code needs that looks into objects, and methods."""

    def __init__(self, code: image.Image, direct_class: type) -> None:
        super().__init__(code)
        self._set({f"array{name}": offset for name, offset in slot_offsets(Array, _ARRAY_SLOTS).items()})
        self._set({"function_direct": slot_offsets(Function, ("_direct",))["_direct"]})
        self._set({"donation_array": slot_offsets(Donation, ("array",))["array"]})
        self._set({"direct_record": slot_offsets(direct_class, ("record",))["record"]})
        self._set({field: code.addresses[field] for field in _DESTRUCTORS})
        self._capsule = new_capsule(self.record)
        self._methods = bound_together([code.addresses[symbol] for symbol in _METHODS], 4, self.record)
        self.new_owner = self._c_function("new_owner", ctypes.py_object, 2)
        self.make = self._builtin("direct_method", "make", "", _ANY_ARGUMENTS)
        self.run = self._builtin("run_method", "run", "", _ANY_ARGUMENTS)
        self.fetch: Callable[[object, Array], Any] = self._builtin(
            "fetch_method", "fetch", "", _ANY_ARGUMENTS
        )
        """(any DirectCall of the array's session, an array): see reading.py"""

    def keep(self, made: object) -> None:
        """Keeps an object as long as the process lasts."""
        self._kept.append(made)

    def converter(self, kind: type, take: Callable[[Array], Any]) -> Callable[[Array], Any]:
        """Makes what converts an array to another library's type. It gives None where that takes ``take``."""
        from jitree.base.dlpack import exchange_capsule, exchange_interface

        interface = exchange_interface(exchange_capsule(kind))
        if interface is None or not interface.object_of_managed:
            return take
        words = array("q", bytes(size_of(Conversion)))
        words[_CONVERSION.make] = interface.object_of_managed
        words[_CONVERSION.find_order] = interface.current_work_stream or 0
        self._kept.append(words)
        capsule = new_capsule(self.record, words.buffer_info()[0])
        convert: Callable[[Array], Any] = self._builtin("convert_array", "", "", _ONE_ARGUMENT, capsule)
        return convert

    def require_complete(self) -> None:
        """INTERNAL if anything that machine code follows is missing."""
        missing = [
            field for field, word in zip(layout_of(Python).offsets, self._words, strict=True) if not word
        ]
        if missing:
            raise InternalError(f"machine code of calls was not told of {', '.join(missing)}")

    def method(
        self,
        cls: type,
        symbol: str,
        python: Callable[..., Any],
        field: str,
        like: Callable[..., Any] | None = None,
    ) -> Any:
        """Machine code as a method of a class. What it does not do itself, a method in Python does, as
        ``field`` of the record. It has the name and the documentation of ``like``, by default of that."""
        self._kept.append(python)
        self._set({field: id(python)})
        address = self._methods.address + STRIDE * _METHODS.index(symbol)
        like = like or python
        name, documentation = like.__name__.encode(), (like.__doc__ or "").encode() or None
        definition = _Definition(name, address, _ANY_ARGUMENTS, documentation)
        self._kept.append(definition)
        new = c_function("PyDescr_NewMethod", ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
        return new(cls, ctypes.addressof(definition))

    def submit(self, cls: type[AsynchronousFunction]) -> None:
        """Lets machine code submit calls of asynchronous functions. Few programs have any: their class is
        imported with the first one."""
        with _Loaded.lock:
            if type(cls.submit) is FunctionType:
                slowly = cls.submit_slowly
                method = self.method(cls, "submit_method", slowly, "submit_slowly", like=cls.submit)
                cls.submit = method  # type: ignore[method-assign]

    def function(self, symbol: str) -> Any:
        """Machine code as a function of one argument."""
        return self._builtin(symbol, symbol, "", _ONE_ARGUMENT)

    def _builtin(self, symbol: str, name: str, documentation: str, flags: int, own: object = None) -> Any:
        code = self.code.addresses[symbol]
        definition = _Definition(name.encode(), code, flags, documentation.encode() or None)
        self._kept.append(definition)
        new = c_function(
            "PyCFunction_NewEx", ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
        )
        return new(ctypes.addressof(definition), own or self._capsule, None)


@cache
def addresses() -> dict[str, int]:
    """Those of functions and objects."""
    functions = {
        field: ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, name))
        for field, name in _FUNCTIONS.items()
    }
    table = _numpy_table()
    objects = {
        "none": None, "not_implemented": NotImplemented,
        "true": True, "false": False, "exception_type": Exception,
        "cancelled_type": CancelledError, "pass_interruption": pass_interruption,
        "int_type": int, "float_type": float, "tuple_type": tuple,
        "array_type": Array, "function_type": Function, "ndarray_type": np.ndarray,
        "generic_type": np.generic, "as_array": np.asarray, "list_type": list,
        "donation_type": Donation, "out_name": OUT, "dlpack_name": DLPACK,
        "dlpack_device_name": DLPACK_DEVICE, "dlpack_names": NAMES,
        "dlpack_version": VERSION, "order_names": ORDER_NAMES, "old_order_names": OLD_ORDER_NAMES,
        "submit_slowly": Function.submit,
    }  # fmt: skip
    return {
        **functions,
        **{field: table[place] for field, place in _NUMPY_FUNCTIONS.items()},
        **{field: id(value) for field, value in objects.items()},
        "writes": WRITES.buffer_info()[0],
        "ended": ENDED,
        "pending": PENDING.buffer_info()[0],
        "owner_name": _address(_OWNER_NAME),
        "versioned_name": _address(_VERSIONED_NAME),
        "unversioned_name": _address(_UNVERSIONED_NAME),
    }


def _numpy_table() -> ctypes.Array[ctypes.c_int64]:
    core = np._core if hasattr(np, "_core") else np.core  # from numpy 2 on, and before
    pointer = c_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    last = max(_NUMPY_FUNCTIONS.values())
    return (ctypes.c_int64 * (last + 1)).from_address(pointer(core._multiarray_umath._ARRAY_API, None))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def is_supported() -> bool:
    """Whether this interpreter is one whose calls machine code can make."""
    return can_bind() and is_known()


def has_c_interface() -> bool:
    """Whether machine code can call this interpreter's functions, without a look into objects."""
    return sys.implementation.name == "cpython"


def unsupported_because() -> str:
    """Why machine code makes no calls in this interpreter; empty if it does."""
    if is_supported():
        return ""
    if "t" in sys.abiflags:
        return "the interpreter is free-threaded, and machine code counts references as one with a GIL does"
    if can_bind():
        return f"machine code does not know the objects of {sys.implementation.name} {sys.version.split()[0]}"
    return f"there is no such machine code for {UNAME}"


def code() -> image.Image | None:
    """The image of machine code, as soon as it is there."""
    return image.get(RECIPE)


class _Loaded:
    """The one of this process."""

    interface: Interface | None = None
    lock: Final = guard()


def get(direct_class: type) -> Interface | None:
    """The interface as soon as its image is there; None until then, and where it is not supported.

    From then on functions are called and arrays looked at by machine code. ``direct_class`` has a slot
    ``record`` for a capsule of a CallRecord record."""
    if _Loaded.interface is None and is_supported():
        loaded = code()
        with _Loaded.lock:
            if loaded is not None and _Loaded.interface is None:
                _Loaded.interface = _load(loaded, direct_class)
    return _Loaded.interface


def _load(loaded: image.Image, direct_class: type) -> Interface:
    interface = Interface(loaded, direct_class)
    # The last owner may go when the interpreter has dropped all modules.
    c_function("Py_IncRef", None, ctypes.py_object)(interface)
    look = interface.method(Array, "array_method", Array.__array__, "array_slowly")
    view = interface.method(Array, "buffer_method", Array.__buffer__, "buffer_slowly")
    call = interface.method(Function, "function_method", Function.__call__, "call_slowly")
    attempt = interface.method(Function, "attempt_method", Function.attempt, "attempt_slowly")
    interface.require_complete()
    replace_methods(look, view, interface.function("find_elements"), interface.fetch, interface.converter)
    Function.__call__ = call  # type: ignore[method-assign]
    Function.attempt = attempt  # type: ignore[method-assign]
    return interface
