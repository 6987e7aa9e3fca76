"""Moves elements between numpy arrays and buffers of a device."""

from __future__ import annotations

import abc
import ctypes
import math
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from jitree import types
from jitree.errors import (
    InternalError,
    InvalidArgumentError,
    UnimplementedError,
    folded,
    is_interruption,
    pass_interruption,
)
from jitree.hal.buffer import PENDING, Buffer, BufferView
from jitree.hal.enums import BufferUsage, MemoryType
from jitree.types import is_packed

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.base.elements import Bytes
    from jitree.hal.device import Device
    from jitree.hal.fence import Fence


P = ParamSpec("P")
R = TypeVar("R")


if TYPE_CHECKING:

    def _on_host(method: Callable[Concatenate[npt.NDArray[Any], P], R]) -> Callable[Concatenate[Any, P], R]:
        """A method of numpy's arrays for those on a device: editors show its parameters."""


_METHODS: Final = {
    name: (
        lambda method: lambda self, /, *arguments, **named: getattr(self._implicitly(), method)(
            *arguments, **named
        )
    )(name)
    for name in (
        "all", "any", "argmax", "argmin", "argsort", "clip", "conj", "cumprod", "cumsum", "diagonal", "dot",
        "flatten", "max", "mean", "min", "nonzero", "prod", "ravel", "repeat", "reshape", "round", "squeeze",
        "std", "sum", "swapaxes", "take", "tobytes", "tolist", "trace", "transpose", "var",
    )
}  # fmt: skip
"""Computed by numpy on the host. They are made without a call each, which opening a session would take."""
for _name, _method in _METHODS.items():
    _method.__name__, _method.__qualname__ = _name, f"Array.{_name}"
    _method.__doc__ = (
        f"Computes on the host as ``numpy.ndarray.{_name}``: takes and gives the same, numpy's arrays.\n\n"
        "Errors are numpy's; FAILED_PRECONDITION for an array that was donated, and where its device was "
        "created\nwith host_transfers=explicit."
    )
_OF_ATTRIBUTES: Final = ("shape", "ndim", "size")
"""Functions of numpy that need no elements."""


