"""Exchanges arrays with other libraries where the host sees no device memory."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from jitree.base.finalizers import SharedWeakValues

if TYPE_CHECKING:
    from jitree.hal.buffer import Buffer, BufferView
    from jitree.hal.fence import Fence

exporters: Final[SharedWeakValues[tuple[int, int], Any]] = SharedWeakValues()
"""Devices whose arrays other libraries may have, the last one for each number that DLPack gives a place."""


class HostTransfers(enum.Enum):
    """Says whether arrays move between host and device unasked."""

    IMPLICIT = "implicit"
    """Where numpy asks for the elements, and where a call is given host arrays."""
    EXPLICIT = "explicit"
    """Only by ``Session.to_device`` and ``Array.to_host``; anything else fails."""


class ArrayExchange(Protocol):
    """Exchanges the arrays in a device's memory. Nothing is copied either way."""

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """(kind, number), as ``__dlpack_device__`` answers."""

    @property
    def explicit_transfers(self) -> bool:
        """Whether arrays move between host and device only where they are told to."""

    def is_importable(self, value: object) -> bool:
        """Whether a value is an array in memory of devices of this kind."""

    @property
    def shares(self) -> bool:
        """Whether another library has had, or has lent, any memory."""

    def import_memory(self, address: int, length: int, owner: object) -> Buffer:
        """Wraps another library's memory, keeping ``owner``: its array or a capsule."""

    def is_shared(self, view: BufferView) -> bool:
        """Whether another library may write to a view's memory at any time."""

    def import_view(self, value: Any) -> BufferView:
        """Views another library's array in what is submitted from now on.

        INVALID_ARGUMENT for arrays of another device, with gaps, or of types that programs do not have.
        """

    def export_dlpack(
        self, view: BufferView, wait: Fence | None, stream: int | None, max_version: tuple[int, int] | None
    ) -> Any:
        """A DLPack capsule, usable on the consumer's ``stream`` without waiting.

        ``wait`` is reached when the elements are there. BufferError for types that DLPack does not have.
        """

    def array_interface(self, view: BufferView, wait: Fence | None) -> dict[str, Any]:
        """``__cuda_array_interface__``. AttributeError for types that it does not have."""
