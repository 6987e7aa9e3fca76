"""What numpy asks of arrays on devices: it works on their elements, which come to the host by themselves."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from jitree.errors import folded

if TYPE_CHECKING:
    import numpy.typing as npt


class ImplicitTransfer(NDArrayOperatorsMixin):
    """Operators and conversions of an array on a device."""

    __slots__ = ()

    @abc.abstractmethod
    def _implicitly(self) -> npt.NDArray[Any]:
        """The elements, where they may come to the host without being asked for."""

    @folded
    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        host = self._implicitly()
        if dtype is not None and np.dtype(dtype) != host.dtype:
            if copy is False:
                raise ValueError(f"an array of {host.dtype} cannot become {np.dtype(dtype)} without a copy")
            return host.astype(dtype)
        return host.copy() if copy else host

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if "out" in options:
            options["out"] = tuple(map(as_operand, options["out"]))
        return getattr(ufunc, method)(*map(as_operand, inputs), **options)


def as_operand(value: Any) -> Any:
    """What numpy computes with in place of an array on a device."""
    return value._implicitly() if isinstance(value, ImplicitTransfer) else value
