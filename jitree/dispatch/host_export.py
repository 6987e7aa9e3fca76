"""Functions written in Python that programs import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jitree.base.arguments import shown
from jitree.errors import InternalError

if TYPE_CHECKING:
    from jitree.regs.machine import Machine
    from jitree.vmfb.cconv import CallingConvention


class HostExport:
    """A function of a host module.

    ``function(state, *arguments)`` gets integers in the signed range of their width, floats, objects (None
    for null); a span as one list, of tuples or (one character in the span) of values. It returns None, the
    value of the one result, a tuple for several, or a :class:`~jitree.dispatch.engine.Pending`. What it
    raises fails the call.

    ``name``: without that of the module. ``cconv``: the calling convention, ``0iI_r``. ``attrs``: reflection.
    ``compiled``: gives the address of machine code that does the same. UNIMPLEMENTED for another convention
    comes when it is called.

    >>> export = jitree.HostExport("add", "0ii_i", lambda state, x, y: x + y)
    >>> export.function(None, 1, 2)
    3
    """

    __slots__ = ("attrs", "cconv", "compiled", "function", "name", "refill")
    refill: Callable[[Any, Machine, int], bool] | None
    """``refill(state, machine, site)``, the number of the call's site: supplies what machine code may have
    lacked that gave up a call, and tells whether anything was lacking: then machine code tries again, once,
    before the function is called. None: it never does."""

    def __init__(
        self,
        name: str,
        cconv: str,
        function: Callable[..., Any],
        attrs: Mapping[str, str] = MappingProxyType({}),
        compiled: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        """By which programs import it, without the module's name."""
        self.cconv = cconv
        """The calling convention: ``0iI_r``."""
        self.function = function
        """What is called."""
        self.attrs = attrs
        """Reflection."""
        self.compiled = compiled
        """Gives the address of machine code that does the same (``regs.layout.COMPILED_DONE``), 0 as long as
        there is none; asked by tiers that can use it when a program that imports the function is linked and
        when it is called, until there is one."""
        self.refill = None


def results(convention: CallingConvention, value: object) -> list[object]:
    """What a host function returned, as a list of one value per result. INTERNAL if the number differs."""
    count = len(convention.results)
    if count == 0 and value is None:
        return []
    if count == 1:
        return [value]
    if count > 1 and isinstance(value, (tuple, list)) and len(value) == count:
        return list(value)
    raise InternalError(f"the function has {count} results but returned {shown(value)}")
