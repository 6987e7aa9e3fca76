"""Parses command-line flags by the rules of IREE's tools, with clear errors.

``--name=value`` and ``--name value``; booleans alone or with true/false/1/0; list flags repeat;
``--flagfile=path`` is expanded where it stands; later flags win. The text of ``--help`` is a flag file.
IREE's tools read garbage as zero, this refuses it. ``flags.tsv`` states the flags, in groups that commands
share.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from jitree import __version__
from jitree.base.near_names import did_you_mean, near_path
from jitree.base.pipes import input_file
from jitree.base.platform import SYSTEM, UNAME
from jitree.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
    error_context,
    pass_interruption,
)
from jitree.tools.element_parsing import parse_float, parse_integer

_MAX_FLAGFILE_DEPTH: Final = 16
_INTEGER_BOUND: Final = 1 << 63
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}

FlagValue = bool | int | float | str | None | list[str]

_REFUSED_PREFIXES: Final = (
    "device_replay_",
    "device_capture_",
    "hip_",
    "vulkan_",
)
_NOTHING: Final = "-"
_RULE: Final = "# ===" + "-" * 70 + "==="
_PACKAGES: Final = ("numpy", "ml_dtypes", "numba", "llvmlite", "pyelftools", "cuda-python")
"""What results and speed depend on."""
ASKS_HELP: Final = frozenset(("-h", "--help", "help"))
ASKS_VERSION: Final = frozenset(("--version", "-V"))
QUESTIONS: Final = (ASKS_HELP | ASKS_VERSION) - {"help"}
"""Arguments that a command answers whatever stands beside them."""


class Kind(enum.Enum):
    BOOLEAN = enum.auto()
    INTEGER = enum.auto()
    FLOAT = enum.auto()
    STRING = enum.auto()
    LIST = enum.auto()
    """Repeats; the order is kept."""
    OPTIONAL = enum.auto()
    """A string whose value may be left out: absent is None, ``--name`` is the empty string."""


class Support(enum.Enum):
    FULL = enum.auto()
    IGNORED = enum.auto()
    """Accepted without effect."""
    REFUSED = enum.auto()
    """UNIMPLEMENTED when given."""


class Flag(NamedTuple):
    name: str
    kind: Kind
    default: FlagValue
    help: str
    choices: tuple[str, ...] = ()
    support: Support = Support.FULL
    section: str = ""
    """The title that the help has it under."""


class FlagSet(NamedTuple):
    """The flags of one command; prefixes stand for whole families of flags."""

    command: str
    summary: str
    flags: tuple[Flag, ...]
    positional: str | None = None
    """The flag that arguments without dashes are values of."""
    refused_prefixes: tuple[str, ...] = ()
    ignored_prefixes: tuple[str, ...] = ()

    def find(self, name: str) -> Flag | None:
        for flag in self.flags:
            if flag.name == name:
                return flag
        if name.startswith(self.refused_prefixes):
            return Flag(name, Kind.OPTIONAL, None, "", support=Support.REFUSED)
        if name.startswith(self.ignored_prefixes):
            return Flag(name, Kind.OPTIONAL, None, "", support=Support.IGNORED)
        return None


class ParsedFlags:
    """The values of a command's flags."""

    __slots__ = ("given", "values")

    def __init__(self, values: dict[str, FlagValue]) -> None:
        self.values = values
        self.given: set[str] = set()
        """Names that the command line or a flag file mentions."""

    def boolean(self, name: str) -> bool:
        return self.values[name] is True

    def integer(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        value = self.values[name]
        assert isinstance(value, float)
        return value

    def text(self, name: str) -> str:
        value = self.values[name]
        assert isinstance(value, str)
        return value

    def optional(self, name: str) -> str | None:
        value = self.values[name]
        assert value is None or isinstance(value, str)
        return value

    def texts(self, name: str) -> list[str]:
        value = self.values[name]
        assert isinstance(value, list)
        return value


def parse_flags(arguments: Sequence[str], flag_set: FlagSet) -> ParsedFlags:
    """The values of all flags; raises INVALID_ARGUMENT or UNIMPLEMENTED naming the flag."""
    flags = ParsedFlags({flag.name: copy(flag.default) for flag in flag_set.flags})
    pending = _expand(arguments, 0, "")
    for argument, place in pending:
        with error_context(place) if place else nullcontext():
            _take(argument, pending, flag_set, flags)
    return flags


def _take(argument: str, pending: Iterator[tuple[str, str]], flag_set: FlagSet, flags: ParsedFlags) -> None:
    if argument == "-" or not argument.startswith("-"):
        _store_positional(argument, flag_set, flags)
        return
    name, separator, text = argument.removeprefix("-").removeprefix("-").partition("=")
    name = name.replace("-", "_")
    flag = flag_set.find(name)
    if flag is None:
        raise InvalidArgumentError(_unknown(argument, name, flag_set))
    if flag.support is Support.REFUSED:
        raise UnimplementedError(f"flag '{name}' is not supported by jitree")
    value = _unquote(text) if separator else _separate_value(flag, pending)
    if flag.support is Support.FULL:
        _store(flag, value, flags)


def command(flag_set: FlagSet) -> Callable[[Callable[[ParsedFlags], int]], Callable[[Sequence[str]], int]]:
    """Makes a command's ``main`` of what it does with its flags.

    ``--help`` and ``--version``, which all commands have, are answered here, wherever they stand.
    """

    def decorate(perform: Callable[[ParsedFlags], int]) -> Callable[[Sequence[str]], int]:
        def main(arguments: Sequence[str]) -> int:
            asked = next(filter(QUESTIONS.__contains__, arguments), None)
            if asked is None:
                flags = parse_flags(arguments, flag_set)
                if not flags.boolean("version") and flags.optional("help") is None:
                    return perform(flags)
                asked = "--version" if flags.boolean("version") else "--help"
            sys.stdout.write(versions() if asked in ASKS_VERSION else help_of(flag_set))
            return 0

        return main

    return decorate


_LONGEST_FLAGFILE: Final = 1 << 24


def _expand(arguments: Sequence[str], depth: int, file: str) -> Iterator[tuple[str, str]]:
    """Replaces flag files by their lines, and says where each argument stands."""
    if depth > _MAX_FLAGFILE_DEPTH:
        raise InvalidArgumentError(f"flag files nest deeper than {_MAX_FLAGFILE_DEPTH} levels")
    remaining = enumerate(arguments, 1)
    for number, argument in remaining:
        place = f"{file}:{number}" if file else ""
        name, separator, path = argument.partition("=")
        if file and (not argument or argument.startswith("#")):
            continue
        if name != "--flagfile":
            yield argument, place
            continue
        if not separator:
            path = next(remaining, (0, ""))[1]
        with error_context(place) if place else nullcontext():
            lines = _flagfile_lines(_unquote(path))
        yield from _expand(lines, depth + 1, _unquote(path))


def whole_file(path: str, most: int = 1 << 30) -> bytes:
    """The bytes of a file or pipe. INVALID_ARGUMENT for more than ``most``, a device, and no file name."""
    with input_file(path, most) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InvalidArgumentError(f"'{path}' has more than {most} bytes")
    return data


def _flagfile_lines(path: str) -> list[str]:
    try:
        text = whole_file(path, _LONGEST_FLAGFILE).decode()
    except OSError as error:
        pass_interruption(error)
        near = near_path(path) if isinstance(error, FileNotFoundError) else ""
        raise NotFoundError(f"cannot read flag file '{path}': {error.strerror}{near}") from None
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"flag file '{path}' is not text") from None
    return [line.strip() for line in text.splitlines()]


