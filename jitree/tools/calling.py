"""Calls a function with host values and returns host values."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.api.array import Array
from jitree.api.calls import packing, tensor_packing
from jitree.api.calls.number_packing import NUMBER_BITS
from jitree.api.calls.transfers import copy_to_device, native_row, to_numpy
from jitree.api.function import Function
from jitree.base import elements
from jitree.errors import InvalidArgumentError, ResourceExhaustedError, StatusError, error_context
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.fence import Fence
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import LIST_F32, LIST_F64, LIST_I8, LIST_I16, LIST_I32, LIST_I64
from jitree.regs.list import VmList
from jitree.tools import values as hv
from jitree.tools.inputs import parse_values
from jitree.tools.values import SCALAR_TYPES
from jitree.types import BY_NAME, ENCODING_DENSE, element_type, is_packed
from jitree.vmfb.words import signed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jitree.api.calls.reference_packing import Packer
    from jitree.api.process.session import ProcessFunction
    from jitree.dispatch.context import Context
    from jitree.hal.device import Device

    Submission = tuple[Callable[[], Callable[[], Any]], Callable[[Any], object]]
    """Makes what begins the next calls, and waits for the end of one by what that gave."""

_BYTE: Final = BY_NAME["ui8"]
_DEEPEST: Final = 64
_MOST_LISTS: Final = 10_000
_LIST_TYPES: Final = {
    LIST_I8: "i8", LIST_I16: "i16", LIST_I32: "i32", LIST_I64: "i64", LIST_F32: "f32", LIST_F64: "f64",
}  # fmt: skip


def prepare(
    function: Function | ProcessFunction, arguments: Sequence[hv.HostValue]
) -> PreparedCall | ConfinedCall:
    """A call of a function of a session of any kind."""
    if isinstance(function, Function):
        return PreparedCall(function, arguments)
    return ConfinedCall(function, arguments)


class ConfinedCall:
    """Calls a function in a separate process, which has its own devices and objects."""

    def __init__(self, function: ProcessFunction, arguments: Sequence[hv.HostValue]) -> None:
        self._function = function
        self._arguments = [hv.python_value(value) for value in arguments]

    def call(self) -> list[Any]:
        results = self._function(*self._arguments)
        return [results] if len(self._function.passed[1]) == 1 else list(results or ())

    def to_host(self, results: Sequence[Any]) -> list[hv.HostValue]:
        """Results as host values."""
        kinds = result_kinds(self._function)
        return [_plain_to_host(value, kind) for value, kind in zip(results, kinds, strict=True)]


class PreparedCall:
    """Keeps a function with its arguments on the device. It may be called any number of times."""

    def __init__(self, function: Function, arguments: Sequence[hv.HostValue]) -> None:
        """INVALID_ARGUMENT, naming the argument, when the function does not take what is given."""
        self._function = function
        self._device = function.device
        self._context: Context = function.session.context
        self._arguments = _pack(function, arguments, self._device)
        self._values = [
            _python_value(value, argument, self._device)
            for value, argument in zip(arguments, self._arguments, strict=True)
        ]

    def call(self) -> list[Any]:
        """VM results; those of an asynchronous function are computed."""
        function = self._function
        if not function.signature.fences:
            return self._run(self._arguments)
        signal = Fence.create(self._device)
        results = self._run([*self._arguments, None, signal])
        try:
            signal.wait()
        except StatusError as error:
            function.in_call(error)
            raise
        return results

    def python_call(self) -> Callable[[], object]:
        """The same call as Python programs make it, with arrays on the device; it returns what they get."""
        return partial(self._function, *self._values)

    @property
    def is_plain(self) -> bool:
        """Whether all results are arrays and numbers."""
        function = self._function
        items = function.vm_function.convention.results
        return all(
            item != "r" or result.tensor is not None
            for item, result in zip(items, function.signature.results, strict=True)
        )

    @property
    def shows_its_end(self) -> bool:
        """Tells whether results show Python programs when an asynchronous call is done: all of them are
        arrays and numbers, and one is an array."""
        return self.is_plain and "r" in self._function.vm_function.convention.results

    def vm_results(self, returned: Any) -> list[Any]:
        """VM results of a call by Python, if :attr:`is_plain`."""
        items = self._function.vm_function.convention.results
        values = (returned,) if len(items) == 1 else returned or ()
        return [_vm_result(value, str(item)) for value, item in zip(values, items, strict=True)]

    def python_start(self) -> Submission:
        """The call of an asynchronous function as Python programs submit it, if :attr:`shows_its_end`. One of
        the arrays says when it is done."""
        items, function = self._function.vm_function.convention.results, self._function
        wait = Array.wait if len(items) == 1 else partial(_wait_for_one, items.index("r"))
        return lambda: partial(function.submit, *self._values), wait

    def start(self) -> Submission:
        """As :meth:`python_start`, with a fence that says when it is done."""
        return lambda: self._start, _wait_for_fence

    def _start(self) -> tuple[list[Any], Fence]:
        signal = Fence.create(self._device)
        return self._run([*self._arguments, None, signal]), signal

    def _run(self, arguments: Sequence[object]) -> list[Any]:
        try:
            return self._context.invoke(self._function.vm_function, arguments)
        except StatusError as error:
            raise error.with_context(f"`{self._function.declaration}`") from error.__cause__

    def to_host(self, results: Sequence[Any]) -> list[hv.HostValue]:
        """VM results as host values."""
        return [
            _scalar_to_host(value, kind)
            if kind in SCALAR_TYPES
            else _reference_to_host(value, self._function)
            for kind, value in zip(result_kinds(self._function), results, strict=True)
        ]


def _wait_for_one(index: int, results: tuple[Any, ...]) -> None:
    results[index].wait()


def _wait_for_fence(started: tuple[list[Any], Fence]) -> None:
    started[1].wait()


def parse_inputs(
    function: Function | ProcessFunction, texts: Sequence[str], files: hv.ValueFiles
) -> list[hv.HostValue]:
    """Parses the values of a call; failures show the declaration."""
    with error_context(f"`{function.declaration}`"):
        declared = partial(declared_arguments, function)
        return parse_values(texts, argument_kinds(function), files, declared)


def argument_kinds(function: Function | ProcessFunction) -> list[str]:
    """The kind (see SCALAR_TYPES) of every argument that the user gives."""
    return _kinds(function.passed[0])


def declared_arguments(function: Function | ProcessFunction) -> list[tuple[str, str]]:
    """The name and the declared type of every argument that the user gives."""
    if isinstance(function, Function):
        return [(row.name, row.type) for row in function.arguments]
    types = (declared for declared, _ in function.passed[0])
    return list(zip(function.argument_names, types, strict=False))


def result_kinds(function: Function | ProcessFunction) -> list[str]:
    """The kind (see SCALAR_TYPES) of every result."""
    return _kinds(function.passed[1])


def _kinds(passed: Sequence[tuple[str, str]]) -> list[str]:
    return [declared if item == "i" and declared in SCALAR_TYPES else item for declared, item in passed]


# -- arguments ---------------------------------------------------------------------------------------


def _pack(function: Function, arguments: Sequence[hv.HostValue], device: Device) -> list[object]:
    parameters = function.signature.arguments
    if len(arguments) != len(parameters):
        missing = ", ".join(map(str, parameters[len(arguments) :]))
        error = f"expected {len(parameters)} arguments but passed {len(arguments)}; missing: {missing}"
        raise function.in_call(InvalidArgumentError(f"input list and function mismatch; {error}"))
    transfer = tensor_packing.ArrayTransfer(device, tensor_packing.ready_view)
    packers = packing.packers(
        function.signature,
        function.vm_function.convention.arguments,
        transfer,
        function.invoker.table.ref_types,
    )
    packed: list[object] = []
    try:
        for value, packer in zip(arguments, packers, strict=True):
            packed.append(_pack_one(value, packer, device))
    except StatusError as error:
        function.in_call(error, len(packed))
        raise
    return packed


def _pack_one(value: hv.HostValue, packer: Packer, device: Device) -> object:
    match value:
        case hv.Scalar():
            return packer.pack(value.value)
        case hv.HostTensor():
            return packer.pack(_to_view(value, device))
        case hv.HostBuffer():
            shape = (len(value.data),)
            return packer.pack(_to_view(hv.HostTensor(_BYTE, shape, value.data), device).buffer)
    return packer.pack(None)


def _python_value(value: hv.HostValue, packed: object, device: Device) -> object:
    """An argument as Python programs have it."""
    if isinstance(value, hv.Scalar):
        return value.value
    return Array(packed, device) if isinstance(packed, BufferView) else packed


def _to_view(tensor: hv.HostTensor, device: Device) -> BufferView:
    row = tensor.element_type
    if is_packed(row):
        return copy_to_device(tensor.values.reshape(tensor.shape), row, device)
    return copy_to_device(
        np.ascontiguousarray(tensor.data).view(row.dtype).reshape(tensor.shape), row, device
    )


# -- results -----------------------------------------------------------------------------------------


def _vm_result(value: Any, item: str) -> Any:
    if isinstance(value, Array):
        return value.buffer_view
    if isinstance(value, int):
        return signed(value, NUMBER_BITS[item])
    return value


def _plain_to_host(value: Any, kind: str) -> hv.HostValue:
    if not isinstance(value, np.ndarray):
        return hv.NULL if value is None else _scalar_to_host(value, kind)
    row = native_row(value.dtype)
    assert row is not None  # the session has made it of one
    data = elements.pack_integers(value.reshape(-1), row) if is_packed(row) else hv.to_bytes(value)
    return hv.HostTensor(row, value.shape, data)


def _scalar_to_host(value: int | float, kind: str) -> hv.Scalar:
    name = SCALAR_TYPES[kind]
    if kind != name or isinstance(value, float):
        return hv.Scalar(name, value)
    row = BY_NAME[name]  # a float that came as the bits of an integer
    mask = (1 << row.bits) - 1
    bits = (int(value) & mask).to_bytes(row.bits // 8, "little")
    return hv.Scalar(name, float(np.frombuffer(bits, row.dtype)[0]))


def _reference_to_host(value: object, function: Function) -> hv.HostValue:
    device = function.device
    match value:
        case None:
            return hv.NULL
        case BufferView():
            return _view_to_host(value, device)
        case VmBuffer():
            return hv.HostBuffer("vm.buffer", value.data)
        case VmList():
            _require_end(value)
            return hv.HostList(tuple(_item_to_host(value, index, function) for index in range(len(value))))
        case Buffer():
            return hv.HostBuffer("hal.buffer", _bytes_of(value, value.byte_length, device))
    ref_types = function.invoker.table.ref_types
    return hv.Opaque(ref_types.name(ref_types.id_of(value)))


def _require_end(found: VmList) -> None:
    """Refuses (RESOURCE_EXHAUSTED) lists that lie too deep for a text, or in a circle."""
    waiting, count = [(found, 1)], 0
    while waiting:
        items, depth = waiting.pop()
        count += 1
        if depth > _DEEPEST or count > _MOST_LISTS:
            raise ResourceExhaustedError(
                f"a result has lists in lists that are in a circle, more than {_DEEPEST} deep, or more than "
                f"{_MOST_LISTS}: a text has no room for them"
            )
        if items.holds_references:
            waiting += [(item, depth + 1) for item in items if isinstance(item, VmList)]


def _item_to_host(items: VmList, index: int, function: Function) -> hv.HostValue:
    name = _LIST_TYPES.get(items.tag(index))
    value = items[index]
    if name is None:
        return _reference_to_host(value, function)
    assert isinstance(value, int | float)
    return hv.Scalar(name, value)


def _view_to_host(view: BufferView, device: Device) -> hv.HostTensor:
    row = element_type(view.element_type)
    length = row.byte_length(view.shape)
    return hv.HostTensor(row, view.shape, _bytes_of(view.buffer, length, device))


def _bytes_of(buffer: Buffer, length: int, device: Device) -> elements.Bytes:
    """The first ``length`` bytes of a buffer."""
    return to_numpy(BufferView(buffer, (length,), _BYTE.code, ENCODING_DENSE), device)
