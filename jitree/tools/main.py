"""Runs the command ``jitree``: finds the subcommand, guards its output, returns an exit code.

A failure to write the output ends a command; a failure to write messages does not. Neither commands a
terminal: programs have names and messages of any kind.
"""

from __future__ import annotations

import abc
import errno
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Final, NoReturn

from jitree.base.folding import keep_tracebacks
from jitree.base.near_names import did_you_mean
from jitree.errors import UnavailableError, ignored, pass_interruption, printable
from jitree.tools.flags import ASKS_HELP, ASKS_VERSION, versions
from jitree.tools.reporting import report

_STANDARD: Final = (0, 1, 2)

COMMANDS: Final = {
    "run": (
        "jitree.tools.run:main",
        "call a function of a compiled module and print, store or check its results",
    ),
    "benchmark": ("jitree.tools.benchmark:main", "measure how long functions of a compiled module take"),
    "compile": ("jitree.tools.compile:main", "make a module of an ONNX, StableHLO or MLIR file"),
    "dump": ("jitree.tools.dump:main", "show what a compiled module holds"),
    "stub": ("jitree.tools.stub:main", "write a typed Python module that loads a compiled one, for editors"),
    "diff": (
        "jitree.tools.comparing:diff_main",
        "call two compiled modules side by side and find where they depart",
    ),
    "report": (
        "jitree.tools.report:main",
        "write one page: a module, its dispatches, times, statistics, where another departs",
    ),
    "reduce": (
        "jitree.tools.comparing:reduce_main",
        "write the one dispatch of a call that is wrong, to be run alone",
    ),
    "debug": (
        "jitree.tools.debug:main",
        "call a function of a compiled module step by step, with breakpoints",
    ),
    "parameters": ("jitree.tools.parameters:main", "make, convert and show parameter archives"),
    "check": ("jitree.tools.check:main", "run the functions of a compiled module that check themselves"),
    "cache": ("jitree.tools.cache:main", "list, empty and fill the folder of machine code"),
    "devices": ("jitree.tools.devices:main", "list the drivers and devices of this machine"),
    "cpuinfo": ("jitree.tools.shells:cpuinfo_main", "list the features of the processor"),
    "benchmark-executable": (
        "jitree.tools.benchmark:executable_main",
        "measure how long dispatches of an executable take",
    ),
    "install-tools": (
        "jitree.tools.shells:install_main",
        "write scripts with the names of IREE's tools into a folder",
    ),
    "completion": ("jitree.tools.shells:completion_main", "print what lets bash, zsh or fish complete"),
}
"""Function of every command, which takes the arguments and returns the exit code, and what it does."""


EXIT_FAILURE: Final = 1
EXIT_INTERRUPTED: Final = 130


class Shown(abc.ABC):
    """A stream of texts; ``stream`` is None where the process was started without it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.coloured: Callable[[str], str] = str
        """Adds what a terminal shows as colours to text without any commands to it."""
        self.drawn: Callable[[Sequence[Sequence[str]]], str] | None = None
        """Shows the cells of a table (:class:`jitree.base.tables.TextTable`), where not as its text."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> OutputBytes:
        return OutputBytes(self)

    def isatty(self) -> bool:
        with ignored(ValueError, AttributeError):  # of a stream that is closed, or was never there
            return bool(self._stream.isatty())
        return False

    def write(self, text: str) -> int:
        cells = None if self.drawn is None else getattr(text, "cells", None)
        if cells is None:
            self.do(lambda stream: _write(stream, self.coloured(printable(text))))
        else:
            drawn: Any = self.drawn
            self.do(lambda stream: _write(stream, drawn(cells)))
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def flush(self) -> None:
        self.do(lambda stream: stream.flush())

    def do(self, action: Callable[[Any], object]) -> None:
        """Does something with the stream."""
        try:
            if self._stream is None:
                raise OSError(errno.EBADF, "it is closed")
            action(self._stream)
        except (OSError, ValueError) as error:  # the latter of one that the program has closed
            pass_interruption(error)
            self.discard()
            self.fail(error)

    @abc.abstractmethod
    def fail(self, error: Exception) -> None:
        """What follows when something cannot be written."""

    def discard(self) -> None:
        """Points the stream at nothing, so that the interpreter's flush at exit succeeds."""
        with ignored(OSError, ValueError, AttributeError), open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), self._stream.fileno())


class OutputBytes:
    """What takes bytes of a stream of texts."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    def write(self, data: bytes | memoryview) -> int:
        self._shown.do(lambda stream: stream.buffer.write(data))
        return len(data)

    def flush(self) -> None:
        self._shown.do(lambda stream: stream.buffer.flush())


class Output(Shown):
    """What a command is called for."""

    def fail(self, error: Exception) -> None:
        if isinstance(error, BrokenPipeError):  # who reads it has read enough
            raise error
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnavailableError(f"standard output cannot be written: {reason}") from None


class Messages(Shown):
    """What a command says beside its output.

    A message that cannot be written is dropped.
    """

    def fail(self, error: Exception) -> None:
        """The command goes on."""


def _write(stream: Any, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError as error:  # a terminal or file of another encoding
        stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))


def keep_standard_numbers() -> None:
    """Opens what a process was started without: a file that is opened later would get that number, and what
    native code says would be written into it."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def usage() -> str:
    lines = ["Usage: jitree <command> [flags]", ""]
    lines += [f"  {name:20} {summary}" for name, (_, summary) in COMMANDS.items()]
    lines += ["", "`jitree <command> --help` lists a command's flags; `jitree --version` prints the version."]
    return "\n".join(lines) + "\n"


def dispatch(arguments: Sequence[str]) -> int:
    """Runs a command line; returns the exit code.

    Errors become a line on stderr, a closed pipe ends it quietly.
    """
    return guarded(_dispatch, arguments)


def _dispatch(arguments: Sequence[str]) -> int:
    command, *rest = arguments or ("",)
    if command in ASKS_HELP and rest and rest[0] in COMMANDS:
        command, rest = rest[0], ["--help"]
    if command in ASKS_HELP:
        sys.stdout.write(usage())
        return 0
    if command in ASKS_VERSION:
        sys.stdout.write(versions())
        return 0
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS)
        sys.stderr.write(f"jitree: unknown command '{command}'{hint}\n\n" if command else "")
        sys.stderr.write(usage())
        return EXIT_FAILURE
    module, _, function = COMMANDS[command][0].partition(":")
    main = getattr(importlib.import_module(module), function)
    keep_tracebacks()
    code: int = main(rest)
    return code


def guarded(function: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Runs a command; errors become a line on stderr and exit code 1, a closed pipe ends it quietly."""
    with redirect_stdout(Output(sys.stdout)), redirect_stderr(Messages(sys.stderr)), _warnings_as_lines():
        return _guarded(function, arguments)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """A block in which a warning of jitree's is its text: the line of code that gives it tells users
    nothing."""
    usual = warnings.formatwarning

    def format_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        text = str(message)
        own = text.startswith("jitree: ")
        return f"{text}\n" if own else usual(message, category, filename, lineno, line)

    warnings.formatwarning = format_warning
    try:
        yield
    finally:
        warnings.formatwarning = usual


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
