"""Reads safetensors files: a JSON header of 64-bit length, then tensor bytes.

https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import struct
from functools import lru_cache
from typing import Any, Final

from jitree.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError, pass_interruption
from jitree.params.entry import (
    FileRange,
    ParameterEntry,
    ParameterFile,
    TensorType,
    check_overlaps,
    check_range,
)
from jitree.types import BY_NAME

_LENGTH: Final = struct.Struct("<Q")
_MAXIMUM_HEADER: Final = 100_000_000
"""Bytes, as the reference implementation has it."""
_METADATA_KEY: Final = "__metadata__"
_MAXIMUM_RANK: Final = 64
"""numpy has no more; a product of 40,000 sizes takes 3 s, four times that for twice as many."""
_MOST: Final = 1 << 63
"""Numbers are below it."""

_ELEMENTS: Final = {
    "BOOL": "i1", "U8": "ui8", "I8": "si8", "U16": "ui16", "I16": "si16", "U32": "ui32", "I32": "si32",
    "U64": "ui64", "I64": "si64", "F16": "f16", "BF16": "bf16", "F32": "f32", "F64": "f64", "C64": "cf64",
    "F8_E5M2": "f8E5M2", "F8_E4M3": "f8E4M3FN", "F8_E8M0": "f8E8M0FNU",
}  # fmt: skip
"""Element type of each dtype."""
_PACKED_BITS: Final = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
"""Bits of the dtypes that programs have no element type for."""


def read(file: ParameterFile) -> list[ParameterEntry]:
    """All tensors in the order of the header.

    INVALID_ARGUMENT and OUT_OF_RANGE, naming the tensor, for a header that is not true of the file.
    """
    if len(file.view) < _LENGTH.size:
        raise InvalidArgumentError(f"no safetensors file: it has {len(file.view)} bytes")
    (length,) = _LENGTH.unpack_from(file.view, 0)
    if length > _MAXIMUM_HEADER:
        raise InvalidArgumentError(
            f"no safetensors file: its header claims {length} bytes; at most {_MAXIMUM_HEADER}"
        )
    check_range("safetensors header", _LENGTH.size, length, len(file.view))
    start = _LENGTH.size + length
    header = _parse(file.view[_LENGTH.size : start])
    header.pop(_METADATA_KEY, None)
    size = len(file.view) - start
    entries = [_entry(file, start, size, key, fields) for key, fields in header.items()]
    check_overlaps(entries)
    return entries


def _parse(view: memoryview) -> dict[str, Any]:
    try:
        header = json.loads(str(view, "utf-8"), object_pairs_hook=_object)
    except RecursionError as error:
        pass_interruption(error)
        raise InvalidArgumentError("the safetensors header nests too deeply") from None
    except InvalidArgumentError:
        raise
    except ValueError as error:
        pass_interruption(error)
        raise InvalidArgumentError(f"the safetensors header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise InvalidArgumentError("the safetensors header is no JSON object")
    return header


def _object(pairs: list[tuple[str, Any]]) -> Any:
    """A tensor's fields become a tuple, which the garbage collector need not go through: there may be
    hundreds of thousands."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise InvalidArgumentError(f"the safetensors header has the name '{_twice(pairs)}' twice")
    shape, place = result.get("shape"), result.get("data_offsets")
    if type(shape) is list and type(place) is list and len(place) == 2 and "dtype" in result:
        return result["dtype"], *place, *shape
    return result


def _twice(pairs: list[tuple[str, Any]]) -> str:
    seen = set[str]()
    for name, _ in pairs:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("each name is there once")


def _entry(file: ParameterFile, start: int, size: int, key: str, fields: Any) -> ParameterEntry:
    """``size``: bytes of the data, which begin at ``start``."""
    if type(fields) is not tuple:
        raise InvalidArgumentError(
            f"parameter '{key}': the header must state dtype, shape and data_offsets [begin, end]"
        )
    dtype, begin, end, *_ = fields
    shape = fields[3:]
    for number in fields[1:]:
        if type(number) is not int or not 0 <= number < _MOST:
            raise InvalidArgumentError(f"parameter '{key}': shape and data_offsets must be positive integers")
    if len(shape) > _MAXIMUM_RANK:
        raise InvalidArgumentError(
            f"parameter '{key}' claims {len(shape)} dimensions; at most {_MAXIMUM_RANK}"
        )
    if begin > end or end > size:
        raise OutOfRangeError(
            f"parameter '{key}' claims bytes {begin} to {end} of the data, which has {size}; the file was "
            "cut short or is damaged"
        )
    known = _tensor(dtype, shape) if isinstance(dtype, str) else None
    if known is None:
        raise UnimplementedError(f"parameter '{key}' has dtype '{dtype}', which is not known")
    tensor, bits = known
    length: int = end - begin
    if math.prod(shape) * bits != length * 8:
        raise InvalidArgumentError(
            f"parameter '{key}' claims {length} bytes but {tensor} has {math.prod(shape) * bits // 8}"
        )
    return ParameterEntry(key, length, FileRange(file, start + begin, length), tensor=tensor)


@lru_cache
def _tensor(dtype: str, shape: tuple[int, ...]) -> tuple[TensorType, int] | None:
    """Type of a tensor, and the bits of one element; None for a dtype that is not known. Most tensors of a
    file share theirs with others."""
    if dtype in _ELEMENTS:
        row = BY_NAME[_ELEMENTS[dtype]]
        return TensorType(shape, row), row.bits
    if dtype in _PACKED_BITS:
        return TensorType(shape, dtype), _PACKED_BITS[dtype]
    return None
