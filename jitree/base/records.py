"""Named tuples whose classes are made quickly.

``typing.NamedTuple`` and ``collections.namedtuple`` compile text for every class, a tenth of a millisecond a
class or more, and every program would wait for that some sixty times. For type checkers both are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self

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

    def _constructor(name: str, fields: tuple[str, ...], defaults: tuple[Any, ...]) -> FunctionType:
        if len(fields) >= len(_MAKERS):
            return _make_long
        code = _MAKERS[len(fields)].__code__.replace(
            co_varnames=("_cls", *fields), co_name="__new__", co_qualname=f"{name}.__new__"
        )
        return FunctionType(code, globals(), "__new__", defaults)

    class _Maker(type):
        """Makes named tuples of classes with annotated fields."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return type.__new__(cls, name, bases, body)
            fields = tuple(body["__annotations__"])
            defaults = {field: body[field] for field in fields if field in body}
            if tuple(defaults) != fields[len(fields) - len(defaults) :]:
                raise TypeError(f"{name}: fields without a default follow fields with one")
            body |= {field: _tuplegetter(index, f"Field {index}.") for index, field in enumerate(fields)}
            body |= {
                "__slots__": (),
                "__new__": _constructor(name, fields, tuple(defaults.values())),
                "__match_args__": fields,
                "_fields": fields,
                "_field_defaults": defaults,
            }
            return type(name, (_Record,), body)

    class _Record(tuple):
        """What all named tuples have in common."""

        __slots__ = ()

        @classmethod
        def _make(cls, values: Iterable[Any]) -> Self:
            return cls(*values)

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
