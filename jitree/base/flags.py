"""Sets of named bits whose classes are made quickly.

``enum.IntFlag`` takes 15 us a name, and every program would wait for a hundred names that only messages use.
For type checkers both are the same; what is here of it behaves alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from enum import IntFlag

    class Flags(IntFlag):
        """See :class:`enum.IntFlag`."""

else:

    class _FlagsMaker(type):
        """Makes members of the integers in a class."""

        __members__: dict[str, Flags]

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _FlagsMaker:
            keys = [key for key, value in body.items() if isinstance(value, int) and key[0] != "_"]
            values = {key: body.pop(key) for key in keys}
            made = type.__new__(cls, name, bases, body)
            made.__members__ = {key: int.__new__(made, value) for key, value in values.items()}
            for key, member in made.__members__.items():
                setattr(made, key, member)
            return made

        def __getitem__(cls, name: str) -> Flags:
            return cls.__members__[name]

        def __iter__(cls) -> Iterator[Flags]:
            """The members of one bit."""
            return (member for member in cls.__members__.values() if member.bit_count() == 1)

    class Flags(int, metaclass=_FlagsMaker):
        """See :class:`enum.IntFlag`; a combination is a new object."""

        @property
        def value(self) -> int:
            return int(self)

        @property
        def name(self) -> str | None:
            """``"READ|WRITE"``; None if no bit has a name."""
            members = type(self).__members__
            if self in members.values():
                return next(name for name, member in members.items() if member == self)
            single = {name: member for name, member in members.items() if member.bit_count() == 1}
            found = {name: member for name, member in single.items() if self & member}
            if self & ~_union(single.values()):
                found |= {name: member for name, member in members.items() if self & member == member != 0}
            rest = int(self) & ~_union(found.values())
            return "|".join([*found, *([str(rest)] if rest else [])]) if found else None

        def __repr__(self) -> str:
            name = self.name
            return f"<{type(self).__name__}{f'.{name}' if name else ''}: {int(self)}>"

        __str__ = int.__repr__

        def __contains__(self, other: Self) -> bool:
            """Whether it has all bits of the other."""
            return int(other) & int(self) == other

        def __or__(self, other: int) -> Self:
            return type(self)(int(self) | other)

        def __and__(self, other: int) -> Self:
            return type(self)(int(self) & other)

        def __xor__(self, other: int) -> Self:
            return type(self)(int(self) ^ other)

        def __invert__(self) -> Self:
            """All other bits that have a name."""
            return type(self)(_union(type(self).__members__.values()) & ~int(self))

        __ror__, __rand__, __rxor__ = __or__, __and__, __xor__

    def _union(members: Iterable[int]) -> int:
        return reduce(or_, map(int, members), 0)
