"""Reads gguf files, versions 2 and 3: key-value pairs, tensor descriptions, their bytes.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from jitree.errors import AlreadyExistsError, InvalidArgumentError, OutOfRangeError, UnimplementedError
from jitree.params.entry import ParameterEntry, ParameterFile, TensorType, check_overlaps
from jitree.types import BY_NAME

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_ALIGNMENT_KEY: Final = "general.alignment"
_DEFAULT_ALIGNMENT: Final = 32
_MAXIMUM_RANK: Final = 8
"""ggml itself has 4."""
_LONGEST_NAME: Final = (1 << 16) - 1
"""Bytes of a key, as the format has it, or of a tensor's name."""
_MOST_TEXTS: Final = 1 << 21
"""Keys, names and strings of a file. A sparse file of any length takes no room on a disk."""

_VALUE_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the fixed-size types of values: u8 i8 u16 i16 u32 i32 f32 bool, and u64 i64 f64."""
_UINT32: Final = 4
_STRING: Final = 8
_ARRAY: Final = 9


class BlockType(NamedTuple):
    """How ggml stores elements: so many to a block of so many bytes."""

    name: str
    elements: int
    size: int


BLOCK_TYPES: Final = {
    0: BlockType("f32", 1, 4), 1: BlockType("f16", 1, 2), 2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20), 6: BlockType("Q5_0", 32, 22), 7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34), 9: BlockType("Q8_1", 32, 36), 10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110), 12: BlockType("Q4_K", 256, 144), 13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210), 15: BlockType("Q8_K", 256, 292), 16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74), 18: BlockType("IQ3_XXS", 256, 98), 19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18), 21: BlockType("IQ3_S", 256, 110), 22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136), 24: BlockType("si8", 1, 1), 25: BlockType("si16", 1, 2),
    26: BlockType("si32", 1, 4), 27: BlockType("si64", 1, 8), 28: BlockType("f64", 1, 8),
    29: BlockType("IQ1_M", 256, 56), 30: BlockType("bf16", 1, 2), 34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66), 39: BlockType("MXFP4", 32, 17),
}  # fmt: skip
"""By number in ggml.h; those that programs have are called as there."""


class _Cursor:
    """Reads fields one after another; OUT_OF_RANGE at the end of the file."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self.position = 0
        self._texts_left = _MOST_TEXTS

    def take(self, length: int, what: str) -> memoryview:
        end = self.position + length
        if end > len(self._view):
            raise OutOfRangeError(
                f"the file ends within {what}: {length} bytes at {self.position} of {len(self._view)}; "
                "it was cut short or is damaged"
            )
        taken, self.position = self._view[self.position : end], end
        return taken

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def raw_text(self, what: str) -> memoryview:
        self._texts_left -= 1
        if self._texts_left < 0:
            raise InvalidArgumentError(f"the file has more than {_MOST_TEXTS} keys, names and strings")
        return self.take(self.u64(what), what)

    def text(self, what: str) -> str:
        """A key or a name, which is kept: of a sparse file it may have any length."""
        raw = self.raw_text(what)
        if len(raw) > _LONGEST_NAME:
            raise InvalidArgumentError(f"{what} has {len(raw)} bytes; at most {_LONGEST_NAME}")
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise InvalidArgumentError(f"{what} is not UTF-8") from None


class _Tensor(NamedTuple):
    name: str
    type: TensorType
    offset: int
    length: int


def read(file: ParameterFile) -> list[ParameterEntry]:
    """All tensors in the order of the file; quantised ones as the bytes of their blocks.

    INVALID_ARGUMENT and OUT_OF_RANGE for a damaged file, UNIMPLEMENTED for versions and types not known.
    """
    cursor = _Cursor(file.view)
    if bytes(cursor.take(4, "the header")) != _MAGIC:
        raise InvalidArgumentError("no gguf file: it does not begin with 'GGUF'")
    version = cursor.u32("the header")
    if version not in _VERSIONS:
        raise UnimplementedError(f"gguf version {version} is not known; known are 2 and 3")
    tensor_count = cursor.u64("the header")
    alignment = _read_values(cursor, cursor.u64("the header"))
    tensors = list(_read_tensors(cursor, tensor_count))
    start = cursor.position + -cursor.position % alignment
    entries = [_entry(file, start, alignment, tensor) for tensor in tensors]
    check_overlaps(entries)
    return entries


