"""Writing tensors to a file while they come: npz, or safetensors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from jitree.errors import InvalidArgumentError, UnavailableError, pass_interruption

if TYPE_CHECKING:
    from jitree.observe.tensors import ObservedTensor

_TYPES: Final = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL", "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
"""Names of safetensors."""
_ALIGNMENT: Final = 8


class TensorFile(Protocol):
    """An open file."""

    def add(self, name: str, tensor: ObservedTensor) -> None:
        """Writes a tensor, piece by piece; nothing of it is kept."""

    def close(self) -> None:
        """Completes the file."""


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """UNAVAILABLE for what the system refuses."""
    try:
        yield
    except OSError as error:
        pass_interruption(error)
        raise UnavailableError(f"cannot write '{path}': {error.strerror}") from None


class _NumpyArchive:
    """Types that numpy does not know are written as unsigned integers of their bits."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = ZipFile(path, "w", ZIP_STORED, allowZip64=True)

    def add(self, name: str, tensor: ObservedTensor) -> None:
        dtype = tensor.dtype
        if dtype.kind == "V" or dtype.name.startswith(("bfloat", "float8")):
            dtype = np.dtype(f"u{dtype.itemsize}")
        header = {"descr": dtype.str, "fortran_order": False, "shape": tensor.array_shape}
        with _writing(self._path), self._file.open(f"{name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, header)
            for piece in tensor.pieces():
                member.write(piece.view(np.uint8).data)

    def close(self) -> None:
        with _writing(self._path):
            self._file.close()


class _SafeTensors:
    """The header comes first and is known last: bytes wait in a file beside it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._waiting: BinaryIO = open(f"{path}.part", "w+b")
        self._header: dict[str, Any] = {}
        self._length = 0

    def add(self, name: str, tensor: ObservedTensor) -> None:
        end = self._length
        with _writing(self._path):
            for piece in tensor.pieces():
                end += self._waiting.write(piece.view(np.uint8).data)
        kind = _TYPES.get(tensor.dtype.name)
        shape = [*tensor.array_shape] if kind else [end - self._length]
        self._header[name] = {"dtype": kind or "U8", "shape": shape, "data_offsets": [self._length, end]}
        self._length = end

    def close(self) -> None:
        header = json.dumps(self._header).encode()
        header += b" " * (-len(header) % _ALIGNMENT)
        try:
            with _writing(self._path), self._waiting, open(self._path, "wb") as file:
                self._waiting.seek(0)
                file.write(len(header).to_bytes(8, "little") + header)
                shutil.copyfileobj(self._waiting, file, 1 << 20)
        finally:
            os.unlink(f"{self._path}.part")


_KINDS: Final[dict[str, Callable[[str], TensorFile]]] = {"npz": _NumpyArchive, "safetensors": _SafeTensors}


def create(path: str | os.PathLike[str]) -> TensorFile:
    """A file of the kind that its name ends with. INVALID_ARGUMENT for other endings."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else repr(path)
    kind = _KINDS.get(name.rpartition(".")[2])
    if kind is not None:
        with _writing(name):
            return kind(name)
    raise InvalidArgumentError(f"tensors go to files that end with .npz or .safetensors, not to '{name}'")
