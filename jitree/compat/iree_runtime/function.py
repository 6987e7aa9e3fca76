"""Calls functions, also by the descriptions of values in ``iree.abi``.

A description is the name of a number's type, or a list: ``["ndarray", type, rank, dimensions…]``,
``["slist", items…]``, ``["stuple", items…]``, ``["sdict", [key, item]…]``, ``["py_homogeneous_list", item]``,
``["named", keyword, item]``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import numpy as np

from jitree.api.array import Array
from jitree.base.arguments import shown
from jitree.compat.iree_runtime.arguments import VmRef, a, optional, raw_of, something, takes
from jitree.compat.iree_runtime.array_interop import DeviceArray, asdevicearray
from jitree.compat.iree_runtime.buffers import HalBufferView, VmVariantList
from jitree.compat.iree_runtime.dtypes import BufferUsage, MemoryType, map_abi_type_to_dtype_info
from jitree.compat.iree_runtime.hal import HalDevice, a_device
from jitree.compat.iree_runtime.vm import VmContext, VmFunction
from jitree.errors import has_attribute, is_interruption, pass_interruption
from jitree.hal.buffer import BufferView
from jitree.regs.buffer import VmBuffer as VmBytes

IMPLICIT_BUFFER_ARG_MEMORY_TYPE: Final = MemoryType.DEVICE_LOCAL
IMPLICIT_BUFFER_ARG_USAGE: Final = BufferUsage.DEFAULT

_INTEGERS: Final = ("i1", "i8", "i16", "i32", "i64")
_FLOATS: Final = ("f16", "f32", "f64", "bf16")


class ArgumentError(ValueError):
    """An argument does not fit its description."""


class ReturnError(ValueError):
    """A result does not fit its description."""


class Abi:
    """The descriptions of a function."""

    def __init__(self, arguments: Sequence[Any], results: Sequence[Any] = ()) -> None:
        for description in (*arguments, *results):
            _require_parts(description)
        self.positional = [item for item in arguments if _kind(item) != "named"]
        self.named = {item[1]: item[2] for item in arguments if _kind(item) == "named"}
        self.results = results

    @classmethod
    def read(cls, text: str) -> Self:
        """RuntimeError for text that is no such JSON."""
        try:
            content = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            pass_interruption(error)
            raise RuntimeError(f"Reflection metadata is not valid JSON: {text[:1000]}") from error
        if not isinstance(content, dict) or not {"a", "r"} <= content.keys():
            raise RuntimeError(f"Malformed function reflection metadata: {text}")
        if not isinstance(content["a"], list) or not isinstance(content["r"], list):
            raise RuntimeError(f"Malformed function reflection metadata structure: {text}")
        return cls(content["a"], content["r"])

    @property
    def has_inlined_results(self) -> bool:
        """Whether the elements of a single sequence or mapping are the function's results."""
        return len(self.results) == 1 and _kind(self.results[0]) in ("slist", "stuple", "sdict")

    def pack(self, device: HalDevice, positional: Sequence[Any], named: Mapping[str, Any]) -> VmVariantList:
        """ArgumentError for arguments that do not fit."""
        unknown = next((key for key in named if key not in self.named), None)
        if unknown is not None:
            raise ArgumentError(f"specified kwarg '{unknown}' is unknown")
        count = len(self.positional)
        if len(positional) > count:
            raise ArgumentError(f"mismatched call arity: expected {count} got {len(positional)}")
        if len(positional) < count or len(named) < len(self.named):
            missing = next((key for key in self.named if key not in named), None)
            what = len(positional) if len(positional) < count else missing
            raise ArgumentError(f"mismatched call arity: expected a value for argument {what}")
        packed = VmVariantList(len(positional) + len(named))
        for value, description in zip(positional, self.positional, strict=True):
            pack_described(device, packed, value, description)
        for key, description in self.named.items():
            pack_described(device, packed, named[key], description)
        return packed

    def unpack(self, device: HalDevice, results: VmVariantList) -> Any:
        """None, the one result, or a tuple. ReturnError for results that do not fit."""
        if self.has_inlined_results:
            return _convert(device, self.results[0], results)
        values = _converted(device, self.results, results)
        return None if not values else values[0] if len(values) == 1 else tuple(values)


