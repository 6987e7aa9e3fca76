"""Every command and every snippet of the README works as it is written there.

Installing is left to ``.ci/run``, which executes the two set-up commands verbatim; here their last part runs
with the interpreter at hand.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import shutil
from pathlib import Path

import pytest

from jitree.tools.main import COMMANDS
from tests.base.rows import each_row
from tests.pages import ROOT, Command, blocks, commands, require_printed, run, run_snippets
from tests.site.pages import own_files

README = (ROOT / "README.md").read_text(encoding="utf-8")


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


def test_the_setup_commands_have_the_form_that_ci_runs() -> None:
    example, tests = (block.strip() for block in blocks(README, "bash"))
    for command, extra in ((example, "."), (tests, "'.[test]'")):
        venv, install, _ = command.split(" && ")
        assert venv == "python3 -m venv .venv"
        assert install == f".venv/bin/pip install --quiet {extra}"
    assert tests.endswith(".venv/bin/python -m pytest")


def test_the_example_draws_the_digit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    printed = run(blocks(README, "bash")[0].strip().split(" && ")[-1], tmp_path)
    assert "This is a 7" in printed
    assert printed.count("│") == 16


def test_snippets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert "  # 7" in README
    run_snippets(README, "README.md", tmp_path)


def test_the_description_on_an_index_has_no_links_to_files() -> None:
    """``setup.py`` makes it: each file is named, and what is not a link to a file stays as it is."""
    described = runpy.run_path(str(ROOT / "setup.py"))["description"](README)
    assert re.findall(r"\]\((?!https://)[^)]*\)", described) == []
    files = [path for _, path in re.findall(r"\[([^\]]*)\]\((?!https:)([^)#]+)", README)]
    assert len(files) > 20
    assert all(f"`{path}`" in described and (ROOT / path).exists() for path in files)
    assert blocks(described, "python") == blocks(README, "python")
    assert described.count("https://") == README.count("https://")


GALLERY = ROOT / "examples" / "gallery"
DIGITS, OTHERS = (
    [command for command in commands(README) if ("digits" in command.line) == is_digits]
    for is_digits in (True, False)
)


@pytest.mark.parametrize("command", DIGITS, ids=lambda command: command.line)
def test_command_lines(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    printed = run(command.line, tmp_path)
    assert "classify" in printed
    require_printed(command.printed, printed)


@pytest.mark.parametrize("command", [each for each in OTHERS if "gallery" in each.line])
def test_commands_of_the_gallery(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path))
    if "prepare.py" in command.line:
        assert (GALLERY / "prepare.py").exists() and (GALLERY / command.line.split()[2]).is_dir()
        return
    if "text_in_photo" in command.line:
        pytest.importorskip("PIL")
        if not (GALLERY / "text_in_photo" / "find_text.vmvx.vmfb").exists():
            pytest.skip("prepare.py has not made the modules, which takes packages and minutes")
    require_printed(command.printed, run(command.line, tmp_path))


def test_a_model_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a file that the package of onnxruntime has, which has the shape of the second command."""
    for package in ("iree.compiler", "onnx", "onnxruntime"):
        pytest.importorskip(package, exc_type=ImportError)
    from onnxruntime.datasets import get_example

    shutil.copy(get_example("sigmoid.onnx"), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    compilation, call = (command for command in OTHERS if "model.vmfb" in command.line)
    assert "%x: tensor<3x4x5xf32>" in run(compilation.line, tmp_path)
    assert "3x4x5xf32=[[0.622459 " in run(call.line, tmp_path)


def test_the_front_page_is_short() -> None:
    assert README.count("\n") <= 100


DOCUMENTS = [
    path
    for folder in ("", "docs", "jitree", "tests", "perf", "examples")
    for path in sorted(ROOT.joinpath(folder).glob("**/*.md" if folder else "*.md"))
]


def _names_what_there_is(path: Path) -> None:
    text = path.read_text()
    for name in re.findall(r"`((?:jitree|tests|perf|examples|\.ci)/[^`]+)`", text):
        assert list(ROOT.glob(name.rstrip("/"))), name
    for pattern in re.findall(r"`([^` ]+/[^` ]*\*[^` ]*)`", text):
        assert list(ROOT.glob(pattern)) or list(path.parent.glob(pattern)), pattern
    for script in re.findall(r"python ((?:perf|examples|tests)/\S+\.py)", text):
        assert (ROOT / script).exists(), script
    for module in re.findall(r"python -m ((?:jitree|tests|perf)[\w.]*)", text):
        assert importlib.util.find_spec(module.rstrip(".")) is not None, module
    for command in re.findall(r"`jitree ([\w-]+)", text):
        assert command in COMMANDS, command
    for target in re.findall(r"\]\((?!https)([^)#]+)", text):
        assert (path.parent / target).exists(), target


def test_documents_name_what_there_is() -> None:
    """Their commands install, test or measure for minutes; here only what they name is looked for."""
    each_row({str(path.relative_to(ROOT)): path for path in DOCUMENTS}, _names_what_there_is)


FOLDERS = sorted((ROOT / "jitree").glob("**/README.md"))


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_documents_of_folders_name_all_files(path: Path) -> None:
    """Each by its whole name: a word such as ``calls`` names no file."""
    named = set(re.findall(r"\w+\.py\b", path.read_text(encoding="utf-8")))
    unnamed = {file.name for file in path.parent.glob("*.py")} - {"__init__.py"} - named
    assert not unnamed, f"{path.relative_to(ROOT)} does not name {sorted(unnamed)}"


def test_the_tower_of_the_front_page_has_every_part() -> None:
    tower = README.rpartition("```text\n")[2].partition("```")[0]
    parts = {path.parent.name for path in (ROOT / "jitree").glob("*/__init__.py")}
    assert parts - set(re.findall(r"\w+", tower)) == set()


def test_names_in_markdown_exist() -> None:
    """Each path and each identifier in backticks."""
    files = list(own_files())
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
