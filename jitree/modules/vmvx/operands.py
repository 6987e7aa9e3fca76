"""Operands of ``vmvx`` functions: strided arrays over VM buffers, inside the buffer by proof.

Offsets, strides and sizes count elements and come as signed 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
)
from jitree.regs.objects import VmBuffer

Array = npt.NDArray[Any]

SIZE_LIMIT: Final = 1 << 32
_STRIDES: Final = range(-(1 << 31), 1 << 32)


def source(buffer: object, dtype: Any, offset: int, strides: Sequence[int], sizes: Sequence[int]) -> Array:
    """An operand that is read. INVALID_ARGUMENT for a null buffer and impossible sizes or strides,
    OUT_OF_RANGE if an element that the operation touches is outside the buffer."""
    if not isinstance(buffer, VmBuffer):
        raise InvalidArgumentError(f"expected a buffer but got {type(buffer).__name__}")
    for size in sizes:
        if not 0 <= size < SIZE_LIMIT:
            raise InvalidArgumentError(f"a size of {size} elements is not below 2**32")
    for stride in strides:
        if stride not in _STRIDES:
            raise InvalidArgumentError(f"a stride of {stride} elements does not fit 32 bits")
    width = np.dtype(dtype).itemsize
    if 0 in sizes:
        return np.empty(tuple(sizes), dtype)
    steps = [stride * (size - 1) for stride, size in zip(strides, sizes, strict=True)]
    first = offset + sum(step for step in steps if step < 0)
    last = offset + sum(step for step in steps if step > 0)
    if first < 0 or (last + 1) * width > buffer.length:
        raise OutOfRangeError(
            f"elements {first} to {last} of {width} bytes are used, but the buffer has {buffer.length} bytes"
        )
    return np.ndarray(
        tuple(sizes), dtype, buffer.data.data, offset * width, [stride * width for stride in strides]
    )


def target(buffer: object, dtype: Any, offset: int, strides: Sequence[int], sizes: Sequence[int]) -> Array:
    """As :func:`source`, to be written to. PERMISSION_DENIED for a read-only buffer."""
    if isinstance(buffer, VmBuffer) and not buffer.writable:
        raise PermissionDeniedError("the output buffer is read-only")
    return source(buffer, dtype, offset, strides, sizes)


def operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the module: gets no state, computes as C does (no warnings for infinities and NaN).

    RESOURCE_EXHAUSTED if there is no room for what it needs besides its operands.
    """

    name = getattr(function, "__name__", "the operation")

    def call(state: object, *arguments: Any) -> Any:
        try:
            with np.errstate(all="ignore"):
                return function(*arguments)
        except MemoryError:
            raise ResourceExhaustedError(f"no memory for what {name} needs") from None

    return call
