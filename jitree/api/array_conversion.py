"""Converts results to arrays of another library: ``module.fn.to("torch")``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, SupportsIndex

import numpy as np

from jitree.api.array import Array, converter
from jitree.api.calls.refusal import describe
from jitree.base.finalizers import Unique
from jitree.errors import InvalidArgumentError, UnavailableError, folded

_TAKES: Final = {
    "cupy": ("cupy", "from_dlpack"),
    "jax": ("jax.dlpack", "from_dlpack"),
    "torch": ("torch", "from_dlpack"),
}
"""The function of each library that takes an array by DLPack: module, name."""
NUMPY: Final = "numpy"


def taker(kind: str) -> Callable[[Array], Any]:
    """What makes an array one of a library, over the same memory. INVALID_ARGUMENT for libraries that are not
    known, UNAVAILABLE for those that are not installed."""
    if not isinstance(kind, str) or kind not in (NUMPY, *_TAKES):
        known = ", ".join(sorted([NUMPY, *_TAKES]))
        raise InvalidArgumentError(
            f"to: expected the name of a library but got {describe(kind)}; there are: {known}"
        )
    if kind == NUMPY:
        return np.asarray
    module, name = _TAKES[kind]
    try:
        take: Callable[[Array], Any] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UnavailableError(f"to: {module} cannot be imported ({error}); install {kind}") from error
    return take


class ConvertingFunction(Unique):
    """A function whose results are arrays of another library. Numbers stay numbers."""

    __slots__ = ("_convert", "_kind", "_take", "function")

    def __init__(self, function: Any, kind: str) -> None:
        self._take = taker(kind)
        self._kind = kind
        self._convert: Callable[[Array], Any] = self._learn
        """Gives None for arrays that ``_take`` is to convert."""
        self.function = function

    @folded
    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """As the function."""
        return self._converted(self.function(*arguments, **named))

    async def async_(self, /, *arguments: Any, **named: Any) -> Any:
        """As ``async_`` of the function."""
        return self._converted(await self.function.async_(*arguments, **named))

    def _converted(self, value: Any) -> Any:
        if type(value) is Array:
            made = self._convert(value)
            return self._take(value) if made is None else made
        if type(value) in (tuple, list):
            return type(value)([self._converted(item) for item in value])
        return value

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """A pickle; copies are that of the function, which refuses."""
        return ConvertingFunction, (self.function, self._kind)

    def _learn(self, array: Array) -> Any:
        """Converts the first arrays, and has machine code convert others to their type."""
        made = self._take(array)
        self._convert = converter(type(made), self._take) or self._convert
        return made