def _separate_value(flag: Flag, pending: Iterator[tuple[str, str]]) -> str | None:
    """The argument after a flag that takes a value; None for flags that need none."""
    if flag.kind in (Kind.BOOLEAN, Kind.OPTIONAL):
        return None
    value, _ = next(pending, ("--", ""))
    if value.startswith("--"):
        raise InvalidArgumentError(f"flag '--{flag.name}' needs a value: --{flag.name}=<value>")
    return value


def _unquote(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    return text


def _store_positional(argument: str, flag_set: FlagSet, flags: ParsedFlags) -> None:
    if flag_set.positional is None:
        raise InvalidArgumentError(f"unexpected argument '{argument}'")
    flag = flag_set.find(flag_set.positional)
    assert flag is not None
    if flag.kind is not Kind.LIST and flag.name in flags.given:
        raise InvalidArgumentError(f"unexpected argument '{argument}': there is one {flag.name} already")
    _store(flag, argument, flags)


def _store(flag: Flag, text: str | None, flags: ParsedFlags) -> None:
    flags.given.add(flag.name)
    if flag.kind is Kind.LIST:
        assert text is not None
        flags.texts(flag.name).append(text)
    else:
        flags.values[flag.name] = convert(flag, text)


def convert(flag: Flag, text: str | None) -> FlagValue:
    """The value that a text gives a flag. INVALID_ARGUMENT where it is none."""
    if text is None:
        return True if flag.kind is Kind.BOOLEAN else ""
    try:
        match flag.kind:
            case Kind.BOOLEAN:
                return _BOOLEANS[text]
            case Kind.INTEGER:
                return parse_integer(text, -_INTEGER_BOUND, _INTEGER_BOUND - 1)
            case Kind.FLOAT:
                return parse_float(text)
    except KeyError:
        raise InvalidArgumentError(f"flag '--{flag.name}': '{text}' is not true, false, 1 or 0") from None
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"flag '--{flag.name}': {error.message}") from None
    if flag.choices and text not in flag.choices:
        raise InvalidArgumentError(
            f"flag '--{flag.name}': '{text}' is not one of {', '.join(filter(None, flag.choices))}"
            f"{did_you_mean(text, flag.choices)}"
        )
    return text


