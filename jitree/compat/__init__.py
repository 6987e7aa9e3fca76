"""Other runtimes' names for what jitree does."""

from __future__ import annotations

import importlib
import sys
from typing import Final

_PACKAGE: Final = "jitree.compat.iree_runtime"


def install() -> None:
    """From now on ``import iree.runtime`` finds :mod:`jitree.compat.iree_runtime`, in this process.

    A package ``iree`` that is installed keeps its other parts (``iree.compiler``). RuntimeError if the real
    ``iree.runtime`` has been imported already: its objects and jitree's do not mix.
    """
    present = sys.modules.get("iree.runtime")
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
        iree = type(sys)("iree")
        iree.__path__ = []
        sys.modules["iree"] = iree
    sys.modules["iree.runtime"] = package
    iree.runtime = package  # type: ignore[attr-defined]
    for name in package.SUBMODULES:
        sys.modules[f"iree.runtime.{name}"] = importlib.import_module(f"{_PACKAGE}.{name}")
