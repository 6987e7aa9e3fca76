"""Parameters as arrays of numpy, and archives of them."""

from __future__ import annotations

import array
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.compat.iree_runtime.parameters import ParameterIndex, ParameterIndexEntry
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
        elements = count if isinstance(count, int) else math.prod(count)
        size = (
            pattern.itemsize * len(pattern)
            if isinstance(pattern, array.array)
            else np.asarray(pattern).nbytes
        )
        self.total_length = elements * size

    def __repr__(self) -> str:
        return f"SplatValue({self.pattern!r} of {self.total_length})"


def save_archive_file(entries: Mapping[str, Any], file_path: str | os.PathLike[str]) -> None:
    """Writes arrays and :class:`SplatValue` into an irpa archive."""
    index = ParameterIndex()
    for key, value in entries.items():
        if isinstance(value, SplatValue):
            index.add_splat(key, value.pattern, value.total_length)
        else:
            index.add_buffer(key, np.ascontiguousarray(value).view(np.uint8) if np.ndim(value) else value)
    index.create_archive_file(str(file_path))


def parameter_index_add_numpy_ndarray(index: ParameterIndex, name: str, value: npt.NDArray[Any]) -> None:
    """Adds an array with its shape and type as metadata."""
    kind = type(value.dtype).__name__
    described = {
        "type": "Tensor",
        "dtype": value.dtype.name,
        "shape": list(value.shape),
        "dtype_desc": {
            "class_name": kind,
            "is_complex": value.dtype.kind == "c",
            "is_floating_point": value.dtype.kind == "f",
            "is_signed": value.dtype.kind == "i",
            "itemsize": value.dtype.itemsize,
        },
    }
    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    index.add_buffer(name, data, metadata=_PREFIX + json.dumps(described))


def parameter_index_entry_as_numpy_ndarray(index_entry: ParameterIndexEntry) -> npt.NDArray[Any]:
    """The elements, over their memory, of an entry whose metadata state shape and type; else ValueError."""
    tensor = index_entry.raw.tensor
    if tensor is None or not isinstance(tensor.element, ElementType):
        raise ValueError(f"Parameter '{index_entry.key}' has no metadata of a tensor of numpy's")
    return (
        parameter_index_entry_as_numpy_flat_ndarray(index_entry)
        .view(tensor.element.dtype)
        .reshape(tensor.shape)
    )


def parameter_index_entry_as_numpy_flat_ndarray(index_entry: ParameterIndexEntry) -> npt.NDArray[Any]:
    """The bytes of an entry, over its memory; as elements where its metadata state their type."""
    return np.frombuffer(index_entry.file_view, np.uint8)