class HostMethods:
    """Does for arrays on a device what numpy's arrays do. Numpy computes it on the host and gives its own
    arrays.

    What is written (``out=``, ``a += 1``) is written on the device, and stays the array that it was.
    """

    __slots__ = ()
    if not TYPE_CHECKING:
        vars().update(_METHODS)
    else:
        all = _on_host(np.ndarray.all)
        any = _on_host(np.ndarray.any)
        argmax = _on_host(np.ndarray.argmax)
        argmin = _on_host(np.ndarray.argmin)
        argsort = _on_host(np.ndarray.argsort)
        clip = _on_host(np.ndarray.clip)
        conj = _on_host(np.ndarray.conj)
        cumprod = _on_host(np.ndarray.cumprod)
        cumsum = _on_host(np.ndarray.cumsum)
        diagonal = _on_host(np.ndarray.diagonal)
        dot = _on_host(np.ndarray.dot)
        flatten = _on_host(np.ndarray.flatten)
        max = _on_host(np.ndarray.max)
        mean = _on_host(np.ndarray.mean)
        min = _on_host(np.ndarray.min)
        nonzero = _on_host(np.ndarray.nonzero)
        prod = _on_host(np.ndarray.prod)
        ravel = _on_host(np.ndarray.ravel)
        repeat = _on_host(np.ndarray.repeat)
        reshape = _on_host(np.ndarray.reshape)
        round = _on_host(np.ndarray.round)
        squeeze = _on_host(np.ndarray.squeeze)
        std = _on_host(np.ndarray.std)
        sum = _on_host(np.ndarray.sum)
        swapaxes = _on_host(np.ndarray.swapaxes)
        take = _on_host(np.ndarray.take)
        tobytes = _on_host(np.ndarray.tobytes)
        tolist = _on_host(np.ndarray.tolist)
        trace = _on_host(np.ndarray.trace)
        transpose = _on_host(np.ndarray.transpose)
        var = _on_host(np.ndarray.var)

    @abc.abstractmethod
    def _implicitly(self) -> npt.NDArray[Any]: ...
    @property
    @abc.abstractmethod
    def device(self) -> Device: ...

    if TYPE_CHECKING:  # a class with slots has them

        def __init__(self, view: BufferView, device: Device, fence: Fence | None = None) -> None: ...
        @property
        def buffer_view(self) -> BufferView: ...
        @property
        def fence(self) -> Fence | None: ...

    @property
    @abc.abstractmethod
    def dtype(self) -> np.dtype[Any]: ...
    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @property
    def itemsize(self) -> int:
        """Bytes of an element on the host. Elements below 8 bits have one each there."""
        return self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each axis, on the host: arrays are dense."""
        shape = self.shape
        return tuple([self.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))])

    @property
    def T(self) -> npt.NDArray[Any]:
        """The elements with the axes in reverse: a numpy array, of shape ``(3, 2)`` for ``(2, 3)``."""
        return self._implicitly().T

    @property
    def mT(self) -> npt.NDArray[Any]:
        """The elements with the last two axes swapped, a numpy array. ValueError below rank 2."""
        if len(self.shape) < 2:
            raise ValueError("matrix transpose with ndim < 2 is undefined")
        return self._implicitly().swapaxes(-1, -2)

    def astype(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Copies the elements to the host as another type: a numpy array of the same shape.

        ``dtype``: as numpy takes it. Values are converted as numpy does, and may be rounded or wrap.
        TypeError for what is no type.

        >>> session = jitree.Session("local-sync")
        >>> session.to_device([1.9, 2.1]).astype(np.int32)
        array([1, 2], dtype=int32)
        """
        from jitree.base.copying import copy_of

        return copy_of(self._implicitly(), dtype)

    def view(self, dtype: npt.DTypeLike) -> Self:
        """Shows the same memory as elements of another type, as numpy's arrays do: the bits stay.

        ``dtype``: as numpy takes it. The last axis of the new shape has as many elements as its bytes make.

        INVALID_ARGUMENT for types that programs cannot have or that do not fill the axis, UNIMPLEMENTED where
        elements have less than a byte, FAILED_PRECONDITION for a donated array.

        >>> session = jitree.Session("local-sync")
        >>> session.to_device(np.ones((2, 3), np.float32)).view(np.uint8).shape
        (2, 12)
        """
        return type(self)(_recast(self.buffer_view, np.dtype(dtype)), self.device, self.fence)

    def __len__(self) -> int:
        shape = self.shape
        if not shape:
            raise TypeError("len() of an array of rank 0")
        return shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._implicitly())

    def __contains__(self, value: object) -> bool:
        return value in self._implicitly()

    def __complex__(self) -> complex:
        return complex(self._implicitly())

    def __index__(self) -> int:
        return self._implicitly().__index__()

    def __bytes__(self) -> bytes:
        return self._implicitly().tobytes()

    @abc.abstractmethod
    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes elements on the device."""

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        """Numpy, whose functions take the array and give arrays of numpy; the standard is in NumPy 2."""
        version: Any = api_version
        return np.empty(0).__array_namespace__(api_version=version)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "at" and isinstance(inputs[0], HostMethods):
            target = inputs[0]._own_copy()
            _compute(ufunc, method, target, *inputs[1:], **options)
            inputs[0][...] = target
            return None
        out = options.pop("out", None)
        if out is None:
            return _compute(ufunc, method, *inputs, **options)
        return _written(lambda **kept: _compute(ufunc, method, *inputs, **options, **kept), out)

    def __array_function__(self, function: Any, types: Any, arguments: Any, named: dict[str, Any]) -> Any:
        if function.__name__ in _OF_ATTRIBUTES and function.__module__ == "numpy":
            return function._implementation(*arguments, **named)
        arguments, named = _operands(arguments), dict(named)
        out = named.pop("out", None)
        named = _operands(named)
        if out is None:
            return function(*arguments, **named)
        return _written(lambda **kept: function(*arguments, **named, **kept), out)

    def _own_copy(self) -> npt.NDArray[Any]:
        from jitree.base.copying import copy_of

        elements = self._implicitly()
        return copy_of(elements, elements.dtype)


def _recast(view: BufferView, wanted: np.dtype[Any]) -> BufferView:
    given, row, shape = types.element_type(view.element_type), native_row(wanted), view.shape
    if row is None or not wanted.isnative:
        raise InvalidArgumentError(f"view: no device array can have dtype {wanted}")
    if is_packed(given) or is_packed(row):
        raise UnimplementedError(f"view: elements of {given.name} or {row.name} do not lie as numpy's do")
    last, rest = divmod((shape or (1,))[-1] * given.bits, row.bits)
    if rest or (not shape and last != 1):
        name = types.format_shaped_type(shape, given)
        raise InvalidArgumentError(f"view: {row.name} elements do not fill the last axis of a {name} array")
    return BufferView(view.buffer, (*shape[:-1], last) if shape else (), row.code, view.encoding)


class ImplicitTransfer(NDArrayOperatorsMixin):
    """Operators and conversions of an array on a device."""

    __slots__ = ()

    @abc.abstractmethod
    def _implicitly(self) -> npt.NDArray[Any]:
        """The elements, where they may come to the host without being asked for."""

    @folded
    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        raise_interrupt(sys._getframe(CALLER))
        host = self._implicitly()
        wanted = host.dtype if dtype is None else np.dtype(dtype)
        if wanted == host.dtype and not copy:
            return host
        if copy is False:
            raise ValueError(f"an array of {host.dtype} cannot become {wanted} without a copy")
        from jitree.base.copying import copy_of

        return copy_of(host, wanted)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if "out" in options:
            options["out"] = tuple([as_operand(value) for value in options["out"]])
        return _compute(ufunc, method, *inputs, **options)

    def __pow__(self, other: Any) -> Any:
        """As numpy's arrays, which square where the exponent is 2: that keeps narrow types."""
        return self._implicitly() ** as_operand(other)

    def __float__(self) -> float:
        return float(self._implicitly())

    def __int__(self) -> int:
        return int(self._implicitly())

    def __bool__(self) -> bool:
        return bool(self._implicitly())

    def _repr_html_(self) -> str:
        from jitree.base.tables import html_text  # for notebooks

        first, _, elements = repr(self).partition("\n")
        return html_text(first.rstrip(":)").replace("(", " ", 1), elements.removesuffix(")"))

    def __format__(self, specification: str) -> str:
        """As numpy's arrays: a specification is for the one element of an array of rank 0."""
        return format(self._implicitly(), specification) if specification else str(self)


