"""Gives programs to Python: sessions, modules, functions, arrays."""

from __future__ import annotations

from typing import Any

from jitree.base.finalizers import Remade


def _remade(owner: Any) -> Any:
    from jitree.api.program import remade  # when one is pickled: a program is made of such objects

    return remade(owner)


Remade.reduced = _remade
