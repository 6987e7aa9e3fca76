"""Calls the functions of a C module in one context.

The call stack has one frame.

The stack of jitree's own bytecode is elsewhere (:mod:`jitree.regs.machine`): a call of a C function sees a
stack with one frame, that of the host. Only the outermost frame is made here; the library makes and removes
those of its functions, and asks ``resolve_state`` for the state of its module.

Loads C modules as host modules.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from jitree import errors
from jitree.base.callbacks import Callback, allocator_address, free, revive, take_kept
from jitree.base.finalizers import Finalizer, SharedWeakValues, uninterrupted
from jitree.dispatch.engine import Pending
from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule, Signal
from jitree.errors import FailedPreconditionError
from jitree.modules.native_library import layout
from jitree.modules.native_library.interface import ModuleInterface, code_of, take_status
from jitree.modules.native_library.layout import CREATE, DEFAULT_CREATE, VERSION, CAllocator, Pair, String
from jitree.modules.native_library.proxy_module import (
    ProxyModule,
    pack_arguments,
    refs_of,
    size_of,
    take_values,
    unpack_values,
)
from jitree.modules.native_library.references import References
from jitree.vmfb.cconv import CallingConvention, parse

if TYPE_CHECKING:
    from jitree.dispatch.function import VmFunction as VmFunction
    from jitree.dispatch.host_module import ModuleContext
    from jitree.regs.ref_types import RefTypes

_STORAGE: Final = 8192
"""Bytes; the library replaces it when it needs more."""
_GUARD: Final = bytes(range(0xA0, 0xB0))
_MOST_FRAMES: Final = 1 << 16

_MOST_IDLE_STACKS: Final = 4


class CallStack:
    """Gives one call at a time a stack. It has to stay where it is."""

    def __init__(self, token: int, resolve_state: int) -> None:
        """``resolve_state`` is called with ``token`` to find the state of a module."""
        self._block = ctypes.create_string_buffer(
            ctypes.sizeof(layout.Stack) + len(_GUARD) + 16 + _STORAGE + len(_GUARD)
        )
        base = ctypes.addressof(self._block)
        self._stack = layout.Stack.from_buffer(self._block)
        self._ending = Finalizer(uninterrupted(partial(_free_storage, self._block)))
        self.address = base
        storage = base + ctypes.sizeof(layout.Stack) + len(_GUARD)
        storage += -storage % 16
        self._guards = (base + ctypes.sizeof(layout.Stack), storage + _STORAGE)
        for guard in self._guards:
            ctypes.memmove(guard, _GUARD, len(_GUARD))
        self._stack.capacity = _STORAGE
        self._stack.storage = storage
        self._stack.resolver_self = token
        self._stack.resolve_state = resolve_state
        self._stack.allocator = layout.CAllocator(None, allocator_address())
        frame = layout.CFrame.from_address(storage)
        frame.size = ctypes.sizeof(layout.CFrame)
        frame.type = layout.FRAME_EXTERNAL
        self._stack.size = frame.size
        self._stack.top = storage

    @property
    def waits(self) -> bool:
        """Whether the function that returned wants to be resumed when something has happened."""
        return bool(layout.CFrame.from_address(self._stack.top).type == layout.FRAME_WAIT)

    def require_left(self) -> None:
        """FAILED_PRECONDITION unless a call that succeeded left the stack as it was."""
        self._require_intact()
        if self._stack.top != self._stack.storage or self._stack.size != ctypes.sizeof(layout.CFrame):
            raise FailedPreconditionError(_layout_text("a function returned without leaving its frame"))

    def unwind(self) -> None:
        """Removes the frames that a failed call has left."""
        self._require_intact()
        base = self._stack.storage or 0
        for _ in range(_MOST_FRAMES):
            top = self._stack.top or 0
            if top == base:
                return
            if not base < top <= base + self._stack.capacity - ctypes.sizeof(layout.CFrame):
                break
            frame = layout.CFrame.from_address(top)
            if frame.cleanup:
                layout.DESTROY(frame.cleanup)(top + layout.FRAME_PUBLIC)
            self._stack.size -= frame.size
            self._stack.top = frame.parent
        raise FailedPreconditionError(_layout_text("its frames are not where they belong"))

    def _require_intact(self) -> None:
        if any(ctypes.string_at(guard, len(_GUARD)) != _GUARD for guard in self._guards):
            raise FailedPreconditionError(_layout_text("memory around the stack was overwritten"))


def _free_storage(block: ctypes.Array[ctypes.c_char]) -> None:
    """Frees the storage of a stack that has ended in ``block``; where the library put it."""
    stack = layout.Stack.from_buffer(block)
    if stack.owns_storage:
        free(stack.storage or 0)


def _layout_text(what: str) -> str:
    return (
        f"the library does not keep to the layout of VM stacks of releases 2023 to 3.13: {what}; build it "
        "against one of these releases"
    )


class LibraryState:
    """Made by ``alloc_state`` or ``fork_state``, freed by :meth:`free`."""

    def __init__(
        self, interface: ModuleInterface, references: References, context: ModuleContext, pointer: int | None
    ) -> None:
        self.interface = interface
        self.references = references
        self.pointer = pointer
        self.failure: BaseException | None = None
        """What a function of another module failed with that C code called last."""
        self._context = weakref.ref(context)
        self._proxy_modules: dict[str, ProxyModule] = {}
        self._stacks: list[CallStack] = []
        self._broken: errors.FailedPreconditionError | None = None
        self._token = next(_tokens)
        _states[self._token] = self

    def free(self) -> None:
        """The context is closed."""
        self.interface.free_state(self.pointer)
        self._stacks.clear()
        self._proxy_modules.clear()
        _states.pop(self._token, None)

    def resolve_import(self, ordinal: int, function: VmFunction | None) -> None:
        """Tells the module what an import of it is; None for an optional one that is missing."""
        if function is None:
            return
        name, version = function.module.name, function.module.version
        host = self._proxy_modules.get(name)
        if host is None:
            host = self._proxy_modules[name] = ProxyModule(name, version, self)
        target = host.add(function)
        self.interface.call("resolve_import", self.pointer, ordinal, target, host.convention(target))

    def invoke(self, function: VmFunction, arguments: Sequence[object]) -> list[Any]:
        """Calls a function of another module for C code."""
        context = self._context()
        if context is None:
            raise errors.FailedPreconditionError("the context is closed")
        return context.invoke(function, arguments)

    def borrow(self, pointer: int, type_word: int) -> object:
        return self.references.borrow(pointer, type_word, self.interface)

    def take(self, pointer: int, type_word: int) -> object:
        return self.references.take(pointer, type_word, self.interface)

    # -- calls -------------------------------------------------------------------------------------------

    def call(self, ordinal: int, convention: CallingConvention, values: Sequence[object]) -> object:
        """Calls an exported function; see :class:`jitree.dispatch.host_export.HostExport`."""
        if self._broken is not None:
            raise errors.FailedPreconditionError(self._broken.message)
        given: list[tuple[int, int]] = []

        def give(value: object) -> tuple[int, int]:
            given.append(self.references.give(value))
            return given[-1]

        try:
            arguments = ctypes.create_string_buffer(pack_arguments(convention, values, give))
        except BaseException:
            for ref in given:
                self.references.release(*ref)
            raise
        running = _Running(self, convention, len(arguments) - 1, arguments)
        function = layout.CFunction(self.interface.address, layout.LINKAGE_EXPORT, ordinal)
        call = layout.CCall(
            function, layout.CSpan(ctypes.addressof(arguments), running.size), running.result_span
        )
        return running.finish(self.interface.begin("begin_call", running.stack.address, call))

    def take_stack(self) -> CallStack:
        if self._stacks:
            return self._stacks.pop()
        return CallStack(self._token, _RESOLVE_STATE.address)

    def give_stack_back(self, stack: CallStack, leave: Callable[[], None]) -> None:
        """FAILED_PRECONDITION, now and for all further calls, if the library spoiled the stack."""
        try:
            leave()
        except errors.FailedPreconditionError as error:
            self._broken = error
            raise
        if len(self._stacks) < _MOST_IDLE_STACKS:
            self._stacks.append(stack)

    def error_of(self, status: int) -> BaseException:
        """The exception for a failed call: that of another module's function if C code passed it on."""
        failure, self.failure = self.failure, None
        revive()
        error = take_status(status)
        assert error is not None
        kept = take_kept()
        if kept is not None:
            return kept
        expected = failure.code if isinstance(failure, errors.StatusError) else errors.StatusCode.UNKNOWN
        if failure is None or error.code != expected:
            return error
        return failure


