"""Arguments that programs write to: storage of results (``out=``) and tensors that they may overwrite.

A compiler marks them: ``iree.abi.output = n`` on the argument that result ``n`` is put into,
``iree.abi.consume`` on a tensor whose memory the program uses for something else when it has read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import Signature
from jitree.api.calls.number_packing import describe
from jitree.api.calls.packing import Donation, TensorPacker
from jitree.api.calls.transfers import copy_view, wrap_in_place
from jitree.api.calls.writing import require_writable
from jitree.api.module import OUT
from jitree.base.elements import is_masked
from jitree.errors import InvalidArgumentError
from jitree.hal.buffer import BufferView
from jitree.hal.device import Device


def storage_of(signature: Signature, out: Any, device: Device) -> Mapping[str, Array]:
    """The arguments, by name, that ``out`` stands for: an array, or a tuple with one for each result that the
    program puts into storage of its caller.

    Numpy arrays are written in place. INVALID_ARGUMENT for a program that has no such results, for another
    number of arrays, and for arrays that cannot be written in place.
    """
    targets = sorted(
        (parameter.storage_of, parameter.name)
        for parameter in signature.arguments
        if parameter.storage_of is not None
    )
    if not targets:
        raise InvalidArgumentError(
            f"{OUT}: the program puts no result into storage of its caller; compile it with an argument that "
            "has `iree.abi.output`, or copy its results"
        )
    arrays = out if isinstance(out, (tuple, list)) else (out,)
    if len(arrays) != len(targets):
        raise InvalidArgumentError(f"{OUT}: expected {len(targets)} arrays but got {len(arrays)}")
    return {name: _in_place(array, device) for (_, name), array in zip(targets, arrays, strict=True)}


def _in_place(value: Any, device: Device) -> Array:
    if isinstance(value, Array):
        return value
    if isinstance(value, np.ndarray) and not is_masked(value):
        view = wrap_in_place(value, device)
        if view is not None:
            return Array(view, device)
    raise InvalidArgumentError(
        f"{OUT}: {describe(value)} cannot be written in place; it takes device arrays (session.empty), and "
        "numpy arrays that are contiguous, writable and aligned to 64 bytes where the device uses host memory"
    )


class StoragePacker(TensorPacker):
    """A tensor that the program puts a result into. Read-only host arrays have been copied: the caller only
    sees the result then."""

    __slots__ = ()

    def check(self, view: BufferView) -> None:
        super().check(view)
        require_writable(view, self._name)

    def pack(self, value: Any) -> object:
        view = super().pack(value)
        assert isinstance(view, BufferView)
        return require_writable(view, self._name)


class ConsumedPacker(TensorPacker):
    """A tensor that the program may overwrite: what the caller keeps is copied, what it donates is not,
    unless it lies in memory that must stay as it is. Host arrays have been copied."""

    __slots__ = ()

    def pack(self, value: Any) -> object:
        view = super().pack(value)
        assert isinstance(view, BufferView)
        if self._is_kept(value) or not view.buffer.is_writable:
            return copy_view(view, self.device)
        return view

    def _is_kept(self, value: object) -> bool:
        """Whether the view is over memory that its owner goes on to use."""
        if isinstance(value, (Array, BufferView)):
            return True
        exchange = self.device.array_exchange
        return exchange is not None and not isinstance(value, Donation) and exchange.is_importable(value)


def donate(array: Array) -> Donation:
    """For an argument of one call: the array is the program's from then on, which may use its memory for
    something else if it was compiled so (``iree.abi.consume``). The caller cannot use it any more.

    INVALID_ARGUMENT for anything but a :class:`jitree.Array`.
    """
    if not isinstance(array, Array):
        raise InvalidArgumentError(f"donate: expected a jitree.Array but got {describe(array)}")
    return Donation(array)
