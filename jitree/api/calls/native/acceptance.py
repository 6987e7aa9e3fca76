"""Tells machine code which arrays and numbers it passes by itself.

Device arrays get a mark if they fit a parameter as they are. A type of another library's arrays is learned
when Python has taken one of its arrays, and forgotten when it dies. Its own functions in C
(``__dlpack_c_exchange_api__``) count as long as no class between overrides ``__dlpack__``. Of Python
numbers machine code makes elements where every element type has a plain way for them
(:mod:`jitree.api.calls.native.numbers`).
"""

from __future__ import annotations

import sys
from array import array
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import Signature
from jitree.api.calls.native.layout import (
    LARGEST_COPIED,
    MAXIMUM_EXCHANGES,
    PASS_BF16,
    PASS_F16,
    PASS_F32,
    PASS_F64,
    PASS_I64,
    Exchange,
)
from jitree.api.calls.packing import packers, tensor_packer
from jitree.api.calls.tensor_packing import ArrayTransfer
from jitree.base.dlpack_names import LAZY_ATTRIBUTE, LAZY_COMPLEX, LAZY_METHOD
from jitree.base.finalizers import SharedWeakSet, with_lock
from jitree.codegen.record import size_of, words_of
from jitree.errors import FailedPreconditionError, StatusError, has_attribute, is_interruption
from jitree.types import CLASS_BOOLEAN, CLASS_UNSIGNED, ENCODING_DENSE, INTEGER_CLASSES, ElementType

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from jitree.api.calls.declaration import DeclaredTensor, Parameter
    from jitree.api.calls.native.handle_owners import Keeper
    from jitree.api.function import Function
    from jitree.hal.buffer import BufferView
    from jitree.hal.device import Device
    from jitree.vmfb.cconv import Item

_EXCHANGE: Final = words_of(Exchange)

_FLOATS: Final = {
    "f16": (PASS_F16, 1 << 11), "bf16": (PASS_BF16, 1 << 8),
    "f32": (PASS_F32, 1 << 24), "f64": (PASS_F64, 1 << 53),
}  # fmt: skip
"""How they are passed, and up to which integer they have all."""

DLPACK: Final = sys.intern("__dlpack__")
DLPACK_DEVICE: Final = sys.intern("__dlpack_device__")
NAMES: Final = ("max_version",)
ORDER_NAMES: Final = ("stream", "max_version")
OLD_ORDER_NAMES: Final = ("stream",)
VERSION: Final = (1, 0)
"""What machine code passes by these names."""
_LAZY_NAMES: Final = {
    "lazy_attribute": sys.intern(LAZY_ATTRIBUTE), "lazy_method": sys.intern(LAZY_METHOD),
    "lazy_complex": sys.intern(LAZY_COMPLEX),
}  # fmt: skip
_WORDS: Final = size_of(Exchange) // 8
_KNOWN: Final = (np.ndarray, np.generic, Array)


def view_at_once(array: Array, keeper: Keeper, device: Device) -> BufferView | None:
    """Views an array under ``keeper``'s lock; None if that takes waiting. Making that of another session's
    array takes its lock, which a thread may have that waits for this one."""
    fence, other = array.fence, array._keeper
    if fence is not None and not device.follows(fence) and not array._is_there():
        return None
    if other is None or other is keeper or array._view is not None:
        return array.buffer_view
    return with_lock(other.lock, partial(getattr, array, "buffer_view"))


class LearntArrays:
    """Has machine code pass arrays like those that Python has packed."""

    def __init__(self, device: Device, keeper: Keeper, producers: Producers) -> None:
        self.device = device
        self.keeper = keeper
        self._producers = producers

    def packed(self, pack: Callable[[Any], object], value: Any) -> object:
        """What a packer makes of a value for a parameter without a type."""
        packed = pack(value)
        self.keep(value, packed, None)
        return packed

    def keep(self, value: object, packed: object, marker: object) -> None:
        """A value was packed for a parameter that ``marker`` stands for; None: one without a type."""
        if type(value) is not Array:
            self._producers.learn(value)
        elif packed is value._view and value.device is self.device:
            if value._owner is not None and (marker is None or value._passed_as is marker):
                return
            marker = value._passed_as if marker is None else marker
            with_lock(self.keeper.lock, partial(value._be_passed, self.keeper, marker))


