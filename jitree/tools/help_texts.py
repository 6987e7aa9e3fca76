"""Makes the texts of ``--help`` and ``--version`` from the table of flags."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from itertools import groupby
from pathlib import Path
from typing import Final

import jitree
from jitree.tools.flags import Flag, FlagSet, Kind, Support

_RULE: Final = "# ===" + "-" * 70 + "==="
_PACKAGES: Final = ("numpy", "ml_dtypes", "numba", "llvmlite", "pyelftools", "cuda-python", "rich")
"""What results and speed depend on."""


def of_command(flag_set: FlagSet) -> str:
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


def version() -> str:
    """The versions of the package and of all that it runs on, and the releases whose modules it runs."""
    from jitree.modules.releases import releases

    packaged = [release.name for release in releases() if release.packaged]
    rows = [
        ("modules", f"of IREE {packaged[0]} to {packaged[-1]}"),
        ("python", f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})"),
        ("system", f"{platform.system()} {platform.machine()}"),
        *((name, _installed(name)) for name in _PACKAGES),
        ("package", str(Path(jitree.__file__).parent)),
    ]
    return f"jitree {jitree.__version__}\n" + "".join(f"  {name:12}{value}\n" for name, value in rows)


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
