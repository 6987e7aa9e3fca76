"""``jitree cache``: lists, empties and fills the folder of machine code, and packs it for modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

from jitree.errors import InvalidArgumentError

COMMANDS: Final = {
    "list": ("jitree.tools.cache_contents", "list_main", "show what the folder holds"),
    "clear": ("jitree.tools.cache_contents", "clear_main", "remove everything in it"),
    "warm": ("jitree.tools.cache_warm", "main", "build what running modules takes, before they are run"),
    "pack": ("jitree.tools.cache_pack", "main", "write that to a file, which travels with the modules"),
}
"""Module and function of every command and what it does."""


def main(arguments: Sequence[str]) -> int:
    """Runs a command; returns the exit code."""
    command = arguments[0] if arguments else ""
    if command in ("", "--help", "-h", "help"):
        lines = ["# jitree cache: lists, empties and fills the folder of machine code", "#"]
        lines += [f"#   {name:6} {summary}" for name, (_, _, summary) in COMMANDS.items()]
        lines += ["#", "# The folder is JITREE_CACHE_DIR, else ~/.cache/jitree; JITREE_CACHE_SIZE bounds it."]
        lines += ["# Of one that cannot be used `list` says why, and which is taken instead."]
        print("\n".join(lines), file=sys.stdout if command else sys.stderr)
        return 0 if command else 1
    if command not in COMMANDS:
        raise InvalidArgumentError(f"unknown command 'cache {command}'; there are {', '.join(COMMANDS)}")
    module, function, _ = COMMANDS[command]
    code: int = getattr(importlib.import_module(module), function)(arguments[1:])
    return code
