"""Calls functions in interpreters whose objects machine code does not know.

Python packs all arguments as for any call that is not usual. Machine code of calls is entered once; when the
context is its own it has Python make a row of each argument (a number's bits, a handle, or where elements
lie), copies elements, runs the program, and has Python make arrays of the handles of results. It calls
Python's C interface and looks into no object. Functions of devices that work by themselves, and asynchronous
ones, are left to Python.
"""

from __future__ import annotations

import ctypes
import operator
from array import array
from collections import deque
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from jitree.api.array import Array, show_elements
from jitree.api.calls.native import cpython_layout
from jitree.api.calls.native.cpython_layout import CInterface
from jitree.api.calls.native.direct import DirectCall, Unsuitable, imports_any
from jitree.api.calls.native.handle_owners import Keeper
from jitree.api.calls.native.layout import COPIED, NDARRAY_CONTIGUOUS, Ndarray
from jitree.base.finalizers import Finalizer
from jitree.base.memory import once
from jitree.codegen.record import layout_of, size_of, words_of
from jitree.hal.enums import MemoryAccess
from jitree.regs.layout import OWNER_CODE, PLACE_SHIFT, Entry
from jitree.types import ENCODING_DENSE, element_type, is_packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from jitree.api.calls.native.handle_owners import OwnerCode
    from jitree.api.calls.native.python_fallback import Rest
    from jitree.api.function import Function
    from jitree.codegen import image
    from jitree.dispatch.function import BytecodeFunction
    from jitree.dispatch.invocation import Invoker
    from jitree.hal.buffer import BufferView
    from jitree.hal.device import Device
    from jitree.hal.fence import Fence

_ENTRY: Final = words_of(Entry)
_NDARRAY: Final = words_of(Ndarray)
_READ_WRITE: Final = int(MemoryAccess.READ | MemoryAccess.WRITE)
_SMALL: Final = 1 << 14
"""Bytes of arrays whose elements go by way of a bytes object: the last ones are kept."""
_NUMBERS: Final = {"i": ("i", 2), "I": ("q", 1), "f": ("f", 2), "F": ("d", 1)}
"""By kind of register: the format of a number in a row, and how many of them a row is."""


class HandleOwner(Finalizer):
    """Owns a reference to a handle, which the table drops before its next call.

    It is there before the reference is, which nothing can come between then."""

    __slots__ = ("handles", "keeper")

    def __init__(self, keeper: RowKeeper, deferred: deque[Iterable[int]]) -> None:
        self.keeper = keeper
        self.handles: list[int] = []
        """The one, as soon as it owns it."""
        # Functions in C: what `at_ends` has is looked at when the owner dies.
        ending: chain[Callable[[], object]] = chain((partial(deferred.append, self.handles),), keeper.at_ends)
        Finalizer.__init__(self, partial(deque, map(operator.call, ending), 0))


class RowKeeper(Keeper):
    """Keeps handles for owners that are objects of Python."""

    __slots__ = ("at_ends",)

    def __init__(self, invoker: Invoker, interface: OwnerCode) -> None:
        self.at_ends: list[Callable[[], object]] = []
        """Called when an owner ends: of a closed session no call takes handles back."""
        super().__init__(invoker, interface)

    def close(self) -> None:
        super().close()
        self.at_ends.append(self._attend)

    def own(self, obj: object) -> HandleOwner:
        owner = HandleOwner(self, self._table.deferred)
        owner.handles += (self._table.wrap(obj),)
        return owner

    def handle(self, owner: object) -> int:
        return cast(HandleOwner, owner).handles[0]

    def array(self, handle: int, device: Device) -> Array:
        """An array with one more reference to the handle of a view."""
        table, made = self._table, Array(cast("BufferView", None), device)
        owner = made._owner = HandleOwner(self, table.deferred)
        made._keeper = self
        table.i32[((handle - table.base) >> 2) + _ENTRY.count] += 1  # no call from here
        owner.handles += (handle,)
        return made

    def elements(self, owner: HandleOwner) -> npt.NDArray[Any] | None:
        """Shows the memory of a view; None where that takes more than a look at its entry."""
        table = self._table
        word = (owner.handles[0] - table.base) >> 3
        address, length = table.i64[word + _ENTRY.address], table.i64[word + _ENTRY.length]
        access = table.i32[2 * word + _ENTRY.access]
        code, encoding = table.i32[2 * word + _ENTRY.element_type], table.i32[2 * word + _ENTRY.encoding]
        row, shape = element_type(code), self.shape(owner)
        if shape is None or encoding != ENCODING_DENSE or is_packed(row) or access >> PLACE_SHIFT:
            return None
        if not address or not length or row.byte_length(shape) > length:
            return None
        memory = (ctypes.c_char * length).from_address(address)
        memory.owner = owner  # type: ignore[attr-defined]
        return np.ndarray(shape, row.dtype, cast(Any, memory))


