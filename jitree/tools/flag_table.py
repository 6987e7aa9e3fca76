"""The flags of commands, as ``flags.tsv`` states them, in groups that commands share."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from jitree.tools.flags import Flag, FlagSet, FlagValue, Kind, Support, convert

_REFUSED_PREFIXES: Final = (
    "device_replay_",
    "device_capture_",
    "hip_",
    "vulkan_",
)
_NOTHING: Final = "-"


def flag_set(
    command: str,
    summary: str,
    groups: str,
    positional: str | None = None,
    ignored_prefixes: tuple[str, ...] = (),
) -> FlagSet:
    """The flags of a command, of ``groups`` with spaces between them; for the rest see :class:`FlagSet`."""
    names = ["common", *groups.split()]
    flags = tuple(flag for name in names for flag in _groups()[name])
    refused_prefixes = _REFUSED_PREFIXES if "refused" in names else ()
    return FlagSet(command, summary, flags, positional, refused_prefixes, ignored_prefixes)


@cache
def _groups() -> dict[str, list[Flag]]:
    groups: dict[str, list[Flag]] = {}
    for line in Path(__file__).with_name("flags.tsv").read_text(encoding="ascii").splitlines():
        if not line.startswith("#"):
            group, *fields = line.split("\t")
            groups.setdefault(group, []).append(
                _flag(*("" if field == _NOTHING else field for field in fields))
            )
    return groups


def _flag(name: str, kind: str, support: str, default: str, values: str, text: str) -> Flag:
    absent: dict[Kind, FlagValue] = {Kind.LIST: [], Kind.OPTIONAL: None}
    choices = tuple(values.split(",")) if values else ()
    flag = Flag(name, Kind[kind.upper()], "", text.replace("\\n", "\n"), choices, Support[support.upper()])
    return flag._replace(default=convert(flag, default) if default else absent.get(flag.kind, ""))
