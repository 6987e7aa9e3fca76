"""Calling functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from jitree.api.array import Array
from jitree.base.arguments import shown
from jitree.compat.iree_runtime.abi import (
    IMPLICIT_BUFFER_ARG_MEMORY_TYPE,
    IMPLICIT_BUFFER_ARG_USAGE,
    Abi,
    ArgumentError,
    ReturnError,
)
from jitree.compat.iree_runtime.arguments import a, optional, something, takes
from jitree.compat.iree_runtime.array_interop import DeviceArray, asdevicearray
from jitree.compat.iree_runtime.buffers import HalBufferView
from jitree.compat.iree_runtime.hal import HalDevice, a_device
from jitree.compat.iree_runtime.references import VmRef, raw_of
from jitree.compat.iree_runtime.variants import VmVariantList
from jitree.compat.iree_runtime.vm import VmContext, VmFunction
from jitree.errors import has_attribute
from jitree.hal.buffer import BufferView
from jitree.regs.buffer import VmBuffer as VmBytes

__all__ = [
    "IMPLICIT_BUFFER_ARG_MEMORY_TYPE", "IMPLICIT_BUFFER_ARG_USAGE", "ArgumentError", "FunctionInvoker",
    "Invocation", "ReturnError",
]  # fmt: skip


class Invocation:
    """What a call is made on."""

    def __init__(self, device: HalDevice) -> None:
        self.device = device


class InvokeContext(Invocation):
    """The same, under the name of upstream's packer."""

    __init__ = takes(a_device)(Invocation.__init__)


_invoke_statics: Final = object()
"""What upstream's packer keeps for all calls."""


class ArgumentPacker:
    """Makes a list of the VM of the arguments of a call, by descriptions (:mod:`abi`) or without."""

    @takes(something, optional(a(list)))
    def __init__(self, statics: object, arg_descs: list[Any] | None = None) -> None:
        self._abi = None if arg_descs is None else Abi(arg_descs)

    @takes(a(InvokeContext), a(Sequence), a(dict))
    def pack(
        self, invoke_context: Invocation, pos_args: Sequence[Any], kw_args: Mapping[str, Any]
    ) -> VmVariantList:
        if self._abi is not None:
            return self._abi.pack(invoke_context.device, pos_args, kw_args)
        if kw_args:
            raise ArgumentError("kwargs not supported for dynamic dispatch functions")
        return _packed(invoke_context.device, pos_args)


class FunctionInvoker:
    """A function in a context: call it with arrays, numbers, lists, and references."""

    def __init__(self, vm_context: VmContext, device: HalDevice, vm_function: VmFunction) -> None:
        self._vm_context = vm_context
        self._device = device
        self._vm_function = vm_function
        text = vm_function.reflection.get("iree.abi")
        self._abi = None if text is None else Abi.read(text)
        self._function: Any = None
        if self._abi is None and isinstance(vm_context, VmContext):
            self._function = vm_context.function(vm_function)

    @property
    def vm_function(self) -> VmFunction:
        return self._vm_function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """None, the result, or a tuple of results. ValueError for arguments that the function does not take.

        Keywords are those of ``iree.abi``; functions without it take the names of their declaration.
        """
        function = self._function
        if function is None:
            return self._call_with_lists(args, kwargs)
        if not _PLAIN.issuperset(map(type, args)):
            args = tuple([
                value._array if type(value) is DeviceArray else _given(value, self._device) for value in args
            ])  # fmt: skip
        if kwargs:
            kwargs = {key: _given(value, self._device) for key, value in kwargs.items()}
        result = function(*args, **kwargs)
        return self._returned(result)

    def _returned(self, result: Any) -> Any:
        kind = type(result)
        if kind is Array:
            return DeviceArray.of(self._device, result)
        if kind in _PLAIN:
            return result
        if kind is tuple:
            return tuple([self._returned(value) for value in result])
        if kind is memoryview:
            return VmRef(VmBytes.alias(result))
        if kind is list:
            return _packed(self._device, [self._returned(value) for value in result]).ref
        return VmRef(result)

    def _call_with_lists(self, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        results = VmVariantList(0)
        abi = self._abi
        if abi is not None:
            arguments = abi.pack(self._device, positional, named)
        elif named:
            raise ArgumentError("kwargs not supported for dynamic dispatch functions")
        else:
            arguments = _packed(self._device, positional)
        self._vm_context.invoke(self._vm_function, arguments, results)
        if abi is not None:
            return abi.unpack(self._device, results)
        values = [_value(self._device, results.get_variant(index)) for index in range(len(results))]
        return None if not values else values[0] if len(values) == 1 else tuple(values)

    def __repr__(self) -> str:
        return repr(self._vm_function)


_PLAIN: Final = frozenset((np.ndarray, int, float, bool, type(None)))
"""Types of what is passed on as it is."""


def _given(value: Any, device: HalDevice) -> Any:
    """What jitree's call takes for an argument of any kind."""
    if type(value) in _PLAIN or isinstance(value, np.generic):
        return value
    if isinstance(value, DeviceArray):
        return value._array
    if isinstance(value, (list, tuple)):
        return [_given(item, device) for item in value]
    if isinstance(value, dict):
        return _packed(device, [value]).raw[0]
    if has_attribute(value, "__iree_vm_ref__"):
        raw = raw_of(value)
        return Array(raw, device.raw) if isinstance(raw, BufferView) else raw
    return value


def _packed(device: HalDevice, values: Sequence[Any]) -> VmVariantList:
    """Values of the VM by the kinds of what is given."""
    made = VmVariantList(len(values))
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool):
            made.push_int(value)
        elif isinstance(value, float):
            made.push_float(value)
        elif isinstance(value, (list, tuple)):
            made.push_list(_packed(device, value))
        elif isinstance(value, dict):
            made.push_list(_packed(device, [value[key] for key in sorted(value)]))
        elif isinstance(value, DeviceArray):
            made.push_ref(value._buffer_view)
        elif isinstance(value, (np.ndarray, np.generic)):
            made.push_ref(asdevicearray(device, value)._buffer_view)
        elif value is None or has_attribute(value, "__iree_vm_ref__"):
            made.raw.append(raw_of(value))
        else:
            raise ArgumentError(f"could not convert python value to VM: {shown(value)}")
    return made


def _value(device: HalDevice, value: Any) -> Any:
    if isinstance(value, VmRef) and isinstance(value.raw, BufferView):
        return DeviceArray(device, HalBufferView.of(value.raw), implicit_host_transfer=True)
    return value
