"""Loads modules together, with their state, on one or more devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from jitree.api import load_order, session_arguments
from jitree.api.array import Array
from jitree.api.calls.transfers import empty
from jitree.api.function import Function
from jitree.api.module import Module, create_function
from jitree.api.observers import Observable
from jitree.api.resources import DeviceChoice, Resources, open_devices, placed, read_module
from jitree.api.session_arguments import Compiled, Loaded, Modules
from jitree.base.finalizers import Finalized, Remade, require_interpreter
from jitree.base.memory import once
from jitree.base.platform import give_back_much_free_memory
from jitree.dispatch.context import WAITING_TIERS, Context, ContextFlags, ModuleLike, default_tier
from jitree.dispatch.function import VmFunction as VmFunction
from jitree.dispatch.host_module import HostModule
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    folded,
    memory_errors,
    printable,
)
from jitree.hal.device import Device
from jitree.hal.local import interrupts
from jitree.hal.watchdog import start as start_watchdog
from jitree.hal.watchdog import watch_calls, watch_gate
from jitree.modules.hal.module import write_to_stderr
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.words import FUSED

if TYPE_CHECKING:
    from typing import Unpack

    import numpy.typing as npt

    from jitree.api.calls.native.direct import DirectCall
    from jitree.api.calls.native.session import DirectCalls
    from jitree.api.executables import Plugin
    from jitree.api.sandbox import Limits, Sandbox
    from jitree.api.session_arguments import SessionOptions
    from jitree.hal.allocator import Allocator
    from jitree.hal.executable import ExecutableLoader
    from jitree.modules.hal.module import TraceSink
    from jitree.params.provider import ParameterProvider
    from jitree.params.provider import Source as ParameterSource


class Session(Observable, Finalized, Remade):
    """Holds modules that may call each other, their state, and their devices.

    Calls may be made from several threads; the bytecode of one session runs in one thread at a time, while
    device work and waiting do not hold up others. Two sessions never hold up each other. Use it in a ``with``
    statement, or call :meth:`close`; else it is closed when nothing refers to it and its functions any more.
    What a closed session is asked for fails with FAILED_PRECONDITION.

    >>> with jitree.Session("local-task") as session:
    ...     digits = session.load("examples/digits/digits.vmvx.vmfb")
    ...     print(digits.classify(np.zeros((8, 8), np.float32)).shape)
    (10,)
    """

    _closed = _has_ended = True
    _devices: tuple[Device, ...] = ()
    """What is left of a session that garbage collection has ended, while others in its circle look on."""
    _instance: Instance
    made_by: tuple[Any, Any]
    """Device and options, or a program and the names of its modules."""

    def __new__(cls, device: DeviceChoice = None, *, sandbox: object = False, **options: Any) -> Self:
        if not isinstance(sandbox, bool) and session_arguments.is_process(sandbox):
            from jitree.api.process.session import ProcessSession

            process: Any = ProcessSession(cls, device, options)
            return process  # type: ignore[no-any-return]  # it has what sessions have, as far as it can
        session = super().__new__(cls)
        session.made_by = device, {"sandbox": sandbox, **options}
        return session

    @folded
    @memory_errors("creating a session")
    def __init__(
        self,
        device: DeviceChoice = None,
        *,
        parameters: Iterable[ParameterSource] = (),
        tier: str | None = None,
        flags: ContextFlags = ContextFlags.NONE,
        executable_plugins: Iterable[Plugin] = (),
        executable_modules: Iterable[HostModule] = (),
        instance: Instance | None = None,
        builtin_modules: Iterable[str] | None = None,
        trace_sink: TraceSink | None = write_to_stderr,
        cache_dir: str | os.PathLike[str] | None = None,
        watchdog: float | None = None,
        sandbox: bool | str | Sandbox = False,
        limits: Limits | None = None,
        zero_memory: bool = False,
        guard_pages: bool = False,
        arithmetic: str = FUSED,
        prefer: str | None = None,
        check_finite: bool | str | Iterable[str] = False,
    ) -> None:
        """``device``: a URI (``local-sync``, ``cuda://0``), a device, several of either (a list, or a mapping
        of names, in its order), or None for the first that can be created. Those given as URIs close with it.
        ``parameters``: what programs find by scope and key: archives (``scope=path``, ``path``; irpa,
        safetensors, gguf, npy, npz), mappings of keys to arrays or of scopes to such mappings, objects with
        ``state_dict()``; see :func:`jitree.params.open_providers`.
        ``tier``: what runs bytecode: plain, fast, native or auto; None: JITREE_TIER of the environment.
        ``executable_plugins``: where executables find functions that they import: paths of plugin libraries
        (``embedded:path`` for embedded ELF), or mappings of names to C functions (ctypes, Numba ``cfunc``, an
        address, or a pair of address and context). ``executable_modules``: host modules that VMVX
        executables import beside ``vmvx``. Both are for devices that the session creates.
        ``builtin_modules``: names of host modules that programs may import, None = all there are.
        ``trace_sink``: gets (key, buffer views) of tensors that programs trace; None drops them.
        ``cache_dir``: where this process keeps compiled code; None: JITREE_CACHE_DIR of the environment.
        ``watchdog``: seconds after which a wait or an operation is reported to standard error, with what all
        threads do; for the whole process, see :mod:`jitree.hal.watchdog`. None leaves it as it is.
        ``sandbox``: True for programs of strangers, "process" for native code of theirs (docs/sandbox.md).
        ``zero_memory``: as in a sandbox. ``guard_pages``: reads after a buffer are a status, in a process.
        ``arithmetic``: "strict" has VMVX kernels round products before adding them (docs/arithmetic.md).
        ``prefer``: "vmvx", "llvm-cpu", "fastest" of the executables of modules with both (docs/compiling.md).
        ``check_finite``: True raises NonFiniteError in the first dispatch that makes NaN or infinity,
        "inputs" refuses such arguments as well; for more see :mod:`jitree.observe.finite`.

        NOT_FOUND for an unknown driver, builtin module or missing archive, UNAVAILABLE when no device can be
        created, INVALID_ARGUMENT for an unknown tier or damaged archive, FAILED_PRECONDITION at exit.
        """
        if sys.is_finalizing():
            require_interpreter()
        if cache_dir is not None:
            session_arguments.choose_cache(cache_dir)
        if watchdog is not None:
            start_watchdog(watchdog)
        if tier is not None or instance is not None:
            session_arguments.require("tier", "the name of a tier", tier, str, NoneType)
            session_arguments.require("instance", "an Instance", instance, Instance, NoneType)
        session_arguments.require("trace_sink", "a function", trace_sink, Callable, NoneType)
        session_arguments.require("flags", "ContextFlags", flags, ContextFlags)
        self._builtins = load_order.chosen(builtin_modules)
        self._owned: list[Device] = []
        self.will_end()
        self._instance = Instance.default() if instance is None else instance
        self._modules: dict[str, Module] = {}
        self._functions: dict[VmFunction, Function] = {}
        self._named: dict[str, Function] = {}
        self._direct_calls: DirectCalls | None = None
        self.trace_sink: TraceSink | None = trace_sink
        """Gets key and buffer views of tensors that programs trace."""
        if zero_memory is not False or guard_pages is not False:
            session_arguments.require_memory(zero_memory, guard_pages)
        self._preference = session_arguments.preference(prefer, sandbox, arithmetic)
        own = tier, executable_plugins, executable_modules, arithmetic
        self._arithmetic, self._packs = arithmetic, list[object]()
        self._sandbox = session_arguments.create_sandbox(sandbox, limits, *own)
        self.loaders: tuple[ExecutableLoader, ...] = (
            self._instance.loaders_with(*own) if self._sandbox is None else self._sandbox.loaders
        )
        """Make executables for the devices that it creates."""
        self.parameter_providers: tuple[ParameterProvider, ...] = session_arguments.open_parameters(
            parameters, self._sandbox is not None
        )
        """Where programs find parameters by scope and key."""
        if load_order.HAL in self._builtins and (tier or default_tier()) in WAITING_TIERS:
            load_order.start_hal()
        if self._sandbox is None:
            self._context = Context(self._instance.ref_types, tier=tier, flags=flags)
        else:
            self._context = self._sandbox.context(self._instance.ref_types, flags)
        calls = self._context.invoker
        calls.watch_gate, calls.submissions, calls.end_call = watch_gate, interrupts, interrupts.end_call
        self._closed = self._has_ended = False
        try:
            if load_order.HAL in self._builtins:
                load_order.prepare_hal(self._context.tier)
            self._devices = open_devices(
                device, self._instance, self.loaders, self._owned, self._sandbox, zero_memory
            )
            watch_calls(self._context.table)  # devices look at the environment
            if load_order.HAL in self._builtins:
                self._context.register([load_order.BUILTIN_MODULES[load_order.HAL](self)])
            if "opentelemetry.sdk.trace" in sys.modules:
                self._trace()
            if check_finite is not False:
                self.check_finite(check_finite)
        except BaseException:
            self.close()
            raise

    # -- what it consists of ---------------------------------------------------------------------------

    @property
    def instance(self) -> Instance:
        """What it shares with other sessions: drivers, loaders, reference types."""
        return self._instance

    @property
    def context(self) -> Context:
        """The VM context: modules, functions, calls without any conversion."""
        return self._context

    @property
    def device(self) -> Device:
        """The first device: where arrays are made and what calls without a device run on."""
        return self._devices[0]

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices, in the order in which they were given."""
        return self._devices

    @property
    def device_allocator(self) -> Allocator:
        """Allocates memory that the first device uses."""
        return self.device.device_allocator

    @property
    def host_allocator(self) -> Allocator:
        """Allocates memory of the host that the first device can reach."""
        return self.device.host_allocator

    @property
    def modules(self) -> dict[str, Module]:
        """The loaded modules by name, in the order in which they were loaded."""
        return dict(self._modules)

    @property
    def tier(self) -> str:
        """What runs bytecode: ``plain``, ``fast``, ``native`` or ``auto``."""
        return self._context.tier

    # -- loading -----------------------------------------------------------------------------------------

    @overload
    def load(self, source: Loaded, /, *, compiled: Compiled = None) -> Module: ...

    @overload
    def load(
        self, first: Loaded, second: Loaded, /, *others: Loaded, compiled: Compiled = None
    ) -> tuple[Module, ...]: ...

    @overload
    def load(self, *sources: Loaded, compiled: Compiled = None) -> Module | tuple[Module, ...]: ...

    @folded
    @memory_errors("loading modules")
    def load(self, *sources: Loaded, compiled: Compiled = None) -> Module | tuple[Module, ...]:
        """Loads compiled modules, and gives one module for one source, a tuple for several.

        ``sources``: paths (``-`` is the standard input), bytes-like objects, open binary files. Modules that
        are read already may be among them, and files that make some (``m.py@create?key=value``).

        They may import from one another, in any order that resolves, and from those that are loaded already.
        When any of them fails none is loaded, and the session is as it was. ``compiled``: their machine code
        (``jitree cache pack``, docs/containers.md).

        NOT_FOUND for a missing file, dependency or import, INVALID_ARGUMENT for a file that is no module or
        damaged and for modules that import from one another in a circle, ALREADY_EXISTS for a second module
        of one name, INTERNAL for a function of another signature than the import states, or what a module's
        initialiser fails with.

        >>> session = jitree.Session("local-sync")
        >>> digits = session.load("examples/digits/digits.vmvx.vmfb")
        >>> digits.names
        ('classify',)
        """
        self._require_open()
        if not sources:
            raise InvalidArgumentError("load: no module was given; pass a path, bytes or an open binary file")
        with session_arguments.loading(self._sandbox):
            modules = self._register_new([self._read(source) for source in sources], compiled)
        return modules[0] if len(modules) == 1 else modules

    @folded
    @memory_errors("linking modules")
    def link(self, *sources: Loaded, compiled: Compiled = None) -> tuple[Module, ...]:
        """As :meth:`load`, of modules whose names others may have; gives a tuple.

        From then on a name means the last module that has it, here and in what is loaded later. The modules
        that this gives call their own functions. ``compiled`` and errors are those of :meth:`load`, but for
        ALREADY_EXISTS.
        """
        self._require_open()
        with session_arguments.loading(self._sandbox):
            loaded = [self._read(source) for source in sources]
            return self._register(load_order.fitting(self, loaded), self._context.modules, compiled)

    @folded
    def append_module(self, module: ModuleLike) -> Module:
        """Registers a host module, or a compiled one that has been read; others may import from it then.

        ``module``: a :class:`jitree.HostModule`, or :attr:`Module.vm_module` of another session.
        ALREADY_EXISTS for a second module of one name, INVALID_ARGUMENT for what is no module.
        """
        self._require_open()
        session_arguments.require("module", "a module that has been read", module, BytecodeModule, HostModule)
        with session_arguments.loading(self._sandbox):
            return self._register_new([module])[0]

    def _read(self, source: Loaded) -> ModuleLike:
        own = self._sandbox
        return read_module(source, self._instance.ref_types) if own is None else own.read(source)

    def _register_new(self, loaded: Modules, compiled: Compiled = None) -> tuple[Module, ...]:
        present = self._context.modules
        return self._register(load_order.admitted(self, loaded, present), present, compiled)

    def _register(self, loaded: Modules, present: Modules, compiled: Compiled = None) -> tuple[Module, ...]:
        sandbox, machine_code = self._sandbox, session_arguments.machine_code
        packs = () if compiled is None else machine_code(compiled, loaded, self._arithmetic, sandbox)
        if self._preference is not None:
            loaded = [self._preference.chosen(self, module) for module in loaded]
        names = [module.name for module in (*present, *loaded)]
        with (load_order.explained if sandbox is None else sandbox.registering)(self._devices, loaded):
            builtins = load_order.builtins_for(self, self._builtins, loaded, names)
            self._context.register([*builtins, *load_order.ordered(loaded)])
        modules = tuple(Module(self, module) for module in loaded)
        self._modules.update((module.name, module) for module in modules)
        self._packs += packs
        self._named.clear()
        if self._replacements is not None:
            self._replacements.extend()
        return modules

    # -- calling -----------------------------------------------------------------------------------------

    def lookup(self, name: str) -> Function:
        """Finds the exported function ``module.function``.

        ``name``: with that of its module. NOT_FOUND with what there is instead, INVALID_ARGUMENT for what is
        no text.

        >>> session = jitree.Session("local-sync")
        >>> digits = session.load("examples/digits/digits.vmvx.vmfb")
        >>> session.lookup("module.classify") is digits.classify
        True
        """
        self._require_open()
        session_arguments.require_name(name)
        function = self._named.get(name)
        if function is None:
            function = self._named[name] = self._found(lambda context: context.lookup(name))
        return function

    def function_of(self, module: ModuleLike, name: str) -> Function:
        """Finds the exported function of this very module, whatever others are called.

        ``module``: as :attr:`Module.vm_module` gives it; ``name``: without that of the module. NOT_FOUND as
        :meth:`lookup`.
        """
        return self._found(lambda context: context.function_of(module, name))

    def _found(self, find: Callable[[Context], VmFunction]) -> Function:
        """The function that a context has. Another thread that reloads the session exchanges those that are
        noted here, so one that is new is noted while no thread can do that."""
        self._require_open()
        function: Function | None = None
        with suppress(NotFoundError):  # in a context that is on its way out
            function = self._functions.get(find(self._context))
        while function is None:
            context = self._context
            with context.invoker.entrance():
                if context is self._context:
                    context.invoker.require_open()
                    vm_function = find(context)
                    function = self._functions.get(vm_function)
                    if function is None:
                        function = self._seen(create_function(self, vm_function))
                        self._functions[vm_function] = function
        return function

    @folded
    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Calls ``module.function`` with arrays and numbers; see :class:`Function`.

        ``name``: of the function, with that of its module. NOT_FOUND as :meth:`lookup`; other errors are
        those of the call.

        >>> session = jitree.Session("local-sync")
        >>> digits = session.load("examples/digits/digits.vmvx.vmfb")
        >>> session.call("module.classify", np.zeros((8, 8), np.float32)).shape
        (10,)
        """
        return self.lookup(name)(*arguments, **named)

    @folded
    def prepare(self, name: str) -> Function:
        """Finds a function for many calls from any thread: the attribute of its module. See also
        :class:`Call`.

        ``name``: ``module.function``. NOT_FOUND as :meth:`lookup`. ``session["module.function"]`` is the
        same.

        >>> session = jitree.Session("local-sync")
        >>> digits = session.load("examples/digits/digits.vmvx.vmfb")
        >>> session["module.classify"].results[0].type
        'tensor<10xf32>'
        """
        return self.lookup(name)

    __getitem__ = prepare

    @folded
    def call_direct(self, function: str | Function | VmFunction, *arguments: Any) -> list[Any]:
        """Calls a function with VM values, and returns a list of such.

        Those are numbers, buffer views, fences, lists and None. ``function``: one of a module, or its name.
        Only number and register kind of the arguments are checked (INVALID_ARGUMENT); nothing is converted or
        waited for. Other errors are those of the program.
        """
        self._require_open()
        if isinstance(function, str):
            function = self._context.lookup(function)
        elif isinstance(function, Function):
            function = function.vm_function
        session_arguments.require("function", "a function or its name", function, VmFunction)
        return self._context.invoke(function, arguments)

    @folded
    def to_device(self, value: Any, *, copy: bool | None = None) -> Array:
        """Makes an array on the session's first device, with a value's shape and type.

        ``value``: a numpy or DLPack array, a buffer producer, a number or nested sequences. Arrays in the
        memory of that device (PyTorch, CuPy) are used in place, others copied. ``copy``: True copies those
        too, False uses memory of the host in place as well: what either changes both see.

        INVALID_ARGUMENT for element types that programs cannot have, for sequences of no one shape, and
        memory that cannot be used.

        >>> session = jitree.Session("local-sync")
        >>> session.to_device(np.arange(6, dtype=np.int32).reshape(2, 3))
        jitree.Array(2x3 int32 on local-sync:
        [[0, 1, 2],
         [3, 4, 5]])
        """
        self._require_open()
        calls = self._direct_calls
        if calls is not None and type(value) is np.ndarray and copy is None:
            found = calls.place(value)
            if found is not None:
                return found
        return placed(value, self.device, copy)

    @folded
    def empty(self, shape: session_arguments.Shape, dtype: npt.DTypeLike = np.float32) -> Array:
        """Makes an array on the first device with whatever its memory holds, for ``out=``.

        ``shape``: elements along each axis, or a number for one axis. ``dtype``: as numpy takes it.
        INVALID_ARGUMENT for what is no shape, and element types that programs cannot have, OUT_OF_RANGE for
        negative sizes.

        >>> session = jitree.Session("local-sync")
        >>> array = session.empty((2, 3), np.int32)
        >>> array.shape, array.nbytes
        ((2, 3), 24)
        """
        self._require_open()
        return Array(
            empty(session_arguments.dimensions(shape), session_arguments.element_row(dtype), self.device),
            self.device,
        )

    def call_by_machine_code(self, function: Function) -> tuple[bool, DirectCall | None]:
        """Makes machine code of the usual calls of ``function``, for the function itself.

        It gives whether that is settled, and what calls it (:meth:`DirectCalls.prepare`). FAILED_PRECONDITION
        in a closed session.
        """
        if self._sandbox is not None and self._sandbox.limits_calls:
            return True, None
        with self._context.invoker.lock:  # to the end: what is prepared is of one context
            if (calls := self._direct_calls) is None:
                from jitree.api.calls.native.session import DirectCalls

                calls = self._direct_calls = DirectCalls(self.device)
            return calls.prepare(function)

    @property
    def sandbox(self) -> Sandbox | None:
        """What limits the programs; None where nothing does."""
        return self._sandbox

    def _drop_blocks(self) -> None:
        for function in tuple(self._functions.values()):
            function.forget()
        if self._direct_calls is not None:
            self._direct_calls.collect()

    @folded
    def close(self) -> None:
        """Drops the modules with their state and ends the devices that the session created.

        It waits for calls in progress; arrays of programs stay valid. Again, it does what an interrupt has
        left. FAILED_PRECONDITION in a call of the session, by a host function: the session stays open then.

        >>> session = jitree.Session("local-sync")
        >>> session.close()
        >>> session.closed
        True
        """
        if self._has_ended:
            return
        try:
            self._drop_blocks()
            self._stop_looking()
            self._context.close()
        finally:
            self._closed = self._context.invoker.closed
            if self._closed:
                self._end_parts()

    def _end_parts(self) -> None:
        self._end_replacements()
        for function in self._functions.values():
            function.close()
        if (calls := self._direct_calls) is not None:
            with self._context.invoker.entrance():  # a thread that finds it closed, or closes it, may have it
                calls.close()
            self._direct_calls = None
        for part in (*self._owned, self._sandbox):
            if part is not None:
                part.close()
        self._modules, self._functions, self._named = {}, {}, {}
        self._has_ended = self._context.has_ended
        give_back_much_free_memory()

    def _require_open(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._closed or is_finalizing():
            require_interpreter()
            raise FailedPreconditionError("the session has been closed")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def end(self) -> None:
        """Ends it as :meth:`close` does, when nothing refers to it any more."""
        self.close()
        self.__dict__.clear()  # the last that refers to modules and devices: functions refer to the session

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"modules: {printable(', '.join(self._modules)) or 'none'}"
        return f"<jitree.Session on {', '.join(device.uri for device in self._devices)}; {state}>"


class Instance(Resources):
    """What sessions share. Sessions of one instance can exchange arrays and other references.

    Most programs need only the default instance: :meth:`Instance.default`. It may be used from several
    threads. INVALID_ARGUMENT for what is no registry and no loader.

    >>> instance = jitree.Instance.default()
    >>> [name for name, _ in instance.drivers()][:2]
    ['local-sync', 'local-task']
    """

    def create_session(self, device: DeviceChoice = None, **options: Unpack[SessionOptions]) -> Session:
        """Makes a session on this instance; arguments and errors as of :class:`jitree.Session`.

        ``device``: a URI, a device, several of either, None for the first that can be created; ``options``:
        by name.
        """
        return Session(device, instance=self, **options)

    @staticmethod
    def default() -> Instance:
        """The instance of sessions that are not given one."""
        return _default_instance()


@once
def _default_instance() -> Instance:
    return Instance()


@overload
def load(
    source: Loaded,
    /,
    *,
    device: DeviceChoice = None,
    compiled: Compiled = None,
    **options: Unpack[SessionOptions],
) -> Module: ...


@overload
def load(
    first: Loaded,
    second: Loaded,
    /,
    *others: Loaded,
    device: DeviceChoice = None,
    compiled: Compiled = None,
    **options: Unpack[SessionOptions],
) -> tuple[Module, ...]: ...


@overload
def load(
    *sources: Loaded,
    device: DeviceChoice = None,
    compiled: Compiled = None,
    **options: Unpack[SessionOptions],
) -> Module | tuple[Module, ...]: ...


@folded
def load(
    *sources: Loaded, device: DeviceChoice = None, compiled: Compiled = None, **options: Any
) -> Module | tuple[Module, ...]:
    """Loads modules into a new session, which lives as long as they are used; see :meth:`Session.load`.

    ``sources`` and ``compiled`` are those of :meth:`Session.load`; ``device`` (``local-sync``,
    ``local-task``, ``cuda://0``; None: the first that can be created) and ``options`` those of
    :class:`Session`. One source gives its module, several a tuple. Errors are those of both.

    >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb", device="local-sync")
    >>> digits.classify(np.zeros((8, 8), np.float32)).shape
    (10,)
    """
    session = Session(device, **options)
    try:
        return session.load(*sources, compiled=compiled)
    except BaseException:
        session.close()
        raise
