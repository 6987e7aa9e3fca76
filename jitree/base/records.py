"""Makes named tuples, enumerations, flags, protocols and rows quickly.

Classes of the standard library take longer to make.

``typing.NamedTuple`` and ``collections.namedtuple`` compile text for every class, a tenth of a millisecond a
class or more, and every program would wait for that some sixty times; ``enum.IntEnum`` and ``enum.IntFlag``
take 15 us for each of a hundred names that only messages use. Protocols are for type checkers alone. For
those all are the same; what is here behaves alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import index, itemgetter, or_
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from array import array
    from enum import IntEnum, IntFlag
    from struct import Struct
    from typing import Protocol as Protocol

    class Enumeration(IntEnum):
        """See :class:`enum.IntEnum`."""

    class Flags(IntFlag):
        """See :class:`enum.IntFlag`."""

else:

    class Protocol:
        """See :class:`typing.Protocol`; nothing asks at run time what has one."""

    class _MembersMaker(type):
        """Makes members of the integers in a class."""

        __members__: dict[str, int]

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _MembersMaker:
            keys = [key for key, value in body.items() if isinstance(value, int) and key[0] != "_"]
            values = {key: body.pop(key) for key in keys}
            made = type.__new__(cls, name, bases, body)
            made.__members__ = {key: int.__new__(made, value) for key, value in values.items()}
            for key, member in made.__members__.items():
                setattr(made, key, member)
            return made

        def __getitem__(cls, name: str) -> int:
            return cls.__members__[name]

    class _EnumerationMaker(_MembersMaker):
        """Gives each member its name. Calling the class finds the member of a number."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _EnumerationMaker:
            made = super().__new__(cls, name, bases, body)
            for key, member in made.__members__.items():
                member.name = key
            made._member_of = {int(member): member for member in made.__members__.values()}
            return made

        def __call__(cls, value: int) -> Enumeration:
            found = cls._member_of.get(value)
            if found is None:
                raise ValueError(f"{value!r} is not a valid {cls.__qualname__}")
            return found

        def __iter__(cls) -> Iterator[Enumeration]:
            return iter(cls.__members__.values())

        def __len__(cls) -> int:
            return len(cls.__members__)

        def __contains__(cls, value: object) -> bool:
            return value in cls._member_of

    class Enumeration(int, metaclass=_EnumerationMaker):
        """See :class:`enum.IntEnum`."""

        @property
        def value(self) -> int:
            return int(self)

        def __repr__(self) -> str:
            return f"<{type(self).__name__}.{self.name}: {int(self)}>"

        __str__ = int.__repr__

        def __reduce_ex__(self, protocol: int) -> tuple[type[Enumeration], tuple[int]]:
            return type(self), (int(self),)

        def __copy__(self) -> Self:
            return self

        def __deepcopy__(self, memo: object) -> Self:
            return self

    class _FlagsMaker(_MembersMaker):
        """Members of one bit are what a class of flags consists of."""

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
            """Names of its bits: ``"READ|WRITE"``; None if no bit has a name."""
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
            return type(self)(int(self) | index(other))

        def __and__(self, other: int) -> Self:
            return type(self)(int(self) & index(other))

        def __xor__(self, other: int) -> Self:
            return type(self)(int(self) ^ index(other))

        def __invert__(self) -> Self:
            """All other bits that have a name."""
            return type(self)(_union(type(self).__members__.values()) & ~int(self))

        __ror__, __rand__, __rxor__ = __or__, __and__, __xor__

    def _union(members: Iterable[int]) -> int:
        return reduce(or_, map(int, members), 0)


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    try:
        from _collections import _tuplegetter  # what namedtuple uses: reads a field without a call
    except ImportError:

        def _tuplegetter(index: int, doc: str) -> property:
            return property(itemgetter(index), doc=doc)

    _make = tuple.__new__
    _MAKERS = (
        lambda _cls: _make(_cls, ()),
        lambda _cls, a: _make(_cls, (a,)),
        lambda _cls, a, b: _make(_cls, (a, b)),
        lambda _cls, a, b, c: _make(_cls, (a, b, c)),
        lambda _cls, a, b, c, d: _make(_cls, (a, b, c, d)),
        lambda _cls, a, b, c, d, e: _make(_cls, (a, b, c, d, e)),
        lambda _cls, a, b, c, d, e, f: _make(_cls, (a, b, c, d, e, f)),
        lambda _cls, a, b, c, d, e, f, g: _make(_cls, (a, b, c, d, e, f, g)),
        lambda _cls, a, b, c, d, e, f, g, h: _make(_cls, (a, b, c, d, e, f, g, h)),
        lambda _cls, a, b, c, d, e, f, g, h, i: _make(_cls, (a, b, c, d, e, f, g, h, i)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j: _make(_cls, (a, b, c, d, e, f, g, h, i, j)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k: _make(_cls, (a, b, c, d, e, f, g, h, i, j, k)),
    )
    """By number of fields: what makes a tuple of them. Written out, they are compiled with this file."""

    def _make_long(_cls: type, *values: Any, **named: Any) -> Any:
        """Makes a tuple of more fields than any of those; slower."""
        left = _cls._fields[len(values) :]
        given = _cls._field_defaults | named
        if len(values) > len(_cls._fields) or not named.keys() <= set(left) or not set(left) <= given.keys():
            raise TypeError(
                f"{_cls.__name__}.__new__() takes {', '.join(_cls._fields)} but got {len(values)} values"
                f"{''.join(f' and {name}' for name in named)}"
            )
        return _make(_cls, (*values, *(given[name] for name in left)))

    _TEXTS = []
    """What fields say of themselves, by number."""

    class _Maker(type):
        """Makes named tuples of classes with annotated fields."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return type.__new__(cls, name, bases, body)
            fields = tuple(body["__annotations__"])
            defaults = {field: body[field] for field in fields if field in body}
            if tuple(defaults) != fields[len(fields) - len(defaults) :]:
                raise TypeError(f"{name}: fields without a default follow fields with one")
            while len(_TEXTS) < len(fields):
                _TEXTS.append(f"Field {len(_TEXTS)}.")
            body |= zip(fields, map(_tuplegetter, range(len(fields)), _TEXTS), strict=True)
            constructor = _make_long
            if len(fields) < len(_MAKERS):
                code = _MAKERS[len(fields)].__code__.replace(
                    co_varnames=("_cls", *fields), co_name="__new__", co_qualname=f"{name}.__new__"
                )
                constructor = FunctionType(code, globals(), "__new__", tuple(defaults.values()))
            body |= {
                "__slots__": (),
                "__new__": constructor,
                "__match_args__": fields,
                "_fields": fields,
                "_field_defaults": defaults,
            }
            return type(name, (_Record,), body)

    class _Record(tuple):
        """What all named tuples have in common."""

        __slots__ = ()

        _make = classmethod(_make)
        """Makes one of all its values, which are not counted: the quick way to many."""

        def _replace(self, /, **changes: Any) -> Self:
            made = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"Got unexpected field names: {list(changes)!r}")
            return made

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self) -> str:
            pairs = zip(self._fields, self, strict=True)
            return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

    class NamedTuple(metaclass=_Maker):
        """See :class:`typing.NamedTuple`."""


def rows_of(layout: Struct, data: bytes | memoryview | array[int]) -> Iterator[tuple[Any, ...]]:
    """As ``layout.iter_unpack``, of a copy. Python's garbage collector takes a memoryview apart that such an
    iterator still has, and crashes as the iterator goes. A frame that an interrupt has left has its iterators
    for as long as the error lives, which may end in a circle."""
    return layout.iter_unpack(bytes(data))
