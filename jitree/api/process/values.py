"""Arguments and results in messages: arrays, numbers and None.

A row is a number or null as it is, ``[type, shape]`` for an array, ``[type]`` for a scalar of numpy, and for
NaN, whose bits a number in JSON does not have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from jitree.api.calls.refusal import refused
from jitree.api.calls.tensor_packing import as_array
from jitree.api.calls.transfers import native_row
from jitree.api.process.messages import aligned
from jitree.base.copying import copy_of, room_for
from jitree.errors import DataLossError, pass_interruption
from jitree.params.entry import TensorType, splat_entry
from jitree.params.index import ParameterIndex
from jitree.params.provider import ParameterProvider, array_entry
from jitree.types import BY_NAME, ElementType, element_type

_MOST_DIMENSIONS: Final = 64
"""The most dimensions that an array of numpy has."""
_LARGEST: Final = 1 << 48
_WORD: Final = 1 << 64
"""Beyond what any number of a program can be."""


def pack(values: Any, names: str, head: dict[str, Any]) -> list[memoryview]:
    """Describes values in the head of a message, under a name; the parts of the message. INVALID_ARGUMENT for
    what is neither an array nor a number."""
    rows: list[Any] = []
    parts: list[memoryview] = []
    for index, value in enumerate(values):
        if value is None or _is_number(value):
            rows.append(value)
            continue
        is_scalar = isinstance(value, (np.generic, float))
        array = np.asarray(value) if is_scalar else as_array(value)
        row = None if array is None else native_row(array.dtype)
        if array is None or row is None:
            raise refused(f"{names} {index}", "an array or a number", value)
        if not array.flags.c_contiguous:
            with room_for(array):
                array = copy_of(array, array.dtype)
        rows.append([row.name] if is_scalar else [row.name, list(array.shape)])
        parts.append(array.reshape(-1).view(np.uint8).data)
    head[names] = rows
    return parts


def unpack(rows: Any, data: memoryview) -> list[Any]:
    """The values that a message describes: arrays over its bytes. DATA_LOSS for rows that do not describe
    it."""
    if not isinstance(rows, list):
        raise DataLossError("values that are no list")
    position, values = 0, list[Any]()
    for row in rows:
        if row is None or isinstance(row, (bool, int, float)):
            values.append(row)
            continue
        name, shape = _described(row)
        dtype = BY_NAME[name].dtype
        count = 1
        for size in shape:
            count *= size
        position = aligned(position)
        if count * dtype.itemsize > len(data) - position:
            raise DataLossError(f"an array of {count} elements that the message has no room for")
        array = np.frombuffer(data, dtype, count, position) if count else np.empty(0, dtype)
        try:
            values.append(array.reshape(shape) if len(row) > 1 else array[0])
        except ValueError as error:  # an empty one, of huge dimensions
            pass_interruption(error)
            raise DataLossError(f"an array of shape {shape}: {error}") from None
        position += count * dtype.itemsize
    return values


def pack_parameters(providers: Iterable[ParameterProvider]) -> tuple[dict[str, Any], list[memoryview]]:
    """The head and the parts of a message with the parameters of a session."""
    rows: list[Any] = []
    parts: list[memoryview] = []
    for provider in providers:
        for entry in provider.index:
            pattern = entry.pattern
            text = None if pattern is None else pattern.hex()
            rows.append([provider.scope, entry.key, entry.length, text, _tensor_row(entry.tensor)])
            if pattern is None:
                parts.append(entry.contents())
    return {"parameters": rows}, parts


def unpack_parameters(rows: Any, data: memoryview) -> tuple[ParameterProvider, ...]:
    """The parameters that the parent has sent."""
    position, indices = 0, dict[str, ParameterIndex]()
    for scope, key, length, pattern, tensor_row in rows:
        tensor = None if tensor_row is None else _tensor_of(*tensor_row)
        if pattern is not None:
            entry = splat_entry(key, bytes.fromhex(pattern), length, tensor=tensor)
        else:
            position = aligned(position)
            array = np.frombuffer(data, np.uint8, length, position) if length else np.empty(0, np.uint8)
            entry = replace(array_entry(key, array), tensor=tensor)
            position += length
        indices.setdefault(scope, ParameterIndex()).add(entry)
    return tuple(ParameterProvider(scope, index) for scope, index in indices.items())


def _tensor_row(tensor: TensorType | None) -> list[Any] | None:
    """Shape, and the number of an element type or the name of another one: programs that were compiled for
    others refuse the parameter in either process."""
    if tensor is None:
        return None
    element = tensor.element
    return [list(tensor.shape), element.code if isinstance(element, ElementType) else element]


def _tensor_of(shape: list[int], element: int | str) -> TensorType:
    return TensorType(tuple(shape), element_type(element) if isinstance(element, int) else element)


def _is_number(value: object) -> bool:
    """Whether JSON has it."""
    if isinstance(value, int):
        return -_WORD <= value < _WORD
    return isinstance(value, float) and value == value


def _described(row: Any) -> tuple[str, tuple[int, ...]]:
    if not isinstance(row, list) or len(row) not in (1, 2) or not isinstance(row[0], str):
        raise DataLossError("a value that is neither a number nor an array")
    if row[0] not in BY_NAME:
        raise DataLossError("a value of no type that there is")
    shape = row[1] if len(row) > 1 else []
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise DataLossError("an array without a shape")
    if not all(type(size) is int and 0 <= size < _LARGEST for size in shape):
        raise DataLossError("an array whose shape has other than sizes")
    return row[0], tuple(shape)
