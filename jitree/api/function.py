"""Calls functions of loaded modules."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import TIMEOUT, Parameter, Signature, pointed_out
from jitree.api.calls.packing import packers, unpacked, unpackers
from jitree.api.calls.tensor_packing import ArrayTransfer, Donation, ordered_view
from jitree.base.arguments import given, is_deep
from jitree.base.cancel_scopes import deadline
from jitree.base.finalizers import Remade, require_interpreter
from jitree.dispatch.function import VmFunction as VmFunction
from jitree.errors import (
    InvalidArgumentError,
    StatusError,
    carried,
    fold,
    folded,
    printable,
    raise_in_place_of,
)
from jitree.hal.buffer import PENDING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager

    from jitree.api.array_conversion import ConvertingFunction
    from jitree.api.calls.argument_order import ArgumentOrder
    from jitree.api.calls.overlaps import Pairs
    from jitree.api.calls.packing import MachineCall, Packs
    from jitree.api.calls.workspace import KnownSizes
    from jitree.base.events import CallEvent, EventReader
    from jitree.dispatch.context import Context
    from jitree.dispatch.invocation import Invoker
    from jitree.hal.device import Device
    from jitree.hal.fence import Fence

    class Owner(Protocol):
        """What functions and modules need of the session that they belong to."""

        @property
        def context(self) -> Context: ...
        @property
        def device(self) -> Device: ...
        @property
        def devices(self) -> tuple[Device, ...]: ...
        @property
        def is_observed(self) -> bool: ...
        def _found(self, find: Callable[[Context], VmFunction]) -> Function: ...
        def call_by_machine_code(self, function: Function) -> tuple[bool, MachineCall | None]: ...


PREPARED_AFTER: Final = 2
"""How many calls are made before direct calls are prepared: many functions are called once."""
_PREPARING_SECONDS: Final = 0.0002
_PREPARING_SHARE: Final = 0.25
"""After them a call spends as much time on preparing machine code of calls as a quarter of what it takes, at
least 0.2 ms."""
_PREPARING_CALLS: Final = 20
"""Calls after so many do more, in proportion: without compiled files it takes ten times as long."""


class _ShownAttribute(tuple[str, Any]):
    """An attribute that tools and people look for: the function of :mod:`jitree.api.showing` that makes it,
    and what the class has."""

    def __get__(self, function: Function | None, owner: type) -> Any:
        maker, of_class = self
        if function is None:
            if of_class is None:
                raise AttributeError("a class has no declaration")
            return of_class
        from jitree.api import showing

        return getattr(showing, maker)(function)


class Function(Remade):
    """An exported function: call it with arrays and numbers. Made by modules: an attribute or item of one.

    No result gives None, one gives the value, more give a tuple. It may be called from several threads, and
    keeps its session alive. A call takes ``out=`` and ``workspace=`` for memory of its own, ``timeout=`` in
    seconds (DEADLINE_EXCEEDED), and arguments by the names of :attr:`declaration`. Types and shapes that it
    does not take are INVALID_ARGUMENT, which names the argument.

    >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
    >>> digits.classify(np.zeros((8, 8), np.float32), timeout=5.0).shape
    (10,)
    """

    __slots__ = (
        "__weakref__", "_argument_count", "_calls", "_context", "_device", "_direct", "_event", "_has_rest",
        "_is_settled", "_order", "_prepared", "_session", "_storing", "_updates", "_vm_function", "devices",
        "known_sizes", "packers", "readers", "signature", "unpackers",
    )  # fmt: skip

    __doc__: Any = _ShownAttribute(("documentation", __doc__))
    __signature__ = _ShownAttribute(("python_signature", None))
    _repr_html_ = _ShownAttribute(("function_html", None))
    signature: Signature
    """Names and types of arguments and results."""
    devices: tuple[Device, ...]
    """The devices of its session."""
    known_sizes: KnownSizes | None
    """How much workspace calls need; None for a function that takes none."""

    def __init__(self, session: Owner, vm_function: VmFunction, signature: Signature) -> None:
        self.signature = signature
        self._session = session
        self._context = session.context
        self._device = session.device
        self.devices = session.devices
        self._prepared: MachineCall | None = None
        """The DirectCall by which machine code calls it."""
        self._direct: MachineCall | None = None
        """The same, unless readers are told of calls. Another thread may be in such a call."""
        self._calls = 0
        """Those made the slow path."""
        self._is_settled = False
        """Whether machine code calls it, or never will."""
        self.readers: tuple[EventReader, ...] = ()
        """Those of its calls."""
        self._event: Callable[..., CallEvent] | None = None
        """Makes what readers are told of a call."""
        self._vm_function = vm_function
        convention = vm_function.convention
        made = packers(signature, convention.arguments, self.transfer(), self._context.ref_types)
        self.packers = tuple(packer.pack for packer in made)
        """What makes VM values of the arguments, one each."""
        self._argument_count = len(self.packers)
        self._order: ArgumentOrder | None = None
        self.unpackers = unpackers(signature, convention.results)
        """What makes Python values of the results."""
        self.known_sizes: KnownSizes | None = None
        if signature.workspace is not None:
            from jitree.api.calls.workspace import KnownSizes  # of few functions

            self.known_sizes = KnownSizes(signature, convention.arguments)
        stores = any(parameter.storage_of is not None for parameter in signature.arguments)
        self._storing = stores and len(signature.arguments) > 1
        self._has_rest = self._storing or self.known_sizes is not None
        """Whether there is something to see to when all arguments are there."""
        self._updates: Pairs | None = None

    @property
    def order(self) -> ArgumentOrder:
        """What puts arguments by name in order."""
        if self._order is None:
            from jitree.api.calls.argument_order import ArgumentOrder

            self._order = ArgumentOrder(self.signature, self._vm_function.name, self._device)
        return self._order

    @property
    def updates_in_place(self) -> Pairs:
        """As :func:`jitree.api.calls.overlaps.find_updates`."""
        if self._updates is None:
            from jitree.api.calls.overlaps import find_updates

            self._updates = find_updates(self._vm_function)
        return self._updates

    def transfer(self) -> ArrayTransfer:
        """How arrays of a call reach the device: what drivers of their own may replace."""
        return ArrayTransfer(self._device, partial(ordered_view, self._device))

    @property
    def name(self) -> str:
        """The name by which its module exports it."""
        return self._vm_function.name

    __name__ = name

    @property
    def full_name(self) -> str:
        """The name with that of its module, ``module.function``, as :meth:`Session.lookup` takes it."""
        return self._vm_function.full_name

    @property
    def declaration(self) -> str:
        """Declares the function as the compiler did, else by its convention.

        It has names, types and shapes of arguments and results; a shape that is left open has ``?``. What the
        program asserts of its tensors is in it where the compiler left no declaration.

        >>> jitree.load("examples/digits/digits.vmvx.vmfb").classify.declaration
        'sync func @classify(%input0: tensor<8x8xf32>) -> (%output0: tensor<10xf32>)'
        """
        if self.signature.declared:
            return self.signature.declaration
        from jitree.api.program_files import declaration_of

        return declaration_of(self._vm_function, self.signature)

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """What a call takes, in order: names, declared types and shapes."""
        return self.signature.arguments

    @property
    def results(self) -> tuple[Parameter, ...]:
        """What a call gives, in order: names, declared types and shapes."""
        return self.signature.results

    @property
    def cconv(self) -> str:
        """The calling convention, ``0rI_r``: ``i I f F`` are numbers of 32 and 64 bits, ``r`` a reference."""
        return self._vm_function.cconv

    @property
    def passed(self) -> tuple[list[tuple[str, str]], ...]:
        """Gives declared types of arguments and results, and what the convention makes of each."""
        convention = self._vm_function.convention
        pairs = (self.arguments, convention.arguments), (self.results, convention.results)
        return tuple([(row.type, str(item)) for row, item in zip(*pair, strict=False)] for pair in pairs)

    @property
    def reflection(self) -> dict[str, str]:
        """Attributes that the compiler attached, by key; ``iree.abi.declaration`` is one."""
        return dict(self._vm_function.attrs)

    @property
    def vm_function(self) -> VmFunction:
        """The function that ``session.call_direct`` and ``session.context`` take."""
        return self._vm_function

    @property
    def session(self) -> Any:
        """The :class:`jitree.Session` that it is in."""
        return self._session

    @property
    def device(self) -> Device:
        """The device that has its arrays."""
        return self._device

    @property
    def invoker(self) -> Invoker:
        """What runs the calls of the session."""
        return self._context.invoker

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Calls the function and waits for its results.

        Arguments may be given by the names of the declaration. ``out=`` gives the memory of results, in
        place of the arguments that the compiler made for it (:mod:`jitree.api.calls.storage_arguments`), None
        nothing. No other array of the host is changed: what the program may write to it gets a copy of.
        ``timeout=`` is how many seconds it may take. INVALID_ARGUMENT, naming the argument, for what it does
        not take, DEADLINE_EXCEEDED, CANCELLED (``session.cancel()``); whatever the program fails with.
        """
        try:
            if named and self.order.limits(named):
                with self._limit(named):
                    return self(*arguments, **named)
            return self.call_slowly(arguments, named)
        except BaseException as error:
            fold(error, given(self.arguments, arguments, named))
            raise

    def _limit(self, named: dict[str, Any]) -> AbstractContextManager[object]:
        """Takes the limit of a call from its arguments."""
        try:
            return deadline(named.pop(TIMEOUT))
        except StatusError as error:
            raise self.in_call(error) from None

    def call_slowly(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Calls in any way; a call as such comes here until machine code makes it.

        ``arguments`` and ``named`` are those of the call, which raises and gives the same. After some,
        machine code makes those that it can (``calls/preparation.py``).
        """
        readers, prepared = self.readers, self._prepared
        if not readers:
            if self._is_settled:
                return self._call_once(arguments, named)
            begun = time.thread_time()
            results = self._call_once(arguments, named)
            self._have_called(begun)
            return results
        assert self._event is not None
        call = self._event(arguments, named)
        try:
            for reader in readers:
                reader.begins(call)
            results = prepared if prepared is None else prepared.make(prepared, *arguments, **named)
            if results is prepared:
                begun = time.thread_time()
                results = self._call_once(arguments, named)
                if not self._is_settled:
                    self._have_called(begun)
            call.results, call.failed = results, False
            return results
        finally:  # also when Ctrl-C comes while it waits for a device
            for reader in readers:
                reader.ends(call)

    def _have_called(self, begun: float) -> None:
        """A call was made the slow path; ``begun`` is the thread's time when it began."""
        self._calls += 1
        if self._calls < PREPARED_AFTER or self._context.invoker.engine.entry is None:
            return
        if any(reader.needs_python for reader in (*self.readers, *self._context.table.readers)):
            return
        from jitree.api.calls.preparation import is_prepared, note_slow

        seconds = max(_PREPARING_SECONDS, _PREPARING_SHARE * (time.thread_time() - begun))
        seconds *= max(1, self._calls / _PREPARING_CALLS)
        if is_prepared(seconds):
            context = self._context
            self._is_settled, self._prepared = self._session.call_by_machine_code(self)
            self._direct = None if self.readers else self._prepared
            if self._is_settled and self._prepared is None:
                note_slow(self.full_name)
            if self._context is not context:  # reloaded meanwhile
                self.leave_machine_code()

    def _call_once(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        direct = self._prepared
        if direct is None or PENDING[0]:
            packed = self._pack(arguments, named)
        else:
            prepared = self._pack(arguments, named, direct.packers)
            results = direct.run(direct, *prepared)
            if results is not NotImplemented:
                return results
            packed = [
                pack(value) if isinstance(value, (np.ndarray, Array)) else value
                for pack, value in zip(self.packers, prepared, strict=True)
            ]
        if PENDING[0]:
            from jitree.api.calls.memory_order import wait_for_turn

            wait_for_turn(self.signature.arguments, packed)
        try:
            results = self._context.invoke(self._vm_function, packed)
        except StatusError as error:
            self._fail(error)
        return unpacked(results, self.unpackers, self.devices, None)

    @property
    def is_direct(self) -> bool:
        """Whether machine code makes the usual calls."""
        return self._direct is not None

    @property
    def is_settled(self) -> bool:
        """Whether calls prepare nothing any more for those after them."""
        return self._is_settled

    def readers_changed(self) -> None:
        """See :class:`jitree.base.events.Source`."""
        from jitree.base.events import FUNCTION, CallEvent

        self._event = partial(CallEvent, FUNCTION, self.full_name)
        if any(reader.needs_python for reader in self.readers):
            self.leave_machine_code()
        self._direct = None if self.readers else self._prepared

    def leave_machine_code(self) -> None:
        """Has Python make the next calls, until machine code may again."""
        self._prepared = self._direct = None
        self._is_settled, self._calls = False, 0

    def forget(self) -> None:
        """Drops what earlier calls have left for later ones, if that takes memory."""

    def close(self) -> None:
        """Drops all that calls need, when the session is closed. Calls fail with FAILED_PRECONDITION then."""
        self.forget()
        self._prepared = self._direct = None

    async def async_(self, /, *arguments: Any, **named: Any) -> Any:
        """As a plain call, awaiting what the program waits for: the event loop goes on meanwhile.

        Calls of one event loop begin in turn. Cancelling the task ends the call. Arguments, results and
        errors are those of a plain call, ``timeout=`` in seconds too.

        >>> import asyncio
        >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
        >>> asyncio.run(digits.classify.async_(np.zeros((8, 8), np.float32))).shape
        (10,)
        """
        try:
            call = self._call_told if self.readers else self._call_async
            if named and self.order.limits(named):
                with self._limit(named):
                    return await call(*arguments, **named)
            return await call(*arguments, **named)
        except BaseException as error:
            fold(error, given(self.arguments, arguments, named))
            raise

    def _call_told(self, /, *arguments: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        """As :meth:`_call_async`; readers that may see several calls at once are told."""
        from jitree.base.events import told

        assert self._event is not None
        readers = [reader for reader in self.readers if reader.reads_awaited]
        return told(readers, self._event(arguments, named), partial(self._call_async, *arguments, **named))

    async def _call_async(self, /, *arguments: Any, **named: Any) -> Any:
        from jitree.api.calls.waiting import Begun
        from jitree.api.event_loop_fairness import running_gate

        gate = running_gate()
        if gate is not None and not gate.is_open():
            await gate.pass_through()
        made = self.attempt(*arguments, **named)
        if made is not NotImplemented:
            return await made if type(made) is Begun else made
        begun = time.thread_time()
        results = await self._invoke_async(*arguments, **named)
        if not self._is_settled:
            self._have_called(begun)
        return results

    def attempt(self, /, *arguments: Any, **named: Any) -> Any:
        """Makes a call by machine code without waiting.

        It takes the arguments of a plain call, and gives the results, a ``Begun`` that gives them, or
        NotImplemented where machine code does not make it; errors are those of a plain call.
        """
        return NotImplemented

    async def _invoke_async(self, /, *arguments: Any, **named: Any) -> Any:
        packed = self._pack(arguments, named)
        try:
            results = await self._take_turn(packed)
        except StatusError as error:
            self._fail(error)
        return self.unpack(results)

    async def _take_turn(self, packed: list[object]) -> list[Any]:
        """Awaits a call's turn: after those in its way, before those that it is in the way of."""
        from jitree.api.calls.memory_order import awaited_use  # of few programs

        call = self._context.invoke_async
        with awaited_use(self._device, self.signature.arguments, packed) as use:
            await use.take_turn()
            results: list[Any] = await use.whenever_it_waits(call(self._vm_function, packed))
            return results

    @folded
    def workspace_size(self, *shapes: Any, **named: Any) -> int:
        """Tells how many bytes ``workspace=`` of a call with some shapes must have.

        ``shapes``: a shape (or an array that has it) for each tensor, the number itself for each number, in
        the order of a call or by name; those that the declaration states may be left out. It is 0 for
        functions that take no such memory. INVALID_ARGUMENT for others, NOT_FOUND for a program that does not
        say it.

        >>> jitree.load("examples/digits/digits.vmvx.vmfb").classify.workspace_size()
        0
        """
        from jitree.api.calls.workspace import workspace_size

        return workspace_size(self, shapes, named)

    def submit(self, *arguments: Any, **named: Any) -> Any:
        """Starts the call and returns its results, which may still be computed.

        The arrays have their shapes at once; what needs the elements waits, and raises what the call failed
        with. Functions that were not compiled to be asynchronous are waited for. Arguments are those of a
        plain call, INVALID_ARGUMENT too.

        >>> session = jitree.Session("local-task")
        >>> program = session.load("tests/data/programs/asynchronous.vmfb")
        >>> doubled, squared = program.two.submit(np.arange(4, dtype=np.float32))
        >>> squared.shape, squared.tolist()
        ((4,), [0.0, 1.0, 4.0, 9.0])
        """
        return self(*arguments, **named)

    def to(self, kind: str) -> ConvertingFunction:
        """The function with arrays of another library as results, in the same shapes.

        ``kind``: "torch", "numpy", "cupy" or "jax". On the CPU drivers they share the memory of the results.
        INVALID_ARGUMENT for another name, UNAVAILABLE where the library is not installed.

        >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
        >>> type(digits.classify.to("numpy")(np.zeros((8, 8), np.float32)))
        <class 'numpy.ndarray'>
        """
        from jitree.api.array_conversion import ConvertingFunction  # few callers use another library

        return ConvertingFunction(self, kind)

    def _pack(
        self, arguments: tuple[Any, ...], named: dict[str, Any], packers: Packs | None = None
    ) -> list[object]:
        """``packers``: of machine code, instead of the function's own."""
        packers = self.packers if packers is None else packers
        require_interpreter()
        if named or len(arguments) < self._argument_count:
            arguments = self.order(*arguments, **named)
        if len(arguments) != self._argument_count:
            counts = f"expected {self._argument_count} arguments but passed {len(arguments)}"
            raise self.in_call(InvalidArgumentError(counts))
        packed, left = None, iter(arguments)
        try:
            if Donation in map(type, arguments):
                return self._pack_donations(arguments, packers)
            packed = [pack(value) for value, pack in zip(left, packers, strict=False)]
            return self._complete(arguments, packed) if self._has_rest else packed
        except StatusError as error:
            count = len(arguments) - sum(1 for _ in left)
            self.in_call(error, count - 1 if packed is None else -1)
            raise
        except RecursionError:
            if not is_deep(arguments):
                raise
            what = "an argument has lists in lists that are in a circle, or deeper than Python's stack"
            raise self.in_call(InvalidArgumentError(what)) from None

    def _pack_donations(self, arguments: tuple[Any, ...], packers: Packs) -> list[object]:
        from jitree.api.calls.overlaps import give_up, require_once

        parameters = self.signature.arguments
        require_once(parameters, arguments)
        packed = [pack(value) for pack, value in zip(packers, arguments, strict=True)]
        packed = self._complete(arguments, packed)
        give_up(parameters, arguments, packed)
        return packed

    def _complete(self, arguments: tuple[Any, ...], packed: list[object]) -> list[object]:
        """What is to be seen to when all arguments are there."""
        if self.known_sizes is not None:
            from jitree.api.calls.workspace import require_enough

            require_enough(self, packed, self.known_sizes)
        if self._storing:
            from jitree.api.calls.overlaps import separated

            return separated(self, arguments, packed)
        return packed

    def unpack(self, results: list[Any], fence: Fence | None = None) -> Any:
        """Makes Python values of ``results``, which the VM returned: arrays, numbers, None.

        Arrays keep their shape; their elements are there when ``fence`` is reached, now without one. It
        raises nothing of the program.
        """
        return unpacked(results, self.unpackers, self.devices, fence)

    def in_call(self, error: StatusError, index: int = -1) -> StatusError:
        """Adds the call to ``error``, a StatusError, which is given back to be raised.

        ``index``: of the argument that is at fault, if it is one. The caret of the message is under it.
        """
        shown = f"`{self.signature.declaration}`" if index < 0 else pointed_out(self.signature, index)
        return error.with_context(f"invoking function '{self.name}'").with_context(shown)

    def _fail(self, error: StatusError) -> NoReturn:
        raise_in_place_of(error, carried(error))
        raise error.with_context(f"`{self.signature.declaration}`")

    def __repr__(self) -> str:
        return printable(f"<jitree.Function {self.full_name}: {self.declaration}>")
