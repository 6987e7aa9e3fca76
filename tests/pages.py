"""What pages of Markdown show, taken apart and run: snippets of Python, commands and what they print."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from jitree.codegen.image.shipped import CHECKED, STAMP_VARIABLE
from tests.tools.command import jitree

ROOT = Path(__file__).resolve().parent.parent
INSTALLATION = (".venv/bin/pip", "pip")
"""Installing is left to the reader, and to ``.ci/run``."""


class Command(NamedTuple):
    line: str
    printed: list[str]
    """What the page shows below it."""


def users_environment() -> dict[str, str]:
    """That of a process of a user. Where this one checks accesses (``tests/checked``), that one has what is
    shipped."""
    return {name: value for name, value in os.environ.items() if not (CHECKED and name == STAMP_VARIABLE)}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[Command]:
    """Those of console blocks; each begins with a dollar."""
    found: list[Command] = []
    for block in blocks(page, "console"):
        lines = block.splitlines()
        assert lines[0].startswith("$ "), block
        for line in lines:
            if line.startswith("$ "):
                found.append(Command(line.removeprefix("$ "), []))
            else:
                found[-1].printed.append(line)
    return [command for command in found if command.line.split()[0] not in INSTALLATION]


def run(line: str, tmp_path: Path) -> str:
    """What a command prints; it has to succeed. The caller is in the folder where the page has it run, and
    ``/tmp`` is that of the test."""
    words = [word.replace("/tmp/", f"{tmp_path}/") for word in shlex.split(line)]
    program = words[0].removeprefix(".venv/bin/")
    if program == "jitree":
        outcome = jitree(*words[1:])
        assert outcome.code == 0, outcome.stderr
        return outcome.stdout.replace(f"{tmp_path}/", "/tmp/")
    assert program == "python", line
    environment = users_environment() | {"PYTHONPATH": str(ROOT)}  # for a checkout that is not installed
    done = subprocess.run(
        [sys.executable, *words[1:]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_snippets(page: str, name: str, tmp_path: Path) -> None:
    """One after the other, as a reader does who goes through the page; what comments behind ``print`` promise
    is printed."""
    scope: dict[str, Any] = {}
    for snippet in blocks(page, "python"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(snippet.replace("/tmp/", f"{tmp_path}/"), name, "exec"), scope)
        require_printed(re.findall(r"print\(.*\)  # (.*)$", snippet, re.MULTILINE), printed.getvalue())


def require_printed(promised: list[str], printed: str) -> None:
    """Each line is there, in this order; an ellipsis in it stands for anything, and one alone for lines."""
    lines = iter(printed.splitlines())
    for line in promised:
        pattern = ".*".join(re.escape(part.strip()) for part in line.split("…"))
        assert line == "…" or any(re.search(pattern, found) for found in lines), (
            f"not printed: {line}\n{printed}"
        )
