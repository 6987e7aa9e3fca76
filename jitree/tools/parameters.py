"""Makes, converts and shows parameter archives: ``jitree parameters``, in the layout of IREE's tools."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from jitree import errors
from jitree.base.arguments import number_of
from jitree.base.elements import pack_integers
from jitree.base.near_names import nearest
from jitree.params import Mode, ParameterEntry, ParameterProvider, TensorType, open_providers, splat_entry
from jitree.params.entry import PATTERN_LENGTHS
from jitree.params.irpa import plan, write
from jitree.params.provider import scope_text
from jitree.tools.element_parsing import find_element_type, parse_elements, split_elements
from jitree.tools.flags import ParsedFlags, command, flag_set, run_subcommand
from jitree.types import ElementType, is_packed

_FRAME: Final = f"//===--{'-' * 106}--===//"
_TOP: Final = f"//===------------+{'-' * 18}+{'-' * 18}+{'-' * 59}===//"
_BOTTOM: Final = f"//{'-' * 15}+{'-' * 18}+{'-' * 18}+{'-' * 62}//"
_TYPE_TOP: Final = f"//===------------+{'-' * 18}+{'-' * 18}+{'-' * 26}+{'-' * 32}===//"
_TYPE_BOTTOM: Final = f"//{'-' * 15}+{'-' * 18}+{'-' * 18}+{'-' * 26}+{'-' * 35}//"
_UNKNOWN: Final = "-"

_SHAPED: Final = re.compile(r"((?:[0-9]+x)*)([^0-9].*)")
_OPAQUE: Final = re.compile(r"x([0-9]+)")
_MAXIMUM_LENGTH: Final = 1 << 62
"""Bytes of one parameter."""

_ZERO: Final = b"\0"

CREATE_FLAGS: Final = flag_set(
    "parameters create",
    "makes an archive of parameters that hold zeros or repeated values",
    "create archive",
)
CONVERT_FLAGS: Final = flag_set(
    "parameters convert",
    "joins archives into one .irpa and edits what it holds",
    "parameter convert archive",
)

DUMP_FLAGS: Final = flag_set(
    "parameters dump",
    "lists what parameter archives hold",
    "parameter extract",
    positional="parameters",
)


class ParameterRow(NamedTuple):
    entry: ParameterEntry
    offset: int | None
    """Where it begins in its file; None when it is not in a file as it is."""


def table(scope: str, rows: Sequence[ParameterRow]) -> str:
    """A scope's parameters: position and length in bytes, key."""
    lines = [*_title(scope, rows), _TOP, f"//{_columns('Start', 'End', 'Length')[2:]} | Key", _BOTTOM]
    lines += [f"{_position(row)} | `{row.entry.key}`" for row in rows]
    return "\n".join(lines) + "\n\n"


def long_table(scope: str, rows: Sequence[ParameterRow]) -> str:
    """As :func:`table`, with shape and element type where the archive knows them."""
    header = f"//{_columns('Start', 'End', 'Length')[2:]} | {'Type':>24} | Key"
    lines = [*_title(scope, rows), _TYPE_TOP, header, _TYPE_BOTTOM]
    for row in rows:
        kind = _UNKNOWN if row.entry.tensor is None else str(row.entry.tensor)
        lines.append(f"{_position(row)} | {kind:>24} | `{row.entry.key}`")
    return "\n".join(lines) + "\n\n"


def _title(scope: str, rows: Sequence[ParameterRow]) -> list[str]:
    name = f"`{scope}`" if scope else "<global>"
    total = sum(row.entry.length for row in rows)
    return [_FRAME, f"// Parameter scope {name} ({len(rows)} entries, {total} total bytes)"]


def _position(row: ParameterRow) -> str:
    if row.offset is None:
        return _columns(_UNKNOWN, _UNKNOWN, row.entry.length)
    return _columns(row.offset, row.offset + row.entry.length, row.entry.length)


def _columns(start: object, end: object, length: object) -> str:
    return f"{start!s:>16} | {end!s:>16} | {length!s:>16}"


