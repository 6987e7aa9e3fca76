"""Reads numpy files: one array (``.npy``), or named arrays in a zip file (``.npz``).

Arrays that are stored as programs want them are used in place; compressed members, other orders of elements
or bytes are converted when they are first used. An array of ``.npy`` is called as the file is.
"""

from __future__ import annotations

import io
import math
import struct
import sys
import zipfile
import zlib
from itertools import pairwise
from lzma import LZMAError
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Final, NamedTuple

import numpy as np

from jitree import errors
from jitree.base.finalizers import guard
from jitree.params.entry import ParameterEntry, ParameterFile, Storage, TensorType, check_range
from jitree.types import element_type_of, opaque_type_of

_HEADER_BYTES: Final = 1 << 16
"""Enough for any header that numpy itself reads."""
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
"""What begins a zip member: signature, length of the name, length of the extra field."""
_SUFFIX: Final = ".npy"
_MOST_BYTES: Final = 1 << 63
"""Of the elements of an array: no array has as many."""
_MAXIMUM_RANK: Final = 64
_COMPRESSIONS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that numpy writes. Others make gigabytes of a few bytes before a header is there."""


_LONGEST_LIST: Final = 1 << 28
"""Bytes of a zip file's list of members, which are some millions of them. A sparse file has any number."""
DAMAGE: Final = (
    zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError, OverflowError, OSError, LZMAError,
    TokenError, SyntaxError, TypeError,
)  # fmt: skip
"""What zipfile, its decompressors and numpy raise for damaged files: names that are no UTF-8 are ValueErrors,
damaged bzip2 streams OSErrors, headers are read as Python, and a size in them may be `True`."""
UNKNOWN: Final = (NotImplementedError, RuntimeError)
"""What zipfile raises for compressions that it does not know, and for encryption."""
_FLOAT8_E5M2: Final = b"{'descr': '<f1'"
"""What ``numpy.save`` writes for that type of ml_dtypes, and does not read."""
_OPAQUE_BYTE: Final = b"{'descr': '|V1'"
"""As it writes ml_dtypes' other types of a byte."""


class _Spelled:
    """A file from which numpy reads one array.

    The header names types as numpy takes them.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._in_header = True

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if self._in_header and data.startswith(b"{"):
            self._in_header = False
            if data.startswith(_FLOAT8_E5M2):
                return data.replace(_FLOAT8_E5M2, _OPAQUE_BYTE, 1)
        return data


def read_array(stream: IO[bytes]) -> np.ndarray[Any, np.dtype[Any]]:
    """The next array of a file; :data:`DAMAGE` and MemoryError where there is none.

    Types that numpy does not know are opaque bytes (kind ``V``) of their size.
    """
    spelled: Any = _Spelled(stream)
    array: np.ndarray[Any, np.dtype[Any]] = np.lib.format.read_array(spelled, allow_pickle=False)
    return array


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    data: int
    """Where the elements begin."""

    @property
    def length(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def plain(self) -> bool:
        """Row-major and in this machine's byte order."""
        foreign = self.dtype.byteorder == (">" if sys.byteorder == "little" else "<")
        column_major = self.fortran_order and sum(dimension > 1 for dimension in self.shape) > 1
        return not foreign and not column_major

    def tensor(self) -> TensorType | None:
        """None for bytes without a type that are more than an element has."""
        row = element_type_of(self.dtype.newbyteorder("=")) or opaque_type_of(self.dtype)
        if row is None and self.dtype.kind == "V" and not self.dtype.names:
            return None
        return TensorType(self.shape, self.dtype.name if row is None else row)

    def convert(self, data: memoryview) -> memoryview:
        """The elements as programs want them."""
        if not data:  # numpy makes no array of elements without bytes
            return data
        order = "F" if self.fortran_order else "C"
        array = np.frombuffer(data, self.dtype).reshape(self.shape, order=order)  # type: ignore[call-overload]
        native = np.ascontiguousarray(array.astype(self.dtype.newbyteorder("=")))
        return native.reshape(-1).view(np.uint8).data.toreadonly()


class _Converted(Storage):
    """Bytes that have to be made; made once."""

    __slots__ = ("_bytes", "_lock", "_make")

    def __init__(self, make: Any) -> None:
        self._make = make
        self._bytes: memoryview | None = None
        self._lock = guard()

    def contents(self) -> memoryview:
        with self._lock, errors.memory_errors("reading the elements of a parameter"):
            if self._bytes is None:
                self._bytes = self._make()
            return self._bytes


def read(file: ParameterFile) -> list[ParameterEntry]:
    """The arrays in the order of the file.

    INVALID_ARGUMENT and OUT_OF_RANGE for a damaged file, UNIMPLEMENTED for arrays of Python objects.
    """
    if file.suffix == _SUFFIX:
        return [_stored(file, Path(file.name).stem, 0, len(file.view))]
    try:
        reader = _ViewReader(file.view, _LONGEST_LIST)
        archive = zipfile.ZipFile(reader)
        reader.longest = len(file.view)
        members = archive.infolist()
        _check_apart(members)
        return [_member(file, archive, member) for member in members]
    except errors.StatusError:
        raise
    except DAMAGE as error:
        errors.pass_interruption(error)
        raise errors.InvalidArgumentError(f"no numpy archive: {error}") from None
    except UNKNOWN as error:
        errors.pass_interruption(error)
        raise errors.UnimplementedError(f"this numpy archive cannot be read: {error}") from None


