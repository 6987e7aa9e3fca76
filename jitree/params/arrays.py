"""Arrays of Python programs as parameters: numpy, torch and whatever else shows its elements."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jitree.base import dlpack
from jitree.base.arguments import NO_MASKS, is_masked
from jitree.base.copying import room_for
from jitree.base.elements import pack_integers
from jitree.errors import (
    InvalidArgumentError,
    attribute_of,
    error_context,
    has_attribute,
    is_interruption,
    own_error,
    pass_interruption,
)
from jitree.params.entry import ParameterEntry, Storage, TensorType
from jitree.types import element_type_of, is_packed, opaque_type_of


@dataclass(frozen=True, slots=True)
class ArrayMemory(Storage):
    """Bytes of this process; ``view`` keeps them."""

    view: memoryview

    @property
    def writable(self) -> bool:  # type: ignore[override]
        return not self.view.readonly

    def contents(self) -> memoryview:
        return self.view


def array_entry(key: str, value: Any) -> ParameterEntry:
    """A parameter with the elements of an array: one of numpy, a tensor in host memory (DLPack,
    ``__array__``), or an object with the buffer protocol.

    Contiguous arrays are not copied: they must not change while programs read them, and they receive what
    programs write into the parameter unless they are read-only. INVALID_ARGUMENT for what is no array.
    """
    with error_context(f"parameter '{key}'"):
        array = _as_array(value)
        dtype = array.dtype
        if dtype.names or dtype.hasobject or (dtype.kind != "V" and element_type_of(dtype) is None):
            raise InvalidArgumentError(
                f"programs have no elements of dtype {dtype}; convert the array to others"
            )
        with room_for(array):
            return ParameterEntry(key, *_bytes_of(array))


def _bytes_of(array: npt.NDArray[Any]) -> tuple[int, Storage, bytes, TensorType | None]:
    if array.dtype.byteorder not in ("=", "|", "<" if sys.byteorder == "little" else ">"):
        array = array.astype(array.dtype.newbyteorder("="))
    row = element_type_of(array.dtype) or opaque_type_of(array.dtype)
    tensor = None if row is None else TensorType(tuple(array.shape), row)
    if row is not None and is_packed(row):
        data = pack_integers(array.reshape(-1), row)
    elif array.size:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    else:
        data = np.empty(0, np.uint8)
    return len(data), ArrayMemory(data.data), b"", tensor


def _as_array(value: Any) -> npt.NDArray[Any]:
    if is_masked(value):
        raise InvalidArgumentError(f"expected an array but got a {type(value).__name__}{NO_MASKS}")
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    detach = attribute_of(value, "detach")  # tensors that record gradients are not exchanged
    value = detach() if callable(detach) else value
    if dlpack.is_importable(value):
        return dlpack.import_array(value)
    if has_attribute(value, "__array__"):
        try:
            return np.asarray(value)
        except RecursionError:
            raise
        except Exception as error:
            if is_interruption(error):
                raise
            raise InvalidArgumentError(
                f"the elements of a {type(value).__name__} cannot be had: {error}; copy it to the host first"
            ) from error
    try:
        return np.frombuffer(value, np.uint8) if memoryview(value).nbytes else np.empty(0, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        pass_interruption(error)
        what = f"expected an array but got a {type(value).__name__}"
        raise InvalidArgumentError(what) from own_error(error)


def state_of(value: Any) -> Mapping[str, Any] | None:
    """A mapping of names to arrays: the value itself, or what its ``state_dict()`` gives. None for others."""
    if isinstance(value, Mapping):
        return value
    state_dict = attribute_of(value, "state_dict")
    if not callable(state_dict):
        return None
    state = state_dict()
    return state if isinstance(state, Mapping) else None
