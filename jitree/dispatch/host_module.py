"""Modules written in Python: what a program imports that is not bytecode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jitree.base.records import Enumeration
from jitree.dispatch.host_export import HostExport
from jitree.vmfb.schema import Attr, Dependency, Import

if TYPE_CHECKING:
    from jitree.dispatch.function import VmFunction
    from jitree.regs.handles import HandleTable
    from jitree.regs.ref_types import RefTypes

    class ModuleContext(Protocol):
        """What modules use of the :class:`jitree.dispatch.context.Context` that they are in."""

        ref_types: RefTypes
        table: HandleTable
        is_initialising: bool

        @property
        def tier(self) -> str: ...
        @property
        def modules(self) -> Sequence[object]: ...
        def invoke(self, function: VmFunction, arguments: Sequence[object]) -> list[Any]: ...
        def fail_at_end(self, text: str) -> None: ...


class Signal(Enumeration):
    """What a context tells its modules; values as passed to a bytecode module's ``__notify``."""

    RESUME = 0
    SUSPEND = 1
    LOW_MEMORY = 2
    FORK = 3


class HostModule:
    """Base of host modules. One object serves any number of contexts.

    What belongs to one context is in the state that :meth:`create_state` makes. The same name may be exported
    with several calling conventions; an import takes the one it states. :class:`jitree.CustomModule` does all
    this for functions with annotations.

    >>> class Counter(jitree.HostModule):
    ...     name = "counter"
    ...     def exports(self):
    ...         return [jitree.HostExport("next", "0v_i", lambda state: next(state))]
    ...     def create_state(self, context):
    ...         return iter(range(5, 9))
    >>> counter = jitree.Session("local-sync").load(Counter())
    >>> counter.next(), counter.next()
    (5, 6)
    """

    name: str
    """By which programs import from it."""
    version: int = 0
    """Compared with the minimum version of dependent modules."""
    dependencies: Sequence[Dependency] = ()
    """Modules that it needs, with their minimum versions."""
    imports: Sequence[Import] = ()
    """Functions of others that it calls, in the order of :meth:`resolve_import`."""
    attrs: Sequence[Attr] = ()
    """Reflection: keys and values."""
    _by_name: dict[str, dict[str, HostExport]] | None = None

    def exports(self) -> Iterable[HostExport]:
        """All functions. Asked once per module object."""
        return ()

    def register_types(self, ref_types: RefTypes) -> None:
        """Registers the ref types whose objects the module's functions take or return.

        ``ref_types``: of the context. ALREADY_EXISTS for a name that another class has.
        """

    def create_state(self, context: ModuleContext) -> object:
        """Makes the module's state in a context: the first argument of every function.

        ``context``: the one that the module is loaded into. What this raises fails the loading.
        """
        return None

    def free_state(self, state: object) -> None:
        """Is told that a context is closed, whose ``state`` this is. Closing raises what this raises."""

    def fork_state(self, state: object, context: ModuleContext) -> object:
        """Makes the state for a fork of a context; a fresh one unless overridden.

        ``state``: of the forked one; ``context``: the new one. What this raises fails the fork.
        """
        return self.create_state(context)

    def resolve_import(self, state: object, index: int, function: VmFunction | None) -> None:
        """Receives each of ``imports`` in order, before the module's functions are called.

        ``state``: of the context; ``index``: in ``imports``; ``function``: what was found, None for an
        optional one that is missing. What this raises fails the loading.
        """

    def notify(self, state: object, signal: Signal) -> None:
        """Is told of a change of the context.

        ``state``: of the context; ``signal``: a :class:`Signal`, such as ``LOW_MEMORY``. What this raises
        fails what told it.
        """

    def find(self, name: str) -> dict[str, HostExport]:
        """Finds the functions of a ``name`` by calling convention. An unknown name has none; none fails."""
        return self._table().get(name, {})

    def get(self, name: str, cconv: str) -> HostExport | None:
        """Finds the function of a ``name`` with the calling convention ``cconv``; asked before :meth:`find`.

        None if there is none; it raises nothing.
        """
        return self.find(name).get(cconv)

    def export_names(self) -> list[str]:
        """Lists the names of its functions, each once."""
        return list(self._table())

    def _table(self) -> dict[str, dict[str, HostExport]]:
        if self._by_name is None:
            table: dict[str, dict[str, HostExport]] = {}
            for export in self.exports():
                table.setdefault(export.name, {})[export.cconv] = export
            self._by_name = table
        return self._by_name
