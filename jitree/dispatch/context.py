"""Links modules with their state and creates the engine of a tier."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from jitree.base.arguments import items, object_of
from jitree.base.finalizers import SharedWeakKeys, Unique
from jitree.base.records import Flags
from jitree.codegen.image import look_for_ended_builders
from jitree.dispatch.engine import Engine
from jitree.dispatch.function import VmFunction
from jitree.dispatch.host_module import HostModule, Signal
from jitree.dispatch.invocation import SUBMITTED, WAITED_FOR, Invoker, Policy
from jitree.dispatch.linking import (
    BytecodeInstance,
    HostInstance,
    ModuleInstance,
    Target,
    check_dependencies,
    split_name,
)
from jitree.dispatch.session_lock import CALLS, CANCELS, NESTING, REFUSED
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StatusError,
    error_context,
    is_interruption,
)
from jitree.regs.handles import HandleTable
from jitree.regs.memory import UNBOUNDED, Bounds
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.schema import Import

if TYPE_CHECKING:
    from jitree.dispatch.function import ExportingModule

TIERS: Final = ("plain", "fast", "native", "auto")
"""``auto`` is plain until the fast tier's loop is there, and native where functions run for long."""
WAITING_TIERS: Final = ("fast", "native")
"""Asked for by name, they run nothing before their machine code is there."""
TIER_VARIABLE: Final = "JITREE_TIER"

INIT: Final = "__init"
DEINIT: Final = "__deinit"
NOTIFY: Final = "__notify"
_LISTED_CANDIDATES: Final = 12

_SUCCESSOR: Final = "successor"
"""The attribute of an error that names the context that makes the call."""

ModuleLike = BytecodeModule | HostModule


def default_tier() -> str:
    """The tier that the environment variable JITREE_TIER names, else ``auto``."""
    return os.environ.get(TIER_VARIABLE) or "auto"


def _require_optional(item: Import, instance: ModuleInstance | None) -> None:
    """NOT_FOUND for an import that is missing, unless it is optional."""
    module_name, _ = split_name(item.full_name)
    if item.optional:
        return
    if instance is None:
        raise NotFoundError(f"import '{item.full_name}': no module '{module_name}' is registered")
    raise NotFoundError(
        f"import '{item.full_name}' (signature '{item.cconv}'): module '{module_name}' of version "
        f"{instance.module.version} exports no such function"
    )


def create_engine(tier: str | None = None) -> Engine:
    """The engine of a tier; None for the default. INVALID_ARGUMENT for an unknown name.

    A tier that has to be compiled first is waited for when it is asked for by name.
    """
    name = default_tier() if tier is None else tier
    if name == "plain":
        from jitree.dispatch.plain.handlers import PlainEngine

        return PlainEngine()
    if name == "fast":
        from jitree.dispatch.fast.engine import FastEngine

        return FastEngine()
    if name in ("native", "auto"):
        from jitree.dispatch.native.engine import AutoEngine, NativeEngine

        return NativeEngine() if name == "native" else AutoEngine()
    raise InvalidArgumentError(f"tier '{name}' is unknown; the tiers are {', '.join(TIERS)}")


class ContextFlags(Flags):
    """Says what a session does beside its calls: ``Session(flags=...)``.

    >>> session = jitree.Session("local-sync", flags=jitree.ContextFlags.TRACE_EXECUTION)
    >>> session.context.tier
    'plain'
    """

    NONE = 0
    """Nothing beside the calls."""
    TRACE_EXECUTION = 1
    """Every executed instruction is printed to stderr (and runs on the plain tier)."""


