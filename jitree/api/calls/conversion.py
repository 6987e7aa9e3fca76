"""Which elements a parameter takes, and Python numbers as such elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.api.calls.refusal import refused
from jitree.modules.hal.buffer_view import compatible_elements
from jitree.types import CLASS_BOOLEAN, CLASS_INTEGER, CLASS_OPAQUE, CLASS_SIGNED, CLASS_UNSIGNED

if TYPE_CHECKING:
    import numpy.typing as npt

_BITS: Final = 0xFF
"""Of the code of an element type: the size of an element."""


def holds(expected: int, actual: int) -> bool:
    """Whether a parameter takes arrays of an element type: one of integers without a sign those of any sign,
    as they have the same bits, others their own. Numpy's signed integers have none here. Elements of unknown
    type need the size."""
    if not compatible_elements(actual, expected) or actual & _BITS != expected & _BITS:
        return False
    kind = actual >> 24
    wanted = expected >> 24
    if wanted == CLASS_SIGNED:
        return kind in (CLASS_OPAQUE, CLASS_INTEGER, CLASS_SIGNED)
    return wanted not in (CLASS_UNSIGNED, CLASS_BOOLEAN) or kind in (CLASS_OPAQUE, wanted)


def convert_exactly(
    given: npt.NDArray[Any], dtype: np.dtype[Any], name: str, expected: str, value: object
) -> npt.NDArray[Any]:
    """Numbers as another type, which must hold their values; floats may be rounded to narrower floats."""
    if given.dtype == dtype:
        return given
    if given.dtype.kind == "c" and dtype.kind != "c":
        raise refused(name, expected, value)
    with np.errstate(all="ignore"):
        try:
            converted = given.astype(dtype)
            wide = converted.astype(np.complex128) if native_float(dtype) else converted
        except (TypeError, ValueError, OverflowError):  # raw bytes are read as digits
            raise refused(name, expected, value) from None
        if not native_float(dtype):
            kept = converted.astype(given.dtype) == given
            if given.dtype.kind in "iu" and dtype != np.bool_:  # the same bits may be of another sign
                kept &= (converted < 0) == (given < 0)
        elif given.dtype.kind in "fc":
            kept = np.isfinite(wide) | ~np.isfinite(given)
        else:  # types without a zero make it NaN
            kept = np.isfinite(wide) & (wide.real.astype(given.dtype) == given)
    if not np.all(kept):
        raise refused(name, expected, value, "; its elements cannot be converted without loss")
    return converted


def native_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype holds fractions: those of numpy and those that ml_dtypes adds."""
    return dtype.kind in "fc" or (dtype.kind == "V" and "float" in dtype.name)