class _Running:
    """A call between ``begin_call`` and its end."""

    def __init__(
        self,
        state: LibraryState,
        convention: CallingConvention,
        size: int,
        arguments: ctypes.Array[ctypes.c_char],
    ) -> None:
        self.stack = state.take_stack()
        self.size = size
        self._state = state
        self._convention = convention
        self._arguments = arguments
        size = size_of(convention.results)
        self._results = ctypes.create_string_buffer(size + 1)
        self.result_span = layout.CSpan(ctypes.addressof(self._results), size)
        state.failure = None

    def finish(self, status: int) -> object:
        """The results, or what the call failed with; a Pending when the function gave way to others."""
        state = self._state
        if status & layout.CODE_MASK == errors.StatusCode.DEFERRED and not self.stack.waits:
            return Pending(_nothing_to_wait_for, self._resume)
        error: BaseException | None = None
        if status & layout.CODE_MASK == errors.StatusCode.DEFERRED:
            take_status(status)
            error = errors.UnimplementedError(
                "the C function waits for something; C modules can give way but not wait"
            )
        elif status:
            error = state.error_of(status)
        else:
            error = take_kept()
        data = memoryview(self._results).cast("B")[: self.result_span.size]
        self._release_arguments()
        if error is not None:
            unpack_values(self._convention.results, data, state.references.release)
            state.give_stack_back(self.stack, self.stack.unwind)
            raise error
        state.give_stack_back(self.stack, self.stack.require_left)
        values = take_values(self._convention.results, data, state.take, state.references.release)
        return values[0] if len(values) == 1 else tuple(values) if values else None

    def _release_arguments(self) -> None:
        """What the function did not take out of the buffer."""
        for ref in refs_of(self._convention, memoryview(self._arguments).cast("B")[: self.size]):
            self._state.references.release(*ref)

    def _resume(self) -> object:
        if "resume_call" not in self._state.interface:
            raise errors.FailedPreconditionError(
                "the C function gave way but its module has no 'resume_call'"
            )
        interface = self._state.interface
        return self.finish(interface.begin("resume_call", self.stack.address, self.result_span))


