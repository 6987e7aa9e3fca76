"""Snippets and commands of ``docs/seeing.md`` run as they are written there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.tools.command import jitree

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "seeing.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\$ jitree (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippets(snippet: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(snippet.replace("/tmp/", f"{tmp_path}/"), str(ROOT / "docs" / "seeing.md"), "exec"), {})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    outcome = jitree(*shlex.split(command.replace("/tmp/", f"{tmp_path}/")))
    assert outcome.code == 0, outcome.stderr
    assert "taps.npz" not in command or list(tmp_path.glob("taps.npz"))
