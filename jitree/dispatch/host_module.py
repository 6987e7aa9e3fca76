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
    """Base of host modules. One object serves any number of contexts; what belongs to one context is in the
    state that :meth:`create_state` makes.

    The same name may be exported with several calling conventions; an import takes the one it states.
    """

    name: str
    version: int = 0
    """Compared with the minimum version of dependent modules."""
    dependencies: Sequence[Dependency] = ()
    imports: Sequence[Import] = ()
    attrs: Sequence[Attr] = ()
    _by_name: dict[str, dict[str, HostExport]] | None = None

    def exports(self) -> Iterable[HostExport]:
        """All functions. Asked once per module object."""
        return ()

    def register_types(self, ref_types: RefTypes) -> None:
        """Registers the ref types whose objects the module's functions take or return."""

    def create_state(self, context: ModuleContext) -> object:
        """The module's state in a context: the first argument of every function."""
        return None

    def free_state(self, state: object) -> None:
        """The context is closed."""

    def fork_state(self, state: object, context: ModuleContext) -> object:
        """The state for a fork of the context; a fresh one unless overridden."""
        return self.create_state(context)

    def resolve_import(self, state: object, index: int, function: VmFunction | None) -> None:
        """Receives each of ``imports`` in order; None for an optional one that is missing."""

    def notify(self, state: object, signal: Signal) -> None:
        """The context was told of a change."""

    def find(self, name: str) -> dict[str, HostExport]:
        """The functions of a name by calling convention."""
        return self._table().get(name, {})

    def get(self, name: str, cconv: str) -> HostExport | None:
        """The function with that calling convention; asked before :meth:`find`."""
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
