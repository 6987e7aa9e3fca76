"""The command ``jitree``: finds the subcommand and turns its outcome into an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, Final, NoReturn

from jitree import __version__
from jitree.base.folding import keep_tracebacks
from jitree.errors import printable
from jitree.tools.reporting import report

COMMANDS: Final = {
    "run": ("jitree.tools.run", "call a function of a compiled module and print, store or check its results"),
    "benchmark": ("jitree.tools.benchmark", "measure how long functions of a compiled module take"),
    "dump": ("jitree.tools.dump", "show what a compiled module holds"),
    "diff": ("jitree.tools.diff", "call two compiled modules side by side and find where they depart"),
    "reduce": ("jitree.tools.reduce", "write the one dispatch of a call that is wrong, to be run alone"),
    "parameters": ("jitree.tools.parameters", "make, convert and show parameter archives"),
    "check": ("jitree.tools.check", "run the functions of a compiled module that check themselves"),
    "cache": ("jitree.tools.cache", "list, empty and fill the folder of machine code"),
    "devices": ("jitree.tools.devices", "list the drivers and devices of this machine"),
}
"""Module of every command (its ``main`` takes the arguments and returns the exit code) and what it does."""


class Shown:
    """A stream of texts, none of which commands a terminal: programs have names and messages of any kind."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        written: int = self._stream.write(printable(text))
        return written

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)


EXIT_FAILURE: Final = 1
EXIT_INTERRUPTED: Final = 130


def usage() -> str:
    lines = ["Usage: jitree <command> [flags]", ""]
    lines += [f"  {name:10} {summary}" for name, (_, summary) in COMMANDS.items()]
    lines += ["", "`jitree <command> --help` lists a command's flags; `jitree --version` prints the version."]
    return "\n".join(lines) + "\n"


def dispatch(arguments: Sequence[str]) -> int:
    """Runs a command line; returns 0 or 1."""
    command = arguments[0] if arguments else ""
    if command in ("--help", "-h", "help"):
        sys.stdout.write(usage())
        return 0
    if command == "--version":
        sys.stdout.write(f"jitree {__version__}\n")
        return 0
    if command not in COMMANDS:
        sys.stderr.write(f"jitree: unknown command '{command}'\n\n" if command else "")
        sys.stderr.write(usage())
        return EXIT_FAILURE
    module = importlib.import_module(COMMANDS[command][0])
    keep_tracebacks()
    code: int = guarded(module.main, arguments[1:])
    return code


def guarded(function: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Runs a command; errors become a line on stderr and exit code 1, a closed pipe ends it quietly."""
    with redirect_stdout(Shown(sys.stdout)), redirect_stderr(Shown(sys.stderr)):
        return _guarded(function, arguments)


def _guarded(function: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        code = function(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        discard_output()
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        report(error, verbose="--verbose" in arguments or "--verbose=true" in arguments)
        return EXIT_FAILURE


def discard_output() -> None:
    """Points stdout at nothing, so that the interpreter's own flush at exit meets no closed pipe."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def main() -> NoReturn:
    """Entry point of the console script."""
    sys.exit(dispatch(sys.argv[1:]))
