"""Reads input values from files: raw bytes, numpy arrays in sequence, numpy archives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from jitree import errors
from jitree.base import elements
from jitree.params.numpy_files import DAMAGE, UNKNOWN, read_array
from jitree.tools import host_values as hv
from jitree.types import BY_NAME, ElementType, element_type

START: Final = "@"
REMAINING: Final = "*"


def is_numpy_file(path: str) -> bool:
    """Whether a path names arrays with their shapes and types, or one of an archive."""
    return path.endswith((".npy", ".npz")) or ".npz:" in path


class ValueFiles:
    """The files of one command, kept open so that ``+`` continues where the last read of a file ended."""

    def __init__(self) -> None:
        self._open: dict[str, BinaryIO] = {}

    def __enter__(self) -> ValueFiles:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._open.values():
            file.close()

    def _at(self, mode: str, path: str) -> BinaryIO:
        file = self._open.get(path)
        if file is None:
            try:
                file = open(path, "rb")
            except FileNotFoundError:
                raise errors.NotFoundError(f"unable to open file `{path}`: it does not exist") from None
            except OSError as error:
                errors.pass_interruption(error)
                raise errors.UnavailableError(f"unable to open file `{path}`: {error.strerror}") from None
            self._open[path] = file
        if mode == START:
            file.seek(0)
        return file

    def read_bytes(self, mode: str, path: str, length: int) -> elements.Bytes:
        """``length`` bytes from the start of a file (``@``) or from where the last read ended (``+``)."""
        raw = self._at(mode, path).read(length)
        if len(raw) < length:
            raise errors.OutOfRangeError(f"end-of-file: `{path}` has {len(raw)} of the {length} bytes wanted")
        return np.frombuffer(raw, np.uint8)

    def read_arrays(self, mode: str, path: str) -> list[hv.HostTensor]:
        """The array a value like ``@f.npy`` names; ``*f.npy`` and ``@f.npz`` may name several."""
        archive, separator, key = path.partition(".npz:")
        if separator:
            return [self._archive_array(f"{archive}.npz", key)]
        if path.endswith(".npz"):
            return self._archive_arrays(path)
        if not path.endswith(".npy"):
            raise errors.UnimplementedError(
                f"only numpy (.npy, .npz) files carry a shape and type; give them: `4x2xf32=@{path}`"
            )
        file = self._at(mode, path)
        if mode != REMAINING:
            return [array_tensor(_read_array(file, path))]
        tensors = []
        while not _at_end(file):
            tensors.append(array_tensor(_read_array(file, path)))
        return tensors

    def _archive_arrays(self, path: str) -> list[hv.HostTensor]:
        with _open_archive(path) as archive:
            if not archive.files:
                raise errors.OutOfRangeError(f"end-of-file: no array in `{path}`")
            return [_member(archive, name) for name in archive.files]

    def _archive_array(self, path: str, key: str) -> hv.HostTensor:
        with _open_archive(path) as archive:
            if key not in archive.files:
                raise errors.NotFoundError(f"no array `{key}` in `{path}`; it has {', '.join(archive.files)}")
            return _member(archive, key)


@contextmanager
def _open_archive(path: str) -> Iterator[NpzFile]:
    """The archive; INVALID_ARGUMENT for what is none, or damaged where it is read."""
    if not Path(path).is_file():
        raise errors.NotFoundError(f"unable to open file `{path}`: it does not exist")
    with _reading(path, "archive"), open(path, "rb") as file, NpzFile(file, allow_pickle=False) as archive:
        yield archive


@contextmanager
def _reading(path: str, what: str) -> Iterator[None]:
    """INVALID_ARGUMENT for what numpy cannot read, RESOURCE_EXHAUSTED for what does not fit in memory."""
    try:
        with np.errstate(all="ignore"):  # sizes that do not fit 64 bits
            yield
    except errors.StatusError:
        raise
    except (*DAMAGE, *UNKNOWN) as error:
        errors.pass_interruption(error)
        raise errors.InvalidArgumentError(f"`{path}` is not a numpy {what}: {error}") from None
    except MemoryError as error:
        errors.pass_interruption(error)
        raise errors.ResourceExhaustedError(f"`{path}` does not fit in memory: {error}") from None


def _member(archive: NpzFile, name: str) -> hv.HostTensor:
    opened, file = archive.zip, f"{name}.npy"
    assert opened is not None, "it is open"
    with opened.open(file if file in opened.namelist() else name) as stream:
        is_array = stream.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX
        stream.seek(0)
        if not is_array:
            raise ValueError(f"`{name}` in it is no array")
        return array_tensor(read_array(stream))


def _at_end(file: BinaryIO) -> bool:
    position = file.tell()
    ended = not file.read(1)
    file.seek(position)
    return ended


def _read_array(file: BinaryIO, path: str) -> npt.NDArray[Any]:
    if _at_end(file):
        raise errors.OutOfRangeError(f"end-of-file: no further array in `{path}`")
    with _reading(path, "array file"):
        return read_array(file)


def array_tensor(array: npt.NDArray[Any]) -> hv.HostTensor:
    """A tensor of an array's contents; signed integers stay signed, as numpy files say."""
    row = _array_element_type(array.dtype)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return hv.HostTensor(row, tuple(array.shape), hv.to_bytes(native))


def _array_element_type(dtype: np.dtype[Any]) -> ElementType:
    bits = dtype.itemsize * 8
    match dtype.kind:
        case "b":
            return BY_NAME["i1"]
        case "i":
            return BY_NAME[f"si{bits}"]
        case "u":
            return BY_NAME[f"ui{bits}"]
        case "f" if bits <= 64:
            return BY_NAME[f"f{bits}"]
        case "c" if bits <= 128:
            return BY_NAME[f"cf{bits}"]
        case "V" if dtype.fields is None and 0 < bits <= 248:
            return element_type(bits)
    raise errors.UnimplementedError(f"arrays of dtype {dtype} have no element type")
