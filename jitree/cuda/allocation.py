"""Memory that GPUs reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitree.hal.buffer import Allocation

if TYPE_CHECKING:
    from typing import Protocol

    from jitree.cuda.context import CudaContext
    from jitree.cuda.stream_share import StreamShare

    class MemoryStream(Protocol):
        """The stream of the device that memory belongs to."""

        context: CudaContext
        share: StreamShare


class CudaAllocation(Allocation):
    """``stream`` is set when it has been made."""

    __slots__ = ("stream",)
    stream: MemoryStream


class OrderedAllocation(CudaAllocation):
    """It is only used and used again in the order of its stream: no user needs to retain it, and no other
    code writes to it."""

    __slots__ = ()