def _read_values(cursor: _Cursor, count: int) -> int:
    """Passes over the key-value pairs; returns the alignment that they state."""
    alignment = _DEFAULT_ALIGNMENT
    for number in range(count):
        key = cursor.text(f"key {number}")
        if not key:  # as is each key of what is sparse
            raise InvalidArgumentError(f"key {number} is empty")
        kind = cursor.u32(f"value of '{key}'")
        if key != _ALIGNMENT_KEY:
            _skip_value(cursor, key, kind)
            continue
        if kind != _UINT32:
            raise InvalidArgumentError(f"the value of '{key}' must have type u32, not {kind}")
        alignment = cursor.u32(f"value of '{key}'")
        if alignment == 0 or alignment & (alignment - 1):
            raise InvalidArgumentError(f"'{key}' is {alignment}, which is no power of two")
    return alignment


def _skip_value(cursor: _Cursor, key: str, kind: int) -> None:
    what = f"value of '{key}'"
    if kind in _VALUE_SIZES:
        cursor.take(_VALUE_SIZES[kind], what)
    elif kind == _STRING:
        cursor.raw_text(what)
    elif kind == _ARRAY:
        element, count = struct.unpack("<IQ", cursor.take(12, what))
        if element in _VALUE_SIZES:
            cursor.take(_VALUE_SIZES[element] * count, what)
        elif element == _STRING:
            for _ in range(count):
                cursor.raw_text(what)
        else:
            raise InvalidArgumentError(f"{what} is an array of type {element}, which arrays cannot have")
    else:
        raise InvalidArgumentError(f"{what} has type {kind}, which is not known")


def _read_tensors(cursor: _Cursor, count: int) -> Iterator[_Tensor]:
    """ALREADY_EXISTS for a name that occurs twice, as soon as it does: a sparse file has any number."""
    names: set[str] = set()
    for number in range(count):
        tensor = _read_tensor(cursor, number)
        if tensor.name in names:
            raise AlreadyExistsError(f"parameter '{tensor.name}' is twice in the file")
        names.add(tensor.name)
        yield tensor


def _read_tensor(cursor: _Cursor, number: int) -> _Tensor:
    name = cursor.text(f"name of tensor {number}")
    rank = cursor.u32(f"parameter '{name}'")
    if rank > _MAXIMUM_RANK:
        raise InvalidArgumentError(f"parameter '{name}' claims {rank} dimensions; at most {_MAXIMUM_RANK}")
    raw = cursor.take(8 * rank, f"parameter '{name}'")
    dimensions = struct.unpack(f"<{rank}Q", raw)[::-1]  # the innermost comes first in the file
    kind, offset = struct.unpack("<IQ", cursor.take(12, f"parameter '{name}'"))
    block = BLOCK_TYPES.get(kind)
    if block is None:
        raise UnimplementedError(f"parameter '{name}' has ggml type {kind}, which is not known")
    count = math.prod(dimensions)
    innermost = dimensions[-1] if dimensions else 1
    if innermost % block.elements:
        raise InvalidArgumentError(
            f"parameter '{name}': {innermost} elements in a row are no whole number of {block.name} blocks "
            f"of {block.elements}"
        )
    tensor = TensorType(dimensions, BY_NAME.get(block.name, block.name))
    return _Tensor(name, tensor, offset, count // block.elements * block.size)


def _entry(file: ParameterFile, start: int, alignment: int, tensor: _Tensor) -> ParameterEntry:
    if tensor.offset % alignment:
        raise InvalidArgumentError(
            f"parameter '{tensor.name}' is misaligned: offset {tensor.offset} is no multiple of {alignment}"
        )
    available = len(file.view) - start
    if tensor.length and tensor.offset + tensor.length > available:
        raise OutOfRangeError(
            f"parameter '{tensor.name}' claims bytes {tensor.offset} to {tensor.offset + tensor.length} of "
            f"the data, which has {max(0, available)}; the file was cut short or is damaged"
        )
    storage = file.storage(start + tensor.offset if tensor.length else 0, tensor.length)
    return ParameterEntry(tensor.name, tensor.length, storage, tensor=tensor.type)
