"""The names of the native part of iree.runtime."""

from __future__ import annotations

from jitree.compat.iree_runtime.names import BINDING, finder

__all__, __getattr__ = finder(__name__, BINDING)
