"""``--output=``: where each result goes: printed, dropped, or into a numpy or raw file."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    UnavailableError,
    UnimplementedError,
    pass_interruption,
)
from jitree.tools import host_values as hv
from jitree.tools import printing
from jitree.types import BY_NAME, is_packed

_ARCHIVE: Final = ".npz"


def write_outputs(
    results: Sequence[hv.HostValue],
    specifications: Sequence[str],
    max_element_count: int,
    write: Callable[[str], object],
) -> None:
    """Sends each result where its specification says; ``write`` receives what is printed.

    Without specifications every result is printed as ``result[<i>]: …``. The last one may name a numpy
    archive, which takes all results that remain.
    """
    if not specifications:
        for index, value in enumerate(results):
            write(f"result[{index}]: {printing.value_text(value, max_element_count)}")
        return
    *first, last = specifications
    missing = len(results) - len(specifications)
    if missing and not (missing > 0 and last.endswith(_ARCHIVE)):
        raise OutOfRangeError(
            f"{len(specifications)} outputs specified but the provided variant list only has "
            f"{len(results)} elements"
        )
    shares = [*((value,) for value in results[: len(first)]), results[len(first) :]]
    for share, specification in zip(shares, specifications, strict=True):
        if specification == "-":
            write("".join(printing.value_text(value, max_element_count) for value in share))
        elif specification:
            _write_file(share, specification)


def _write_file(values: Sequence[hv.HostValue], specification: str) -> None:
    if specification[0] not in "@+":
        raise UnimplementedError(
            f"unsupported output mode specification '{specification}'; "
            "`-` prints, `@path` writes and `+path` appends a file"
        )
    path = specification[1:]
    replace = specification[0] == "@"
    try:
        if path.endswith(_ARCHIVE):
            _write_archive(values, path, replace)
        else:
            (value,) = values
            contents = _npy_bytes(value) if path.endswith(".npy") else _array(value).tobytes()
            with open(path, "wb" if replace else "ab") as file:
                file.write(contents)
    except OSError as error:
        pass_interruption(error)
        raise UnavailableError(f"unable to write file `{path}`: {error.strerror}") from None


def _write_archive(values: Sequence[hv.HostValue], path: str, replace: bool) -> None:
    """Arrays are named by their number in the archive, as numpy names those without a name."""
    contents = [_npy_bytes(value) for value in values]
    if not replace and os.path.exists(path) and not (os.path.isfile(path) and zipfile.is_zipfile(path)):
        raise InvalidArgumentError(f"`{path}` is not a numpy archive, so nothing can be appended to it")
    with zipfile.ZipFile(path, "w" if replace else "a") as archive:
        for content in contents:
            archive.writestr(f"arr_{len(archive.namelist())}.npy", content)


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
            return _tensor_array(hv.HostTensor(row, (), data))
        case hv.Null():
            return np.empty(0, np.int8)
        case hv.HostBuffer():
            return value.data.view(np.int8)
        case hv.HostTensor():
            return _tensor_array(value)
    raise InvalidArgumentError(
        f"a result of type {printing.type_text(value)} cannot be written to a file; "
        "expected: !hal.buffer, !hal.buffer_view, !vm.buffer"
    )


def _tensor_array(tensor: hv.HostTensor) -> npt.NDArray[Any]:
    row = tensor.element_type
    if is_packed(row):
        return tensor.values.astype(np.int8).reshape(tensor.shape)
    foreign = row.numpy_name.startswith(("bfloat", "float8"))
    dtype = np.dtype(f"V{row.bits // 8}" if foreign else row.numpy_name)
    return np.ascontiguousarray(tensor.data).view(dtype).reshape(tensor.shape)
