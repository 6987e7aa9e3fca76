"""Indexes parameters by key, and provides those of one scope to sessions.

They come from archives of any format, or from Python.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree import errors
from jitree.base.arguments import NO_MASKS, is_masked, shown, taken_apart
from jitree.base.copying import room_for
from jitree.base.dlpack import foreign_array
from jitree.base.elements import pack_integers
from jitree.base.near_names import nearest
from jitree.params.entry import Access, Mode, ParameterEntry, ParameterFile, Storage, TensorType
from jitree.types import element_type_of, is_packed, opaque_type_of

FORMATS: Final = {
    ".irpa": "jitree.params.irpa",
    ".safetensors": "jitree.params.safetensors",
    ".gguf": "jitree.params.gguf",
    ".npy": "jitree.params.numpy_files",
    ".npz": "jitree.params.numpy_files",
}
"""Module of each format; its ``read`` takes the file and gives the entries."""


class ParameterIndex:
    """Parameters in the order in which they were added; every key once.

    Archives are mapped: adding one reads its tables, not its parameters.
    """

    def __init__(self) -> None:
        self._entries: dict[str, ParameterEntry] = {}
        self._origins: dict[str, str] = {}
        self.archives: list[str] = []
        """Where the entries are from, in order."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ParameterEntry]:
        return iter(self._entries.values())

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def keys(self) -> list[str]:
        return list(self._entries)

    def add(self, entry: ParameterEntry, origin: str = "Python") -> None:
        """ALREADY_EXISTS for a key that is there, naming both origins."""
        first = self._origins.get(entry.key)
        if first is not None:
            where = f"twice in {first}" if first == origin else f"in {first} and in {origin}"
            raise errors.AlreadyExistsError(f"parameter '{entry.key}' is {where}")
        self._entries[entry.key] = entry
        self._origins[entry.key] = origin
        if not self.archives or self.archives[-1] != origin:
            self.archives.append(origin)

    def load(
        self, path: str | os.PathLike[str], mode: Mode = Mode.FILE, access: Access = Access.READ
    ) -> None:
        """Adds all parameters of an archive; its format is that of the name's extension.

        NOT_FOUND for a missing file, UNIMPLEMENTED for an unknown extension or version, INVALID_ARGUMENT and
        OUT_OF_RANGE for a damaged file, ALREADY_EXISTS for a key that is there.
        """

        entries = read_archive(path, mode, access)
        origin = f"'{os.fspath(path)}'"
        for entry in entries:
            self.add(entry, origin)
        if not entries:
            self.archives.append(origin)

    def _repr_html_(self) -> str:
        from jitree.base.tables import bytes_text, html_table

        rows = ((entry.key, entry.tensor or "bytes", bytes_text(entry.length)) for entry in self)
        caption = f"{len(self)} parameters of {', '.join(self.archives) or 'nowhere'}"
        return html_table(caption, ("key", "type", "size"), rows)

    def find(self, key: str) -> ParameterEntry | None:
        return self._entries.get(key)

    def get(self, key: str, scope: str = "") -> ParameterEntry:
        """The parameter of a key.

        NOT_FOUND naming scope and key, what was searched and the nearest keys.
        """
        entry = self._entries.get(key)
        if entry is None:
            raise errors.NotFoundError(
                f"no parameter found with key '{key}' in scope {scope_text(scope)}; searched "
                f"{', '.join(self.archives) or 'nothing'} ({len(self)} keys){nearest(key, self.keys())}"
            )
        return entry


def scope_text(scope: str) -> str:
    return f"'{scope}'" if scope else "<global>"


def read_archive(
    path: str | os.PathLike[str], mode: Mode = Mode.FILE, access: Access = Access.READ
) -> list[ParameterEntry]:
    """All parameters of an archive; errors as of ``ParameterIndex.load``, naming the file."""
    file = ParameterFile(path, mode, access)
    module = FORMATS.get(file.suffix)
    if module is None:
        raise errors.UnimplementedError(
            f"parameter archive '{file.name}': extension '{file.suffix}' is not known; there are "
            f"{', '.join(FORMATS)}"
        )
    reading = f"reading parameter archive '{file.name}'"
    with errors.error_context(reading), errors.memory_errors("reading its tables"):
        entries: list[ParameterEntry] = importlib.import_module(module).read(file)
    return entries


