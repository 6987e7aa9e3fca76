"""Forked processes: modules that another thread was importing."""

from __future__ import annotations

import _frozen_importlib
import os
import sys
from _thread import get_ident
from typing import Any, Final

_locks: Final[dict[str, Any]] = getattr(_frozen_importlib, "_module_locks", {})
"""Weak references to the locks of modules that are being imported."""


def _forget_unfinished() -> None:
    """They are imported anew: nothing would end what that thread has begun, and what needs such a module
    waits for it."""
    for name, reference in tuple(_locks.items()):
        lock = reference()
        if name.startswith("jitree.") and lock is not None and lock.owner not in (None, get_ident()):
            _locks.pop(name, None)
            if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                del sys.modules[name]


os.register_at_fork(after_in_child=_forget_unfinished)  # before those that import something
