"""Packs arguments of direct calls that are no tensors: lists, buffers, other references."""

from __future__ import annotations

from array import array
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import Parameter, Signature
from jitree.api.calls.native.acceptance import numbers_of, runs_code, view_at_once
from jitree.api.calls.native.layout import MAXIMUM_RANK, PASS_REFERENCE
from jitree.api.calls.number_packing import ANYTHING, LIST_CODES, element_of
from jitree.api.calls.overlaps import arrays_of
from jitree.api.calls.packing import packers
from jitree.api.calls.tensor_packing import ArrayTransfer
from jitree.errors import FailedPreconditionError
from jitree.regs.layout import LIST_CAPACITY
from jitree.regs.list import VmList
from jitree.types import BY_NAME
from jitree.vmfb.cconv import TYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from jitree.api.calls.native.acceptance import Producers
    from jitree.api.calls.native.handle_owners import Keeper
    from jitree.api.function import Function
    from jitree.hal.buffer import BufferView
    from jitree.hal.memory_order import Extent
    from jitree.vmfb.cconv import Item

    Keep = Callable[[object], int]
    """Gives the address of an object, which lasts as long as the records of the function."""
    NewRecord = Callable[[dict[str, Any]], int]
    """Makes an Argument record with these fields, which no parameter has, and gives its address."""

_ANY_SIZES: Final = [-1] * MAXIMUM_RANK


class HandlePacker:
    """Handles for what is passed by reference. FAILED_PRECONDITION for what only the slow path takes."""

    def __init__(
        self,
        function: Function,
        keeper: Keeper,
        parameter: Parameter,
        item: Item,
        producers: Producers | None,
    ) -> None:
        """``producers``: None where machine code passes no arrays of any type."""
        self._device = function.device
        self._parameter = parameter
        self._is_told = function.signature.fences and parameter.written
        self.noted = array("q", (0,))
        """1 if ``arrays`` and ``extents`` are what the call in progress may write to; machine code writes 0
        when a call begins."""
        self.arrays: tuple[ref[Array], ...] = ()
        self.extents: tuple[Extent, ...] = ()
        transfer = ArrayTransfer(function.device, self._present_view)
        signature = Signature((parameter,), (), "", True, False)
        (self._packer,) = packers(signature, (item,), transfer, function.invoker.table.ref_types)
        self._keeper = keeper
        self._producers = producers
        self._table = function.invoker.table

    def fields(self, keep: Keep, record: NewRecord) -> dict[str, Any]:
        """Those of the parameter's ARGUMENT."""
        return {"convert": keep(self.pack), "noted": self.noted.buffer_info()[0]}

    def pack(self, value: Any) -> int:
        """The lock must be held."""
        _require_no_code(value)
        packed = self._packer.pack(value)
        if self._is_told or isinstance(packed, VmList):
            from jitree.hal.memory_order import extents  # of few programs

            self.arrays = tuple(map(ref, arrays_of((value,))))
            self.extents = extents((packed,))
            self.noted[0] = 1
        return self._table.wrap(packed)

    def _present_view(self, array: Array) -> BufferView:
        """The view of an array whose elements are there. No thread may wait with the context's lock."""
        view = view_at_once(array, self._keeper, self._device)
        if view is None:
            raise FailedPreconditionError("the view cannot be had without waiting")
        return view

    def _remember(self, value: Any) -> None:
        """Has machine code pass an array that has been passed."""
        if self._producers is None:
            return
        if type(value) is not Array:
            self._producers.learn(value)
        elif value.device is self._device:
            value._be_passed(self._keeper, value._passed_as)


class ViewPacker(HandlePacker):
    """Handles of arrays of any type. Machine code passes such an array itself from then on."""

    def fields(self, keep: Keep, record: NewRecord) -> dict[str, Any]:
        return super().fields(keep, record) | {"is_array": 1, "dimensions": _ANY_SIZES}

    def pack(self, value: Any) -> int:
        handle = super().pack(value)
        self._remember(value)
        return handle


class ListPacker(HandlePacker):
    """Handles of lists. Machine code makes those of numbers, and those of anything but for elements that are
    neither numbers nor arrays."""

    def fields(self, keep: Keep, record: NewRecord) -> dict[str, Any]:
        element = element_of(self._parameter) or ANYTHING
        code = LIST_CODES[element]
        fields = super().fields(keep, record) | numbers_of(BY_NAME["i64" if element == ANYTHING else element])
        fields |= {
            "element_type": code, "item_size": 4 if element == "f32" else 8,
            "new_list": keep(partial(self.new_list, code)),
        }  # fmt: skip
        if element == ANYTHING and self._producers is not None:
            of_element = {
                "kind": PASS_REFERENCE,
                "convert": keep(self.pack_element),
                "dimensions": _ANY_SIZES,
            }
            fields["element"] = record(of_element)
        return fields

    def new_list(self, code: int, count: int) -> int:
        """The handle of a list of so many elements; 0: machine code makes it."""
        if self._table.supply_lists() and count <= LIST_CAPACITY:
            return 0
        made = VmList(code, count)
        made.resize(count)
        return self._table.wrap(made)

    def pack_element(self, value: Any) -> int | float | npt.NDArray[Any]:
        """An element of a list of anything: its handle, or the number or array that machine code stores."""
        if isinstance(value, float):
            return float(value)
        if isinstance(value, np.generic):
            return np.asarray(value)
        _require_no_code(value)
        packed = self._packer.pack(value)
        self._remember(value)
        return self._table.wrap(packed)


def _require_no_code(value: object) -> None:
    if runs_code(value):
        raise FailedPreconditionError("what makes an array of the value may wait for another thread")


def reference_packer(
    function: Function, keeper: Keeper, parameter: Parameter, item: Item, producers: Producers | None
) -> HandlePacker:
    """The packer of a parameter that is passed by reference."""
    packer = HandlePacker
    if element_of(parameter) is not None:
        packer = ListPacker
    elif producers is not None and _may_be_array(parameter):
        packer = ViewPacker
    return packer(function, keeper, parameter, item, producers)


def _may_be_array(parameter: Parameter) -> bool:
    """Whether a reference may be a buffer view of any type."""
    is_view = parameter.type in (TYPE_NAMES["r"], "!hal.buffer_view")
    return is_view and parameter.workspace is None
