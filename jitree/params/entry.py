"""Describes a parameter: bytes under a key, in a file, in memory or repeated.

Tools of IREE's Python packages store shape and element type beside a parameter:
``TENSORv0:{"type": "Tensor", "dtype": "float32", "shape": [2, 3]}``, or with ``PYTORCH:`` in front.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from jitree.errors import InvalidArgumentError, pass_interruption
from jitree.types import BY_NAME, ElementType, element_type_of, format_shaped_type

PATTERN_LENGTHS: Final = (1, 2, 4, 8, 16)
"""Bytes that a repeated pattern may have: up to one complex number of two f64."""

CHUNK_LENGTH: Final = 1 << 20
"""Bytes of a repeated pattern that are made at one time; a multiple of every pattern length."""

_PREFIXES: Final = ("TENSORv0", "PYTORCH")


@dataclass(frozen=True, slots=True)
class TensorType:
    """What an archive says about the elements.

    To programs a parameter is bytes: it is only compared with what is known of them.
    """

    shape: tuple[int, ...]
    element: ElementType | str
    """A name where it is no element type of programs, such as the block formats of gguf."""

    def __str__(self) -> str:
        if isinstance(self.element, ElementType):
            return format_shaped_type(self.shape, self.element)
        return "".join(f"{dimension}x" for dimension in self.shape) + self.element


class Storage(abc.ABC):
    """Where the bytes of a parameter are."""

    __slots__ = ()
    writable = False
    """Whether programs may change the bytes."""

    @abc.abstractmethod
    def contents(self) -> memoryview:
        """All bytes, flat; nothing is read before they are touched where the storage can do that."""

    @property
    def file_offset(self) -> int | None:
        """Where the bytes begin in their file; None when they are not in a file as they are."""
        return None


@dataclass(frozen=True, slots=True)
class Splat:
    """A pattern that is repeated for the whole length; it takes no room anywhere."""

    pattern: bytes


@dataclass(frozen=True, slots=True)
class ParameterEntry:
    key: str
    length: int
    """Bytes."""
    storage: Storage | Splat
    metadata: bytes = b""
    """Whatever the archive's author stored beside the parameter."""
    tensor: TensorType | None = None

    @property
    def pattern(self) -> bytes | None:
        """What is repeated, None for a parameter that has its bytes somewhere."""
        return self.storage.pattern if isinstance(self.storage, Splat) else None

    @property
    def writable(self) -> bool:
        return not isinstance(self.storage, Splat) and self.storage.writable

    @property
    def file_offset(self) -> int | None:
        return None if isinstance(self.storage, Splat) else self.storage.file_offset

    def contents(self) -> memoryview:
        """All bytes of a parameter that is no splat."""
        assert not isinstance(self.storage, Splat)
        return self.storage.contents()

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The bytes in order, splats expanded."""
        pattern = self.pattern
        if pattern is None:
            yield self.contents()
            return
        chunk = repeat(pattern, 0, min(CHUNK_LENGTH, self.length))
        for start in range(0, self.length, CHUNK_LENGTH):
            yield chunk[: self.length - start]


def splat_entry(
    key: str, pattern: bytes, length: int, metadata: bytes = b"", tensor: TensorType | None = None
) -> ParameterEntry:
    """A parameter of ``length`` bytes that repeats a pattern.

    INVALID_ARGUMENT for a pattern that has not 1, 2, 4, 8 or 16 bytes or fits no whole number of times.
    """
    if not isinstance(pattern, bytes) or not isinstance(length, int):
        raise InvalidArgumentError(
            f"parameter '{key}': expected a pattern of bytes and a length but got a "
            f"{type(pattern).__name__} and a {type(length).__name__}"
        )
    if len(pattern) not in PATTERN_LENGTHS:
        raise InvalidArgumentError(
            f"parameter '{key}': a repeated pattern of {len(pattern)} bytes; it must have 1, 2, 4, 8 or 16"
        )
    if length < 0 or length % len(pattern):
        raise InvalidArgumentError(
            f"parameter '{key}': a pattern of {len(pattern)} bytes cannot fill {length} bytes"
        )
    return ParameterEntry(key, length, Splat(pattern), metadata, tensor)


def repeat(pattern: bytes, phase: int, length: int) -> bytes:
    """``length`` bytes of a pattern repeated, from byte ``phase`` of the first one."""
    start = phase % len(pattern)
    return (pattern * ((start + length) // len(pattern) + 1))[start : start + length]


def tensor_type(metadata: bytes) -> TensorType | None:
    """What metadata says about the elements; None when it says nothing that can be read."""
    if not metadata:
        return None
    prefix, separator, text = metadata.decode("utf-8", "backslashreplace").partition(":")
    if not separator or prefix not in _PREFIXES:
        return None
    try:
        fields = json.loads(text)
        if fields["type"] != "Tensor":
            return None
        shape = tuple(int(dimension) for dimension in fields["shape"])
        return TensorType(shape, element_called(str(fields["dtype"])))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        pass_interruption(error)
        return None  # a text for people; nothing depends on it


def element_called(name: str) -> ElementType | str:
    """The element type of a numpy name or of IREE's own; the name itself when there is none."""
    if name in BY_NAME:
        return BY_NAME[name]
    try:
        return element_type_of(np.dtype(name)) or name
    except TypeError as error:
        pass_interruption(error)
        return name


def check_overlaps(entries: Iterable[ParameterEntry]) -> None:
    """INVALID_ARGUMENT when two parameters of a format that forbids it share bytes."""
    ranges = sorted(
        (entry.file_offset, entry.file_offset + entry.length, entry.key)
        for entry in entries
        if entry.file_offset is not None and entry.length
    )
    for (_, end, first), (begin, _, second) in pairwise(ranges):
        if begin < end:
            raise InvalidArgumentError(
                f"parameters '{first}' and '{second}' overlap at byte {begin} of the file"
            )
