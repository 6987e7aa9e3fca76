"""Device arrays as arguments of direct calls: which of them fit a parameter as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitree.api.calls.packing import tensor_packer
from jitree.errors import StatusError

if TYPE_CHECKING:
    from jitree.api.array import Array
    from jitree.api.calls.declaration import DeclaredTensor, Parameter
    from jitree.api.calls.native.keeper import Keeper
    from jitree.api.function import Function
    from jitree.hal.buffer import BufferView
    from jitree.hal.device import Device


def is_there(array: Array, device: Device) -> bool:
    """Whether what a call gives its device finds the elements of an array."""
    fence, replays = array.fence, device.replays
    return fence is None or (replays is not None and replays.follows(fence)) or array._is_there()


def view_at_once(array: Array, keeper: Keeper, device: Device) -> BufferView | None:
    """The view of an array with the lock of ``keeper`` held, None where that takes waiting. Making that of
    another session's array takes its lock, which a thread may have that waits for this one."""
    other = array._keeper
    if not is_there(array, device):
        return None
    if other is None or other is keeper or array._view is not None:
        return array.view
    if not other.lock.acquire(blocking=False):
        return None
    try:
        return array.view
    finally:
        other.lock.release()


class Acceptance:
    """Whether device arrays fit a parameter as they are."""

    def __init__(
        self, function: Function, keeper: Keeper, parameter: Parameter, tensor: DeclaredTensor
    ) -> None:
        self.packer = tensor_packer(parameter, tensor, function.transfer())
        self._table = function.invoker.table
        self.is_written = parameter.consumed or parameter.storage_of is not None
        self._keeper = keeper
        self.marker = keeper.marker(tensor, parameter.storage_of is not None)
        """What stands for such parameters in the session: arrays remember it when they are accepted."""

    def accept(self, array: Array) -> bool:
        """Gives the array an owner if need be; the lock must be held. False: the slow path must look at
        it."""
        return self._fits(array) and array._be_passed(self._keeper, self._marker_for(array))

    def accept_any(self, array: Array) -> bool | int:
        """As :meth:`accept`, but a new reference to a handle if the array belongs to another session, or has
        elements of another type; machine code finds those that have a handle of their own."""
        if not self._fits(array):
            return False
        view = array.view
        declared = self.packer.declared(view)
        if declared is not view:
            array._be_passed(self._keeper, array._passed_as)
            return self._table.wrap(declared)
        return array._be_passed(self._keeper, self._marker_for(array)) or self._table.wrap(view)

    def _marker_for(self, array: Array) -> object:
        """Machine code has to look at arrays of other devices in each call."""
        return self.marker if array.device is self.packer.device else None

    def _fits(self, array: Array) -> bool:
        device = self.packer.device
        view = view_at_once(array, self._keeper, device)
        if view is None or not view.buffer.is_writable:
            return False
        try:
            self.packer.check(view)
        except StatusError:
            return False
        return True
