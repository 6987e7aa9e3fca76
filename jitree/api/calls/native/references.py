"""Arguments of direct calls that are no tensors: lists, buffers, whatever a program takes by reference."""

from __future__ import annotations

from array import array
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from jitree.api.array import Array
from jitree.api.calls.declaration import Parameter, Signature
from jitree.api.calls.donations import arrays_of
from jitree.api.calls.list_packing import ANYTHING, LIST_CODES, element_of
from jitree.api.calls.native.acceptance import view_at_once
from jitree.api.calls.native.element_numbers import numbers_of
from jitree.api.calls.packing import packers
from jitree.api.calls.tensor_packing import ArrayTransfer
from jitree.api.calls.transfers import copy_to_device
from jitree.errors import FailedPreconditionError
from jitree.regs.list import VmList
from jitree.types import BY_NAME
from jitree.vmfb.cconv import TYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from jitree.api.calls.native.keeper import Keeper
    from jitree.api.calls.native.producers import Producers
    from jitree.api.calls.native.rest import Written
    from jitree.api.function import Function
    from jitree.hal.buffer import BufferView
    from jitree.regs.handles import HandleTable
    from jitree.vmfb.cconv import Item


def fields_of_numbers(
    parameter: Parameter, table: HandleTable, keep: Callable[[object], int]
) -> dict[str, int]:
    """Fields of the ARGUMENT of a list of numbers, which machine code packs; none of another parameter.
    ``keep`` gives the address of an object that lasts as long as the record."""
    element = element_of(parameter)
    if element is None:
        return {}
    code = LIST_CODES[element]
    return numbers_of(BY_NAME["i64" if element == ANYTHING else element]) | {
        "element_type": code, "item_size": 4 if element == "f32" else 8, "scalar_type": 0,
        "slots": keep(partial(VmList.later, table, code)),
    }  # fmt: skip


def may_be_array(parameter: Parameter) -> bool:
    """Whether a reference may be a buffer view of any type."""
    is_view = parameter.type in (TYPE_NAMES["r"], "!hal.buffer_view")
    return is_view and parameter.workspace is None


class HandlePacker:
    """Handles for what is passed by reference. FAILED_PRECONDITION for what only the slow path takes."""

    def __init__(
        self, function: Function, keeper: Keeper, parameter: Parameter, item: Item, written: Written
    ) -> None:
        self._parameter = parameter
        self._device = function.device
        self._written = written
        self._is_told = function.signature.fences and parameter.written
        self.noted = array("q", (0,))
        """Not 0 if arrays are noted in ``written``: then Python packs the next argument, too."""
        transfer = ArrayTransfer(function.device, self._present_view, copy_to_device)
        signature = Signature((parameter,), (), "", True, False)
        (self._packer,) = packers(signature, (item,), transfer, function.invoker.table.ref_types)
        self._keeper = keeper
        self._table = function.invoker.table

    def pack(self, value: Any) -> int:
        """The lock must be held."""
        packed = self._packer.pack(value)
        if self._is_told or isinstance(packed, VmList):
            from jitree.hal.pending import extents  # of few programs

            arrays = tuple(map(ref, arrays_of((value,))))
            self._written[self._parameter] = arrays, extents((packed,))
            self.noted[0] = bool(arrays)
        self._passed(value)
        return self._table.wrap(packed)

    def _passed(self, value: Any) -> None:
        """What follows from that a value can be passed: nothing."""

    def _present_view(self, array: Array) -> BufferView:
        """The view of an array whose elements are there. No thread may wait with the context's lock."""
        view = view_at_once(array, self._keeper, self._device)
        if view is None:
            raise FailedPreconditionError("the view cannot be had without waiting")
        return view


class ViewPacker(HandlePacker):
    """Handles of arrays of any type. Machine code passes such an array itself from then on."""

    def __init__(
        self,
        function: Function,
        keeper: Keeper,
        parameter: Parameter,
        item: Item,
        written: Written,
        producers: Producers,
    ) -> None:
        super().__init__(function, keeper, parameter, item, written)
        self._producers = producers

    def _passed(self, value: Any) -> None:
        if type(value) is not Array:
            self._producers.learn(value)
        elif value.device is self._device:
            value._be_passed(self._keeper, value._passed_as)
