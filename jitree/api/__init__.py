"""Gives programs to Python: sessions, modules, functions, arrays."""

from __future__ import annotations

from typing import Any

from jitree.base.finalizers import Remade


def _remade(owner: Any) -> Any:
    """Gives what a pickle of ``owner``, a session, module or function, says.

    FAILED_PRECONDITION for a closed session, UNIMPLEMENTED for what only this process has.
    """
    from jitree.api.program import remade  # when one is pickled: a program is made of such objects

    return remade(owner)


Remade.reduced = _remade
