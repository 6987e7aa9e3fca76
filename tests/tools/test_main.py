"""The ``jitree`` command itself: subcommands, version, exit codes."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from jitree import __version__
from jitree.base.tables import text_table
from jitree.errors import NotFoundError
from jitree.tools.main import COMMANDS, Output, guarded
from jitree.tools.reporting import in_colours
from tests.tools.command import jitree


def test_version() -> None:
    outcome = jitree("--version")
    assert outcome.code == 0 and outcome.stdout.startswith(f"jitree {__version__}\n")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"]])
def test_help_lists_the_commands(arguments: list[str]) -> None:
    outcome = jitree(*arguments)
    assert outcome.code == 0
    for command in COMMANDS:
        assert f"  {command} " in outcome.stdout


@pytest.mark.parametrize("arguments", [[], ["nope"]])
def test_bad_usage(arguments: list[str]) -> None:
    outcome = jitree(*arguments)
    assert outcome.code == 1 and outcome.stdout == "" and "Usage: jitree <command>" in outcome.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    outcome = jitree(command, "--help")
    assert outcome.code == 0 and outcome.stderr == ""
    assert outcome.stdout.startswith(f"# jitree {command}: ")


def failing(error: BaseException) -> int:
    def command(arguments: Sequence[str]) -> int:
        raise error

    return guarded(command, [])


def test_exit_codes_of_failures(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(NotFoundError("nothing", "looking for it")) == 1
    assert capsys.readouterr().err.endswith("NOT_FOUND; nothing; looking for it\n")
    assert failing(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == ""
    assert failing(KeyError("x")) == 1
    assert "INTERNAL; KeyError: 'x'; this is a defect of jitree" in capsys.readouterr().err


class RichConsole:
    """What is used of rich's, which need not be installed."""

    def __init__(self, **options: object) -> None:
        self._text = ""

    @contextmanager
    def capture(self) -> Iterator[RichConsole]:
        self._text = ""
        yield self

    def print(self, text: str, end: str, style: str) -> None:
        self._text += f"\x1b[31m{text}\x1b[0m{end}"

    def get(self) -> str:
        return self._text


@pytest.mark.parametrize(
    ("is_terminal", "has_rich", "variable", "expected"),
    [
        (True, True, "TERM", "\x1b[31ma \\1B[1m 1\n\x1b[0m"),
        (False, True, "TERM", "a \\1B[1m 1\n"),
        (True, False, "TERM", "a \\1B[1m 1\n"),
        (True, True, "NO_COLOR", "a \\1B[1m 1\n"),
    ],
)
def test_terminals_show_colours(
    is_terminal: bool, has_rich: bool, variable: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a program says commands no terminal there, either."""
    module: Any = ModuleType("rich.console")
    module.Console = RichConsole
    monkeypatch.setitem(sys.modules, "rich", ModuleType("rich"))
    monkeypatch.setitem(sys.modules, "rich.console", module if has_rich else None)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(variable, "xterm")
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: is_terminal)
    stream = Output(written)
    in_colours(stream, "red")
    stream.write("a \x1b[1m 1\n")
    assert written.getvalue() == expected


def test_terminals_show_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """With lines, by rich; what is no terminal gets their text."""
    pytest.importorskip("rich")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for is_terminal in (True, False):
        written = io.StringIO()
        monkeypatch.setattr(written, "isatty", lambda answer=is_terminal: answer)
        stream = Output(written)
        in_colours(stream)
        stream.write(text_table([["what", "count"], ["a\x1b[1m [b]", "12"]]))
        lines = re.sub("\x1b\\[[0-9;]*m", "", written.getvalue()).splitlines()
        assert any("──" in line for line in lines) == is_terminal
        assert any("a\\1B[1m [b]" in line and "12" in line for line in lines)
