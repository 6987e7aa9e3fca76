"""Copies of small numpy arrays on the device (``Session.to_device``) by machine code: calls that run nothing,
whose argument is the result."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from jitree.api.calls.native.direct import DirectCall, fill, records
from jitree.api.calls.native.layout import ARGUMENT, CALL, MAXIMUM_RANK, PASS_ARRAY, RESULT
from jitree.api.calls.transfers import WRAP_MINIMUM, native_row
from jitree.base.elements import is_packed
from jitree.hal.heap import HeapAllocator

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.api.array import Array
    from jitree.api.calls.native.interface import Interface
    from jitree.api.session import Session

_MAXIMUM_KINDS: Final = 256
"""Pairs of dtype and rank that are remembered."""


class Placements:
    """Those of one session, made when one of its functions is called by machine code."""

    def __init__(self, session: Session, interface: Interface, direct: DirectCall) -> None:
        """``direct`` is a call of any function of the session."""
        self._place = interface.place
        self._direct = direct
        self._copies = isinstance(session.device_allocator, HeapAllocator)
        self._view_kind = session.context.table.ref_types.lookup("hal.buffer_view")
        self._calls: dict[tuple[object, int], DirectCall | None] = {}

    def place(self, elements: npt.NDArray[Any]) -> Array | None:
        """A copy of an array on the device; None for what is not copied in this way."""
        if elements.nbytes >= WRAP_MINIMUM:
            return None
        key = elements.dtype, elements.ndim
        if key not in self._calls:
            if len(self._calls) >= _MAXIMUM_KINDS:
                self._calls.clear()
            self._calls[key] = self._make(elements)
        call = self._calls[key]
        return None if call is None else self._place(call, elements)

    def _make(self, elements: npt.NDArray[Any]) -> DirectCall | None:
        row = native_row(elements.dtype)
        if row is None or is_packed(row) or elements.ndim > MAXIMUM_RANK or not self._copies:
            return None
        words = array("q", self._direct.words)
        place = words[CALL.word("refs")]
        kept = row.dtype, object(), _refuse
        argument = records(ARGUMENT, [{
            "kind": PASS_ARRAY, "place": place, "marker": id(kept[1]),
            "accept": id(_refuse), "convert": id(_refuse), "dtype": id(row.dtype),
            "item_size": row.dtype.itemsize, "element_type": row.code, "rank": elements.ndim,
            **{f"dimension_{index}": -1 for index in range(elements.ndim)},
        }])  # fmt: skip
        result = records(RESULT, [{"kind": PASS_ARRAY, "place": place, "view_kind": self._view_kind}])
        fill(words, CALL, {
            "run": 0, "signal": 0, "ref_count": 1,
            "argument_count": 1, "arguments": argument.buffer_info()[0],
            "result_count": 1, "results": result.buffer_info()[0],
        })  # fmt: skip
        return DirectCall(words, (self._direct, kept, argument, result))


def _refuse(value: object) -> None:
    """Of arrays of another dtype there are none here."""
