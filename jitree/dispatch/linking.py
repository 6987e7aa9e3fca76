"""Links modules in a context. They have state, what they export to others, and the resolution of their
imports."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from jitree.base.arguments import object_of
from jitree.base.records import NamedTuple
from jitree.dispatch import sites
from jitree.dispatch.engine import AGAIN
from jitree.dispatch.function import BytecodeFunction, HostFunction
from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule
from jitree.dispatch.sites import HostTarget
from jitree.errors import InternalError, InvalidArgumentError, NotFoundError
from jitree.regs.handles import HandleTable
from jitree.regs.records import FunctionRecord, ModuleRecord
from jitree.vmfb.cconv import parse
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.schema import Import

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitree.dispatch.function import VmFunction
    from jitree.regs.machine import Machine
    from jitree.regs.records import FunctionRecords, SiteCall
    from jitree.vmfb.program import DecodedModule

    class Linker(Protocol):
        """The context that a module is linked in."""

        @property
        def tier(self) -> str: ...
        def resolve(self, imports: Sequence[Import]) -> list[Target | None]: ...
        def lookup(self, full_name: str) -> VmFunction: ...


Target = FunctionRecord | HostTarget
_UNPREPARED: Final = 3
"""Calls of a site after the first that nothing is prepared for: preparing takes as long as ten of them."""


def _mismatch(name: str, wanted: str, offered: list[str]) -> InternalError:
    actual = " or ".join(f"'{cconv}'" for cconv in offered)
    return InternalError(
        f"import '{name}' signature mismatch: expected '{wanted}' but the export has {actual}"
    )


def _is_nullary(cconv: str) -> bool:
    convention = parse(cconv)
    return not convention.arguments and not convention.results


class BytecodeInstance:
    """A compiled module and its :class:`ModuleRecord`."""

    def __init__(
        self, module: BytecodeModule, table: HandleTable, index: int, records: FunctionRecords
    ) -> None:
        """``index`` is its position in the context, whose function records are ``records``."""
        self.module = module
        self.record = ModuleRecord(module.module, module.program, table, index)
        self._table = table
        self._records = records
        records.modules.append(self.record)
        self._functions: dict[str, BytecodeFunction] = {}
        self.targets: dict[int, Target] = {}
        """What its imports call, by number; without those that cannot be called."""

    def target(self, name: str, cconv: str | None) -> FunctionRecord | None:
        export = self.module.module.export(name)
        if export is None:
            return None
        offered = self.module.module.functions[export.ordinal].cconv
        if cconv is not None and offered != cconv:
            raise _mismatch(f"{self.module.name}.{name}", cconv, [offered])
        return self.record.function(export.ordinal)

    def function(self, name: str) -> BytecodeFunction | None:
        function = self._functions.get(name)
        if function is None:
            export = self.module.module.export(name)
            if export is None:
                return None
            function = BytecodeFunction(self.module, name, self.record.function(export.ordinal))
            self._functions[name] = function
            for record in (function.host, function.record):
                self._records[record.address] = record
        return function

    def link(self, context: Linker) -> None:
        record, imports = self.record, self.module.imports
        for ordinal, (item, target) in enumerate(zip(imports, context.resolve(imports), strict=True)):
            if target is None:
                continue
            if item.cconv is None and not _is_nullary(cconv := convention_of(target)):
                record.link(ordinal, None, partial(_refuse, item.full_name, cconv))
            else:
                self._connect(ordinal, target)
        if context.tier == "native":
            from jitree.dispatch.native import tiering

            tiering.wait(record)

    def relink(self, ordinal: int, target: Target) -> None:
        """Has one of its targets be another function. Nothing of the context runs."""
        record = self.record
        record.sites[:] = [None] * len(record.sites)
        record.first_calls.pop(ordinal, None)
        self._connect(ordinal, target)

    def _connect(self, ordinal: int, target: Target) -> None:
        """Has an import call a target."""
        self.targets[ordinal] = target
        if not isinstance(target, HostTarget):
            return self.record.link(ordinal, target)
        site = _HostSite._make((ordinal, self.module.program, target))
        compiled, first = target.export.compiled, partial(_call_unprepared, site, _UNPREPARED)
        self.record.link(ordinal, None, first, 0 if compiled is None else compiled())

    def free(self) -> None:
        self.record.release(self._table)

    def forget(self) -> None:
        """Takes back function records, which calls that wait would still need. Their backtraces name them."""
        self._records.forget(self.record)


def convention_of(target: Target) -> str:
    """The calling convention of what an import calls."""
    if isinstance(target, HostTarget):
        return target.export.cconv
    return target.module.module.functions[target.ordinal].cconv


def _refuse(name: str, cconv: str, index: int, machine: Machine) -> bool:
    """Refuses a call of an import without a signature where one is needed."""
    raise InvalidArgumentError(
        f"import '{name}' states no signature; the function has '{cconv}' and cannot be called"
    )


class _HostSite(NamedTuple):
    """What call sites of a host function need. They find the state that they belong to in the machine, which
    runs a function of it: a state that its own site calls referred to would be freed by the garbage collector
    only."""

    ordinal: int
    program: DecodedModule
    target: HostTarget

    def link(self, record: ModuleRecord) -> int:
        """Gives the module machine code that does the same; its address, 0 while there is none."""
        compiled = self.target.export.compiled
        if address := 0 if compiled is None else compiled():
            record.link_compiled(self.ordinal, address)
        return address

    def refills(self, index: int, machine: Machine) -> bool:
        """Whether machine code tries again, as it has what it lacked."""
        target = self.target
        refill = target.export.refill
        return (
            refill is not None
            and (machine.module.compiled(self.ordinal) or self.link(machine.module)) != 0
            and refill(target.state, machine, index)
        )


def _call_unprepared(site: _HostSite, more: int, index: int, machine: Machine) -> int:
    """One of the first calls, of which there are ``more``. Site calls are bound after them: most sites run
    seldom, or have machine code soon."""
    if site.refills(index, machine):
        return AGAIN
    following = partial(_call_unprepared, site, more - 1) if more else partial(_bind, site)
    machine.module.sites[index] = partial(following, index)
    if site.target.export.refill is None:
        site.link(machine.module)
    return sites.call_once(machine, site.program.site(index), site.target)


def _bind(site: _HostSite, index: int, machine: Machine) -> int:
    call = sites.bind(site.program.site(index), site.target)
    if site.target.export.refill is not None:
        call = partial(_call_refilled, site, index, call)
    elif site.target.export.compiled is not None:
        call = partial(_call_until_compiled, site, index, call)
    machine.module.sites[index] = call
    return call(machine)


def _call_refilled(site: _HostSite, index: int, call: SiteCall, machine: Machine) -> int:
    return AGAIN if site.refills(index, machine) else call(machine)


def _call_until_compiled(site: _HostSite, index: int, call: SiteCall, machine: Machine) -> int:
    if site.link(machine.module):
        machine.module.sites[index] = call
    return call(machine)


class HostInstance:
    """A host module and its state."""

    def __init__(self, module: HostModule, state: object) -> None:
        self.module = module
        self.state = state
        self._functions: dict[str, HostFunction] = {}
        self._targets: dict[tuple[str, str], HostTarget] = {}

    def target(self, name: str, cconv: str | None) -> HostTarget | None:
        export = None if cconv is None else self.module.get(name, cconv)
        if export is None:
            export = self._other_export(name, cconv)
        if export is None:
            return None
        target = self._targets.get((name, export.cconv))
        if target is None:
            target = HostTarget._make((f"{self.module.name}.{name}", export, self.state))
            self._targets[name, export.cconv] = target
        return target

    def _other_export(self, name: str, cconv: str | None) -> HostExport | None:
        """The function of an import that states no signature; INTERNAL for one that states another."""
        exports = self.module.find(name)
        if not exports:
            return None
        if cconv is not None:
            raise _mismatch(f"{self.module.name}.{name}", cconv, list(exports))
        nullary = (export for text, export in exports.items() if _is_nullary(text))
        return next(nullary, next(iter(exports.values())))

    def function(self, name: str) -> HostFunction | None:
        function = self._functions.get(name)
        if function is None:
            target = self.target(name, None)
            if target is None:
                return None
            ordinal = self.module.export_names().index(name)
            function = HostFunction(self.module, ordinal, target, parse(target.export.cconv))
            self._functions[name] = function
        return function

    def link(self, context: Linker) -> None:
        imports = self.module.imports
        for index, (item, target) in enumerate(zip(imports, context.resolve(imports), strict=True)):
            function = None if target is None else context.lookup(item.full_name)
            self.module.resolve_import(self.state, index, function)

    def free(self) -> None:
        self.module.free_state(self.state)

    def forget(self) -> None:
        self._functions.clear()
        self._targets.clear()


ModuleInstance = BytecodeInstance | HostInstance
"""A module with its state in one context. Both kinds have

