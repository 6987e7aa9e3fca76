"""Objects that stand for something outside of Python."""

from __future__ import annotations

from typing import Any, NoReturn, SupportsIndex

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


class Remade(Unique):
    """What another process makes again by what made it: a pickle says how. A copy in this one is refused."""

    __slots__ = ()

    def __copy__(self) -> NoReturn:
        Unique.__reduce_ex__(self, 0)

    def __deepcopy__(self, memo: object) -> NoReturn:
        Unique.__reduce_ex__(self, 0)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        from importlib import import_module

        return import_module("jitree.api.program").remade(self)  # by name: it is made of such objects
