"""Pages of docs/ work as they stand there: those that have no test of their own, and the index of all."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

from jitree.tools.main import COMMANDS
from tests.assembler import Assembler
from tests.pages import ROOT, blocks, commands, require_printed, run, run_snippets
from tests.tools.command import jitree
from tests.tools.test_dump_code import SUM

DOCS = ROOT / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
RUN_HERE = (
    "arithmetic.md",
    "arrays.md",
    "asynchronous.md",
    "caching.md",
    "command_line.md",
    "custom_operations.md",
    "devices.md",
    "kernels.md",
    "notebooks.md",
    "parameters.md",
    "report.md",
    "tour.md",
)
RUN_ELSEWHERE = {
    "compiling.md": "tests/test_compiling_page.py",
    "containers.md": "tests/test_containers_page.py",
    "deadlines.md": "tests/api/test_deadlines.py",
    "debugging.md": "tests/debug/test_debugger.py",
    "diff.md": "tests/api/test_seeing_page.py",
    "migrate.md": "tests/compat/test_migration.py",
    "profiling.md": "tests/api/test_seeing_page.py",
    "sandbox.md": "tests/security/test_promises.py",
    "scale.md": "tests/api/test_scale_page.py",
    "seeing.md": "tests/api/test_seeing_page.py",
}
"""The test of each page that has one."""


@pytest.fixture(autouse=True)
def where_pages_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("JITREE_CACHE_SIZE", raising=False)  # pages print what it is without
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", RUN_HERE)
def test_snippets(name: str, tmp_path: Path) -> None:
    run_snippets(PAGES[name], name, tmp_path)


@pytest.mark.parametrize("name", RUN_HERE)
def test_commands(name: str, tmp_path: Path) -> None:
    """One after the other: later ones read what earlier ones write."""
    for command in commands(PAGES[name]):
        require_printed(command.printed, run(command.line, tmp_path))


SENTENCES = [
    (name, command)
    for name in RUN_HERE
    for command in re.findall(r"`jitree ([^`]*model\.vmfb[^`]*|devices|cache \w+)`", PAGES[name])
]


@pytest.mark.parametrize(("name", "command"), SENTENCES)
def test_commands_in_sentences(
    name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ROOT / "examples/digits/digits.llvm-cpu.vmfb"
    if "predict" in command:  # a function that is compiled as a whole
        model = tmp_path / "model.vmfb"
        model.write_bytes(Assembler("m").function("predict", "0i_i", SUM).build())
    monkeypatch.chdir(tmp_path)  # some write files
    outcome = jitree(*shlex.split(command.replace("model.vmfb", str(model))))
    assert outcome.code == 0, outcome.stderr


def test_each_page_with_code_is_run() -> None:
    with_code = {name for name, page in PAGES.items() if blocks(page, "python") or blocks(page, "console")}
    assert with_code == {*RUN_HERE, *RUN_ELSEWHERE}
    for name, test in RUN_ELSEWHERE.items():
        assert name in (ROOT / test).read_text(encoding="utf-8"), test


def test_the_index_has_all_pages() -> None:
    index = re.findall(r"\]\(([^)#]+)\)", PAGES["README.md"])
    assert {*PAGES} - {"README.md"} <= {*index}
    examples = {f"../{path.relative_to(ROOT)}" for path in ROOT.glob("examples/*/README.md")}
    assert examples <= {*index}
    assert len(index) == len({*index})


def test_the_command_line_has_all_commands() -> None:
    assert {*re.findall(r"^\| `jitree ([\w-]+)` \|", PAGES["command_line.md"], re.MULTILINE)} == {*COMMANDS}


def test_the_map_names_what_there_is() -> None:
    paths = re.findall(r"^\| `([^`]+)`", PAGES["layout.md"], re.MULTILINE)
    assert {path.name for path in (ROOT / "jitree").iterdir() if path.is_dir()} - {"__pycache__"} <= {
        Path(path).name for path in paths
    }
    for path in paths:
        assert (ROOT / path).exists(), path


def test_the_front_plot_is_of_measured_figures() -> None:
    spec = importlib.util.spec_from_file_location("front_plot", ROOT / "perf" / "front_plot.py")
    assert spec is not None and spec.loader is not None
    plot = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plot)
    figures = plot.figures(plot.SOURCE.read_text(encoding="utf-8"))
    assert len(figures) == len(plot.PLACES) and all(figure.worst < figure.mean for figure in figures)
    assert plot.PLOT.exists()
    with pytest.raises(LookupError, match="section 'Calls', has no line like"):
        plot.figures(plot.SOURCE.read_text(encoding="utf-8").replace("from device", "from nowhere"))
