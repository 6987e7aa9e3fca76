"""Indexes parameters by key, from archives of any format and from Python."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Final

from jitree.errors import AlreadyExistsError, NotFoundError, UnimplementedError, error_context
from jitree.params.entry import ParameterEntry
from jitree.params.files import Access, Mode, ParameterFile

_NEAREST_SEARCHED = 20_000
"""Keys that are compared with a missing one; more would make the failure slow."""
_NEAREST_SHOWN = 3

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
            raise AlreadyExistsError(f"parameter '{entry.key}' is {where}")
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
        name = os.fspath(path)
        for entry in entries:
            self.add(entry, f"'{name}'")
        if not entries:
            self.archives.append(f"'{name}'")

    def find(self, key: str) -> ParameterEntry | None:
        return self._entries.get(key)

    def get(self, key: str, scope: str = "") -> ParameterEntry:
        """The parameter of a key. NOT_FOUND naming scope and key, what was searched and the nearest keys."""
        entry = self._entries.get(key)
        if entry is None:
            raise NotFoundError(
                f"no parameter found with key '{key}' in scope {scope_text(scope)}; searched "
                f"{', '.join(self.archives) or 'nothing'} ({len(self)} keys){nearest(key, self.keys())}"
            )
        return entry


def scope_text(scope: str) -> str:
    return f"'{scope}'" if scope else "<global>"


def nearest(name: str, candidates: list[str]) -> str:
    """``; nearest: 'a', 'b'``, or nothing when nothing is near."""
    import difflib  # only failures pay for it

    found = difflib.get_close_matches(name, candidates[:_NEAREST_SEARCHED], _NEAREST_SHOWN, 0.5)
    return f"; nearest: {', '.join(repr(item) for item in found)}" if found else ""


def read_archive(
    path: str | os.PathLike[str], mode: Mode = Mode.FILE, access: Access = Access.READ
) -> list[ParameterEntry]:
    """All parameters of an archive; errors as of ``ParameterIndex.load``, naming the file."""
    file = ParameterFile(path, mode, access)
    module = FORMATS.get(file.suffix)
    if module is None:
        raise UnimplementedError(
            f"parameter archive '{file.name}': extension '{file.suffix}' is not known; there are "
            f"{', '.join(FORMATS)}"
        )
    with error_context(f"reading parameter archive '{file.name}'"):
        entries: list[ParameterEntry] = importlib.import_module(module).read(file)
    return entries
