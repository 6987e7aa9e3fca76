"""Decide what commands, queue operations and imports refuse, in Python and in machine code.

A rule is a function on integers, the only statement of a check: 0, or the number of a refusal, for which
``refusals.tsv`` has status and text. ``Buffer.range`` checks ranges by the rule
:func:`~jitree.hal.buffer.length_inside`, and states the text of OUTSIDE_BUFFER itself, since a first result
does without this file; a test compares the two. Machine code that is
refused leaves the call to Python, which raises it. A range's length of -1 in machine code says that
:func:`~jitree.hal.buffer.length_inside` refused the range.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Final

from jitree.base.arguments import contents, integer
from jitree.errors import StatusCode, StatusError, status_error
from jitree.hal import command_layout, enums
from jitree.hal.buffer import Buffer, length_inside
from jitree.hal.command_layout import MAXIMUM_COUNT_Z, MAXIMUM_WORKGROUPS
from jitree.hal.enums import (
    MAXIMUM_CONSTANTS,
    MAXIMUM_SET_BINDINGS,
    MAXIMUM_UPDATE,
    WHOLE_BUFFER,
)
from jitree.types import CLASS_INTEGER, CLASS_OPAQUE, ENCODING_OPAQUE, element_type

PATTERN_SIZE: Final = 2
PATTERN_RANGE: Final = 3
UPDATE_SIZE: Final = 4
UPDATE_SOURCE: Final = 5
OVERLAP: Final = 6
USAGE: Final = 7
ACCESS: Final = 8
SLOT: Final = 9
SLOT_RANGE: Final = 10
WORKGROUPS: Final = 11
MISALIGNED: Final = 12
CONSTANTS: Final = 13
BINDING: Final = 14
ENCODING: Final = 15
ELEMENT_TYPE: Final = 16
RANK: Final = 17
DIMENSION: Final = 18
SHORT_BUFFER: Final = 19
MEMORY_TYPE: Final = 20
BUFFER_USAGE: Final = 21
SCALAR_SIZE: Final = 22
OUTSIDE_BUFFER: Final = 23
SCALAR_ACCESS: Final = 24
FLAGS: Final = 25
OUTSIDE_SLOT: Final = 26
OUTSIDE_ENTRY: Final = 27
NO_ENTRY: Final = 28
UNBOUND_SLOT: Final = 29
STATED_COUNT: Final = 30
CREATION: Final = 31
CATEGORY: Final = 32
INLINE_WAIT: Final = 33
OPEN_GROUPS: Final = 34
VIEW_RANK: Final = 35

_INTEGERS: Final = CLASS_INTEGER >> 2
"""The four classes of integers differ in the two bits below."""


# -- rules ---------------------------------------------------------------------------------------------


def fill_refusal(place: int, length: int, size: int) -> int:
    """Why a fill at an offset or address is refused. A length that is not known yet (the rest of a slot)
    passes."""
    if size != 1 and size != 2 and size != 4:
        return PATTERN_SIZE
    if place & (size - 1) or (length != WHOLE_BUFFER and length & (size - 1)):
        return PATTERN_RANGE
    return 0


def update_refusal(available: int, offset: int, length: int) -> int:
    """Why so many bytes of a source cannot be captured."""
    if length > MAXIMUM_UPDATE:
        return UPDATE_SIZE
    return UPDATE_SOURCE if length < 0 or length_inside(available, offset, length) < 0 else 0


def are_apart(first: int, second: int, length: int) -> bool:
    """Whether ranges of one length share no bytes."""
    return first >= second + length or second >= first + length


def use_refusal(usage: int, allowed_usage: int, access: int, allowed_access: int) -> int:
    """Why a buffer may not be used or accessed like that."""
    if usage & ~allowed_usage:
        return USAGE
    return ACCESS if access & ~allowed_access else 0


def slot_refusal(capacity: int, slot: int, offset: int, length: int) -> int:
    """Why a command cannot refer to a range of a slot."""
    if not 0 <= slot < capacity:
        return SLOT
    return SLOT_RANGE if offset < 0 or length < WHOLE_BUFFER else 0


def is_aligned(address: int, length: int, alignment: int) -> bool:
    """Whether a command can use a range; an empty one lies anywhere."""
    return address & (alignment - 1) == 0 or length == 0


def workgroups_refusal(x: int, y: int, z: int) -> int:
    """Why no dispatch can have so many workgroups."""
    if (x | y | z) >> 32 != 0 or z > MAXIMUM_COUNT_Z or _are_more(x, y) or _are_more(x * y, z):
        return WORKGROUPS
    return 0


def _are_more(first: int, second: int) -> bool:
    """Whether a product exceeds MAXIMUM_WORKGROUPS; one of the high bits is below 2^63."""
    return (first >> 16) * second > MAXIMUM_WORKGROUPS >> 16 or first * second > MAXIMUM_WORKGROUPS


def constants_refusal(first: int, count: int) -> int:
    """Says why a program cannot push so many words from the first one on."""
    return 0 if first >= 0 and 0 <= count <= MAXIMUM_CONSTANTS - first else CONSTANTS


def binding_refusal(binding: int) -> int:
    """Why a set has no binding of that number."""
    return 0 if 0 <= binding < MAXIMUM_SET_BINDINGS else BINDING


def compatible_elements(actual: int, expected: int) -> bool:
    """Whether elements of one type can be read as another: integers as those of any sign, opaque ones as any,
    all of the same width. 0 says nothing about elements."""
    if actual == expected or actual == 0:
        return True
    if (actual ^ expected) & 0xFF:
        return False
    kind = actual >> 24
    return kind == CLASS_OPAQUE or kind >> 2 == expected >> 26 == _INTEGERS


def tensor_refusal(encoding: int, wanted: int, actual_type: int, wanted_type: int) -> int:
    """Why a tensor cannot be read with an encoding and an element type. An opaque encoding can be any."""
    if encoding != wanted and encoding != ENCODING_OPAQUE:
        return ENCODING
    return 0 if compatible_elements(actual_type, wanted_type) else ELEMENT_TYPE


def buffer_refusal(
    length: int, least: int, memory_type: int, wanted_type: int, usage: int, wanted_usage: int
) -> int:
    """Why a buffer is not what a program demands: its length, and all bits of memory type and usage."""
    if length < least:
        return SHORT_BUFFER
    if wanted_type & ~memory_type:
        return MEMORY_TYPE
    return BUFFER_USAGE if wanted_usage & ~usage else 0


def scalar_refusal(available: int, offset: int, length: int, access: int, allowed: int) -> int:
    """Why the host cannot access a scalar in a buffer."""
    if not 0 <= length <= 4:
        return SCALAR_SIZE
    if length_inside(available, offset, length) < 0:
        return OUTSIDE_BUFFER
    return 0 if allowed & access else SCALAR_ACCESS


# -- refusals ------------------------------------------------------------------------------------------


@cache
def refusals() -> dict[int, list[str]]:
    """Name, status, text and perhaps a second text, by number. Texts are f-strings of operands, of
    :mod:`~jitree.hal.enums` and of :func:`type_text`."""
    with open(os.path.join(os.path.dirname(__file__), "refusals.tsv"), encoding="utf-8") as file:
        rows = [line.split("\t") for line in file.read().splitlines() if line[0] != "#"]
    return {int(number): row for number, *row in rows}


def refused(number: int, **operands: object) -> StatusError:
    """The error of a refusal."""
    _, status, *texts = refusals()[number]
    scope = {**vars(enums), **vars(command_layout), "type_text": type_text, **operands}
    codes = [compile(f"f{text!r}", "<row of refusals.tsv>", "eval") for text in texts]
    return status_error(StatusCode[status], *[eval(code, scope) for code in codes])


def require(refusal: int, **operands: object) -> None:
    """Raises a refusal if it is one."""
    if refusal:
        raise refused(refusal, **operands)


def require_inside(refusal: int, available: int, offset: int, length: int, **operands: object) -> int:
    """The length of a range with WHOLE_BUFFER resolved; the refusal where it is not inside so many bytes."""
    inside = length_inside(available, offset, length)
    if inside < 0:
        length = available - offset if length == WHOLE_BUFFER else length
        raise refused(refusal, available=available, offset=offset, length=length, **operands)
    return inside


def type_text(code: int) -> str:
    return f"{element_type(code).name} ({code & 0xFFFFFFFF:08x})"


# -- checks by Python ----------------------------------------------------------------------------------


def check_flags(command: str, flags: int) -> None:
    """INVALID_ARGUMENT for any flags: the operation has none."""
    if integer("flags", flags):
        raise refused(FLAGS, command=command, flags=flags)


def check_buffer(buffer: Buffer, command: str, usage: int, access: int) -> None:
    """PERMISSION_DENIED when the buffer may not be used or accessed like that."""
    refusal = use_refusal(usage, buffer.allowed_usage, access, buffer.allowed_access)
    if refusal:
        missing = usage & ~buffer.allowed_usage if refusal == USAGE else access & ~buffer.allowed_access
        raise refused(refusal, command=command, missing=missing)


def check_fill(offset: int, length: int, size: int) -> None:
    """INVALID_ARGUMENT as :func:`fill_refusal`."""
    require(fill_refusal(offset, length, size), offset=offset, length=length, size=size)


def check_overlap(
    source: Buffer, source_offset: int, target: Buffer, target_offset: int, length: int
) -> bool:
    """Whether a copy changes anything; INVALID_ARGUMENT when it would overlap itself. A range onto itself
    changes nothing, and a program that puts a result where its caller wants it makes such copies."""
    first, second = source.address + source_offset, target.address + target_offset
    if first != second and not are_apart(first, second, length):
        raise refused(OVERLAP, source_offset=source_offset, target_offset=target_offset, length=length)
    return first != second or length == 0


def update_contents(source: memoryview, source_offset: int, length: int) -> memoryview:
    """The bytes of an update as a view of ``source``; WHOLE_BUFFER = the rest.

    INVALID_ARGUMENT for more than 65536, OUT_OF_RANGE outside the source.
    """
    view = contents("source", source)
    if length == WHOLE_BUFFER:
        length = view.nbytes - source_offset
    refusal = update_refusal(view.nbytes, source_offset, length)
    require(refusal, available=view.nbytes, offset=source_offset, length=length)
    return view[source_offset : source_offset + length]
