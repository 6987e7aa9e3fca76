"""Instances, modules, functions and contexts of the VM."""

from __future__ import annotations

import itertools
import mmap
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree import errors
from jitree.api.session import Instance, Session
from jitree.base.arguments import said
from jitree.base.folding import warn
from jitree.base.platform import open_at_once
from jitree.compat.iree_runtime.arguments import (
    a,
    anything,
    flag,
    function,
    integer,
    memory,
    of,
    optional,
    path,
    size,
    something,
    takes,
    text,
)
from jitree.compat.iree_runtime.buffers import VmVariantList
from jitree.compat.iree_runtime.dtypes import Linkage
from jitree.dispatch.host_module import HostModule
from jitree.modules.hal import HalModule
from jitree.regs.list import VmList
from jitree.vmfb.archive import OwnMemory
from jitree.vmfb.decode import BytecodeModule

if TYPE_CHECKING:
    from jitree.api.function import Function
    from jitree.dispatch.context import ModuleLike
    from jitree.dispatch.host_export import HostExport

_ALIGNMENT: Final = 64
_EXPORTED: Final = (Linkage.EXPORT, Linkage.EXPORT_OPTIONAL)
_context_ids = itertools.count(1)


class VmInstance:
    """What contexts share."""

    def __init__(self) -> None:
        self.raw = Instance.default()


class VmFunction:
    """A function of a module, in whatever context the module is.

    It does not keep the module.
    """

    def __init__(self, module: ModuleLike, name: str, ordinal: int, cconv: str, reflection: dict[str, str]):
        self._module = weakref.ref(module)
        self.module_name = module.name
        self.name = name
        self.ordinal = ordinal
        self.cconv = cconv
        self.reflection = reflection

    @property
    def module(self) -> ModuleLike:
        """NOT_FOUND where nothing has it any more."""
        module = self._module()
        if module is None:
            raise errors.NotFoundError(
                f"the module '{self.module_name}' of function '{self.name}' has been dropped"
            )
        return module

    @property
    def linkage(self) -> int:
        return int(Linkage.EXPORT.value)

    @property
    def full_name(self) -> str:
        return f"{self.module_name}.{self.name}"

    def __repr__(self) -> str:
        return f"<VmFunction {self.name}({self.cconv}), reflection = {self.reflection}>"


class PythonModule(HostModule):
    """Functions of Python whose first argument is what a constructor made for the context."""

    def __init__(self, name: str, constructor: Callable[[], Any], exports: Sequence[HostExport]) -> None:
        self.name = name
        self._constructor = constructor
        self._exports = exports

    def exports(self) -> Iterable[HostExport]:
        return self._exports

    def create_state(self, context: Any) -> Any:
        try:
            return self._constructor()
        except errors.StatusError:
            raise
        except Exception as error:
            if errors.is_interruption(error):
                raise
            raise errors.UnknownError(f"in the constructor of module '{self.name}': {said(error)}") from error


_instance: Final = a(VmInstance)


def _linkage(value: Any) -> Linkage:
    return Linkage(integer(0, 4)(value))


