"""``jitree parameters create``: an archive of parameters that hold zeros or one value."""

from __future__ import annotations

import re
import sys
from typing import Final

import numpy as np

from jitree.base.elements import pack_integers
from jitree.errors import InvalidArgumentError, error_context
from jitree.params import ParameterEntry, TensorType, splat_entry
from jitree.params.entry import PATTERN_LENGTHS
from jitree.params.irpa_writer import plan, write
from jitree.tools.element_parsing import find_element_type, parse_elements, split_elements
from jitree.tools.flag_table import flag_set
from jitree.tools.flags import ParsedFlags, command
from jitree.tools.parameters_table import ParameterRow, table
from jitree.types import ElementType, is_packed

_SHAPED: Final = re.compile(r"((?:[0-9]+x)*)([^0-9].*)")
_OPAQUE: Final = re.compile(r"x([0-9]+)")
_MAXIMUM_LENGTH: Final = 1 << 62
"""Bytes of one parameter."""
_ZERO: Final = b"\0"


def parse_declaration(text: str) -> ParameterEntry:
    """``key=4x2xf32=1.5``: a parameter that repeats a value; without a value, zero.

    INVALID_ARGUMENT naming what is wrong.
    """
    key, _, rest = text.partition("=")
    type_text, has_value, value = rest.partition("=")
    match = _SHAPED.fullmatch(type_text)
    if not key or match is None:
        raise InvalidArgumentError(
            f"'{text}' is not <key>=<shape>x<type> or <key>=<shape>x<type>=<value>, such as `w=4x2xf32=1.5`"
        )
    shape = tuple(int(dimension) for dimension in match.group(1).split("x")[:-1])
    row = find_type(match.group(2))
    length = row.byte_length(shape)
    if length > _MAXIMUM_LENGTH:
        raise InvalidArgumentError(f"'{text}': {length} bytes are more than any file can have")
    pattern = parse_pattern(row, value) if has_value else _ZERO
    return splat_entry(key, pattern, length, tensor=TensorType(shape, row))


def find_type(name: str) -> ElementType:
    """An element type; ``x32`` is the same as ``*32``. INVALID_ARGUMENT for an unknown one."""
    opaque = _OPAQUE.fullmatch(name)
    return find_element_type(f"*{opaque.group(1)}" if opaque else name)


def parse_pattern(row: ElementType, text: str) -> bytes:
    """The bytes of one element; elements of fewer than 8 bits fill a byte.

    INVALID_ARGUMENT for several values: they would not repeat as a whole.
    """
    tokens = split_elements(text)
    if len(tokens) != 1:
        raise InvalidArgumentError(f"'{text}' has {len(tokens)} values; a parameter repeats exactly one")
    element = parse_elements(tokens, row)
    if is_packed(row):
        element = pack_integers(np.repeat(element, 8 // row.bits).astype(np.int16), row)
    pattern = element.tobytes()
    if len(pattern) not in PATTERN_LENGTHS:
        raise InvalidArgumentError(
            f"elements of {row.bits} bits cannot be repeated; 8, 16, 32, 64 or 128 can"
        )
    return pattern


FLAGS: Final = flag_set(
    "parameters create",
    "makes an archive of parameters that hold zeros or repeated values",
    "create archive",
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Writes the archive and lists it; splats come first."""
    splats = [_parse("splat", text) for text in flags.texts("splat")]
    data = [_parse("data", text) for text in flags.texts("data")]
    output = output_path(flags)
    layout = plan(splats, data, flags.integer("alignment"))
    write(output, layout)
    if not flags.boolean("quiet"):
        sys.stdout.write(table("", [ParameterRow(*stored) for stored in layout.parameters]))
    return 0


def _parse(flag: str, text: str) -> ParameterEntry:
    with error_context(f"flag '--{flag}'"):
        if flag == "splat" and text.count("=") < 2:
            raise InvalidArgumentError(f"'{text}' has no value: <key>=<shape>x<type>=<value>")
        return parse_declaration(text)


def output_path(flags: ParsedFlags) -> str:
    """The path of ``--output``; INVALID_ARGUMENT when it was not given."""
    path = flags.text("output")
    if not path:
        raise InvalidArgumentError("no output file was given: --output=<file>.irpa")
    return path
