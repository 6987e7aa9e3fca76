"""Arguments that programs may write to: memory that was imported read-only must stay as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.api.calls.transfers import copy_view
from jitree.errors import PermissionDeniedError
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.enums import MemoryAccess

if TYPE_CHECKING:
    from collections.abc import Callable

    from jitree.api.array import Array
    from jitree.hal.device import Device

    ViewOf = Callable[[Array], BufferView]

_WRITE: Final = int(MemoryAccess.WRITE)


def rewritten(view_of: ViewOf, array: Array) -> BufferView:
    """The view of an array that the program writes to: what the host has read of it is old then."""
    view = view_of(array)
    if view.buffer.host_address is None:
        array._be_written()
    return view


def own_view(view_of: ViewOf, device: Device, array: Array) -> BufferView:
    """The view of an array that the program may write to, for all that is known: one over read-only memory
    has a copy from then on."""
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
