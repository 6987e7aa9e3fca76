"""Loads C modules as host modules."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from jitree import errors
from jitree.base.c_allocator import allocator_address
from jitree.base.finalizers import Finalizer, uninterrupted
from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule, Signal
from jitree.modules.native_library.interface import ModuleInterface, take_status
from jitree.modules.native_library.layout import CREATE, DEFAULT_CREATE, VERSION, CAllocator, Pair, String
from jitree.modules.native_library.references import References
from jitree.modules.native_library.state import LibraryState
from jitree.vmfb.cconv import parse

if TYPE_CHECKING:
    from jitree.dispatch.function import VmFunction
    from jitree.dispatch.host_module import ModuleContext
    from jitree.regs.ref_types import RefTypes


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
