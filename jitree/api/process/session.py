"""Runs the programs of a session in a separate process.

Modules and functions here stand for those of the child, and have a part of what they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from jitree import errors
from jitree.api.calls.declaration import TIMEOUT
from jitree.api.function import Function
from jitree.api.load_order import chosen
from jitree.api.module import Module
from jitree.api.process import messages
from jitree.api.process.worker import Child
from jitree.api.sandbox import (
    LOAD_TIME,
    TIME,
    WORD,
    Limits,
    check,
    limited_content,
    refuse_machine_code,
    require_local,
)
from jitree.api.session_arguments import (
    Compiled,
    host_array,
    open_parameters,
    require,
    require_arithmetic,
    require_name,
)
from jitree.base.arguments import is_one_of, shown
from jitree.base.cancel_scopes import Scope, deadline
from jitree.base.copying import copy_of
from jitree.base.finalizers import Unique
from jitree.dispatch.host_module import HostModule
from jitree.dispatch.session_lock import CANCELS, ContextGate, Held
from jitree.vmfb.archive import Source, loading, name_of
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.words import FUSED

if TYPE_CHECKING:
    import numpy.typing as npt

_Functions = dict[str, tuple[str, list[str], list[tuple[str, str]], list[tuple[str, str]]]]
"""By name, declarations, names of arguments and what :attr:`jitree.api.function.Function.passed` gives."""


class MissingError(errors.UnimplementedError, AttributeError):
    """``hasattr`` is false, and who asks without looking is told what to do."""


class RemoteProxy(Unique):
    """Stands for an object of a session, with a part of what that has."""

    _replaced: type
    """That class."""

    def __getattr__(self, name: str) -> Any:
        """UNIMPLEMENTED for what only objects of the other class have."""
        if name.startswith("_") or not hasattr(self._replaced, name):
            raise AttributeError(f"a {type(self).__name__} has no attribute '{name}'")
        raise MissingError(
            f"{self._replaced.__name__.lower()}.{name}: the program is in the process of the sandbox, and "
            "there is no such thing outside of it; use sandbox=True, or a session without a sandbox"
        )


class ProcessSession(RemoteProxy):
    """What :class:`jitree.Session` is with ``sandbox="process"``. Results are numpy arrays that cannot be
    written, over memory that the child has shared."""

    def __init__(self, replaced: type, device: Any, options: dict[str, Any]) -> None:
        """``replaced``: the class that was asked for it.

        PERMISSION_DENIED for devices of others, UNIMPLEMENTED for what the child could not have."""
        self._replaced = replaced
        limits = options.pop("limits", None)
        self._guard_pages = options.pop("guard_pages", False)
        require("guard_pages", "True or False", self._guard_pages, bool)
        options.pop("zero_memory", None)  # it is, always
        self._arithmetic = options.pop("arithmetic", FUSED)
        require_arithmetic(self._arithmetic)
        self._builtins = chosen(options.pop("builtin_modules", None))
        self._parameters = open_parameters(options.pop("parameters", ()), sandbox=True)
        given = [name for name, value in options.items() if isinstance(value, np.ndarray) or value]
        if given:
            raise errors.UnimplementedError(
                f"{', '.join(given)}: a sandbox in a separate process has no such option"
            )
        self._device = require_local("local-sync" if device is None else device)
        self._limits = Limits() if limits is None else check(limits)
        if self._limits.instructions is not None:
            raise errors.UnimplementedError(
                "limits: instructions of native code are not counted; limit the time"
            )
        self._gate = _Gate(None)
        self._worker: Child | None = None
        self._sources: list[tuple[str, list[memoryview]]] = []
        self._count = 0
        self._loaded = 0
        self._modules: dict[str, ProcessModule] = {}
        self.closed = False

    @property
    def modules(self) -> dict[str, ProcessModule]:
        return dict(self._modules)

    @property
    def pid(self) -> int | None:
        """The number of the process; None while there is none."""
        return None if self._worker is None else self._worker.pid

    def load(self, *sources: Source, compiled: Compiled = None) -> Any:
        """As :meth:`jitree.Session.load`, of compiled modules."""
        refuse_machine_code(compiled)
        if not sources:
            raise errors.InvalidArgumentError("load: no module was given; pass a path, bytes or an open file")
        modules = self._loaded_by("load", sources)
        return modules[0] if len(modules) == 1 else modules

    def link(self, *sources: Source, compiled: Compiled = None) -> tuple[ProcessModule, ...]:
        """As :meth:`jitree.Session.link`, of compiled modules."""
        refuse_machine_code(compiled)
        return self._loaded_by(messages.LINK, sources)

    def _loaded_by(self, method: str, sources: tuple[Source, ...]) -> tuple[ProcessModule, ...]:
        for source in sources:
            if isinstance(source, (BytecodeModule, HostModule)):
                raise errors.UnimplementedError(
                    f"{method}: module '{source.name}' is an object of this process, and the process of the "
                    "sandbox cannot call its functions; load files and bytes"
                )
        with self._entered(None):
            parts = [self._read(source) for source in sources]
            loaded = self._load(self._alive(), method, parts)
            modules = tuple(
                ProcessModule(self, name, place, functions)
                for place, (name, functions) in enumerate(loaded, self._count)
            )
            self._count += len(modules)
            self._sources.append((method, parts))
            self._modules.update((module.name, module) for module in modules)
        return modules

    deadline = staticmethod(deadline)

    def cancel(self) -> None:
        """Ends calls in progress, on all threads: CANCELLED."""
        self._gate.cancel()

    @contextmanager
    def _entered(self, seconds: float | None) -> Iterator[None]:
        """This thread has the session alone, until the scope ends that this makes."""
        gate = self._gate
        begun = gate.gate[CANCELS]
        if gate.lock._is_owned():  # type: ignore[attr-defined]
            raise errors.FailedPreconditionError("the session is in a call of this thread")
        with Held(gate.lock, gate.wait_at_gate), Scope(seconds, TIME) as scope:
            try:
                gate.is_ended_by(scope, begun)
                if self.closed:
                    raise errors.FailedPreconditionError("the session has been closed")
                yield
            finally:
                gate.waiting.pop(scope, None)

    def _read(self, source: Source) -> memoryview:
        with loading(name_of(source)):
            data = limited_content(source, self._limits.load_size, self._loaded)
        self._loaded += data.nbytes
        return data

    def _load(self, worker: Child, method: str, parts: list[memoryview]) -> list[tuple[str, _Functions]]:
        head: dict[str, Any] = {"load": method, "arguments": [["ui8", [part.nbytes]] for part in parts]}
        with Scope(self._limits.load_time, LOAD_TIME):
            answer = worker.ask(head, parts, "while modules were loaded")
        found: list[tuple[str, _Functions]] = []
        for item in _listed(worker, answer.head.get("modules")):
            match item:
                case [str(name), dict(functions)] if all([_is_described(one) for one in functions.values()]):
                    found.append((name, functions))
                case _:
                    raise _wrong(worker)
        return found

    def call(self, name: str, /, *arguments: Any, **named: Any) -> Any:
        """Calls ``module.function``; see :class:`ProcessFunction`."""
        return self.lookup(name)(*arguments, **named)

    def run(
        self,
        function: ProcessFunction,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        timeout: float | None,
    ) -> Any:
        """What a function gives for arrays, numbers and None."""
        head: dict[str, Any] = {"call": [function.module.place, function.name], "named": [*named]}
        parts = messages.pack((*arguments, *named.values()), "arguments", head)
        with deadline(timeout), self._entered(self._limits.time):
            worker = self._alive()
            answer = worker.ask(head, parts, f"while {function.full_name} ran")
            try:
                results = messages.unpack(answer.head.get("results"), answer.data)
            except errors.DataLossError as error:
                raise _wrong(worker) from error
            if self._limits.output is not None and sum([_size(one) for one in results]) > self._limits.output:
                raise _wrong(worker)
        return None if not results else results[0] if len(results) == 1 else tuple(results)

    def lookup(self, name: str) -> ProcessFunction:
        require_name(name)
        module, _, function = name.partition(".")
        if module not in self._modules:
            raise errors.NotFoundError(
                f"no module '{module}' is loaded; there are: {', '.join(self._modules) or 'none'}"
            )
        return self._modules[module][function]

    __getitem__ = prepare = lookup

    def to_device(self, value: Any, *, copy: bool | None = None) -> npt.NDArray[Any]:
        """Makes an array of numpy that cannot be written. It has the elements of an array, a number or
        sequences as calls take and give them. The process gets
        them with each call.

        INVALID_ARGUMENT for element types that programs cannot have."""
        if self.closed:
            raise errors.FailedPreconditionError("the session has been closed")
        if copy is False:
            raise errors.UnimplementedError(
                "to_device: the process of a sandbox has copies only; leave copy= out"
            )
        array, row = host_array(value)
        elements = copy_of(array, row.dtype)
        elements.flags.writeable = False
        return elements

    finite_check = None
    devices = ()

    def _alive(self) -> Child:
        """The child; a new one with the modules that were loaded if the last one has ended."""
        if self._worker is None or not self._worker.is_alive:
            self._end_worker()
            head, given = messages.pack_parameters(self._parameters)
            size = sum(part.nbytes for part in given)
            own = self._device, self._limits, self._guard_pages, self._arithmetic
            worker = Child(*own, size, self._builtins)
            if self._parameters:
                worker.ask(head, given, "while it was given parameters")
            for method, parts in self._sources:
                self._load(worker, method, parts)
            self._worker = worker
        return self._worker

    def close(self) -> None:
        """Ends the process, and a call in progress with it."""
        self.closed = True
        self._gate.cancel()
        with self._gate.lock:
            self._end_worker()

    def _end_worker(self) -> None:
        """It is forgotten when it has ended: what is interrupted goes on with the next call."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def __enter__(self) -> ProcessSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = errors.printable(", ".join(self._modules)) or "none"
        return f"<jitree.Session in process {self.pid}; modules: {names}>"


