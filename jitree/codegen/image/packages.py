"""Where this process has its packages from, so that a builder process can have the same and nothing else."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

from jitree.errors import pass_interruption


def folders_of(package: str) -> list[str]:
    """The folders, or archives, that a package lies in: where it was imported from, else where an import
    finds it. The current folder comes last then, since anything may lie there. Empty if it is nowhere."""
    spec = getattr(sys.modules.get(package), "__spec__", None) or _not_imported(package)
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [os.path.dirname(os.path.abspath(path)) for path in spec.submodule_search_locations]
    return [os.path.dirname(os.path.abspath(spec.origin))] if spec.origin else []


def _not_imported(package: str) -> ModuleSpec | None:
    elsewhere = [entry for entry in sys.path if not _is_current(entry)]
    return PathFinder.find_spec(package, elsewhere) or importlib.util.find_spec(package)


def _is_current(entry: str) -> bool:
    """Whether an entry of ``sys.path`` is the current folder."""
    try:
        return not entry or os.path.samefile(entry, os.curdir)
    except OSError as error:  # there is no such folder
        pass_interruption(error)
        return False
