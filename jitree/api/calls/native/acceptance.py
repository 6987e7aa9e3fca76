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
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.native.layout import (
    MAXIMUM_EXCHANGES,
    PASS_BF16,
    PASS_F16,
    PASS_F32,
    PASS_F64,
    PASS_I64,
    Exchange,
)
from jitree.api.calls.packing import tensor_packer
from jitree.api.calls.tensor_packing import is_object
from jitree.base.dlpack_names import LAZY_ATTRIBUTE, LAZY_COMPLEX, LAZY_METHOD
from jitree.base.finalizers import with_lock
from jitree.base.weak_sets import SharedWeakSet
from jitree.codegen.record import size_of, words_of
from jitree.errors import StatusError, has_attribute, is_interruption
from jitree.types import CLASS_BOOLEAN, CLASS_UNSIGNED, INTEGER_CLASSES, ElementType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitree.api.calls.declaration import DeclaredTensor, Parameter
    from jitree.api.calls.native.handle_owners import Keeper
    from jitree.api.function import Function
    from jitree.hal.buffer import BufferView
    from jitree.hal.device import Device

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
_PLAIN: Final = frozenset((int, float, bool))
_LONG: Final = 64
_MOST_NUMBERS: Final = 1 << 16
"""Of a list that is packed while the context's lock is held."""


def is_there(array: Array, device: Device) -> bool:
    """Whether what a call gives its device finds the elements of an array."""
    fence = array.fence
    return fence is None or device.follows(fence) or array._is_there()


def view_at_once(array: Array, keeper: Keeper, device: Device) -> BufferView | None:
    """The view of an array with the lock of ``keeper`` held, None where that takes waiting. Making that of
    another session's array takes its lock, which a thread may have that waits for this one."""
    other = array._keeper
    if not is_there(array, device):
        return None
    if other is None or other is keeper or array._view is not None:
        return array.view
    return with_lock(other.lock, partial(getattr, array, "view"))


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


def has_numbers(value: object) -> bool:
    """Whether it is a list of nothing but some of Python's numbers."""
    if type(value) is not list and type(value) is not tuple:
        return False
    items = cast("Sequence[object]", value)
    return len(items) <= _MOST_NUMBERS and _PLAIN.issuperset(map(type, items))


def runs_code(value: object) -> bool:
    """Whether code of others makes an array of a value, by ``__array__`` or as a list. Long lists, which take
    long to look at, count as such."""
    cls = type(value)
    if cls in _PLAIN:
        return False
    if cls is list or cls is tuple:
        items = cast("Sequence[object]", value)
        return len(items) > _LONG or any([runs_code(item) for item in items])
    if issubclass(cls, (list, tuple)):
        return True
    is_known = issubclass(cls, _KNOWN) or has_attribute(cls, DLPACK) or is_object(value)
    return not is_known and has_attribute(cls, "__array__")
