"""Snippets and commands of the pages about seeing inside run as they are written there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.tools.command import jitree

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = {
    path: path.read_text()
    for path in (ROOT / "docs" / name for name in ("seeing.md", "profiling.md", "diff.md"))
}
SNIPPETS = [
    (path, snippet)
    for path, page in PAGES.items()
    for snippet in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
]
COMMANDS = [
    command for page in PAGES.values() for command in re.findall(r"^\$ jitree (.*)$", page, re.MULTILINE)
]


@pytest.mark.parametrize(("path", "snippet"), SNIPPETS)
def test_snippets(path: Path, snippet: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(snippet.replace("/tmp/", f"{tmp_path}/"), str(path), "exec"), {})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    outcome = jitree(*shlex.split(command.replace("/tmp/", f"{tmp_path}/")))
    assert outcome.code == 0, outcome.stderr
    written = re.findall(r"/tmp/([\w.]+)", command)
    assert {path.name for path in tmp_path.iterdir()} == set(written)