class Context(Unique):
    """A set of linked modules with their globals. Calls of one context run one after the other; it may be
    used from any thread. Close it (or use it in a ``with`` statement) to run the modules' ``__deinit``.
    """

    def __init__(
        self,
        ref_types: RefTypes,
        *,
        tier: str | Engine | None = None,
        flags: ContextFlags = ContextFlags.NONE,
        share: Context | None = None,
        bounds: Bounds = UNBOUNDED,
    ) -> None:
        """An empty context. ``tier`` is plain, fast, native or auto, or an engine of the context's own; None:
        JITREE_TIER of the environment.

        ``share`` is the context whose references this one can hold too (see :meth:`fork`). ``bounds``: what
        its programs may have.
        """
        self.ref_types = ref_types
        self.flags = flags
        self.table: HandleTable = HandleTable(ref_types, bounds=bounds) if share is None else share.table
        if share is None:
            self.invoker = Invoker(self.table, _engine(tier, flags))
        else:
            self.invoker = Invoker(self.table, share.invoker.engine, share.invoker.lock)
            self.invoker.watch_gate = share.invoker.watch_gate
        self._instances: list[ModuleInstance] = []
        self._frozen = False
        self._successors: SharedWeakKeys[VmFunction, VmFunction] | None = None
        self.is_initialising = False
        """Whether the ``__init`` of a module runs, for host functions that it calls."""

    @property
    def tier(self) -> str:
        """The name of the tier that runs the context's calls."""
        return self.invoker.engine.name

    @property
    def modules(self) -> tuple[ModuleLike, ...]:
        """The modules, in order of registration."""
        return tuple(instance.module for instance in self._instances)

    @property
    def programs(self) -> tuple[BytecodeInstance, ...]:
        """The compiled modules, with their state."""
        return tuple(each for each in self._instances if isinstance(each, BytecodeInstance))

    # -- modules -------------------------------------------------------------------------------------

    def register(self, modules: Sequence[ModuleLike]) -> None:
        """Adds modules in order: each gets its state, is linked to those before it, and runs its ``__init``.

        NOT_FOUND for a missing dependency, import or ref type, INTERNAL for an import of another signature,
        FAILED_PRECONDITION when frozen, or what ``__init`` failed with. None of the modules stays then.
        """
        with self.invoker.entrance():
            self.invoker.require_open()
            if self._frozen:
                raise FailedPreconditionError("the context is frozen; modules can no longer be registered")
            before = len(self._instances)
            try:
                for module in items("modules", modules):
                    object_of("module", module, BytecodeModule, HostModule)
                    with error_context(f"registering module '{module.name}'"):
                        self._add(module)
            except BaseException:
                failed = self._instances[before:]
                try:
                    self._remove(before)
                finally:
                    for instance in failed:
                        instance.forget()
                raise

    def _add(self, module: ModuleLike) -> None:
        present = list(self._instances)
        instance = self._instantiate(module)
        self._instances.append(instance)
        check_dependencies(module, present)
        instance.link(self)
        self.is_initialising = True
        try:
            self._run_if_present(instance, INIT)
        finally:
            self.is_initialising = False

    def _instantiate(self, module: ModuleLike) -> ModuleInstance:
        if isinstance(module, BytecodeModule):
            return BytecodeInstance(module, self.table, len(self._instances), self.invoker.functions)
        module.register_types(self.ref_types)
        return HostInstance(module, module.create_state(self))

    def _remove(self, first: int) -> None:
        """Tears down the modules from a position on, last first. Statuses that ``__deinit`` fails with are
        ignored: no caller could act on them. All states go, whatever else a module raises."""
        with ExitStack() as steps:  # which makes them last to first, and raises when all are made
            steps.callback(self.table.drain_deferred)
            for instance in self._instances[first:]:
                steps.callback(self._free, instance)
            for instance in self._instances[first:]:
                steps.callback(self._deinitialise, instance)

    def _deinitialise(self, instance: ModuleInstance) -> None:
        with suppress(StatusError):
            self._run_if_present(instance, DEINIT)

    def _free(self, instance: ModuleInstance) -> None:
        """What an interrupt keeps from it is done when the context is closed again."""
        try:
            instance.free()
        except BaseException as error:
            if not is_interruption(error):
                self._instances.remove(instance)
            raise
        self._instances.remove(instance)

    def _run_if_present(self, instance: ModuleInstance, name: str, *arguments: object) -> None:
        function = instance.function(name) if isinstance(instance, BytecodeInstance) else None
        if function is not None:
            self.invoker.make(self.invoker.call(function, arguments))
            self.invoker.gate[CALLS] -= 1  # the program does not make it

    def resolve(self, imports: Sequence[Import]) -> list[Target | None]:
        """Finds what imports call, None for an optional one that is missing. NOT_FOUND for another,
        INVALID_ARGUMENT for a name without a dot, INTERNAL for another signature."""
        latest = {instance.module.name: instance for instance in self._instances}
        targets: list[Target | None] = []
        for item in imports:
            module_name, dot, name = item.full_name.partition(".")
            instance = latest.get(module_name) if dot else None
            target = None if instance is None else instance.target(name, item.cconv)
            if target is None:
                _require_optional(item, instance)
            targets.append(target)
        return targets

    def _find_module(self, name: str) -> ModuleInstance | None:
        """The last of that name: what a module is called means the latest one."""
        for instance in reversed(self._instances):
            if instance.module.name == name:
                return instance
        return None

    def freeze(self) -> None:
        """No more modules may be registered."""
        self._frozen = True

    # -- functions -----------------------------------------------------------------------------------

    def lookup(self, full_name: str) -> VmFunction:
        """The exported function ``module.function``; NOT_FOUND names what there is instead."""
        names = ", ".join(module.name for module in self.modules) or "none"
        with error_context(f"registered are: {names}"):
            module_name, name = split_name(full_name)
            instance = self._find_module(module_name)
            if instance is None:
                raise NotFoundError(f"no module '{module_name}' is registered")
        return _exported(instance, name)

    def function_of(self, module: ExportingModule, name: str) -> VmFunction:
        """The exported function of this very module, whatever others are called.

        A copy of it with other executables may stand in its place. NOT_FOUND without one.
        """
        tables = module.module if isinstance(module, BytecodeModule) else None
        for instance in reversed(self._instances):
            own = instance.module
            if own is module or (isinstance(own, BytecodeModule) and own.module is tables):
                return _exported(instance, name)
        raise NotFoundError(f"module '{module.name}' is not registered in this context")

    def invoke(
        self, function: VmFunction, arguments: Sequence[object] = (), policy: Policy = WAITED_FOR
    ) -> list[Any]:
        """Calls a function and waits for its results: integers, floats, objects (None for null).

        INVALID_ARGUMENT if number or kind of the arguments is wrong. A failure of the program carries its
        VM backtrace; references are released and the context stays usable.
        """
        if self._successors is not None:
            function = self._successors.get(function) or function
        try:
            return self.invoker.make(self.invoker.call(function, arguments, policy))
        except FailedPreconditionError as error:
            successor: Context | None = getattr(error, _SUCCESSOR, None)
            if successor is None:
                raise
        return successor.invoke(function, arguments, policy)

    async def invoke_async(self, function: VmFunction, arguments: Sequence[object] = ()) -> list[Any]:
        """As :meth:`invoke`, awaiting whatever the call has to wait for. The context may run other calls
        meanwhile."""
        if self._successors is not None:
            function = self._successors.get(function) or function
        try:
            from jitree.dispatch.suspended_calls import drive

            call = self.invoker.call(function, arguments, SUBMITTED)
            return await drive(self.invoker, call, self.invoker.gate[CANCELS], {})
        except FailedPreconditionError as error:
            successor: Context | None = getattr(error, _SUCCESSOR, None)
            if successor is None:
                raise
        return await successor.invoke_async(function, arguments)

    def fail_at_end(self, text: str) -> None:
        """Notes a failure for a host function: the call in progress goes on, and its outermost call fails
        when it ends: FAILED_PRECONDITION with all such texts."""
        self.invoker.fail_at_end(text)

    # -- life ----------------------------------------------------------------------------------------

    def succeed(self, other: Context, functions: Mapping[VmFunction, VmFunction]) -> None:
        """Makes the calls of another context from now on. Its functions stand for those that they map to:
        what begins there goes on here, what has begun there ends there."""
        successors: SharedWeakKeys[VmFunction, VmFunction] = SharedWeakKeys()
        for old, new in functions.items():
            successors[old] = new
        self._successors = successors

        def refusal() -> FailedPreconditionError:
            error = FailedPreconditionError("another context makes the calls of this one")
            setattr(error, _SUCCESSOR, self)
            return error

        with other.invoker.entrance():
            other.invoker.refuse_calls(refusal)

    def notify(self, signal: Signal) -> None:
        """Tells all modules: providers first when resuming and forking, last when suspending."""
        object_of("signal", signal, Signal)
        with self.invoker.entrance():
            self.invoker.require_open()
            forwards = signal in (Signal.RESUME, Signal.FORK)
            for instance in self._instances if forwards else reversed(self._instances):
                if isinstance(instance, HostInstance):
                    instance.module.notify(instance.state, signal)
                else:
                    self._run_if_present(instance, NOTIFY, int(signal))

    def fork(self) -> Context:
        """A context of the same modules whose globals start as this one's are now: values copied, references
        shared. ``__init`` does not run again; the modules are sent FORK.

        Shared references mean a shared handle table, so calls of the two run one after the other.
        """
        with self.invoker.entrance():
            self.invoker.require_open()
            other = Context(self.ref_types, flags=self.flags, share=self)
            for instance in self._instances:
                copy: ModuleInstance
                if isinstance(instance, BytecodeInstance):
                    position, records = len(other._instances), other.invoker.functions
                    copy = BytecodeInstance(instance.module, self.table, position, records)
                    copy.record.copy_globals(instance.record, self.table)
                else:
                    copy = HostInstance(instance.module, instance.module.fork_state(instance.state, other))
                other._instances.append(copy)
                copy.link(other)
            other._frozen = self._frozen
            other.notify(Signal.FORK)
            return other

    @property
    def has_ended(self) -> bool:
        """Whether it is closed, and has nothing left that may be freed."""
        invoker = self.invoker
        return invoker.closed and (invoker.is_lost or not (self._instances or self.table.owed))

    def close(self) -> None:
        """Runs ``__deinit`` of the modules, last first, and drops their states. Calls that still wait fail
        with CANCELLED. Closing again does what an interrupt has left. FAILED_PRECONDITION in a call of the
        context, by a native function: the program would go on without its globals."""
        with self.invoker.entrance():
            if self.has_ended:
                return
            self.invoker.require_idle()
            refused = self.invoker.gate[REFUSED]
            try:
                self.invoker.gate[NESTING] += refused  # ``__deinit`` runs, as no call of a program does
                self._remove(0)
            finally:
                self.invoker.gate[NESTING] -= refused
                self.invoker.close()
        look_for_ended_builders()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _engine(tier: str | Engine | None, flags: ContextFlags) -> Engine:
    if flags & ContextFlags.TRACE_EXECUTION:
        from jitree.dispatch.trace import TraceEngine

        return TraceEngine()
    return create_engine(tier) if tier is None or isinstance(tier, str) else tier


def _exported(instance: ModuleInstance, name: str) -> VmFunction:
    function = instance.function(name)
    if function is None:
        raise NotFoundError(
            f"no function '{name}' exported by module '{instance.module.name}'; it exports "
            f"{_candidates(instance)}"
        )
    return function


def _candidates(instance: ModuleInstance) -> str:
    names = [name for name in instance.module.export_names() if not name.startswith("__")]
    shown = ", ".join(f"'{name}'" for name in names[:_LISTED_CANDIDATES])
    return f"{shown}, … ({len(names)} functions)" if len(names) > _LISTED_CANDIDATES else shown or "nothing"