Source = str | os.PathLike[str] | Mapping[str, Any] | ParameterIndex | Any
"""``scope=path``, a path, a mapping, an index, a provider, an object with ``state_dict()``."""


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
    with errors.error_context(f"parameter '{key}'"):
        array = _as_array(value)
        dtype = array.dtype
        if dtype.names or dtype.hasobject or (dtype.kind != "V" and element_type_of(dtype) is None):
            raise errors.InvalidArgumentError(
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
        raise errors.InvalidArgumentError(f"expected an array but got {type(value).__name__}{NO_MASKS}")
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    detach = errors.attribute_of(value, "detach")  # tensors that record gradients are not exchanged
    value = detach() if callable(detach) else value
    try:
        array = foreign_array(value)
    except (RecursionError, errors.StatusError):
        raise
    except Exception as error:
        if errors.is_interruption(error):
            raise
        raise errors.InvalidArgumentError(
            f"the elements of a {type(value).__name__} cannot be had: {error}; copy it to the host first"
        ) from error
    if array is not None:
        return array
    try:
        return np.frombuffer(value, np.uint8) if memoryview(value).nbytes else np.empty(0, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        errors.pass_interruption(error)
        what = f"expected an array but got {type(value).__name__}"
        raise errors.InvalidArgumentError(what) from errors.own_error(error)


def state_of(value: Any) -> Mapping[str, Any] | None:
    """A mapping of names to arrays: the value itself, or what its ``state_dict()`` gives.

    None for others.
    """
    if isinstance(value, Mapping):
        return value
    state_dict = errors.attribute_of(value, "state_dict")
    if not callable(state_dict):
        return None
    state = state_dict()
    return state if isinstance(state, Mapping) else None


class ParameterProvider:
    """The parameters that programs find under a scope."""

    def __init__(self, scope: str, index: ParameterIndex) -> None:
        """``scope``: as programs name it; empty for parameters that they name without one."""
        self.scope = scope
        self.index = index

    def get(self, key: str) -> ParameterEntry:
        """NOT_FOUND naming scope and key, what was searched and the nearest keys."""
        return self.index.get(key, self.scope)


def open_providers(sources: Iterable[Source], mode: Mode = Mode.FILE) -> tuple[ParameterProvider, ...]:
    """Opens a provider for each scope, in the order of their first naming.

    A source is ``scope=path`` or ``path``; a mapping of keys to arrays or of scopes to such mappings (or to
    objects with ``state_dict()``, to indices, to paths); an object with ``state_dict()``; a
    :class:`ParameterIndex`; or a provider, which is taken as it is. Sources of one scope are joined in order.

    Errors as of ``ParameterIndex.load``; INVALID_ARGUMENT for what is none of these.
    """
    if isinstance(sources, (str, os.PathLike, Mapping)):
        sources = [sources]
    found = taken_apart(sources)
    if found is None:
        raise errors.InvalidArgumentError(
            f"parameters: expected archives or mappings but got a {type(sources).__name__}"
        )
    joined: dict[str, ParameterProvider] = {}
    providers: list[ParameterProvider] = []

    def index_of(scope: str) -> ParameterIndex:
        if scope not in joined:
            joined[scope] = ParameterProvider(scope, ParameterIndex())
            providers.append(joined[scope])
        return joined[scope].index

    for source in found:
        if isinstance(source, ParameterProvider):
            providers.append(source)
        elif isinstance(source, str):
            scope, path = split_scope(source)
            index_of(scope).load(path, mode)
        elif isinstance(source, Mapping):
            for key, value in source.items():
                _add_item(index_of, key, value, mode)
        else:
            _add(index_of(""), source, mode)
    return tuple(providers)


def split_scope(text: str) -> tuple[str, str]:
    """``scope=path`` → (scope, path); a path alone has the empty scope."""
    scope, separator, path = text.partition("=")
    return (scope, path) if separator else ("", text)


def _add_item(index_of: Any, key: Any, value: Any, mode: Mode) -> None:
    """An item of a mapping: an array of the global scope, or a scope with what it has."""
    if not isinstance(key, str):
        raise errors.InvalidArgumentError(
            f"parameters: the names in a mapping must be strings, not {shown(key)}"
        )
    if isinstance(value, (str, os.PathLike, ParameterIndex)) or state_of(value) is not None:
        with errors.error_context(f"parameter scope '{key}'"):
            _add(index_of(key), value, mode)
    else:
        index_of("").add(array_entry(key, value))


def _add(index: ParameterIndex, source: Any, mode: Mode) -> None:
    if isinstance(source, (str, os.PathLike)):
        index.load(source, mode)
        return
    if isinstance(source, ParameterIndex):
        for entry in source:
            index.add(entry, ", ".join(source.archives))
        return
    state = state_of(source)
    if state is None:
        raise errors.InvalidArgumentError(
            "parameters: expected `scope=path`, a path, a mapping of arrays or an object with state_dict() "
            f"but got a {type(source).__name__}"
        )
    for key, value in state.items():
        if not isinstance(key, str):
            raise errors.InvalidArgumentError(
                f"parameters: the keys of arrays must be strings, not {shown(key)}"
            )
        index.add(array_entry(key, value))
