"""Every command and every snippet of the README works as it is written there.

Installing is left to ``.ci/run``, which executes the two set-up commands verbatim; here their last part runs
with the interpreter at hand.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def run(command: str) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    if words[0] == ".venv/bin/python":
        words[0] = sys.executable
    elif words[0] == ".venv/bin/jitree":
        words[:1] = [sys.executable, "-m", "jitree"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # for a checkout that is not installed
    return subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_setup_commands_have_the_form_that_ci_runs() -> None:
    example, tests = (block.strip() for block in blocks("bash"))
    for command, extra in ((example, "."), (tests, "'.[test]'")):
        venv, install, _ = command.split(" && ")
        assert venv == "python3 -m venv .venv"
        assert install == f".venv/bin/pip install --quiet {extra}"
    assert tests.endswith(".venv/bin/python -m pytest")


def test_the_example_draws_the_digit() -> None:
    result = run(blocks("bash")[0].strip().split(" && ")[-1])
    assert result.returncode == 0, result.stderr
    assert "This is a 7" in result.stdout
    assert result.stdout.count("│") == 16


@pytest.mark.parametrize("snippet", blocks("python"))
def test_snippets(snippet: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(snippet, "README.md", "exec"), {})
    promised = re.search(r"print\(error\) +# (.*)", snippet)
    assert promised is not None
    printed = capsys.readouterr().out
    for part in promised[1].split("…"):
        assert part.strip() in printed


@pytest.mark.parametrize(
    "command", [line.removeprefix("$ ") for block in blocks("console") for line in block.strip().splitlines()]
)
def test_command_lines(command: str) -> None:
    result = run(command)
    assert result.returncode == 0, result.stderr
    assert "classify" in result.stdout + result.stderr


def test_the_map_names_what_there_is() -> None:
    for path in re.findall(r"^\| `([^`]+)`", README, re.MULTILINE):
        assert (ROOT / path).exists(), path
    for _, target in re.findall(r"\[([^\]]+)\]\((?!https)([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_contributing_names_what_there_is() -> None:
    """Its commands install, test or build for minutes; here only what they name is looked for."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in re.findall(r"`((?:jitree|tests|perf|\.ci)/[^`*]+)`", text):
        assert list(ROOT.glob(path.rstrip("/"))), path
    for pattern in re.findall(r"`([^` ]+\*[^` ]*)`", text):
        assert list(ROOT.glob(pattern)), pattern
    for module in re.findall(r"python -m (jitree[\w.]*)", text):
        assert importlib.util.find_spec(module) is not None, module
    for target in re.findall(r"\]\((?!https)([^)]+)\)", text):
        assert (ROOT / target).exists(), target
