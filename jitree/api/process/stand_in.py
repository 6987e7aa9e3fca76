"""What stands in the parent for objects that the child has."""

from __future__ import annotations

from typing import Any

from jitree.base.endings import Unique
from jitree.errors import UnimplementedError


class MissingError(UnimplementedError, AttributeError):
    """``hasattr`` is false, and who asks without looking is told what to do."""


class StandIn(Unique):
    """Has a part of what an object of another class has in a session without a process."""

    _replaced: type
    """That class."""

    def __getattr__(self, name: str) -> Any:
        """UNIMPLEMENTED for what only objects of the other class have."""
        if name.startswith("_") or not hasattr(self._replaced, name):
            raise AttributeError(f"a {type(self).__name__} has no attribute '{name}'")
        raise MissingError(
            f"{self._replaced.__name__.lower()}.{name}: the program is in the process of the sandbox, and "
            "there is no such thing outside of it; use sandbox=True, or a session without a sandbox"
        )