class Acceptance:
    """Says what machine code passes unseen for a parameter."""

    def __init__(
        self, function: Function, memory: LearntArrays, parameter: Parameter, tensor: DeclaredTensor
    ) -> None:
        self._packer = tensor_packer(parameter, tensor, function.transfer())
        self._memory = memory
        self._tensor = tensor
        self._is_consumed = parameter.consumed
        self._dtype = None if tensor.element_type is None else tensor.element_type.dtype
        self.marker = memory.keeper.marker(tensor, parameter.storage_of is not None)
        """What stands for such parameters in the session: arrays remember it when they are accepted."""

    def accept(self, array: Array) -> bool:
        """Gives a device array an owner, if need be, with the lock held. False: Python packs it."""
        keeper, device = self._memory.keeper, self._memory.device
        view = view_at_once(array, keeper, device)
        if view is None or not view.buffer.is_writable:
            return False
        try:
            self._packer.check(view)
        except StatusError:
            return False
        is_declared = self._packer.declared(view) is view
        # Machine code has to look at arrays of other devices, and of another sign, in each call.
        is_known = is_declared and array.device is device
        return array._be_passed(keeper, self.marker if is_known else None) and is_declared

    def pack(self, value: Any) -> object:
        """Packs as the parameter's packer, but keeps fitting numpy arrays: machine code passes the one by its
        owner, and copies the other."""
        if type(value) is Array and self._is_known(value):
            return value
        array = self._host_array(value)
        if array is None:
            packed = self._packer.pack(value)
        elif array.dtype is not self._dtype or array.nbytes > LARGEST_COPIED:
            packed = self._packer.pack_array(array, value)
        else:
            if array.shape != self._tensor.shape:
                self._packer.check_shape(array.shape)
            packed = array
        self._memory.keep(value, packed, self.marker)
        return packed

    def _is_known(self, array: Array) -> bool:
        """Whether machine code passes a device array by its owner. Another thread may give it away."""
        row, keeper, owner = self._tensor.element_type, self._memory.keeper, array._owner
        if self._is_consumed or row is None or owner is None or array._keeper is not keeper:
            return False
        return array._passed_as is self.marker or (
            array._fence is None
            and keeper.shape(owner) == self._tensor.shape
            and keeper.type_and_encoding(owner) == (row.code, ENCODING_DENSE)
        )

    def _host_array(self, value: Any) -> npt.NDArray[Any] | None:
        is_elsewhere = type(value) is Array or self._packer.is_importable(value)
        return None if is_elsewhere else self._packer.host_array(value)


class NotingPacker:
    """Packs arrays that submitted calls write to: their users have to be told."""

    def __init__(self, function: Function, keeper: Keeper, parameter: Parameter, item: Item) -> None:
        self._device = function.device
        self.noted = array("q", (0,))
        """1 if ``arrays`` are what the call in progress may write to; machine code writes 0 when a call
        begins."""
        self.arrays: tuple[ref[Array], ...] = ()
        transfer = ArrayTransfer(function.device, self._present_view)
        signature = Signature((parameter,), (), "", True, False)
        (self._packer,) = packers(signature, (item,), transfer, function.invoker.table.ref_types)
        self._keeper = keeper
        self._table = function.invoker.table

    def pack(self, value: Any) -> int:
        """FAILED_PRECONDITION for what only Python submits. The lock must be held."""
        if type(value) is not Array:
            raise FailedPreconditionError("not a device array")
        packed = self._packer.pack(value)
        self.arrays = (ref(value),)
        self.noted[0] = 1
        value._be_passed(self._keeper, value._passed_as)  # the next call takes it by its owner
        return self._table.wrap(packed)

    def _present_view(self, array: Array) -> BufferView:
        """The view of an array whose elements are there. No thread may wait with the context's lock."""
        view = view_at_once(array, self._keeper, self._device)
        if view is None:
            raise FailedPreconditionError("the view cannot be had without waiting")
        return view


def numbers_of(row: ElementType) -> dict[str, int]:
    """Fields of an ARGUMENT and a DTYPE of elements of a type."""
    if row.name in _FLOATS:
        kind, exact = _FLOATS[row.name]
        return {"numbers": kind, "low": -exact, "high": exact}
    numerical_class = row.numerical_class
    if numerical_class == CLASS_BOOLEAN:
        return {"numbers": PASS_I64, "low": 0, "high": 1}
    if numerical_class not in INTEGER_CLASSES:
        return {}
    is_unsigned = numerical_class == CLASS_UNSIGNED
    high = (1 << min(63, row.bits - (not is_unsigned))) - 1
    low = 0 if is_unsigned else -1 - high
    return {"numbers": PASS_I64, "low": low, "high": high}


class Producers:
    """The Exchange records of the process."""

    def __init__(self) -> None:
        self._words = array("q", bytes(size_of(Exchange) * MAXIMUM_EXCHANGES))
        self.address: int = self._words.buffer_info()[0]
        self._kept: dict[int, tuple[object, ...]] = {}
        self._seen: SharedWeakSet[type] = SharedWeakSet()
        self._next = 0

    def learn(self, value: object) -> None:
        """Has machine code take arrays like one that Python takes."""
        cls = type(value)
        if cls in self._seen:
            return
        self._seen.add(cls)
        if issubclass(cls, _KNOWN) or not has_attribute(cls, DLPACK):
            return
        from jitree.base.dlpack import exchange_capsule, exchange_interface

        capsule = exchange_capsule(cls)
        interface = exchange_interface(capsule)
        if interface is not None and interface.tensor_of_object:
            row = {field: id(name) for field, name in _LAZY_NAMES.items() if has_attribute(cls, name)}
            row["describe"] = interface.tensor_of_object
            row["find_order"] = interface.current_work_stream or 0
        else:
            row = {"names": id(NAMES) if _takes_version(value) else 0}
        number, self._next = self._next, (self._next + 1) % MAXIMUM_EXCHANGES
        # As the class dies, in C, where no signal's handler runs: Python would lose what one raises.
        forget = map(self._words.__setitem__, (number * _WORDS + _EXCHANGE.type,), (0,))
        self._kept[number] = ref(cls, partial(next, forget)), capsule
        self._words[number * _WORDS : (number + 1) * _WORDS] = array("q", bytes(size_of(Exchange)))
        for field, word in {**row, "type": id(cls)}.items():
            self._words[number * _WORDS + getattr(_EXCHANGE, field)] = word


def _takes_version(value: Any) -> bool:
    """Whether ``__dlpack__`` takes what it takes from DLPack 1.0 on."""
    try:
        value.__dlpack__(max_version=VERSION)
    except Exception as error:  # whatever its code raises
        if is_interruption(error):
            raise
        return False
    return True
