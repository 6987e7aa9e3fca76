"""``--output=``: where each result goes: printed, dropped, or into a numpy or raw file."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jitree import elements
from jitree.errors import InvalidArgumentError, OutOfRangeError, UnavailableError, UnimplementedError
from jitree.tools import host_values as hv
from jitree.tools import printing
from jitree.types import BY_NAME


def write_outputs(
    results: Sequence[hv.HostValue],
    specifications: Sequence[str],
    max_element_count: int,
    write: Callable[[str], object],
) -> None:
    """Sends each result where its specification says; ``write`` receives what is printed.

    Without specifications every result is printed as ``result[<i>]: …``.
    """
    if not specifications:
        for index, value in enumerate(results):
            write(f"result[{index}]: {printing.value_text(value, max_element_count)}")
        return
    if len(specifications) != len(results):
        raise OutOfRangeError(
            f"{len(specifications)} outputs specified but the provided variant list only has "
            f"{len(results)} elements"
        )
    for value, specification in zip(results, specifications, strict=True):
        if specification == "-":
            write(printing.value_text(value, max_element_count))
        elif specification:
            _write_file(value, specification)


def _write_file(value: hv.HostValue, specification: str) -> None:
    if specification[0] not in "@+":
        raise UnimplementedError(
            f"unsupported output mode specification '{specification}'; "
            "`-` prints, `@path` writes and `+path` appends a file"
        )
    path = specification[1:]
    contents = _npy_bytes(value) if path.endswith(".npy") else _array(value).tobytes()
    try:
        with open(path, "wb" if specification[0] == "@" else "ab") as file:
            file.write(contents)
    except OSError as error:
        raise UnavailableError(f"unable to write file `{path}`: {error.strerror}") from None


def _npy_bytes(value: hv.HostValue) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, _array(value), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def _array(value: hv.HostValue) -> npt.NDArray[Any]:
    """The value as numpy stores it: types numpy does not have become opaque bytes (``V2``, ``V1`` …)."""
    match value:
        case hv.Scalar():
            row = BY_NAME[value.type_name]
            data = np.array(value.value).astype(row.dtype).reshape(1).view(np.uint8)
            return _tensor_array(hv.Tensor(row, (), data))
        case hv.Null():
            return np.empty(0, np.int8)
        case hv.Buffer():
            return value.data.view(np.int8)
        case hv.Tensor():
            return _tensor_array(value)
    raise InvalidArgumentError(
        f"a result of type {printing.type_text(value)} cannot be written to a file; "
        "expected: !hal.buffer, !hal.buffer_view, !vm.buffer"
    )


def _tensor_array(tensor: hv.Tensor) -> npt.NDArray[Any]:
    row = tensor.element_type
    if elements.is_packed(row):
        return tensor.values.astype(np.int8).reshape(tensor.shape)
    foreign = row.numpy_name.startswith(("bfloat", "float8"))
    dtype = np.dtype(f"V{row.bits // 8}" if foreign else row.numpy_name)
    return np.ascontiguousarray(tensor.data).view(dtype).reshape(tensor.shape)
