"""Tensors whose memory the program writes to."""

from __future__ import annotations

from typing import Any

from jitree.api.array import Array
from jitree.api.calls.tensor_packing import Donation, TensorPacker
from jitree.api.calls.transfers import copy_view
from jitree.api.calls.writing import require_writable
from jitree.hal.buffer import BufferView


class StoragePacker(TensorPacker):
    """A tensor that the program puts a result into. Host arrays have been copied: the caller only sees the
    result then."""

    __slots__ = ()

    def check(self, view: BufferView) -> None:
        super().check(view)
        require_writable(view, self._name)

    def _own(self, value: Any, view: BufferView) -> BufferView:
        require_writable(view, self._name)
        return view


class ConsumedPacker(TensorPacker):
    """A tensor that the program may overwrite: what the caller keeps is copied, what it donates is not,
    unless it lies in memory that must stay as it is. Host arrays have been copied."""

    __slots__ = ()

    def pack(self, value: Any) -> object:
        is_donated = type(value) is Donation
        view = TensorPacker.pack(self, value.array if is_donated else value)
        assert isinstance(view, BufferView)
        if not view.buffer.is_writable or (not is_donated and self._is_kept(value)):
            return copy_view(view, self.device)
        return view

    def _own(self, value: Any, view: BufferView) -> BufferView:
        return view  # what is donated is not the array's any more

    def _is_kept(self, value: object) -> bool:
        """Whether the view is over memory that its owner goes on to use."""
        if isinstance(value, (Array, BufferView)):
            return True
        exchange = self.device.array_exchange
        return exchange is not None and exchange.is_importable(value)
