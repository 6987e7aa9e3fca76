"""Parameters as arrays of numpy, and archives of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.compat.iree_runtime.dtypes import map_dtype_to_dtype_info
from jitree.compat.iree_runtime.parameters import ParameterIndex, ParameterIndexEntry
from jitree.errors import memory_errors
from jitree.params.entry import tensor_type
from jitree.types import ElementType

__all__ = [
    "SplatValue", "parameter_index_add_numpy_ndarray", "parameter_index_entry_as_numpy_flat_ndarray",
    "parameter_index_entry_as_numpy_ndarray", "save_archive_file",
]  # fmt: skip

_PREFIX: Final = "TENSORv0:"
"""How metadata of tensors begin, in archives of iree.runtime and of its Torch front end."""


class SplatValue:
    """A number that fills a parameter."""

    def __init__(self, pattern: Any, count: Sequence[int] | int) -> None:
        """``count``: elements, or the shape of an array of them."""
        self.pattern = pattern
        size = pattern.size if isinstance(pattern, (np.ndarray, np.generic)) else len(pattern)
        if size != 1:
            raise ValueError("SplatValue requires an array of a single element")
        self.total_length = (count if isinstance(count, int) else math.prod(count)) * pattern.itemsize

    def __repr__(self) -> str:
        return f"SplatValue({self.pattern} of {self.total_length})"


def save_archive_file(entries: Mapping[str, Any], file_path: str | os.PathLike[str]) -> None:
    """Writes arrays and :class:`SplatValue` into an irpa archive."""
    index = ParameterIndex()
    for key, value in entries.items():
        if isinstance(value, SplatValue):
            index.add_splat(key, value.pattern, value.total_length)
        else:
            index.add_buffer(key, value)
    index.create_archive_file(str(file_path))


def parameter_index_add_numpy_ndarray(index: ParameterIndex, name: str, array: npt.NDArray[Any]) -> None:
    """Adds an array; metadata state shape and type. KeyError for types without a name in ``iree.abi``."""
    info = map_dtype_to_dtype_info(array.dtype)
    described = {
        "type": "Tensor",
        "dtype": info.name,
        "shape": list(array.shape),
        "dtype_desc": {
            "class_name": type(info.dtype).__name__,
            "is_complex": info.is_complex,
            "is_floating_point": info.is_floating_point,
            "is_signed": info.is_signed,
            "itemsize": info.dtype.itemsize,
        },
    }
    with memory_errors(f"copying the elements of parameter '{name}'"):
        contiguous = np.asarray(array, order="C")
    index.add_buffer(name, contiguous, metadata=_PREFIX + json.dumps(described))


def parameter_index_entry_as_numpy_ndarray(index_entry: ParameterIndexEntry) -> npt.NDArray[Any]:
    """The elements, over their memory, of an entry whose metadata state shape and type; else ValueError."""
    tensor = tensor_type(index_entry.metadata)
    if tensor is None or not isinstance(tensor.element, ElementType):
        raise ValueError(
            f'Invalid metadata for parameter index entry "{index_entry.key}": they state no tensor but '
            f"{index_entry.metadata[:100]!r}"
        )
    return (
        parameter_index_entry_as_numpy_flat_ndarray(index_entry)
        .view(tensor.element.dtype)
        .reshape(tensor.shape)
    )


def parameter_index_entry_as_numpy_flat_ndarray(index_entry: ParameterIndexEntry) -> npt.NDArray[Any]:
    """The bytes of an entry, over its memory; those of its pattern for one that repeats it."""
    is_file = index_entry.is_file
    return np.frombuffer(index_entry.file_view if is_file else index_entry.splat_pattern, np.uint8)