def _compute(ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    return getattr(ufunc, method)(*[as_operand(value) for value in inputs], **options)


def as_operand(value: Any) -> Any:
    """What numpy computes with in place of an array on a device."""
    return value._implicitly() if isinstance(value, ImplicitTransfer) else value


def _written(compute: Callable[..., Any], out: Any) -> Any:
    """What a function of numpy gives that writes to ``out``; arrays on a device get it when it is there."""
    targets = out if isinstance(out, tuple) else (out,)
    places = tuple(
        [value._own_copy() if isinstance(value, HostMethods) else as_operand(value) for value in targets]
    )
    results = compute(out=places if isinstance(out, tuple) else places[0])
    for target, place in zip(targets, places, strict=True):
        if isinstance(target, HostMethods):
            target[...] = place
    given = results if isinstance(results, tuple) else (results,)
    kept = tuple([
        target if isinstance(target, HostMethods) else made
        for target, made in zip(targets, given, strict=False)
    ])  # fmt: skip
    return kept if isinstance(results, tuple) else kept[0]


def _operands(value: Any) -> Any:
    """Puts elements in place of arrays on a device, also in lists.

    A copy of what lies in a device's memory cannot be written to: it would be lost."""
    if isinstance(value, (list, tuple)):
        return type(value)([_operands(item) for item in value]) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {name: _operands(item) for name, item in value.items()}
    if not isinstance(value, ImplicitTransfer):
        return value
    elements = value._implicitly()
    if isinstance(value, HostMethods) and value.device.array_exchange is not None:
        elements = elements.view()
        elements.flags.writeable = False
    return elements


_interrupts: list[tuple[BaseException, tuple[int, int]]] = []
"""What a signal handler has raised in ``__buffer__`` last, and where the caller was."""
CALLER: Final = 2
"""Frames from a folded method to its caller's."""


def keep_interrupt(error: BaseException, caller: FrameType | None) -> None:
    """``__buffer__`` raises it. From Python 3.12 on numpy asks that first, drops whatever it raises (numpy's
    ``_array_from_array_like``) and asks ``__array__``."""
    if caller is not None and is_interruption(error):
        _interrupts[:] = [(error, (id(caller), caller.f_lasti))]


def raise_interrupt(caller: FrameType | None) -> None:
    """``__array__`` is called: raises what ``__buffer__`` did for the same instruction of the caller."""
    if _interrupts and caller is not None:
        error, place = _interrupts.pop()
        if place == (id(caller), caller.f_lasti):
            raise error


DEVICE_LOCAL: Final = int(MemoryType.DEVICE_LOCAL)
BUFFER_USAGE: Final = int(BufferUsage.DEFAULT)
_ANY_QUEUE: Final = -1

_SMALL: Final = 1 << 14
"""Bytes up to which a copy through a bytes object takes less time than making arrays over the target."""


_rows: dict[type, types.ElementType | None] = {}
"""By the class of a dtype that has no fields: numpy takes 2 us to make the name of a dtype."""


def native_row(dtype: np.dtype[Any]) -> types.ElementType | None:
    """The element type of arrays of a dtype; plain void types are opaque elements. None if there is none."""
    kind = type(dtype)
    if kind in _rows:
        return _rows[kind]
    row = types.element_type_of(dtype) or types.opaque_type_of(dtype)
    if dtype.kind != "V":
        _rows[kind] = row
    return row


def copy_to_device(array: npt.NDArray[Any], row: types.ElementType, device: Device) -> BufferView:
    """A buffer view with the elements of an array, any strides; ``row`` is the array's own element type."""
    if PENDING[0]:
        from jitree.hal.memory_order import await_written

        await_written(_extent(array))
    if is_packed(row):
        return BufferView(_upload(_host_bytes(array, row), device), array.shape, row.code)
    size = array.nbytes
    buffer = device.device_allocator.allocate(DEVICE_LOCAL, BUFFER_USAGE, size)
    address = buffer.host_address
    if address is None:
        return BufferView(_upload(_host_bytes(array, row), device), array.shape, row.code)
    if size <= _SMALL:
        ctypes.memmove(address, array.tobytes(), size)
    else:
        from jitree.base.copying import copy_into

        copy_into(buffer.host_array().view(array.dtype).reshape(array.shape), array)
    return BufferView(buffer, array.shape, row.code)


def copy_view(view: BufferView, device: Device) -> BufferView:
    """A view of new memory with the same contents."""
    from jitree.hal.fence import Fence
    from jitree.hal.memory_order import await_written, extents

    await_written(*extents((view,)))
    source = view.buffer
    target = device.device_allocator.allocate(DEVICE_LOCAL, BUFFER_USAGE, source.byte_length)
    done = Fence.create(device)
    device.queue_copy(_ANY_QUEUE, None, done, source, 0, target, 0, source.byte_length)
    done.wait()
    return BufferView(target, view.shape, view.element_type, view.encoding)


def wrap_in_place(array: npt.NDArray[Any], device: Device) -> BufferView | None:
    """A buffer view over an array's own memory, for programs that write to it; None if that cannot be."""
    return wrap(array, device) if array.flags.writeable else None


def wrap(array: npt.NDArray[Any], device: Device) -> BufferView | None:
    """Makes a buffer view over an array's own memory; None if that cannot be. Programs write to it if they
    may."""
    row = native_row(array.dtype)
    if row is None or is_packed(row) or not array.flags.c_contiguous:
        return None
    buffer = device.device_allocator.import_host(_flat(array).data, DEVICE_LOCAL, BUFFER_USAGE)
    return None if buffer is None else BufferView(buffer, array.shape, row.code)


def empty(shape: tuple[int, ...], row: types.ElementType, device: Device) -> BufferView:
    """A buffer view of new memory, whatever is in there. OUT_OF_RANGE for shapes that no tensor can have."""
    size = row.byte_length(shape)
    return BufferView(device.device_allocator.allocate(DEVICE_LOCAL, BUFFER_USAGE, size), shape, row.code)


def to_numpy(view: BufferView, device: Device, fence: Fence | None = None) -> npt.NDArray[Any]:
    """Returns the elements, over the buffer's memory where possible. Packed elements are copied.

    Waits for the fence and raises what it failed with. INTERNAL when the buffer is shorter than shape and
    element type need, and for shapes and element types that no numpy array has.
    """
    row = types.element_type(view.element_type)
    needed = row.byte_length(view.shape)
    data = device.read_buffer(view.buffer, fence)
    if len(data) < needed:
        raise InternalError(f"a tensor of {needed} bytes in a buffer of {len(data)} bytes")
    try:
        array = _array(data[:needed], row, view.shape)
    except (ValueError, OverflowError, TypeError) as error:
        pass_interruption(error)
        raise InternalError(
            f"the program made a tensor that no numpy array can show: shape {view.shape}, element type "
            f"{row.name} (0x{row.code & 0xFFFFFFFF:08x}); {error}"
        ) from None
    if view.buffer.host_address is not None and not is_packed(row):
        view.elements = array
    return array


def _array(data: Bytes, row: types.ElementType, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if not is_packed(row):
        return data.view(row.dtype).reshape(shape)
    if row.code not in types.BY_CODE:
        raise ValueError("elements of that size are not known")
    from jitree.base.elements import unpack_integers

    return unpack_integers(data, row, math.prod(shape)).astype(row.dtype).reshape(shape)


def _extent(array: npt.NDArray[Any]) -> tuple[int, int]:
    """Where the memory that an array is in begins and ends (:data:`jitree.hal.memory_order.Extent`)."""
    start: int = array.__array_interface__["data"][0]
    if not array.size:
        return start, start
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    last = start + sum(max(0, step) for step in reach)
    return start + sum(min(0, step) for step in reach), last + array.itemsize


def _flat(array: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _host_bytes(array: npt.NDArray[Any], row: types.ElementType) -> Bytes:
    """The elements as they lie on a device."""
    from jitree.base.copying import room_for

    with room_for(array):
        if is_packed(row):
            from jitree.base.elements import pack_integers

            return pack_integers(array.reshape(-1), row)
        return _flat(array)


def _upload(data: Bytes, device: Device) -> Buffer:
    buffer = device.device_allocator.allocate(DEVICE_LOCAL, BUFFER_USAGE, len(data))
    device.write_buffer(buffer, data)
    return buffer
