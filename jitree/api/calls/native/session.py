"""Makes the functions and copies of one session machine code.

Copies of small numpy arrays on the device (``Session.to_device``) are calls that run nothing and whose
argument is the result.
"""

from __future__ import annotations

from array import array
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

from jitree.api.calls.native import RECIPE
from jitree.api.calls.native import cpython_layout as interfaces
from jitree.api.calls.native.direct import DirectCall, Unsuitable, copies_to, direct_call, fill, records
from jitree.api.calls.native.handle_owners import Keeper
from jitree.api.calls.native.layout import (
    LARGEST_COPIED,
    LARGEST_UPLOADED,
    MAXIMUM_RANK,
    PASS_ARRAY,
    Argument,
    CallRecord,
    Result,
)
from jitree.api.calls.transfers import native_row
from jitree.codegen import image
from jitree.codegen.record import words_of
from jitree.dispatch.context import WAITING_TIERS
from jitree.dispatch.function import BytecodeFunction
from jitree.errors import ResourceExhaustedError, memory_errors
from jitree.hal.enums import READING
from jitree.types import is_packed

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.api.array import Array
    from jitree.api.asynchronous import AsynchronousFunction
    from jitree.api.function import Function
    from jitree.hal.device import Device

_CALL: Final = words_of(CallRecord)

_NOT_TOLD: Final = array("q", (0,))
_MAXIMUM_KINDS: Final = 256
"""Pairs of dtype and rank that are remembered."""


class DirectCalls:
    """Holds a session's direct calls, made when first needed."""

    def __init__(self, device: Device) -> None:
        self._keeper: Keeper | None = None
        self._pattern: DirectCall | None = None
        """A call of any function of the session."""
        self._words = _NOT_TOLD
        """Its record as it is before the first call: one in progress, of another thread or around this one,
        notes there what it shares and lends."""
        self._most = LARGEST_COPIED
        """Bytes of an array that machine code copies."""
        self._device = device
        self._calls: dict[tuple[object, int], DirectCall | None] = {}
        if device.device_allocator.limited_charge is not None:
            device.device_allocator.reclaim = partial(_collect, ref(self))

    def prepare(self, function: Function) -> tuple[bool, DirectCall | None]:
        """Whether it is settled how the function is called from now on (False: to be tried another time), and
        the call by machine code, if its arguments are such that this is possible."""
        vm_function, invoker = function.vm_function, function.invoker
        if not isinstance(vm_function, BytecodeFunction):
            return True, None
        if vm_function.convention.has_spans or not interfaces.has_c_interface():
            return True, None
        if invoker.engine.name in WAITING_TIERS:
            image.wait(RECIPE)
        loaded = interface() if interfaces.is_supported() else row_interface()
        if loaded is None:
            return False, None
        with invoker.lock:
            entry = invoker.engine.entry
            if entry is None or not invoker.may_prepare():
                return False, None
            keeper = self._keeper = self._keeper or loaded.keeper_class(invoker, loaded)
            try:
                with memory_errors("preparing calls by machine code"):
                    prepared = direct_call(function, vm_function, entry, loaded, keeper)
            except (Unsuitable, ResourceExhaustedError):
                return True, None
        if not isinstance(loaded, interfaces.Interface):
            return True, prepared
        if function.signature.fences:
            loaded.submit(cast("type[AsynchronousFunction]", type(function)))
        if self._pattern is None:
            self._interface = loaded
            self._view_kind = invoker.table.ref_types.lookup("hal.buffer_view")
            self._copies = copies_to(self._device, invoker.table)
            if self._device.shared_timeline is not None and self._copies:
                keeper.pattern = prepared
                assert invoker.table.handle_pool is not None
                keeper.connect(invoker.table.handle_pool.record)
                if self._device.array_exchange is not None:
                    from jitree.hal.exchange import exporters

                    exporters[self._device.array_exchange.dlpack_device] = self._device
                self._most = LARGEST_UPLOADED
            self._pattern, self._words = prepared, array("q", prepared.words)
        return True, prepared

    def collect(self) -> None:
        """Drops what was given back, if nothing of the context runs right now."""
        if self._keeper is not None:
            self._keeper.collect()

    def close(self) -> None:
        """The session is closed."""
        if self._keeper is not None:
            self._keeper.close()

    def place(self, elements: npt.NDArray[Any]) -> Array | None:
        """A copy of an array on the device; None for what is not copied in this way."""
        if self._pattern is None or elements.nbytes > self._most:
            return None
        key = elements.dtype, elements.ndim
        try:
            call = self._calls[key]
        except KeyError:
            if len(self._calls) >= _MAXIMUM_KINDS:
                self._calls.clear()
            call = self._calls[key] = self._make(self._pattern, elements)
        made: Any = call and call.make(call, elements)
        return made if made is not call else None

    def _make(self, pattern: DirectCall, elements: npt.NDArray[Any]) -> DirectCall | None:
        row = native_row(elements.dtype)
        if row is None or is_packed(row) or elements.ndim > MAXIMUM_RANK or not self._copies:
            return None
        words = array("q", self._words)
        place = words[_CALL.refs]
        kept = row.dtype, object(), _refuse
        argument = records(Argument, [{
            "kind": PASS_ARRAY, "place": place, "marker": id(kept[1]),
            "accept": id(_refuse), "convert": id(_refuse), "dtype": id(row.dtype),
            "item_size": row.dtype.itemsize, "element_type": row.code, "rank": elements.ndim,
            "dimensions": [-1] * elements.ndim,
        }])  # fmt: skip
        result = records(Result, [{"kind": PASS_ARRAY, "place": place, "view_kind": self._view_kind}])
        fill(words, CallRecord, {
            "run": 0, "signal": 0, "extents": 0, "beside": READING, "told": _NOT_TOLD.buffer_info()[0],
            "workspace": 0, "uploads": 1, "staging": 0, "rewrites": 0, "ref_count": 1,
            "argument_count": 1, "arguments": argument.buffer_info()[0],
            "result_count": 1, "results": result.buffer_info()[0],
        })  # fmt: skip
        return DirectCall(words, self._interface, (), (pattern, kept, argument, result))


def _refuse(value: object) -> None:
    """Refuses arrays of another dtype: there are none here."""


def interface() -> interfaces.Interface | None:
    """The machine code of calls, loaded as soon as it is there."""
    return interfaces.get(DirectCall)


def row_interface() -> interfaces.CInterface | None:
    """As :func:`interface`, where it knows no objects."""
    from jitree.api.calls.native import unknown_interpreter  # whose functions Python packs arguments for

    return unknown_interpreter.interface()


def exchange_functions() -> object:
    """Returns arrays' ``__dlpack_c_exchange_api__``, None without machine code of calls."""
    loaded = interface()
    if loaded is None:
        return None
    from jitree.api.calls.native import exporting  # few processes exchange arrays so

    return exporting.exchange_functions(loaded)


def _collect(calls: ref[DirectCalls]) -> None:
    found = calls()
    if found is not None:
        found.collect()
