"""C modules by path: ``library.so``, with the function that creates the module and parameters for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from jitree.api.instance import Instance
from jitree.errors import error_context
from jitree.loaders.shared_object import SharedObject
from jitree.modules.native_library.module import LibraryModule


def open_library_module(
    path: str | os.PathLike[str],
    create: str = "",
    parameters: Mapping[str, str] | None = None,
    instance: Instance | None = None,
) -> LibraryModule:
    """The module that a C library creates, for sessions of ``instance`` (None = the default one).

    Interface 0.1, without arrays and devices; see :class:`.LibraryModule`.
    NOT_FOUND without the file or the function, FAILED_PRECONDITION for what is no library.
    """
    with error_context(f"loading C module '{os.fspath(path)}'"):
        library = SharedObject.from_path(Path(path))
        owner = Instance.default() if instance is None else instance
        return LibraryModule(library, owner.ref_types, create, parameters)
