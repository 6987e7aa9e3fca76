"""The command ``jitree``: finds the subcommand and turns its outcome into an exit code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Final, NoReturn

from jitree import __version__
from jitree.base.folding import keep_tracebacks
from jitree.tools.reporting import report
from jitree.tools.streams import Messages, Output, keep_standard_numbers

COMMANDS: Final = {
    "run": ("jitree.tools.run", "call a function of a compiled module and print, store or check its results"),
    "benchmark": ("jitree.tools.benchmark", "measure how long functions of a compiled module take"),
    "compile": ("jitree.tools.compile", "make a module of an ONNX, StableHLO or MLIR file"),
    "dump": ("jitree.tools.dump", "show what a compiled module holds"),
    "diff": ("jitree.tools.diff", "call two compiled modules side by side and find where they depart"),
    "reduce": ("jitree.tools.reduce", "write the one dispatch of a call that is wrong, to be run alone"),
    "parameters": ("jitree.tools.parameters", "make, convert and show parameter archives"),
    "check": ("jitree.tools.check", "run the functions of a compiled module that check themselves"),
    "cache": ("jitree.tools.cache", "list, empty and fill the folder of machine code"),
    "devices": ("jitree.tools.devices", "list the drivers and devices of this machine"),
}
"""Module of every command (its ``main`` takes the arguments and returns the exit code) and what it does."""


EXIT_FAILURE: Final = 1
EXIT_INTERRUPTED: Final = 130


def usage() -> str:
    lines = ["Usage: jitree <command> [flags]", ""]
    lines += [f"  {name:10} {summary}" for name, (_, summary) in COMMANDS.items()]
    lines += ["", "`jitree <command> --help` lists a command's flags; `jitree --version` prints the version."]
    return "\n".join(lines) + "\n"


def dispatch(arguments: Sequence[str]) -> int:
    """Runs a command line; returns the exit code. Errors become a line on stderr, a closed pipe ends it
    quietly."""
    return guarded(_dispatch, arguments)


def _dispatch(arguments: Sequence[str]) -> int:
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
    code: int = module.main(arguments[1:])
    return code


def guarded(function: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Runs a command; errors become a line on stderr and exit code 1, a closed pipe ends it quietly."""
    with redirect_stdout(Output(sys.stdout)), redirect_stderr(Messages(sys.stderr)):
        return _guarded(function, arguments)


def _guarded(function: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        code = function(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        report(error, verbose="--verbose" in arguments or "--verbose=true" in arguments)
        return EXIT_FAILURE
    finally:
        sys.stderr.flush()  # what cannot be written would else be noticed when the interpreter ends


def main() -> NoReturn:
    """Entry point of the console script."""
    keep_standard_numbers()
    sys.exit(dispatch(sys.argv[1:]))
