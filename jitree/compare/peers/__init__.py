"""Runs what programs are compared with: Python functions, PyTorch and ONNX models."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

Show = Callable[[str, Any], None]
"""Is told of the name of a value and the value, in the order of the computation."""


class Peer(abc.ABC):
    """No program: its results are compared, and what it shows between."""

    nothing_shown: str = ""
    """Why it shows nothing, where it does not."""
    is_memory: bool = False
    """Whether results are the memory of a dispatch. A build may put the elements there in another order."""

    @abc.abstractmethod
    def call(self, inputs: Sequence[Any], show: Show | None) -> Any:
        """Results of a call.

        With ``show`` it is told of what the call computes on the way.
        """

    @contextmanager
    def open(self) -> Iterator[Self]:
        """As sides that are programs."""
        yield self