def _unknown(argument: str, name: str, flag_set: FlagSet) -> str:
    known = [flag.name for flag in flag_set.flags if flag.support is not Support.REFUSED]
    return (
        f"unknown flag '{argument.partition('=')[0]}'{did_you_mean(name, known, '--')} "
        f"(`jitree {flag_set.command} --help` lists them)"
    )


def flag_set(
    command: str,
    summary: str,
    groups: str,
    positional: str | None = None,
    ignored_prefixes: tuple[str, ...] = (),
) -> FlagSet:
    """The flags of a command, of ``groups`` with spaces between them; for the rest see :class:`FlagSet`."""
    names = ["common", *groups.split()]
    flags = tuple(_flag(row) for name in names for row in _groups()[name])
    refused_prefixes = _REFUSED_PREFIXES if "refused" in names else ()
    return FlagSet(command, summary, flags, positional, refused_prefixes, ignored_prefixes)


@cache
def _groups() -> dict[str, list[tuple[str, ...]]]:
    """The fields of each flag, and the title that it has in the help."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    title = ""
    for line in Path(__file__).with_name("flags.tsv").read_text(encoding="ascii").splitlines():
        if line.startswith("="):
            title = line.removeprefix("=").strip()
        elif not line.startswith("#"):
            group, *fields = line.split("\t")
            groups.setdefault(group, []).append((*fields, title))
    return groups


@cache
def _flag(row: tuple[str, ...]) -> Flag:
    name, kind, support, default, values, text, title = ("" if field == _NOTHING else field for field in row)
    absent: FlagValue = [] if kind == "list" else None if kind == "optional" else ""
    choices = tuple(values.split(",")) if values else ()
    text = text.replace("\\n", "\n")
    flag = Flag(name, Kind[kind.upper()], absent, text, choices, Support[support.upper()], title)
    return flag._replace(default=convert(flag, default)) if default else flag


def help_of(flag_set: FlagSet) -> str:
    """Usage as comments and every flag with its default, under titles: a valid flag file."""
    lines = [
        f"# jitree {flag_set.command}: {flag_set.summary}",
        "#",
        "# This text is a flag file: edit it, pass",
    ]
    lines += ["# it back with --flagfile=<path>.", ""]
    shown = [flag for flag in flag_set.flags if flag.support is not Support.REFUSED]
    titles = list(dict.fromkeys(flag.section for flag in shown))
    shown.sort(key=lambda flag: titles.index(flag.section))
    shown.sort(key=lambda flag: flag.section == titles[0])  # what all commands have comes last
    for title, flags in groupby(shown, lambda flag: flag.section):
        if title:
            lines += [_RULE, f"# {title}", _RULE, ""]
        for flag in flags:
            lines += [*_flag_lines(flag), ""]
    return "\n".join(lines)


def _flag_lines(flag: Flag) -> list[str]:
    lines = [f"# {line}" for line in flag.help.splitlines()]
    if flag.choices:
        lines.append(f"# One of: {', '.join(filter(None, flag.choices))}.")
    return [*lines, _default_line(flag)]


def _default_line(flag: Flag) -> str:
    if flag.kind is Kind.BOOLEAN:
        return f"--{flag.name}={'true' if flag.default else 'false'}"
    if flag.kind is Kind.OPTIONAL:
        return f"# --{flag.name}[=...]"
    if flag.kind is Kind.LIST or flag.default == "":
        return f"# --{flag.name}=..."
    return f"--{flag.name}={flag.default}"


def versions() -> str:
    """Lists versions: of the package, of what it runs on and of modules that it runs."""
    import platform

    from jitree.modules.releases import releases

    packaged = [release.name for release in releases() if release.packaged]
    rows = [
        ("modules", f"of IREE {packaged[0]} to {packaged[-1]}"),
        ("python", f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})"),
        ("system", f"{SYSTEM} {UNAME}"),
        *((name, _installed(name)) for name in _PACKAGES),
        ("package", str(Path(__file__).parents[1])),
    ]
    return f"jitree {__version__}\n" + "".join(f"  {name:12}{value}\n" for name, value in rows)


def _installed(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def run_subcommand(
    group: str,
    commands: Mapping[str, tuple[Callable[[Sequence[str]], int], str]],
    help_text: str,
    arguments: Sequence[str],
) -> int:
    """Runs one command of a group, or shows the group's help; returns the exit code."""
    name = arguments[0] if arguments else ""
    if name in ASKS_VERSION:
        sys.stdout.write(versions())
        return 0
    if name in ("", *ASKS_HELP):
        title, *notes = help_text.splitlines()
        width = max(map(len, commands)) + 1
        rows = (f"  {key:{width}} {summary}" for key, (_, summary) in commands.items())
        lines = [title, "", *rows, "", *notes]
        print("\n".join(f"# {line}".rstrip() for line in lines), file=sys.stdout if name else sys.stderr)
        return 0 if name else 1
    if name not in commands:
        raise InvalidArgumentError(
            f"unknown command '{group} {name}'; there are {', '.join(commands)}{did_you_mean(name, commands)}"
        )
    return commands[name][0](arguments[1:])
