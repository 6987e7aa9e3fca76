"""Other runtimes' names for what jitree does."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_PACKAGE: Final = "jitree.compat.iree_runtime"
_NAME: Final = "iree.runtime"


def install() -> None:
    """From now on ``import iree.runtime`` finds :mod:`jitree.compat.iree_runtime`, in this process.

    A package ``iree`` that is installed keeps its other parts (``iree.compiler``). RuntimeError if the real
    ``iree.runtime`` has been imported already: its objects and jitree's do not mix.
    """
    present = sys.modules.get(_NAME)
    package = importlib.import_module(_PACKAGE)
    if present is package:
        return
    if present is not None:
        raise RuntimeError(
            "iree.runtime has been imported already; call jitree.compat.install() before anything imports it"
        )
    try:
        iree = importlib.import_module("iree")
    except ModuleNotFoundError:
        iree = ModuleType("iree")
        iree.__path__ = []
        sys.modules["iree"] = iree
    sys.modules[_NAME] = package
    iree.runtime = package  # type: ignore[attr-defined]
    sys.meta_path.insert(0, _Submodules)


class _Submodules:
    """Finds ``iree.runtime.<name>`` and loads what has that name here."""

    @classmethod
    def find_spec(cls, name: str, path: object, target: object = None) -> ModuleSpec | None:
        package, _, submodule = name.rpartition(".")
        if package != _NAME or submodule not in sys.modules[_NAME].SUBMODULES:
            return None
        return ModuleSpec(name, cls)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"{_PACKAGE}.{spec.name.rpartition('.')[2]}")
        spec.loader_state = module.__spec__
        return module

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Restores the spec of a module that has run.

        Its own place takes the place of the one that it was found by.
        """
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state