def parse_declaration(text: str) -> ParameterEntry:
    """``key=4x2xf32=1.5``: a parameter that repeats a value; without a value, zero.

    INVALID_ARGUMENT naming what is wrong.
    """
    key, _, rest = text.partition("=")
    type_text, has_value, value = rest.partition("=")
    match = _SHAPED.fullmatch(type_text)
    if not key or match is None:
        raise errors.InvalidArgumentError(
            f"'{text}' is not <key>=<shape>x<type> or <key>=<shape>x<type>=<value>, such as `w=4x2xf32=1.5`"
        )
    shape = tuple(number_of(dimension) for dimension in match.group(1).split("x")[:-1])
    row = find_type(match.group(2))
    length = row.byte_length(shape)
    if length > _MAXIMUM_LENGTH:
        raise errors.InvalidArgumentError(f"'{text}': {length} bytes are more than any file can have")
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
        raise errors.InvalidArgumentError(
            f"'{text}' has {len(tokens)} values; a parameter repeats exactly one"
        )
    element = parse_elements(tokens, row)
    if is_packed(row):
        element = pack_integers(np.repeat(element, 8 // row.bits).astype(np.int16), row)
    pattern = element.tobytes()
    if len(pattern) not in PATTERN_LENGTHS:
        raise errors.InvalidArgumentError(
            f"elements of {row.bits} bits cannot be repeated; 8, 16, 32, 64 or 128 can"
        )
    return pattern


@command(CREATE_FLAGS)
def create_main(flags: ParsedFlags) -> int:
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
    with errors.error_context(f"flag '--{flag}'"):
        return parse_declaration(text)


def output_path(flags: ParsedFlags) -> str:
    """The path of ``--output``; INVALID_ARGUMENT when it was not given."""
    path = flags.text("output")
    if not path:
        raise errors.InvalidArgumentError("no output file was given: --output=<file>.irpa")
    return path


@command(CONVERT_FLAGS)
def convert_main(flags: ParsedFlags) -> int:
    """Writes the joined archive and lists it.

    Keys that the edits name are those of the inputs.
    """
    output = output_path(flags)
    edits = _Edits(flags)
    providers = open_providers(flags.texts("parameters"), Mode(flags.text("parameter_mode")))
    entries = [entry for provider in providers for entry in provider.index]
    edits.warn_of_unknown(entries)
    layout = plan(edits.apply(entries))
    write(output, layout)
    if not flags.boolean("quiet"):
        sys.stdout.write(table("", [ParameterRow(*stored) for stored in layout.parameters]))
    return 0


class _Edits:
    """What the flags change."""

    def __init__(self, flags: ParsedFlags) -> None:
        self._exclude = set(flags.texts("exclude"))
        self._rename = dict(_pair("rename", text) for text in flags.texts("rename"))
        self._splat = dict(_parse_splat(text) for text in flags.texts("splat"))
        self._strip = flags.boolean("strip")

    def warn_of_unknown(self, entries: Sequence[ParameterEntry]) -> None:
        keys = [entry.key for entry in entries]
        named = (("exclude", self._exclude), ("rename", self._rename), ("splat", self._splat))
        for flag, wanted in named:
            for key in sorted(set(wanted).difference(keys)):
                print(f"jitree: --{flag}={key}: no such parameter{nearest(key, keys)}", file=sys.stderr)

    def apply(self, entries: Iterable[ParameterEntry]) -> list[ParameterEntry]:
        """The entries that remain, in order. ALREADY_EXISTS when two have one key."""
        edited: dict[str, ParameterEntry] = {}
        for entry in entries:
            if entry.key in self._exclude:
                continue
            changed = self._changed(entry)
            if changed.key in edited:
                raise errors.AlreadyExistsError(
                    f"two parameters would be called '{changed.key}'; leave one out (--exclude) or give it "
                    "another name (--rename)"
                )
            edited[changed.key] = changed
        return list(edited.values())

    def _changed(self, entry: ParameterEntry) -> ParameterEntry:
        key = self._rename.get(entry.key, entry.key)
        if entry.key in self._splat or self._strip:
            pattern = self._splat.get(entry.key, _ZERO)
            return splat_entry(key, pattern, entry.length, entry.metadata, entry.tensor)
        return replace(entry, key=key)


def _pair(flag: str, text: str) -> tuple[str, str]:
    first, separator, second = text.partition("=")
    if not (first and separator and second):
        raise errors.InvalidArgumentError(f"flag '--{flag}': '{text}' is not <old key>=<new key>")
    return first, second


def _parse_splat(text: str) -> tuple[str, bytes]:
    """Key and pattern of ``key``, ``key=f32`` or ``key=f32=1.5``."""
    key, typed, rest = text.partition("=")
    if not typed:
        return key, _ZERO
    name, valued, value = rest.partition("=")
    with errors.error_context(f"flag '--splat={text}'"):
        row = find_type(name)
        return key, parse_pattern(row, value) if valued else _ZERO


@command(DUMP_FLAGS)
def dump_main(flags: ParsedFlags) -> int:
    """Prints a table for each scope, then extracts; NOT_FOUND for an unknown scope or key."""
    providers = open_providers(flags.texts("parameters"), Mode(flags.text("parameter_mode")))
    layout = long_table if flags.boolean("long") else table
    for provider in providers:
        rows = [ParameterRow(entry, entry.file_offset) for entry in provider.index]
        sys.stdout.write(layout(provider.scope, rows))
    for text in flags.texts("extract"):
        with errors.error_context(f"extracting parameter with flag `{text}`"):
            _extract(providers, text)
    return 0


def _extract(providers: Sequence[ParameterProvider], text: str) -> None:
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise errors.InvalidArgumentError(f"'{text}' is not [<scope>::]<key>=<file>")
    entry = _find(providers, name)
    print(f"Extracting parameter `{entry.key}` ({entry.length}b) to `{path}`...", flush=True)
    with errors.system_refusals(f"cannot write '{path}'"), open(path, "wb") as file:
        for chunk in entry.chunks():
            file.write(chunk)


def _find(providers: Sequence[ParameterProvider], name: str) -> ParameterEntry:
    scope, separator, key = name.partition("::")
    if not separator:
        scope, key = "", name
    for provider in providers:
        if provider.scope == scope:
            return provider.get(key)
    scopes = [provider.scope for provider in providers]
    known = ", ".join(scope_text(item) for item in scopes) or "none"
    raise errors.NotFoundError(
        f"no parameters in scope {scope_text(scope)}; scopes: {known}{nearest(scope, scopes)}"
    )


COMMANDS: Final = {
    "create": (create_main, "make an archive of zeros or repeated values"),
    "convert": (convert_main, "join archives of any format into one .irpa, edited"),
    "dump": (dump_main, "list what archives hold, extract parameters"),
}
_HELP: Final = """\
jitree parameters: makes, converts and shows parameter archives
`jitree parameters <command> --help` lists a command's flags.
"""


def main(arguments: Sequence[str]) -> int:
    """Runs ``create``, ``convert`` or ``dump``; returns the exit code."""
    return run_subcommand("parameters", COMMANDS, _HELP, arguments)
