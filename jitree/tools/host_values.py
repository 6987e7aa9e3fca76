"""Holds values of the command line as plain host data, without a session.

``run`` makes device values of parsed inputs and host values of results; everything between text and
these classes needs no module and no device. (Records of the command line are NamedTuples where a start pays
for making the class: a frozen dataclass takes five times as long.)
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from jitree.base.elements import Bytes
from jitree.base.elements import HostTensor as HostTensor
from jitree.errors import InvalidArgumentError


class Scalar(NamedTuple):
    type_name: str
    """``i32``, ``i64``, ``f32`` or ``f64``."""
    value: int | float


class Null:
    """A null reference."""

    __slots__ = ()


class Ignored:
    """``(ignored)``: a null input, or an expected value that any result satisfies."""

    __slots__ = ()


class HostBuffer(NamedTuple):
    """Bytes without shape: a ``hal.buffer`` or a ``vm.buffer``."""

    type_name: str
    data: Bytes


class HostList(NamedTuple):
    """A ``vm.list``."""

    items: tuple[HostValue, ...]


class Opaque(NamedTuple):
    """A reference of a type without contents that could be shown."""

    type_name: str


HostValue = Scalar | Null | Ignored | HostTensor | HostBuffer | HostList | Opaque

NULL: Final = Null()
IGNORED: Final = Ignored()


def python_value(value: HostValue) -> Any:
    """An argument that is no object of this process: an array, a number or None."""
    match value:
        case Scalar():
            return value.value
        case HostTensor():
            if value.element_type.bits % 8:
                return value.values.astype(value.element_type.dtype).reshape(value.shape)
            return np.ascontiguousarray(value.data).view(value.element_type.dtype).reshape(value.shape)
        case Null() | Ignored():
            return None
    raise InvalidArgumentError(
        "only tensors and numbers can be given to programs that are compared or run in a separate process"
    )


def to_bytes(array: npt.NDArray[Any]) -> Bytes:
    """The bytes of an array in row-major order; shares memory where the array is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
