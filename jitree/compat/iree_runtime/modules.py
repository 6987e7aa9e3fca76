"""The modules that programs import: ``hal``, ``io_parameters``, and those in Python."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from jitree import errors
from jitree.base.arguments import said
from jitree.compat.iree_runtime.arguments import VmRef, a, optional, raw_of, something, takes, text
from jitree.compat.iree_runtime.buffers import HalBufferView
from jitree.compat.iree_runtime.hal import HalDevice, a_device
from jitree.compat.iree_runtime.vm import PythonModule, VmInstance, VmModule
from jitree.dispatch.host_export import HostExport
from jitree.modules.hal import HalModule
from jitree.modules.hal.module import write_to_stderr
from jitree.vmfb.cconv import parse

if TYPE_CHECKING:
    from jitree.compat.iree_runtime.io import ParameterProvider

TraceKey = str
HalModuleBufferViewTraceCallback = Callable[[TraceKey, list[HalBufferView]], None]
"""Gets the tensors that a program traces."""


def _callable(value: Any) -> Any:
    if not callable(value):
        raise TypeError(f"expected a function but got {type(value).__name__}")
    return value


class HalModuleDebugSink:
    """Gets the tensors that programs trace."""

    @takes(_callable)
    def __init__(self, buffer_view_trace_callback: Callable[[str, list[HalBufferView]], None]) -> None:
        self._callback = buffer_view_trace_callback

    @property
    def buffer_view_trace_callback(self) -> Callable[[str, list[HalBufferView]], None]:
        return self._callback

    def _receive(self, key: str, views: Sequence[Any]) -> None:
        try:
            self._callback(key, [HalBufferView.of(view) for view in views])
        except errors.StatusError:
            raise
        except Exception as error:
            if errors.is_interruption(error):
                raise
            raise errors.UnknownError(f"in the callback of a trace: {said(error)}") from error


def _devices(value: Any) -> list[HalDevice]:
    return [a_device(item) for item in a(list, tuple)(value)]


@takes(a(VmInstance), optional(a_device), optional(_devices), optional(a(HalModuleDebugSink)))
def create_hal_module(
    instance: VmInstance,
    device: HalDevice | None = None,
    devices: Sequence[HalDevice] | None = None,
    debug_sink: HalModuleDebugSink | None = None,
) -> VmModule:
    """The module ``hal`` with one device, or several of which programs choose."""
    if device is not None and devices is not None:
        raise ValueError('"device" and "devices" are mutually exclusive arguments.')
    if device is None and devices is None:
        raise ValueError('one of "device" or "devices" is required.')
    chosen = devices or []
    if device is not None:
        chosen = [device]
    if not chosen:
        raise errors.InvalidArgumentError("create_hal_module: there must be one device at least")
    sink = write_to_stderr if debug_sink is None else debug_sink._receive
    return VmModule(HalModule([item.raw for item in chosen], trace_sink=sink))


def create_io_parameters_module(instance: VmInstance, *providers: ParameterProvider) -> VmModule:
    """The module ``io_parameters``; it is to be registered before those that import from it."""
    from jitree.compat.iree_runtime.io import ParameterProvider

    a(VmInstance)(instance)
    for provider in providers:
        a(ParameterProvider)(provider)
    from jitree.modules.io_parameters import IoParametersModule

    return VmModule(IoParametersModule([provider.raw for provider in providers]))


class PyModuleInterface:
    """Declares a module written in Python, and tells what has become of it."""

    @takes(text, something)
    def __init__(self, module_name: str, ctor: Callable[[PyModuleInterface], Any]) -> None:
        """``ctor`` is called for each context; what it returns is the first argument of all functions."""
        self._name = module_name
        self._constructor = ctor
        self._exports: list[HostExport] = []
        self._module: weakref.ref[PythonModule] | None = None

    @takes(text, text, something)
    def export(self, name: str, cconv: str, callable: Callable[..., Any]) -> None:
        """Adds a function by its calling convention. FAILED_PRECONDITION after :meth:`create`."""
        if self._module is not None:
            raise errors.FailedPreconditionError(
                f"module '{self._name}' is made already; export before create()"
            )
        if any(export.name == name for export in self._exports):
            raise ValueError(f"PyModule function already defined: {name}")
        self._exports.append(HostExport(name, parse(cconv).text, _translated(name, cconv, callable)))

    def create(self) -> VmModule:
        """The module, once."""
        if self._module is not None:
            raise RuntimeError("Attempt to mutate a frozen PyModuleInterface")
        interface, construct = self, self._constructor
        raw = PythonModule(self._name, lambda: construct(interface), tuple(self._exports))
        self._module = weakref.ref(raw)
        return VmModule(raw)

    @property
    def initialized(self) -> bool:
        """Whether the module has been made, and is still there."""
        return self._module is not None and self._module() is not None

    @property
    def destroyed(self) -> bool:
        """Whether nothing uses the module any more."""
        return self._module is not None and self._module() is None

    def __str__(self) -> str:
        return f"<iree.runtime.PyModuleInterface '{self._name}'>"


_LIMITS: Final = {"i": 2**31, "I": 2**63}


def _require_signed(types: Sequence[Any], results: Any) -> None:
    """INTERNAL for large integers: only modules of jitree's own API may give unsigned ones."""
    values = results if isinstance(results, (list, tuple)) else (results,)
    for item, value in zip(types, values, strict=False):
        if isinstance(value, int) and value >= _LIMITS.get(item, math.inf):
            raise errors.InternalError(f"a result of type {item} is too large: {value}")


def _translated(name: str, cconv: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as jitree's VM calls it: references are passed and returned as :class:`VmRef`."""
    convention = parse(cconv)
    references = [place for place, item in enumerate(convention.results) if item == "r"]

    def call(state: Any, *arguments: Any) -> Any:
        given = (value if isinstance(value, (int, float)) else _reference(value) for value in arguments)
        try:
            results = function(state, *given)
            if not convention.results:
                return None
            _require_signed(convention.results, results)
            if not references:
                return tuple(results) if isinstance(results, list) else results
            if len(convention.results) == 1:
                return raw_of(results)
            values = list(results)
            for place in references:
                values[place] = raw_of(values[place])
        except errors.StatusError:
            raise
        except Exception as error:
            if errors.is_interruption(error):
                raise
            raise errors.UnknownError(f"in '{name}': {said(error)}") from error
        return tuple(values)

    return call


def _reference(value: Any) -> Any:
    return None if value is None else VmRef(value)
