"""Objects that stand for something outside of Python."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from jitree.errors import UnimplementedError


class Unique:
    """Base of what owns memory, threads or state of a program. A copy would be a second owner, which gives
    back what the first one still uses; another process has nothing of it."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """``copy.copy``, ``copy.deepcopy`` and ``pickle`` come here. UNIMPLEMENTED, with what to do."""
        raise UnimplementedError(
            f"a {type(self).__name__} of jitree cannot be copied or pickled: it stands for memory and state "
            "of this process; use the same object, and where another one is needed, as in another process, "
            "make it again by Session and load"
        )
