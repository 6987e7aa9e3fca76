"""Names and numbers of DLPack.

Calls need them before there is an array to exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jitree.types import ElementType

NAME: Final = b"dltensor"
VERSIONED_NAME: Final = b"dltensor_versioned"
"""Names of capsules that have not been used yet."""

UNSIGNED: Final = 1
CODES: Final = {
    "bfloat16": 4,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
"""Type codes of dlpack.h 1.1 by name in ml_dtypes."""
KINDS: Final = {"i": 0, "u": UNSIGNED, "f": 2, "c": 5, "b": 6}
"""Type codes by ``numpy.dtype.kind``."""
_ONE_LANE: Final = 1 << 16

LAZY_ATTRIBUTE: Final = "requires_grad"
LAZY_METHOD: Final = "is_neg"
LAZY_COMPLEX: Final = "is_conj"
"""What libraries call it when an array is more than its memory: it takes part in a derivation, or its
elements are the negative or the conjugates of what lies there. The functions in C do not look."""


def tensor_type(row: ElementType) -> int | None:
    """Gives DLPack's word of an element type, None for types that it lacks."""
    dtype = row.dtype
    code = CODES.get(row.numpy_name, KINDS.get(dtype.kind))
    return None if code is None else code | dtype.itemsize << 11 | _ONE_LANE
