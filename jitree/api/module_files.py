"""Modules in files of another kind than compiled programs: Python files and C libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jitree.errors import error_context

if TYPE_CHECKING:
    from jitree.api.load_order import ModuleReference
    from jitree.dispatch.host_module import HostModule
    from jitree.modules.native_library.module import LibraryModule
    from jitree.regs.ref_types import RefTypes


def open_module_file(reference: ModuleReference, ref_types: RefTypes) -> HostModule:
    """The module that a reference names, for sessions of the instance that has ``ref_types``."""
    if reference.is_python:
        from jitree.api.python_module_file import open_python_module

        return open_python_module(reference)
    return open_library_module(
        reference.path, reference.function or "", dict(reference.parameters), ref_types
    )


def open_library_module(
    path: str | os.PathLike[str], create: str, parameters: Mapping[str, str], ref_types: RefTypes
) -> LibraryModule:
    """The module that a C library creates, by its function ``create`` (empty: the usual one).

    Interface 0.1, without arrays and devices; see :class:`.LibraryModule`.
    NOT_FOUND without the file or the function, FAILED_PRECONDITION for what is no library.
    """
    from pathlib import Path

    from jitree.loaders.system_library import SharedObject
    from jitree.modules.native_library.module import LibraryModule

    with error_context(f"loading C module '{os.fspath(path)}'"):
        return LibraryModule(SharedObject.from_path(Path(path)), ref_types, create, parameters)
