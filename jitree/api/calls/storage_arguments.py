"""Checks memory that programs write to: ``out=``, donated arrays, storage of results.

A compiler marks such arguments: ``iree.abi.output = n`` on the one that result ``n`` is put into,
``iree.abi.consume`` on a tensor whose memory the program uses for something else when it has read it.
Memory that was imported read-only stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import OUT
from jitree.api.calls.refusal import describe
from jitree.api.calls.tensor_packing import Donation, TensorPacker
from jitree.api.calls.transfers import copy_view, wrap_in_place
from jitree.base.arguments import is_a, is_masked
from jitree.errors import InvalidArgumentError, PermissionDeniedError
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.command_layout import BINDING_ALIGNMENT
from jitree.hal.device import Device
from jitree.hal.enums import MemoryAccess

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.api.calls.tensor_packing import ViewOf
    from jitree.types import ElementType

_WRITE: Final = int(MemoryAccess.WRITE)


def storage_of(names: Sequence[str], out: Any, device: Device) -> dict[str, Array]:
    """The arguments that ``out`` stands for: an array, or a tuple with one for each result that the program
    puts into storage of its caller. ``names``: of those, in that order.

    Arrays of the host, also of other libraries, are written in place. INVALID_ARGUMENT for a program that has
    no such results, for another number of arrays, and for arrays that cannot be written in place.
    """
    if not names:
        raise InvalidArgumentError(
            f"{OUT}: the program puts no result into storage of its caller; compile it with an argument that "
            "has `iree.abi.output`, or copy its results"
        )
    arrays = out if isinstance(out, (tuple, list)) else (out,)
    if len(arrays) != len(names):
        raise InvalidArgumentError(f"{OUT}: expected {len(names)} arrays but got {len(arrays)}")
    return {name: _in_place(name, array, device) for name, array in zip(names, arrays, strict=True)}


def _in_place(name: str, value: Any, device: Device) -> Array:
    if isinstance(value, Array):
        return value
    array = _host_array(value)
    view = None if array is None else wrap_in_place(array, device)
    if view is not None:
        return Array(view, device)
    raise InvalidArgumentError(
        f"{OUT}: {name}: {describe(value)} cannot be written in place{_obstacle(array)}; it takes device "
        "arrays (session.empty), and arrays of numpy and others in host memory, contiguous, writable and "
        "aligned to 64 bytes (as session.empty(shape, dtype).to_host() is), where the device uses that"
    )


def _obstacle(array: npt.NDArray[Any] | None) -> str:
    """Says why a host array cannot be written in place."""
    if array is None:
        return ""
    beyond = array.__array_interface__["data"][0] % BINDING_ALIGNMENT
    if not array.flags.c_contiguous:
        return ": its elements do not lie one after the other"
    if not array.flags.writeable:
        return ": it is read-only"
    return f": it begins {beyond} bytes after a multiple of {BINDING_ALIGNMENT}" if beyond else ""


def _host_array(value: Any) -> npt.NDArray[Any] | None:
    """Makes a numpy array over a host array's memory, else None. Of a subclass, which may say anything of
    itself, it is one of numpy's own class."""
    if isinstance(value, np.ndarray):
        return None if is_masked(value) else np.asarray(value)
    from jitree.base.dlpack import shared_array  # few programs use other libraries

    return shared_array(value)


def donate(array: Array) -> Donation:
    """Marks an argument of one call: the array is the program's from then on.

    A program that was compiled so (``iree.abi.consume``) uses its memory for something else, such as a result
    of the same shape. The caller cannot use the ``array`` any more. INVALID_ARGUMENT for anything but a
    :class:`jitree.Array`.

    >>> session = jitree.Session("local-sync")
    >>> outputs = session.load("tests/data/programs/outputs.vmfb")
    >>> x = session.to_device(np.arange(4, dtype=np.int32))
    >>> outputs.double(jitree.donate(x)).tolist(), x.is_donated
    ([0, 2, 4, 6], True)
    """
    if not is_a(array, Array):
        raise InvalidArgumentError(f"donate: expected a jitree.Array but got {describe(array)}")
    return Donation(array)


def rewritten(view_of: ViewOf, array: Array) -> BufferView:
    """The view of an array that the program writes to: what the host has read of it is old then."""
    view = view_of(array)
    if view.buffer.host_address is None:
        array._be_written()
    return view


def own_view(view_of: ViewOf, device: Device, array: Array) -> BufferView:
    """Views an array that the program may write to, as is known: one over read-only memory has a copy from
    then on."""
    view = view_of(array)
    buffer = view.buffer
    if buffer.host_address is None:
        array._be_written()
    if buffer.allowed_access & _WRITE:
        return view
    array.wait()
    return array._be_copied(copy_view(view, device))


def require_writable(value: BufferView | Buffer, name: str) -> BufferView | Buffer:
    """PERMISSION_DENIED for memory that programs must not write to."""
    buffer = value.buffer if isinstance(value, BufferView) else value
    if buffer.is_writable:
        return value
    raise PermissionDeniedError(
        f"{name} may be written to by the program, and the memory that it got is read-only; pass a copy, "
        "such as session.to_device(numpy.array(x)), or session.empty(shape) for results"
    )


class StoragePacker(TensorPacker):
    """A tensor that the program puts a result into. Host arrays have been copied: the caller only sees the
    result then."""

    __slots__ = ()
    WIDENS = False

    def _mismatch(self, code: int, declared: ElementType) -> InvalidArgumentError:
        from jitree.api.calls.conversion import types_differ

        return InvalidArgumentError(
            f"{types_differ(self._name, code, declared)}; the result is put there as it is: pass "
            f'session.empty(shape, "{declared.dtype.name}")'
        )

    def check(self, view: BufferView) -> None:
        super().check(view)
        require_writable(view, self._name)

    def _own(self, value: Any, view: BufferView) -> BufferView:
        require_writable(view, self._name)
        return view


class ConsumedPacker(TensorPacker):
    """Packs a tensor that the program may overwrite. What the caller keeps is copied, what it donates is not,
    unless it lies in memory that must stay as it is. Host arrays have been copied."""

    __slots__ = ()

    def pack(self, value: Any) -> object:
        is_donated = type(value) is Donation
        if is_donated:
            self._check_elements(value.array.element_type.code)
        view = TensorPacker.pack(self, value.array if is_donated else value)
        assert isinstance(view, BufferView)
        if not view.buffer.is_writable or (not is_donated and self._is_kept(value)):
            return copy_view(view, self.device)
        return view

    def _own(self, value: Any, view: BufferView) -> BufferView:
        return view  # what is donated is not the array's any more

    def _is_kept(self, value: object) -> bool:
        """Whether the view is over memory that its owner goes on to use."""
        if isinstance(value, (Array, BufferView)):
            return True
        exchange = self.device.array_exchange
        return exchange is not None and exchange.is_importable(value)