def find_elements(array: Array) -> npt.NDArray[Any] | None:
    """The elements of an array of such a keeper that are there; else None."""
    owner = array._owner
    if type(owner) is not HandleOwner or array._fence is not None:
        return None
    return owner.keeper.elements(owner)


class _Elements:
    """An Ndarray record: where the elements of a numpy array lie."""

    def __init__(self, rank: int, shape: tuple[int | None, ...]) -> None:
        words = self._words = array("q", bytes(size_of(Ndarray)))
        self._dimensions = array("q", [size or 0 for size in shape] or [0])
        self._is_open = None in shape
        numbers = memoryview(words).cast("B").cast("i")
        words[_NDARRAY.dimensions] = self._dimensions.buffer_info()[0]
        numbers[_NDARRAY.rank], numbers[_NDARRAY.flags] = rank, NDARRAY_CONTIGUOUS
        # Its owner is forgotten when it is given a value.
        self._data = ctypes.c_char_p.from_buffer(words, layout_of(Ndarray)["data"])
        self._row = COPIED | words.buffer_info()[0]

    def row_of(self, value: npt.NDArray[Any]) -> int:
        self._data.value = value.tobytes()
        if self._is_open:
            self._dimensions[:] = array("q", value.shape)
        return self._row


class RowMaker:
    """Makes rows of a function's arguments, and its arrays; the lock is held."""

    def __init__(
        self, function: Function, vm_function: BytecodeFunction, keeper: RowKeeper, rest: Rest
    ) -> None:
        """Unsuitable for functions that are left to Python."""
        if function.signature.fences or not imports_any(function.device):
            raise Unsuitable
        signature, items = function.signature, vm_function.convention.arguments
        self._packers = function.packers
        self._table, self._keeper, self._rest = function.invoker.table, keeper, rest
        self._device = function.device
        kind = self._table.ref_types.lookup("hal.buffer_view")
        self._view_kind = kind if len(function.devices) == 1 else -1
        self._rows = array("q", bytes(8 * max(1, len(items))))
        self.address: int = self._rows.buffer_info()[0]
        self._elements = {
            index: _Elements(len(parameter.tensor.shape), parameter.tensor.shape)
            for index, parameter in enumerate(signature.arguments)
            if parameter.tensor is not None
        }
        self._references = [index for index, item in enumerate(items) if item == "r"]
        self._puts = [
            None if item == "r" else self._put(index, str(item)) for index, item in enumerate(items)
        ]

    def _put(self, index: int, item: str) -> Callable[[Any], object]:
        """What puts a number into its row."""
        layout, width = _NUMBERS[item]
        numbers: Any = memoryview(self._rows).cast("B")
        return partial(numbers.cast(layout).__setitem__, width * index)

    def make(self, packed: tuple[Any, ...]) -> None:
        """Makes the rows of what Python has packed of all arguments."""
        rows, owed = self._rows, self._table.owed
        for index in self._references:
            if rows[index] and not rows[index] & COPIED:  # of a call that failed here
                owed += (rows[index],)
            rows[index] = 0
        for index, put in enumerate(self._puts):
            if put is None:
                self._put_reference(index, packed[index])
            else:
                put(packed[index])

    def _put_reference(self, index: int, value: Any) -> None:
        cls = type(value)
        if cls is np.ndarray:
            if value.nbytes <= _SMALL:
                self._rows[index] = self._elements[index].row_of(value)
                return
            value = self._packers[index](value)
        elif cls is Array:
            owner = value._owner
            if type(owner) is HandleOwner and owner.keeper is self._keeper:
                self._rows[index] = self._table.retain(owner.handles[0])
                return
            value = value.buffer_view
        self._rows[index] = self._table.wrap(value)

    def take(self, fence: Fence | None, handle: int) -> Any:
        """As :meth:`Rest.take_reference`."""
        words, word = self._table.i32, (handle - self._table.base) >> 2 if handle else 0
        is_view = handle and fence is None and words[word + _ENTRY.kind] == self._view_kind
        if is_view and words[word + _ENTRY.owner] == OWNER_CODE:
            return self._keeper.array(handle, self._device)
        return self._rest.take_reference(fence, handle)


class RowInterface(CInterface):
    """What a DirectCall takes of machine code where that knows no objects."""

    keeper_class = RowKeeper
    row_maker = RowMaker

    def __init__(self, code: image.Image) -> None:
        super().__init__(code)
        address = code.addresses["run_rows"]
        self._run = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_int64, ctypes.py_object)(address)

    def make(self, direct: DirectCall, /, *arguments: Any, **named: Any) -> DirectCall:
        return direct

    def run(self, direct: DirectCall, /, *packed: Any) -> Any:
        return self._run(direct.words.buffer_info()[0], packed)


@once
def _interface() -> RowInterface:
    code = cpython_layout.code()
    assert code is not None
    show_elements(find_elements)
    return RowInterface(code)


def interface() -> RowInterface | None:
    """The interface as soon as its image is there."""
    return None if cpython_layout.code() is None else _interface()
