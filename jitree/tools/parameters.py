"""``jitree parameters``: makes, converts and shows parameter archives."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

from jitree.errors import InvalidArgumentError

COMMANDS: Final = {
    "create": ("jitree.tools.parameters_create", "make an archive of zeros or repeated values"),
    "convert": ("jitree.tools.parameters_convert", "join archives of any format into one .irpa, edited"),
    "dump": ("jitree.tools.parameters_dump", "list what archives hold, extract parameters"),
}
"""Module of every command and what it does."""


def main(arguments: Sequence[str]) -> int:
    """Runs ``create``, ``convert`` or ``dump``; returns the exit code."""
    command = arguments[0] if arguments else ""
    if command in ("", "--help", "-h", "help"):
        lines = ["# jitree parameters: makes, converts and shows parameter archives", "#"]
        lines += [f"#   {name:8} {summary}" for name, (_, summary) in COMMANDS.items()]
        lines += ["#", "# `jitree parameters <command> --help` lists a command's flags."]
        print("\n".join(lines), file=sys.stdout if command else sys.stderr)
        return 0 if command else 1
    if command not in COMMANDS:
        raise InvalidArgumentError(f"unknown command 'parameters {command}'; there are {', '.join(COMMANDS)}")
    module = importlib.import_module(COMMANDS[command][0])
    code: int = module.main(arguments[1:])
    return code
