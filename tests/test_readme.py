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
from fnmatch import fnmatch
from pathlib import Path

import pytest

from jitree.tools.main import COMMANDS
from tests.assembler import Assembler
from tests.tools.command import jitree
from tests.tools.test_dump_native import SUM

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


OUTSIDE = {
    "if/elif",
    "iN",
    "lstm",
    "numba.extending.overload",
    "rdtsc",
    "siN",
    "torch.cuda.set_device",
    "uiN",
}
"""Names in Markdown files that are not names of this tree."""


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


INLINE = re.findall(r"`jitree ([^`]+)`", README)


@pytest.mark.parametrize("command", INLINE)
def test_command_lines_in_sentences(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ROOT / "examples/digits/digits.llvm-cpu.vmfb"
    if "predict" in command:  # a function that is compiled as a whole
        model = tmp_path / "model.vmfb"
        model.write_bytes(Assembler("m").function("predict", "0i_i", SUM).build())
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)  # some write files
    outcome = jitree(*shlex.split(command.replace("model.vmfb", str(model))))
    assert outcome.code == 0, outcome.stderr


DOCUMENTS = [
    path
    for folder in ("", "jitree", "tests", "perf", "examples")
    for path in sorted(ROOT.joinpath(folder).glob("**/*.md" if folder else "*.md"))
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_what_there_is(path: Path) -> None:
    """Their commands install, test or measure for minutes; here only what they name is looked for."""
    text = path.read_text()
    for name in re.findall(r"`((?:jitree|tests|perf|examples|\.ci)/[^`]+)`", text):
        assert list(ROOT.glob(name.rstrip("/"))), name
    for pattern in re.findall(r"`([^` ]+/[^` ]*\*[^` ]*)`", text):
        assert list(ROOT.glob(pattern)) or list(path.parent.glob(pattern)), pattern
    for script in re.findall(r"python ((?:perf|examples|tests)/\S+\.py)", text):
        assert (ROOT / script).exists(), script
    for module in re.findall(r"python -m ((?:jitree|tests|perf)[\w.]*)", text):
        assert importlib.util.find_spec(module.rstrip(".")) is not None, module
    for command in re.findall(r"`jitree (\w+)", text):
        assert command in COMMANDS, command
    for target in re.findall(r"\]\((?!https)([^)#]+)", text):
        assert (path.parent / target).exists(), target


FOLDERS = sorted((ROOT / "jitree").glob("**/README.md"))


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_documents_of_folders_name_all_files(path: Path) -> None:
    """By name, with or without ``.py``, or by a pattern."""
    named = set(re.findall(r"\w+\*?", path.read_text(encoding="utf-8")))
    files = {file.stem for file in path.parent.glob("*.py")} - {"__init__"}
    patterns = [name for name in named if name.endswith("*")]
    unnamed = [name for name in files - named if not any(fnmatch(name, pattern) for pattern in patterns)]
    assert not unnamed, f"{path.relative_to(ROOT)} does not name {sorted(unnamed)}"


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    return listed.stdout.split()


def test_names_in_markdown_exist() -> None:
    """Each path and each identifier in backticks; without a repository there is nothing to compare."""
    files = tracked_files()
    if not files:
        pytest.skip("the files are no git checkout")
    paths = {
        "/".join(parts[first:end])
        for parts in (name.split("/") for name in files)
        for end in range(1, len(parts) + 1)
        for first in range(end)
    }
    texts = (ROOT / name for name in files if name.endswith((".py", ".tsv", ".ptx", ".toml", ".mlir")))
    words = {word for path in texts for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    for name in files:
        if name.endswith(".md"):
            text = re.sub(r"```.*?```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)
            stale = [
                named
                for named in set(re.findall(r"`([^`\n]+)`", text)) - OUTSIDE
                if not is_known(named, paths, words)
            ]
            assert not stale, f"{name} names what does not exist: {sorted(stale)}"


def is_known(named: str, paths: set[str], words: set[str]) -> bool:
    """Whether a path or an identifier exists; true of other texts."""
    if re.fullmatch(r"[\w.][\w./-]*", named) and (
        "/" in named or re.search(r"\w\.(py|md|tsv|ptx|toml|mlir)$", named)
    ):
        path = re.sub(r"^(\.\.?/)+", "", named).rstrip("/")
        return path in paths
    if re.fullmatch(r"[A-Za-z_][\w.]*(\(\))?", named):
        return words.issuperset(re.findall(r"[A-Za-z_]\w*", named))
    return True