class VmModule:
    """A module: a compiled one, or one written in Python."""

    def __init__(self, raw: ModuleLike, blob: memoryview | None = None) -> None:
        if not errors.has_attribute(raw, "export_names"):
            raise TypeError("VmModule: no constructor defined")
        self.raw = raw
        self._blob = blob

    @staticmethod
    @takes(_instance, memory, something)
    def from_buffer(instance: VmInstance, buffer: Any, warn_if_copy: bool = True) -> VmModule:
        """Reads a buffer of 64-byte alignment in place, else a copy, with a warning."""
        if _is_aligned(buffer):
            return VmModule.wrap_buffer(instance, buffer)
        if warn_if_copy:
            warn(
                "Making copy of unaligned VmModule buffer. It is recommended to make this deterministic by "
                "calling `copy_buffer` to always make a copy or `mmap` to efficiently load from a file. This "
                "warning can be silenced by adding `warn_if_copy=False` which will make this a silent copy",
                UserWarning,
            )
        return VmModule.copy_buffer(instance, buffer)

    from_flatbuffer = from_buffer

    @staticmethod
    @takes(_instance, memory)
    def copy_buffer(instance: VmInstance, buffer: Any) -> VmModule:
        room = np.empty(len(buffer) + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        copy = room[start : start + len(buffer)]
        copy[:] = np.frombuffer(buffer, np.uint8)
        return VmModule(BytecodeModule.load(OwnMemory(copy.data), "<memoryview>"), copy.data.toreadonly())

    @staticmethod
    @takes(_instance, memory, anything, flag)
    def wrap_buffer(
        instance: VmInstance,
        buffer: Any,
        destroy_callback: Callable[[], object] | None = None,
        close_buffer: bool = False,
    ) -> VmModule:
        """Over the memory of a buffer, never a copy: ValueError for one that is not aligned to 64 bytes."""
        if not _is_aligned(buffer):
            raise ValueError(
                f"VmModule.wrap_buffer received an unaligned buffer; expected {_ALIGNMENT} bytes"
            )
        return _loaded(buffer, destroy_callback)

    @staticmethod
    @takes(_instance, path, optional(function))
    def mmap(
        instance: VmInstance, filepath: Any, destroy_callback: Callable[[], object] | None = None
    ) -> VmModule:
        """Over a file, of which pages are read when they are used."""
        with open(filepath, "rb", opener=open_at_once) as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _loaded(memoryview(mapped), destroy_callback)

    @staticmethod
    @takes(_instance, text, size)
    def resolve_module_dependency(instance: VmInstance, name: str, minimum_version: int, /) -> VmModule:
        """NOT_FOUND: no modules are registered by name before a context has them."""
        raise errors.NotFoundError(
            f"Error resolving module dependency: required module '{name}' is not available; modules are "
            "registered in order, those that others depend on first"
        )

    @property
    def name(self) -> str:
        return self.raw.name

    @property
    def version(self) -> int:
        return self.raw.version

    @property
    def function_names(self) -> list[str]:
        names = list(self.raw.export_names())
        return names if isinstance(self.raw, (BytecodeModule, PythonModule)) else sorted(names)

    @property
    def stashed_flatbuffer_blob(self) -> memoryview | None:
        """The bytes of a compiled module, None for others."""
        return self._blob

    @takes(text, _linkage)
    def lookup_function(self, name: str, linkage: Any = Linkage.EXPORT) -> VmFunction | None:
        """None for an unknown name. Only exported functions have names."""
        if not name:
            raise errors.InvalidArgumentError("lookup_function: the name of a function cannot be empty")
        if linkage not in _EXPORTED or name not in self.raw.export_names():
            return None
        if isinstance(self.raw, BytecodeModule):
            return self._exported(self.raw, name)
        exports = list(self.raw.find(name).values())
        ordinal = self.function_names.index(name)
        return VmFunction(self.raw, name, ordinal, exports[0].cconv, dict(exports[0].attrs))

    def _exported(self, module: BytecodeModule, name: str) -> VmFunction:
        place = module.export_names().index(name)
        row = module.module.functions[module.module.exports[place].ordinal]
        return VmFunction(self.raw, name, place, row.cconv, dict(row.attrs))

    def __repr__(self) -> str:
        return f"<VmModule {self.name} : [{', '.join(self.function_names)}]>"


def _is_aligned(view: memoryview) -> bool:
    return np.frombuffer(view, np.uint8).ctypes.data % _ALIGNMENT == 0 if len(view) else False


def _loaded(view: memoryview, destroy_callback: Callable[[], object] | None = None) -> VmModule:
    array = np.frombuffer(view, np.uint8)  # dies with the last part of the module that lies in it
    made = VmModule(BytecodeModule.load(array.data), array.data)
    if destroy_callback is not None:
        weakref.finalize(array, destroy_callback)
    return made


def disable_leak_checker() -> None:
    """There is none."""


def _modules(value: Any) -> list[VmModule]:
    return [a_module(item) for item in a(list, tuple)(value)]


a_module: Final = a(VmModule)


class VmContext:
    """Modules linked to each other, with their state."""

    @takes(_instance, optional(_modules))
    def __init__(self, instance: VmInstance, modules: Sequence[VmModule] | None = None) -> None:
        self._instance = instance
        self._session: Session | None = None
        self._is_static = False
        self._context_id: Final = next(_context_ids)
        if modules is not None:
            self.register_modules(modules)
            self._is_static = True

    @property
    def context_id(self) -> int:
        return self._context_id

    @takes(_modules)
    def register_modules(self, modules: Sequence[VmModule], /) -> None:
        """Adds modules, those that others depend on first.

        FAILED_PRECONDITION for a context that was made with its modules.
        """
        if self._is_static and modules:
            raise errors.FailedPreconditionError("a context that was made with its modules takes no more")
        for module in modules:
            if isinstance(module.raw, HalModule) and self._session is None:
                self._session = _session_of(self._instance, module.raw)
            else:
                self.session.link(module.raw)

    @property
    def session(self) -> Session:
        """jitree's session, without a module ``hal`` as long as none has been registered."""
        if self._session is None:
            self._session = Session("local-sync", instance=self._instance.raw, builtin_modules=())
        return self._session

    def function(self, vm_function: VmFunction) -> Function:
        """The function as jitree calls it. NOT_FOUND if its module is in another context."""
        return self.session.function_of(vm_function.module, vm_function.name)

    @takes(a(VmFunction), of(VmList), of(VmList))
    def invoke(self, vm_function: VmFunction, args: VmVariantList, rets: VmVariantList, /) -> None:
        """Calls a function with VM values.

        Its results take the place of what the list has. INVALID_ARGUMENT for an integer that an i32 has no
        room for.
        """
        session = self.session
        values = args.values()
        try:
            function = session.context.function_of(vm_function.module, vm_function.name)
            for item, value in zip(function.convention.arguments, values, strict=False):
                if item == "i" and isinstance(value, int) and not -(2**31) <= value < 2**32:
                    raise errors.InvalidArgumentError(f"{value} does not fit i32")
            results = session.context.invoke(function, values)
        except errors.StatusError as error:
            raise error.with_context("Error invoking function") from error.__cause__
        rets.raw.resize(0)
        for value in results:
            rets.raw.append(value)


def _session_of(instance: VmInstance, hal: HalModule) -> Session:
    return Session(
        list(hal.devices), instance=instance.raw, builtin_modules=("hal",), trace_sink=hal.trace_sink
    )