def _check_apart(members: list[zipfile.ZipInfo]) -> None:
    """INVALID_ARGUMENT where members share bytes: a small file would have any number of them."""
    for one, other in pairwise(sorted(members, key=lambda member: member.header_offset)):
        # Of what is stored as it is both say how much that is.
        size = max(one.compress_size, one.file_size * (one.compress_type == zipfile.ZIP_STORED))
        if one.header_offset + _LOCAL_HEADER.size + size > other.header_offset:
            raise errors.InvalidArgumentError(
                f"'{one.filename}' and '{other.filename}' in the archive overlap: it is damaged"
            )


def _member(file: ParameterFile, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> ParameterEntry:
    key = member.filename.removesuffix(_SUFFIX)
    if key == member.filename:
        raise errors.InvalidArgumentError(f"'{key}' in the archive is no numpy array (.npy)")
    if member.compress_type not in _COMPRESSIONS:
        raise errors.UnimplementedError(
            f"parameter '{key}' is compressed in a way that numpy does not write; write the archive by "
            "numpy.savez or numpy.savez_compressed"
        )
    if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
        return _stored(file, key, _member_start(file.view, member), member.file_size)
    with errors.error_context(f"parameter '{key}'"), archive.open(member) as stream:
        header = _read_header(stream.read(_HEADER_BYTES))
        if header.data + header.length > member.file_size:
            raise errors.OutOfRangeError(
                f"claims {header.length} bytes of elements in a member of {member.file_size} bytes"
            )

    def decompress() -> memoryview:
        try:
            data = memoryview(archive.read(member))
        except DAMAGE as error:
            errors.pass_interruption(error)
            raise errors.InvalidArgumentError(
                f"parameter '{key}' of '{file.name}' is damaged: {error}"
            ) from None
        check_range(f"parameter '{key}' of '{file.name}'", header.data, header.length, len(data))
        return header.convert(data[header.data : header.data + header.length])

    return ParameterEntry(key, header.length, _Converted(decompress), tensor=header.tensor())


def _member_start(view: memoryview, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored member begin in the file."""
    check_range(f"'{member.filename}'", member.header_offset, _LOCAL_HEADER.size, len(view))
    signature, name, extra = _LOCAL_HEADER.unpack_from(view, member.header_offset)
    if signature != b"PK\3\4":
        raise errors.InvalidArgumentError(f"'{member.filename}' is not where the archive says")
    return int(member.header_offset) + _LOCAL_HEADER.size + int(name) + int(extra)


def _stored(file: ParameterFile, key: str, start: int, size: int) -> ParameterEntry:
    with errors.error_context(f"parameter '{key}'"):
        check_range("array", start, size, len(file.view))
        header = _read_header(bytes(file.view[start : start + min(size, _HEADER_BYTES)]))
        check_range("elements", header.data, header.length, size)
        storage = file.storage(start + header.data, header.length)
    if header.plain:
        return ParameterEntry(key, header.length, storage, tensor=header.tensor())
    converted = _Converted(lambda: header.convert(storage.contents()))
    return ParameterEntry(key, header.length, converted, tensor=header.tensor())


def _read_header(start: bytes) -> _Header:
    whole = io.BytesIO(start)
    stream: Any = _Spelled(whole)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise errors.UnimplementedError(
                f"version {version[0]}.{version[1]} of numpy's format is not supported"
            )
    except errors.UnimplementedError:
        raise
    except Exception as error:  # numpy evaluates the header as a Python literal: any error may come of it
        if errors.is_interruption(error):
            raise
        raise errors.InvalidArgumentError(f"no numpy array: {error}") from None
    if dtype.hasobject:
        raise errors.UnimplementedError(f"arrays of Python objects ({dtype}) are not read")
    if any(not 0 <= dimension < _MOST_BYTES for dimension in shape):  # Python prints no number of any length
        raise errors.InvalidArgumentError("no numpy array: its shape has numbers below 0, or above 2^63 - 1")
    if len(shape) > _MAXIMUM_RANK:
        raise errors.InvalidArgumentError(
            f"no numpy array: it claims {len(shape)} dimensions; at most {_MAXIMUM_RANK}"
        )
    if dtype.subdtype is not None or math.prod(shape) * dtype.itemsize >= _MOST_BYTES:
        raise errors.InvalidArgumentError(f"no numpy array: {shape} of {dtype}")
    return _Header(tuple(map(int, shape)), fortran_order, dtype, whole.tell())


class _ViewReader(io.RawIOBase):
    """A file over bytes that are mapped: zip files are read through the same pages."""

    def __init__(self, view: memoryview, longest: int) -> None:
        self._view = view
        self._position = 0
        self.longest = longest
        """Bytes that may be read at once; BadZipFile for more."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._position, len(self._view))[whence]
        if base + offset < 0:
            raise zipfile.BadZipFile("a position before the start of the file")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = len(self._view) if size < 0 else self._position + size
        taken = self._view[self._position : end]
        if len(taken) > self.longest:
            raise zipfile.BadZipFile(f"its list of members claims {len(taken)} bytes; at most {self.longest}")
        self._position += len(taken)
        return bytes(taken)
