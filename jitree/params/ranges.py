"""Consistency of parameters that share a file."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from jitree.errors import InvalidArgumentError
from jitree.params.entry import ParameterEntry


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