def _nothing_to_wait_for(timeout: float | None) -> bool:
    return True


_states: Final[SharedWeakValues[int, LibraryState]] = SharedWeakValues()
_tokens: Final = itertools.count(1)


def _resolve_state(token: int, module: int, out: int) -> int:
    """What code in a library asks when it enters a frame: the state of its module."""
    state = _states.get(token)
    if state is None or module != state.interface.address:
        return int(errors.StatusCode.NOT_FOUND)
    ctypes.c_void_p.from_address(out).value = state.pointer
    return 0


def _not_resolved(error: BaseException, token: int, *_: int) -> int:
    state = _states.get(token)
    if state is not None:
        state.failure = error
    return code_of(error)


_RESOLVE_STATE: Final = Callback(_resolve_state, 3, _not_resolved, int(errors.StatusCode.UNKNOWN))


class ModuleLibrary(Protocol):
    """An open shared library."""

    def symbol(self, name: str) -> int | None: ...


class LibraryModule(HostModule):
    """A module that a function of a shared library creates.

    The library stays open as long as the module, a state of it or an object that it made is used.
    """

    def __init__(
        self,
        library: ModuleLibrary,
        ref_types: RefTypes,
        create: str = "",
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """Calls ``create`` (default ``iree_vm_dynamic_module_create``) with the parameters.

        NOT_FOUND without such a function, INCOMPATIBLE if it knows no interface of version 0.1,
        FAILED_PRECONDITION for what is no module, or what ``create`` failed with.
        """
        self._references = References.of(ref_types)
        create = create or DEFAULT_CREATE
        instance = self._references.instance
        with errors.error_context(f"creating a module by '{create}'"):
            with instance.creating:
                address = _create(library, create, instance.address, parameters or {})
            self._interface = interface = ModuleInterface(address, library)
            self._ending = Finalizer(uninterrupted(partial(instance.end, interface.release)))
            self.name = interface.name
            self.version = interface.version
            self.attrs = interface.attributes()
            self.dependencies = interface.dependencies()
            self.imports = interface.imports()
            self._exports = interface.exports()

    def exports(self) -> Iterable[HostExport]:
        return [
            HostExport(export.name, export.cconv, _caller(ordinal, export.cconv), export.attrs)
            for ordinal, export in enumerate(self._exports)
        ]

    def register_types(self, ref_types: RefTypes) -> None:
        if References.of(ref_types) is not self._references:
            raise errors.FailedPreconditionError(
                f"the C module '{self.name}' was loaded for another jitree instance"
            )
        self._references.register_types()

    def create_state(self, context: ModuleContext) -> LibraryState:
        pointer = ctypes.c_void_p()
        if "alloc_state" in self._interface:
            self._interface.call("alloc_state", _allocator(), pointer)
        return LibraryState(self._interface, self._references, context, pointer.value)

    def fork_state(self, state: object, context: ModuleContext) -> LibraryState:
        assert isinstance(state, LibraryState)
        pointer = ctypes.c_void_p()
        if "fork_state" in self._interface:
            self._interface.call("fork_state", state.pointer, _allocator(), pointer)
        elif state.pointer:
            raise errors.UnimplementedError(f"the C module '{self.name}' cannot fork its state")
        return LibraryState(self._interface, self._references, context, pointer.value)

    def free_state(self, state: object) -> None:
        assert isinstance(state, LibraryState)
        state.free()

    def resolve_import(self, state: object, index: int, function: VmFunction | None) -> None:
        assert isinstance(state, LibraryState)
        state.resolve_import(index, function)

    def notify(self, state: object, signal: Signal) -> None:
        assert isinstance(state, LibraryState)
        if "notify" in self._interface:
            self._interface.call("notify", state.pointer, int(signal))


def _create(library: ModuleLibrary, create: str, instance: int, parameters: Mapping[str, str]) -> int:
    function = library.symbol(create)
    if function is None:
        raise errors.NotFoundError(
            f"the library exports no function '{create}'; name the one that creates the module"
        )
    pairs = (Pair * len(parameters))()
    texts = []
    for pair, item in zip(pairs, parameters.items(), strict=True):
        for field, value in zip(("key", "value"), item, strict=True):
            texts.append(ctypes.create_string_buffer(value.encode()))
            setattr(pair, field, String(ctypes.addressof(texts[-1]), len(texts[-1]) - 1))
    out = ctypes.c_void_p()
    error = take_status(CREATE(function)(VERSION, instance, len(pairs), pairs, _allocator(), out))
    if error is not None:
        raise error
    if not out.value:
        raise errors.IncompatibleError(
            "the function created no module: it supports no interface of version 0.1; build the library "
            "against a release that has it"
        )
    return out.value


def _allocator() -> CAllocator:
    return CAllocator(None, allocator_address())


def _caller(ordinal: int, cconv: str) -> Callable[..., Any]:
    convention = parse(cconv)

    def call(state: LibraryState, *values: object) -> object:
        return state.call(ordinal, convention, values)

    return call