def _kind(description: Any) -> str:
    return str(description[0] if isinstance(description, list) and description else description)


def _require_parts(description: Any) -> None:
    """RuntimeError for a description that lacks a part, or has one that is none."""
    kind, parts = _kind(description), description[1:] if isinstance(description, list) else []
    inner = parts
    if kind == "ndarray":
        sizes, inner = parts[2:], []
        is_whole = len(parts) >= 2 and isinstance(parts[0], str) and type(parts[1]) is int
        is_whole = is_whole and all(size is None or type(size) is int for size in sizes)
    elif kind == "named":
        is_whole, inner = len(parts) == 2 and isinstance(parts[0], str), parts[1:]
    elif kind == "sdict":
        is_whole = isinstance(description, list) and all([_is_item(part) for part in parts])
        inner = [part[1] for part in parts] if is_whole else []
    else:
        is_whole = isinstance(description, list) or kind not in ("slist", "stuple")
        is_whole = is_whole and (kind != "py_homogeneous_list" or len(parts) == 1)
    if not is_whole:
        raise RuntimeError(f"Malformed function reflection metadata: {shown(description)}")
    for part in inner:
        _require_parts(part)


def _is_item(part: Any) -> bool:
    return isinstance(part, list) and len(part) == 2 and isinstance(part[0], str)


def pack_described(device: HalDevice, target: VmVariantList, value: Any, description: Any) -> None:
    """Appends an argument."""
    kind = _kind(description)
    if kind == "ndarray":
        target.push_ref(_array(device, value, description))
    elif kind in ("slist", "stuple"):
        target.push_list(_pack_sequence(device, value, description[1:]))
    elif kind == "sdict":
        target.push_list(_pack_mapping(device, value, description[1:]))
    elif kind == "py_homogeneous_list":
        target.push_list(_pack_sequence(device, value, [description[1]] * len(value)))
    elif kind in _INTEGERS:
        target.push_int(_number(value, kind, int))
    elif kind in _FLOATS:
        target.push_float(_number(value, kind, float))
    else:
        what = "compound" if isinstance(description, list) else "primitive"
        raise ArgumentError(f"Unrecognized reflection {what} type: {kind}")


def _number(value: Any, kind: str, convert: Any) -> Any:
    number = value.item() if isinstance(value, (np.generic, np.ndarray)) and value.size == 1 else value
    if not isinstance(number, (int, float)) or (convert(number) != number and number == number):
        raise ArgumentError(f"expected a number of type {kind} but got {shown(value)}")
    if kind in _INTEGERS:
        limit = 2 ** (int(kind[1:]) - 1)
        if not -limit <= number < limit + (kind == "i1"):
            raise ArgumentError(f"{shown(value)} is no number of type {kind}")
    return convert(number)


def _pack_sequence(device: HalDevice, value: Any, items: Sequence[Any]) -> VmVariantList:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or len(value) != len(items):
        raise ArgumentError(f"expected a sequence with {len(items)} values. got: {shown(value)}")
    packed = VmVariantList(len(items))
    for element, description in zip(value, items, strict=True):
        pack_described(device, packed, element, description)
    return packed


def _pack_mapping(device: HalDevice, value: Any, items: Sequence[Any]) -> VmVariantList:
    if not isinstance(value, Mapping) or len(value) != len(items):
        raise ArgumentError(f"expected a dict with {len(items)} values. got: {shown(value)}")
    packed = VmVariantList(len(items))
    for key, description in items:
        if key not in value:
            raise ArgumentError(f"could not get item '{key}' from: {shown(value)}")
        pack_described(device, packed, value[key], description)
    return packed


