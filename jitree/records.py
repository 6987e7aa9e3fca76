"""Named tuples whose classes are made quickly.

``typing.NamedTuple`` compiles the text of every annotation, a tenth of a millisecond a class or more, and
every program would wait for that some sixty times. For type checkers both are the same.
"""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    _OWN: Final = frozenset(("__annotations__", "__module__", "__qualname__", "__classcell__"))

    class _Maker(type):
        """Makes named tuples of classes with annotated fields."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return type.__new__(cls, name, bases, body)
            fields = tuple(body["__annotations__"])
            defaults = [body[field] for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            made.__annotations__ = body["__annotations__"]
            made.__qualname__ = body["__qualname__"]
            for key, value in body.items():
                if key not in _OWN and key not in fields:
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_Maker):
        """See :class:`typing.NamedTuple`."""
