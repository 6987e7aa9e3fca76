"""Reads safetensors files: a JSON header of 64-bit length, then tensor bytes.

https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Final

from jitree.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError, pass_interruption
from jitree.params.entry import ParameterEntry, ParameterFile, TensorType, check_overlaps, check_range
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
    entries = [_entry(file, start, key, fields) for key, fields in header.items() if key != _METADATA_KEY]
    check_overlaps(entries)
    return entries


def _parse(view: memoryview) -> dict[str, Any]:
    try:
        header = json.loads(str(view, "utf-8"), object_pairs_hook=_unique)
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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise InvalidArgumentError(f"the safetensors header has the name '{key}' twice")
        result[key] = value
    return result


def _entry(file: ParameterFile, start: int, key: str, fields: Any) -> ParameterEntry:
    try:
        dtype, shape, (begin, end) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        pass_interruption(error)
        raise InvalidArgumentError(
            f"parameter '{key}': the header must state dtype, shape and data_offsets [begin, end]"
        ) from None
    numbers = (*shape, begin, end)
    if not all(type(number) is int and 0 <= number < _MOST for number in numbers) or not isinstance(
        dtype, str
    ):
        raise InvalidArgumentError(f"parameter '{key}': shape and data_offsets must be positive integers")
    if len(shape) > _MAXIMUM_RANK:
        raise InvalidArgumentError(
            f"parameter '{key}' claims {len(shape)} dimensions; at most {_MAXIMUM_RANK}"
        )
    if begin > end or end > len(file.view) - start:
        raise OutOfRangeError(
            f"parameter '{key}' claims bytes {begin} to {end} of the data, which has "
            f"{len(file.view) - start}; the file was cut short or is damaged"
        )
    tensor, bits = _tensor(key, dtype, shape)
    if math.prod(shape) * bits != (end - begin) * 8:
        raise InvalidArgumentError(
            f"parameter '{key}' claims {end - begin} bytes but {tensor} has {math.prod(shape) * bits // 8}"
        )
    return ParameterEntry(key, end - begin, file.storage(start + begin, end - begin), tensor=tensor)


def _tensor(key: str, dtype: str, shape: tuple[int, ...]) -> tuple[TensorType, int]:
    """Type of a tensor, and the bits of one element."""
    if dtype in _ELEMENTS:
        row = BY_NAME[_ELEMENTS[dtype]]
        return TensorType(shape, row), row.bits
    if dtype in _PACKED_BITS:
        return TensorType(shape, dtype), _PACKED_BITS[dtype]
    raise UnimplementedError(f"parameter '{key}' has dtype '{dtype}', which is not known")
