"""Runs programs that were written for iree.runtime, by its names.

``import jitree.compat.iree_runtime as rt`` takes the place of ``import iree.runtime as rt``. A name is
looked up when it is first used (:mod:`jitree.compat.iree_runtime.names`).
"""

from __future__ import annotations

import importlib
import os

from jitree.compat.iree_runtime.names import BINDING, SUBMODULES, TOP, add_faces, finder

_names, __getattr__ = finder(__name__, BINDING, TOP)
__all__ = [*_names, *SUBMODULES]


def __dir__() -> list[str]:
    """Names that have not been looked up yet are among them."""
    return __all__


add_faces()
if os.environ.get("IREE_PY_RUNTIME_FLAGS"):
    importlib.import_module("jitree.compat.iree_runtime.hal").parse_default_flags()
