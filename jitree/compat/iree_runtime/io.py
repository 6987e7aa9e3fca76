"""Parameters: indices, entries, files and providers; as arrays of numpy, and archives of them."""

from __future__ import annotations

import importlib
import json
import math
import mmap as memory_maps
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.compat.iree_runtime.arguments import (
    a,
    anything,
    flag,
    integer,
    memory,
    optional,
    size,
    something,
    takes,
    text,
)
from jitree.compat.iree_runtime.dtypes import map_dtype_to_dtype_info
from jitree.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    UnimplementedError,
    memory_errors,
    pass_interruption,
)
from jitree.params import irpa
from jitree.params import provider as providers
from jitree.params.entry import Access, Mode, ParameterEntry, ParameterFile, splat_entry, tensor_type
from jitree.params.provider import FORMATS, ArrayMemory
from jitree.params.provider import ParameterIndex as Index
from jitree.tools.parameters import ParameterRow, table
from jitree.types import ElementType


class FileHandle:
    """Memory of the host or an open file, which parameters lie in."""

    @takes(a(memoryview), anything)
    def __init__(self, view: memoryview, descriptor: int | None = None) -> None:
        self._view = view
        self._descriptor = descriptor

    @staticmethod
    @takes(something, flag, flag)
    def wrap_memory(host_buffer: Any, readable: bool = True, writable: bool = False) -> FileHandle:
        view = memory(host_buffer)
        return FileHandle(view if writable else view.toreadonly())

    @staticmethod
    @takes(integer(-(2**31), 2**31 - 1), flag, flag)
    def wrap_fd(fd: int, readable: bool = True, writable: bool = False) -> FileHandle:
        """The file stays the caller's; it may be closed when this returns."""
        access = memory_maps.ACCESS_WRITE if writable else memory_maps.ACCESS_READ
        try:
            length = os.fstat(fd).st_size
            return FileHandle(memoryview(memory_maps.mmap(fd, length, access=access) if length else b""), fd)
        except OSError as error:
            pass_interruption(error)
            raise InvalidArgumentError(
                f"wrap_fd: descriptor {fd} cannot be mapped: {error.strerror}"
            ) from None

    @property
    def is_host_allocation(self) -> bool:
        return self._descriptor is None

    @property
    def host_allocation(self) -> memoryview:
        if self._descriptor is not None:
            raise ValueError("FileHandle is not based on a host allocation and cannot be mapped")
        return self._view

    @property
    def is_fd(self) -> bool:
        return self._descriptor is not None

    @property
    def fd(self) -> int:
        if self._descriptor is None:
            raise InvalidArgumentError("FileHandle is not a file descriptor")
        return self._descriptor

    @property
    def is_async(self) -> bool:
        return False

    @property
    def bytes(self) -> memoryview:
        """What lies in it, in either case."""
        return self._view

    def __repr__(self) -> str:
        if self._descriptor is not None:
            return f"FileHandle<fd({self._descriptor})>"
        return f"FileHandle<host_allocation({self._view!r})>"


class _MemoryFile(ParameterFile):
    """What a handle wraps, as jitree reads archives."""

    __slots__ = ()

    def __init__(self, handle: FileHandle, name: str) -> None:
        self.name = name
        self.view = handle.bytes
        self.writable = not handle.bytes.readonly


class ParameterIndexEntry:
    """A parameter: a range of a file, or a pattern that is repeated."""

    @takes(a(ParameterEntry), anything, size)
    def __init__(self, raw: ParameterEntry, handle: FileHandle | None, offset: int) -> None:
        self.raw = raw
        self._handle = handle
        self.offset = offset

    @property
    def key(self) -> str:
        return self.raw.key

    @property
    def length(self) -> int:
        return self.raw.length

    @property
    def metadata(self) -> bytes:
        return self.raw.metadata

    @property
    def is_file(self) -> bool:
        return self._handle is not None

    @property
    def is_splat(self) -> bool:
        return self._handle is None

    @property
    def file_storage(self) -> tuple[FileHandle, int]:
        """The file and where in it the bytes begin. ValueError for a pattern."""
        if self._handle is None:
            raise ValueError("Entry is not file storage based")
        return self._handle, self.offset

    @property
    def file_view(self) -> memoryview:
        """The bytes. ValueError for a pattern."""
        handle, offset = self.file_storage
        return handle.bytes[offset : offset + self.length]

    @property
    def splat_pattern(self) -> bytes:
        """ValueError for a parameter in a file."""
        if self.raw.pattern is None:
            raise ValueError("Entry is not splat")
        return self.raw.pattern

    def __repr__(self) -> str:
        if self._handle is None:
            return f"<ParameterIndexEntry '{self.key}' splat {self.splat_pattern!r}:{self.length}>"
        return f"<ParameterIndexEntry '{self.key}' {self._handle!r}:{self.offset}:{self.length}>"


def _metadata(value: Any) -> bytes:
    return value if isinstance(value, bytes) else bytes(text(value), "utf-8")


def _mode(value: Any) -> str:
    if text(value) != "file_async":
        raise ValueError(f"unsupported parameter file mode: {value}")
    return value  # type: ignore[no-any-return]


def _index(value: Any) -> Any:
    return a(ParameterIndex)(value)


class ParameterProvider:
    """The parameters that programs find under a scope."""

    @takes(a(providers.ParameterProvider))
    def __init__(self, raw: providers.ParameterProvider) -> None:
        self.raw = raw


