"""Where this interpreter's objects keep what machine code of calls reads, found by looking at some."""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Iterable
from functools import cache
from types import BuiltinMethodType
from typing import Any, Final

import numpy as np

from jitree.api.calls.native.layout import (
    CAPSULE_CONTEXT_AT,
    CAPSULE_POINTER_AT,
    FLOAT_AT,
    NDARRAY,
    NDARRAY_CONTIGUOUS,
    TYPE_AT,
)

_HEADER_SIZE: Final = 16
"""``object.__basicsize__`` of CPython with the GIL."""
_WORD: Final = 8
METH_KEYWORDS: Final = 3
"""The C function of a method takes the object, a tuple of arguments, and those with names or 0."""
METH_NOARGS: Final = 4
"""It takes the object and 0."""


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
    """The address of the C function of a method that is written in C, 0 if it is called in another way."""
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
    dimensions = (ctypes.c_int64 * 2).from_address(_word(array, NDARRAY["dimensions"]))
    return (
        _word(array, NDARRAY["data"]) == array.ctypes.data
        and ctypes.c_int32.from_address(id(array) + NDARRAY["rank"]).value == 2
        and tuple(dimensions) == array.shape
        and _word(array, NDARRAY["dtype"]) == id(array.dtype)
        and (row & NDARRAY_CONTIGUOUS, column & NDARRAY_CONTIGUOUS) == (NDARRAY_CONTIGUOUS, 0)
    )


def _flags(array: np.ndarray[Any, Any]) -> int:
    return ctypes.c_int32.from_address(id(array) + NDARRAY["flags"]).value


def _word(obj: object, offset: int) -> int:
    return ctypes.c_int64.from_address(id(obj) + offset).value