class _Gate(ContextGate):
    """That of the session: one call at a time."""

    def lose(self) -> None:
        """A forked child gets a process for itself, which is in no call."""

    def settle(self) -> None:
        """There are no direct calls to allow."""


class ProcessModule(RemoteProxy):
    """A module that the child has loaded; its functions are attributes and items."""

    _replaced = Module

    def __init__(self, session: ProcessSession, name: str, place: int, functions: _Functions) -> None:
        self.session = session
        self.name = name
        self.place = place
        """Among all that the child has loaded."""
        self._functions = functions

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._functions)

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __contains__(self, name: object) -> bool:
        return is_one_of(name, self._functions)

    def __getitem__(self, name: str) -> ProcessFunction:
        if name not in self:
            known = ", ".join(self._functions) or "none"
            raise errors.NotFoundError(
                f"no function {shown(name)} exported by module '{self.name}'; there are: {known}"
            )
        return ProcessFunction(self, name, *self._functions[name])

    def __getattr__(self, name: str) -> ProcessFunction:
        if name.startswith("_") or (name not in self._functions and not hasattr(self._replaced, name)):
            raise AttributeError(f"module '{self.name}' has no function '{name}'")
        return self[name] if name in self._functions else super().__getattr__(name)


class ProcessFunction(RemoteProxy):
    """A function of such a module."""

    _replaced = Function

    def __init__(
        self,
        module: ProcessModule,
        name: str,
        declaration: str,
        arguments: list[str],
        *passed: list[tuple[str, str]],
    ) -> None:
        self.session = module.session
        self.module = module
        self.name = name
        self.full_name = f"{module.name}.{name}"
        self.declaration = declaration
        self.argument_names = arguments
        self.passed = passed
        """The same as :attr:`jitree.api.function.Function.passed`."""

    @errors.folded
    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Takes arrays, numbers and None for a null argument; ``timeout=`` is how many seconds the call may
        take, unless the program has an argument of that name.

        UNIMPLEMENTED for ``out`` and ``workspace``: memory of this process."""
        timeout = None if TIMEOUT in self.argument_names else named.pop(TIMEOUT, None)
        return self.session.run(self, arguments, named, timeout)

    async def async_(self, /, *arguments: Any, **named: Any) -> Any:
        """A call in a thread, which ends with the task that awaits it."""
        import asyncio

        with Scope() as scope:
            try:
                return await asyncio.to_thread(self, *arguments, **named)
            except asyncio.CancelledError:
                scope.end(errors.CancelledError("the task that awaits the call was cancelled"))
                raise

    def submit(self, *arguments: Any, **named: Any) -> NoReturn:
        """UNIMPLEMENTED: calls wait for their results."""
        raise errors.UnimplementedError(
            "calls in a separate process wait for their results; `async_` makes them in another thread"
        )


def _is_described(row: Any) -> bool:
    """Tells whether it is a function's declaration, with names, types and letters of arguments."""
    match row:
        case [str(), [*names], [*arguments], [*results]]:
            return all(isinstance(name, str) for name in names) and all(
                isinstance(pair, list) and [type(text) for text in pair] == [str, str]
                for pair in (*arguments, *results)
            )
    return False


def _size(value: Any) -> int:
    """Bytes of a result, as the child counts them."""
    return value.nbytes if isinstance(value, np.ndarray) else 0 if value is None else WORD


def _listed(worker: Child, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(worker)
    return value


def _wrong(worker: Child) -> errors.AbortedError:
    worker.end()
    return errors.AbortedError(
        "the process of the sandbox sent what no session does; the next call starts another one"
    )