class ParameterIndex:
    """Parameters in the order in which they were added; a key may come again."""

    def __init__(self) -> None:
        self._entries: list[ParameterIndexEntry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ParameterIndexEntry]:
        return iter(self._entries)

    @takes(size)
    def __getitem__(self, i: int) -> ParameterIndexEntry:
        if i >= len(self._entries):
            raise OutOfRangeError(
                f"Could not enumerate parameter index: entry {i} out of range (have "
                f"{len(self._entries)} entries in the index)"
            )
        return self._entries[i]

    def items(self) -> list[tuple[str, ParameterIndexEntry]]:
        return [(entry.key, entry) for entry in self._entries]

    @takes(size)
    def reserve(self, new_capacity: int) -> None:
        """Python's lists grow by themselves."""

    @takes(text, memory, size, optional(_metadata))
    def add_splat(self, key: str, pattern: Any, total_length: int, metadata: Any = None) -> None:
        """A parameter of ``total_length`` bytes that repeats a number.

        ValueError for patterns of other than 1, 2, 4, 8 and 16 bytes.
        """
        raw = splat_entry(key, bytes(pattern), total_length, metadata or b"")
        self._entries.append(ParameterIndexEntry(raw, None, 0))

    @takes(text, something, flag, flag, optional(_metadata))
    def add_buffer(
        self, key: str, buffer: Any, readable: bool = True, writable: bool = False, metadata: Any = None
    ) -> None:
        """The bytes of an array, which are not copied."""
        handle = FileHandle.wrap_memory(buffer, readable, writable)
        self.add_from_file_handle(key, handle, len(handle.bytes), 0, metadata)

    @takes(text, a(FileHandle), size, size, optional(_metadata))
    def add_from_file_handle(
        self, key: str, file_handle: FileHandle, length: int, offset: int = 0, metadata: Any = None
    ) -> None:
        """A range of a file. OUT_OF_RANGE for one that is not inside."""
        available = len(file_handle.bytes)
        if offset + length > available:
            raise OutOfRangeError(
                f"bytes {offset} to {offset + length} are outside a file of {available} bytes"
            )
        described = metadata or b""
        elements = ArrayMemory(file_handle.bytes[offset : offset + length])
        raw = ParameterEntry(key, length, elements, described, tensor_type(described))
        self._entries.append(ParameterIndexEntry(raw, file_handle, offset))

    @takes(a(str, os.PathLike), optional(text), flag, flag, optional(flag), optional(_mode))
    def load(
        self,
        file_path: Any,
        format: str | None = None,
        readable: bool = True,
        writable: bool = False,
        mmap: bool | None = None,
        *,
        mode: str | None = None,
    ) -> None:
        """Adds all parameters of an archive, in the given format or its extension's."""
        reading = Mode.PRELOAD if mmap is False and not writable else Mode.FILE
        file = ParameterFile(file_path, reading, Access.READ_WRITE if writable else Access.READ)
        self._read(FileHandle(file.view), file, format or file.suffix)

    @takes(a(FileHandle), text)
    def load_from_file_handle(self, file_handle: FileHandle, format: str) -> None:
        """Adds all parameters of an archive of that format."""
        self._read(file_handle, _MemoryFile(file_handle, repr(file_handle)), format)

    def _read(self, handle: FileHandle, file: ParameterFile, format: str, base: int = 0) -> None:
        suffix = f".{format.removeprefix('.').lower()}"
        module = FORMATS.get(suffix)
        if module is None:
            raise UnimplementedError(
                f"unsupported file format `{format}`; ensure the extension matches one of the supported "
                f"formats: [{', '.join(FORMATS)}]"
            )
        for raw in importlib.import_module(module).read(file):
            offset = raw.file_offset
            if raw.pattern is not None:
                self._entries.append(ParameterIndexEntry(raw, None, 0))
            elif offset is None:
                self._entries.append(ParameterIndexEntry(raw, FileHandle(raw.contents()), 0))
            else:
                self._entries.append(ParameterIndexEntry(raw, handle, base + offset))

    @takes(a(str, os.PathLike), size, optional(_index))
    def create_archive_file(
        self, file_path: Any, file_offset: int = 0, target_index: ParameterIndex | None = None
    ) -> ParameterIndex:
        """Writes an irpa archive, ``file_offset`` bytes into a new file, and gives its index."""
        irpa.write(file_path, irpa.plan([entry.raw for entry in self._entries]), file_offset)
        target = ParameterIndex() if target_index is None else target_index
        handle = FileHandle(ParameterFile(file_path).view)
        archive = _MemoryFile(FileHandle(handle.bytes[file_offset:]), os.fspath(file_path))
        target._read(handle, archive, "irpa", file_offset)
        return target

    @takes(text, optional(size))
    def create_provider(
        self, scope: str = "", max_concurrent_operations: int | None = None
    ) -> ParameterProvider:
        """What programs find under a scope; of several parameters of one key the first."""
        index = Index()
        for entry in self._entries:
            if entry.key not in index:
                index.add(entry.raw)
        return ParameterProvider(providers.ParameterProvider(scope, index))

    def __repr__(self) -> str:
        return table(
            "", [ParameterRow(entry.raw, None if entry.is_splat else entry.offset) for entry in self._entries]
        )


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
    """Adds an array; metadata state shape and type.

    KeyError for types without a name in ``iree.abi``.
    """
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
