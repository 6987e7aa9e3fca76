"""The ``jitree`` command itself: subcommands, version, exit codes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jitree.errors import NotFoundError
from jitree.tools.main import COMMANDS, guarded
from tests.tools.command import jitree


def test_version() -> None:
    outcome = jitree("--version")
    assert outcome.code == 0 and outcome.stdout.startswith("jitree 0.")


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
