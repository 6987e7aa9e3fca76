"""``jitree parameters convert``: joins archives of any format into one ``.irpa``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from jitree.errors import AlreadyExistsError, InvalidArgumentError, error_context
from jitree.params import Mode, ParameterEntry, open_providers, splat_entry
from jitree.params.index import nearest
from jitree.params.irpa_writer import plan, write
from jitree.tools.flag_table import flag_set
from jitree.tools.flags import ParsedFlags, command
from jitree.tools.parameters_create import find_type, output_path, parse_pattern
from jitree.tools.parameters_table import ParameterRow, table

_ZERO: Final = b"\0"

FLAGS: Final = flag_set(
    "parameters convert",
    "joins archives into one .irpa and edits what it holds",
    "parameter convert archive",
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Writes the joined archive and lists it. Keys that the edits name are those of the inputs."""
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
                raise AlreadyExistsError(
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
        raise InvalidArgumentError(f"flag '--{flag}': '{text}' is not <old key>=<new key>")
    return first, second


def _parse_splat(text: str) -> tuple[str, bytes]:
    """Key and pattern of ``key``, ``key=f32`` or ``key=f32=1.5``."""
    key, typed, rest = text.partition("=")
    if not typed:
        return key, _ZERO
    name, valued, value = rest.partition("=")
    with error_context(f"flag '--splat={text}'"):
        row = find_type(name)
        return key, parse_pattern(row, value) if valued else _ZERO
