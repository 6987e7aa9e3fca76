"""Calls a Python function, or any other callable, with arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from jitree.compare.lone_dispatch import LoneDispatch
from jitree.compare.peers import Peer, Show, local_arrays, torch_calls
from jitree.errors import attribute_of


class CallablePeer(Peer):
    """A function of Python: shows its local variables that are arrays, and what PyTorch computes for it."""

    nothing_shown = (
        "no array is assigned to a local variable of Python, no function of PyTorch is called (give models "
        "themselves: a module of PyTorch, a session of onnxruntime or the path of its file)"
    )

    def __init__(self, callee: Callable[..., Any]) -> None:
        self._callee = callee
        self.is_memory = isinstance(attribute_of(callee, "__self__"), LoneDispatch)

    def call(self, inputs: Sequence[Any], show: Show | None) -> Any:
        """See :meth:`Peer.call`."""
        if show is None:
            return self._callee(*inputs)
        if "torch" not in sys.modules:
            return local_arrays.shown(lambda: self._callee(*inputs), show)
        with torch_calls.watched(show, {}):
            return local_arrays.shown(lambda: self._callee(*inputs), show)