def _array(device: HalDevice, value: Any, description: Sequence[Any]) -> Any:
    """Views an array of device or host, whose type and shape fit."""
    if isinstance(value, (HalBufferView, VmRef)):
        return value
    try:
        wanted = map_abi_type_to_dtype_info(description[1]).dtype
    except KeyError:
        raise ArgumentError(f"could not map abi type '{description[1]}' to numpy dtype") from None
    array = value if isinstance(value, DeviceArray) else np.asarray(value)
    if not isinstance(array, DeviceArray) and array.dtype != wanted:
        if wanted.kind != "b" and not np.can_cast(array.dtype, wanted, "same_kind"):
            raise ArgumentError(f"expected an array of {wanted} but got one of {array.dtype}")
        converted = array.astype(wanted)
        if wanted.kind != "f" and not np.array_equal(converted, array):
            raise ArgumentError(f"elements of type {array.dtype} are no numbers of type {wanted}")
        array = converted
    _require_shape(tuple(array.shape), description)
    return array._buffer_view if isinstance(array, DeviceArray) else asdevicearray(device, array)._buffer_view


def _require_shape(shape: tuple[int, ...], description: Sequence[Any]) -> None:
    rank, dimensions = description[2], description[3:]
    fits = all(want is None or want == have for want, have in zip(dimensions, shape, strict=False))
    if len(shape) != rank or not fits:
        raise ArgumentError(f"expected an array of shape {tuple(dimensions)} but got one of shape {shape}")


def _converted(device: HalDevice, descriptions: Sequence[Any], source: VmVariantList) -> list[Any]:
    """Results. ReturnError for those that do not fit."""
    if len(descriptions) != len(source):
        raise ReturnError(
            "Error processing function return: mismatched return arity: "
            f"{len(source)} vs {len(descriptions)} (in {shown(source)})"
        )
    return [_described(device, source, index, item) for index, item in enumerate(descriptions)]


def _described(device: HalDevice, source: VmVariantList, index: int, description: Any) -> Any:
    try:
        return _result(device, source, index, description)
    except ReturnError:
        raise
    except Exception as error:
        if is_interruption(error):
            raise
        raise ReturnError(
            "Error processing function return: exception converting from VM type to Python (while decoding "
            f"return {index}@{shown(source)} with description {description})"
        ) from error


def _result(device: HalDevice, source: VmVariantList, index: int, description: Any) -> Any:
    kind = _kind(description)
    if kind == "ndarray":
        view = source.get_as_ref(index).deref(HalBufferView)
        dtype = map_abi_type_to_dtype_info(description[1]).dtype
        return DeviceArray(device, view, implicit_host_transfer=True, override_dtype=dtype)
    if kind in _INTEGERS or kind in _FLOATS:
        value, expected = source.get_variant(index), int if kind in _INTEGERS else float
        if not isinstance(value, expected):
            raise ReturnError(f"expected an {expected} value but got {type(value)}")
        return value
    if kind not in ("slist", "stuple", "sdict", "py_homogeneous_list"):
        raise ReturnError(f"Error processing function return: cannot map VM type to Python: {kind}")
    return _convert(device, description, source.get_as_list(index))


def _convert(device: HalDevice, description: Sequence[Any], elements: VmVariantList) -> Any:
    """A sequence or a mapping."""
    kind, items = _kind(description), description[1:]
    if kind == "sdict":
        found = _converted(device, [item for _, item in items], elements)
        return dict(zip((key for key, _ in items), found, strict=True))
    if kind == "py_homogeneous_list":
        items = [description[1]] * len(elements)
    found = _converted(device, items, elements)
    return tuple(found) if kind == "stuple" else found


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
    """Packs a call's arguments into a list of the VM, by descriptions or without."""

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
        """None, the result, or a tuple of results.

        ValueError for arguments that the function does not take.

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