* ``target(name, cconv)``: what an import of that function calls; None if not exported, INTERNAL if it has
  another calling convention;
* ``function(name)``: the exported function for calls by the host, or None;
* ``link(context)``: resolves the module's imports;
* ``free()``: drops the state; ``forget()``: and what the context still knows of a module that never ran.
"""


def split_name(full_name: str) -> tuple[str, str]:
    """``module.function`` at the first dot. INVALID_ARGUMENT without one."""
    module, dot, function = object_of("function name", full_name, str).partition(".")
    if not dot:
        raise InvalidArgumentError(f"function name '{full_name}' is not of the form 'module.function'")
    return module, function


def check_dependencies(module: BytecodeModule | HostModule, present: list[ModuleInstance]) -> None:
    """Raises NOT_FOUND for a required module that is missing or too old. Of several of one name the last one
    counts, as imports are of that."""
    versions = {instance.module.name: instance.module.version for instance in present}
    for dependency in module.dependencies:
        version = versions.get(dependency.name)
        if not dependency.required or (version is not None and version >= dependency.minimum_version):
            continue
        if version is not None:
            raise NotFoundError(
                f"required module '{dependency.name}' is registered in version {version}; version "
                f"{dependency.minimum_version} or newer is needed"
            )
        names = ", ".join(instance.module.name for instance in present) or "none"
        raise NotFoundError(
            f"required module '{dependency.name}' is not registered (modules before this one: {names}); "
            "a module must be loaded before those that import it"
        )
