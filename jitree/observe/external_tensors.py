"""Passes tensors of other runtimes to observers, as if they were dispatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from jitree.base.events import DISPATCH
from jitree.hal.stepwise import DeviceStep
from jitree.observe.export_names import TensorKind
from jitree.observe.fingerprints import digest
from jitree.observe.observation import Onlooker
from jitree.observe.origins import CallOrigin
from jitree.observe.tensors import VALUE, ObservedDispatch, ObservedTensor
from jitree.types import element_type_of

_SHOWN: Final = "shown"
"""The source of a type that a peer has shown."""
_NOWHERE: Final = CallOrigin(None, "", "")


class ShownValue(ObservedDispatch):
    """One tensor, with the name that its runtime gives it. What it was computed from is not known."""

    what = VALUE

    def __init__(self, name: str, ordinal: int, array: np.ndarray[Any, Any]) -> None:
        super().__init__(DeviceStep(DISPATCH, (), name=name), _NOWHERE, ordinal)
        element = element_type_of(array.dtype)
        kind = None if element is None else TensorKind(element, array.shape)
        extent = array.ctypes.data, array.nbytes
        self.outputs = (ObservedTensor(0, extent, kind, _SHOWN, self.label),)
        self._array = array  # the memory at the extent


class Shower:
    """Tells onlookers of the values of one call, in the order in which they are shown; each once, under the
    name that it has first."""

    def __init__(self, onlookers: Sequence[Onlooker]) -> None:
        self._onlookers = onlookers
        self._count = 0
        self._seen = set[tuple[tuple[int, ...], bytes]]()

    def __call__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        key = array.shape, digest(array)
        if key in self._seen:
            return
        self._seen.add(key)
        value = ShownValue(name, self._count, array)
        self._count += 1
        try:
            for onlooker in self._onlookers:
                onlooker.looks_at(value)
        finally:
            for tensor in value.outputs:
                tensor.end()
