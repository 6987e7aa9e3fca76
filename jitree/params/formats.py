"""The formats of parameter archives, by extension."""

from __future__ import annotations

import importlib
import os
from typing import Final

from jitree.errors import UnimplementedError, error_context
from jitree.params.entry import ParameterEntry
from jitree.params.files import Access, Mode, ParameterFile

FORMATS: Final = {
    ".irpa": "jitree.params.irpa",
    ".safetensors": "jitree.params.safetensors",
    ".gguf": "jitree.params.gguf",
    ".npy": "jitree.params.numpy_files",
    ".npz": "jitree.params.numpy_files",
}
"""Module of each format; its ``read`` takes the file and gives the entries."""


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
