"""Modules and functions as Python programs use them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from jitree.api.calls import packing
from jitree.api.calls.declaration import TORCH_ASYNC_SUFFIX, Parameter, Signature, signature_of
from jitree.api.calls.number_packing import describe
from jitree.api.calls.transfers import lend_or_copy, own
from jitree.base.endings import require_interpreter
from jitree.base.identity import Unique
from jitree.dispatch.function import Function as VmFunction
from jitree.errors import InvalidArgumentError, NotFoundError, StatusError
from jitree.hal.buffer import BufferView

if TYPE_CHECKING:
    import inspect

    from jitree.api.calls.native.direct import DirectCall
    from jitree.api.session import Session
    from jitree.dispatch.context import ModuleLike
    from jitree.dispatch.invocation import Invoker
    from jitree.hal.fence import Fence
    from jitree.vmfb.schema import Dependency

OUT: Final = "out"
"""The keyword of calls that names the storage of their results."""
_POSTPONED: Final = {2: 3, 3: 64}
"""The calls after which direct calls are prepared, and to which one that is put off when the call takes long.
Programs do things once in their second call, too."""
_LONG_SECONDS: Final = 0.002
"""Preparing direct calls takes up to 10 ms, once, and saves some 10 us a call. Of a function that computes
for longer than this, none of the first calls is to take several times as long as the others."""
_HIDDEN: Final = "__"
"""How names begin that are not for callers: ``__init`` and the like."""


class _PythonSignature:
    """``__signature__`` of functions, which :func:`inspect.signature` looks for."""

    def __get__(self, function: Function | None, owner: type) -> inspect.Signature:
        if function is None:
            raise AttributeError("a class has no declaration")
        import inspect  # 5 ms, and only tools need it

        is_named = all(parameter.name.isidentifier() for parameter in function.arguments)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if is_named else inspect.Parameter.POSITIONAL_ONLY
        return inspect.Signature([
            inspect.Parameter(name if name.isidentifier() else f"argument{index}", kind, annotation=declared)
            for index, (name, declared) in enumerate((item.name, item.type) for item in function.arguments)
        ])  # fmt: skip


class Function(Unique):
    """An exported function: call it with arrays and numbers.

    No result gives None, one gives the value, more give a tuple. It may be called from several threads, and
    keeps its session alive.
    """

    __slots__ = (
        "__weakref__", "_argument_count", "_calls", "_context", "_device", "_direct", "_direct_after",
        "_is_settled", "_packers", "_result_count", "_session", "_unpackers", "_vm_function", "signature",
    )  # fmt: skip

    __signature__ = _PythonSignature()
    signature: Signature
    """Names and types of arguments and results."""

    def __init__(self, session: Session, vm_function: VmFunction, signature: Signature) -> None:
        self.signature = signature
        self._session = session
        self._context = session.context
        self._device = session.device
        self._direct: DirectCall | None = None
        """By which machine code calls it. Another thread may be in such a call."""
        self._calls = 0
        """Those made the general way."""
        self._direct_after = min(_POSTPONED)
        self._is_settled = False
        """Whether machine code calls it, or never will."""
        self._vm_function = vm_function
        convention = vm_function.convention
        self._packers = tuple(
            packer.pack
            for packer in packing.packers(
                signature, convention.arguments, self.transfer(), self._context.ref_types
            )
        )
        self._argument_count = len(self._packers)
        self._unpackers = packing.unpackers(signature, convention.results)
        self._result_count = len(self._unpackers)

    def transfer(self) -> packing.ArrayTransfer:
        """How arrays of a call reach the device."""
        return packing.ArrayTransfer(self._device, packing.ready_view, lend_or_copy)

    @property
    def name(self) -> str:
        return self._vm_function.name

    @property
    def full_name(self) -> str:
        """``module.function``"""
        return self._vm_function.full_name

    @property
    def declaration(self) -> str:
        """As the compiler declared it, else from the calling convention."""
        return self.signature.declaration

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        return self.signature.arguments

    @property
    def results(self) -> tuple[Parameter, ...]:
        return self.signature.results

    @property
    def cconv(self) -> str:
        """The calling convention: ``0rI_r``."""
        return self._vm_function.cconv

    @property
    def reflection(self) -> dict[str, str]:
        """Attributes that the compiler attached."""
        return dict(self._vm_function.attrs)

    @property
    def vm_function(self) -> VmFunction:
        """For ``session.call_direct`` and ``session.context``."""
        return self._vm_function

    @property
    def session(self) -> Session:
        return self._session

    @property
    def invoker(self) -> Invoker:
        """What runs the calls of the session."""
        return self._context.invoker

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Calls the function and waits for its results.

        Arguments may be given by the names of the declaration. ``out=`` gives the memory of results, in
        place of the arguments that the compiler made for it (:mod:`jitree.api.calls.storage_arguments`).
        INVALID_ARGUMENT, naming the argument, for what it does not take; whatever the program fails with.
        """
        return self.call_general(arguments, named)

    def call_general(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A call of any kind. From the third one on machine code makes those that it can
        (:mod:`jitree.api.calls`); where calls take long it begins later."""
        begun = time.thread_time()
        result = self._call_once(arguments, named)
        self._have_called(begun)
        return result

    def _have_called(self, begun: float) -> None:
        """A call was made the general way; ``begun`` is the thread's time when it began."""
        self._calls = calls = self._calls + 1  # other threads count, too: it is looked at once
        later = _POSTPONED.get(calls)
        if later is not None and time.thread_time() - begun > _LONG_SECONDS:
            self._direct_after = later
        if (
            calls >= self._direct_after
            and not self._is_settled
            and self.invoker.watch_call is None
            and self.invoker.engine.entry is not None
        ):
            from jitree.api.calls.native.direct import install

            self._is_settled = install(self)

    def _call_once(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return self._unpack(self._invoke(self._pack(arguments, named)))

    @property
    def is_direct(self) -> bool:
        """Whether machine code makes the usual calls."""
        return self._direct is not None

    def call_directly(self, direct: DirectCall) -> None:
        """Has machine code make the calls that it can."""
        self._direct = direct

    def forget(self) -> None:
        """Drops what earlier calls have left for later ones, if that takes memory."""

    def close(self) -> None:
        """The session is closed: drops all that calls need."""
        self.forget()
        self._direct = None

    async def async_(self, *arguments: Any, **named: Any) -> Any:
        """As a plain call, awaiting what the program waits for. Calls of one event loop begin in turn."""
        from jitree.api.turnstile import pass_through

        await pass_through()
        packed = self._pack(arguments, named)
        try:
            results = await self._context.invoke_async(self._vm_function, packed)
        except StatusError as error:
            self._fail(error)
        return self._unpack(results)

    def submit(self, *arguments: Any, **named: Any) -> Any:
        """Starts the call and returns its results, which may still be computed.

        Functions that were not compiled to be asynchronous are waited for."""
        return self(*arguments, **named)

    def _pack(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[object]:
        require_interpreter()
        if named:
            arguments = self.in_order(*arguments, **named)
        if len(arguments) != self._argument_count:
            raise self._in_call(
                InvalidArgumentError(f"expected {self._argument_count} arguments but passed {len(arguments)}")
            )
        try:
            if packing.Donation in map(type, arguments):
                return self._pack_donations(arguments)
            return [pack(value) for pack, value in zip(self._packers, arguments, strict=False)]
        except StatusError as error:
            self._in_call(error)
            raise

    def _pack_donations(self, arguments: tuple[Any, ...]) -> list[object]:
        from jitree.api.calls.donations import give_up, require_once

        parameters = self.signature.arguments
        require_once(parameters, arguments)
        packed = [pack(value) for pack, value in zip(self._packers, arguments, strict=True)]
        give_up(parameters, arguments, packed)
        return packed

    def _invoke(self, packed: list[object]) -> list[Any]:
        try:
            return self._context.invoke(self._vm_function, packed)
        except StatusError as error:
            self._fail(error)

    def _unpack(self, results: list[Any], fence: Fence | None = None) -> Any:
        results = [own(value, self._device) if type(value) is BufferView else value for value in results]
        if self._result_count == 1:
            return self._unpackers[0](results[0], self._device, fence)
        if not results:
            return None
        return tuple(
            unpack(value, self._device, fence) for unpack, value in zip(self._unpackers, results, strict=True)
        )

    def in_order(self, /, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        """The arguments of a call in the order of the declaration. INVALID_ARGUMENT for names that it does
        not have, those given twice, and missing ones."""
        names = [parameter.name for parameter in self.signature.arguments]
        if OUT in named and OUT not in names:
            return self._with_storage(arguments, named)
        values = dict(zip(names, arguments, strict=False))
        for name, value in named.items():
            if name not in names or name in values:
                what = (
                    "given twice" if name in values else f"unknown; there are: {', '.join(names) or 'none'}"
                )
                raise self._in_call(InvalidArgumentError(f"argument '{name}' is {what}"))
            values[name] = value
        missing = [name for name in names if name not in values]
        if missing:
            raise self._in_call(
                InvalidArgumentError(
                    f"expected {len(names)} arguments but passed {len(values)}; missing: {', '.join(missing)}"
                )
            )
        return (*(values[name] for name in names), *arguments[len(names) :])

    def _with_storage(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments of a call with ``out=``: the others by position are those that are no storage."""
        from jitree.api.calls.storage_arguments import storage_of

        others = {name: value for name, value in named.items() if name != OUT}
        try:
            storage = storage_of(self.signature, named[OUT], self._device)
        except StatusError as error:
            self._in_call(error)
            raise
        given = [parameter.name for parameter in self.signature.arguments if parameter.name not in storage]
        if len(arguments) > len(given):
            raise self._in_call(
                InvalidArgumentError(f"expected {len(given)} arguments and {OUT} but passed {len(arguments)}")
            )
        return self.in_order(**dict(zip(given, arguments, strict=False)), **others, **storage)

    def _in_call(self, error: StatusError) -> StatusError:
        return error.with_context(f"invoking function '{self.name}'").with_context(f"`{self.declaration}`")

    def _fail(self, error: StatusError) -> NoReturn:
        raise error.with_context(f"`{self.declaration}`")

    def __repr__(self) -> str:
        return f"<jitree.Function {self.full_name}: {self.declaration}>"


class Call(Unique):
    """A function with the inputs and the outputs of one call, for one thread at a time: fill ``inputs``,
    ``invoke()``, take ``outputs``, and again."""

    def __init__(self, function: Function) -> None:
        if not isinstance(function, Function):
            raise InvalidArgumentError(f"Call: expected a jitree.Function but got {describe(function)}")
        self.function = function
        self.inputs: list[Any] = []
        """Arguments of the next :meth:`invoke`."""
        self.outputs: list[Any] = []
        """Results of the last one."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """As the function itself."""
        return self.function(*arguments, **named)

    def push(self, value: Any) -> None:
        """Appends an argument."""
        self.inputs.append(value)

    def pop(self) -> Any:
        """Takes the first result that is left. OUT_OF_RANGE as IndexError when there is none."""
        return self.outputs.pop(0)

    def invoke(self) -> None:
        """Calls the function with ``inputs``; its results are in ``outputs`` then."""
        self.outputs = []
        results = self.function(*self.inputs)
        count = len(self.function.results)
        self.outputs = [] if count == 0 else [results] if count == 1 else list(results)

    def reset(self) -> None:
        """Drops inputs and outputs."""
        self.inputs = []
        self.outputs = []

    def __repr__(self) -> str:
        return f"<jitree.Call of {self.function.full_name}>"


class Module(Unique):
    """A module loaded into a session: its exported functions are attributes and items."""

    def __init__(self, session: Session, module: ModuleLike) -> None:
        self._session = session
        self._module = module
        self._functions: dict[str, Function] = {}
        self._names = tuple(name for name in module.export_names() if not name.startswith(_HIDDEN))

    @property
    def name(self) -> str:
        return self._module.name

    @property
    def version(self) -> int:
        return self._module.version

    @property
    def session(self) -> Session:
        return self._session

    @property
    def names(self) -> tuple[str, ...]:
        """Exported functions, without ``__init`` and the like."""
        return self._names

    @property
    def signatures(self) -> dict[str, Signature]:
        """The signature of every exported function."""
        return {name: self[name].signature for name in self._names}

    @property
    def reflection(self) -> dict[str, str]:
        """Attributes that the compiler attached to the module."""
        return {attr.key: attr.value for attr in self._module.attrs}

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """Modules that it needs, with their minimum versions."""
        return tuple(self._module.dependencies)

    @property
    def vm_module(self) -> ModuleLike:
        return self._module

    def __getitem__(self, name: str) -> Function:
        """An exported function by its name, with or without the module's. NOT_FOUND with those there are."""
        if not isinstance(name, str):
            raise NotFoundError(
                f"functions of module '{self.name}' have names, not {type(name).__name__} keys"
            )
        function = self._functions.get(name)
        if function is None:
            local = name.removeprefix(f"{self.name}.") if name not in self._names else name
            if local not in self._names:
                raise NotFoundError(
                    f"no function '{name}' exported by module '{self.name}'; it exports "
                    f"{', '.join(self._names) or 'none'}"
                )
            function = self._functions[name] = self._session.lookup(f"{self.name}.{local}")
        return function

    def __getattr__(self, name: str) -> Function:
        if name.startswith("_") or name not in self._names:
            raise AttributeError(
                f"module '{self.name}' has no attribute or function '{name}'; it exports "
                f"{', '.join(self._names) or 'none'}"
            )
        function = self[name]
        self.__dict__[name] = function  # the next look-up does not come here
        return function

    def __dir__(self) -> Sequence[str]:
        return sorted({*super().__dir__(), *self._names})

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._names

    def __repr__(self) -> str:
        """Also of a module whose session is closed or closes meanwhile, or that is not loaded completely."""
        try:
            lines = [f"  {self[name].declaration}" for name in self._names]
        except StatusError as error:
            lines = [f"  {', '.join(self._names)}; {error.message}"]
        return "\n".join([f"<jitree.Module {self.name} of {len(self._names)} functions", *lines]) + ">"


def create_function(session: Session, vm_function: VmFunction) -> Function:
    """The function as Python calls it: by its calling convention and what the compiler declared."""
    signature = signature_of(vm_function.name, vm_function.convention, vm_function.attrs)
    if signature.fences:
        from jitree.api.asynchronous import AsynchronousFunction

        return AsynchronousFunction(session, vm_function, signature)
    if vm_function.name + TORCH_ASYNC_SUFFIX in vm_function.module.export_names():
        from jitree.api.asynchronous import PairedFunction

        return PairedFunction(session, vm_function, signature)
    if hasattr(session.device, "replays") and len(session.devices) == 1:
        from jitree.api.replay import ReplayingFunction

        return ReplayingFunction(session, vm_function, signature)
    return Function(session, vm_function, signature)
