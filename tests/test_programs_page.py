"""Each section of ``docs/programs.md`` works in an empty folder as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import ROOT, blocks, commands, require_printed, run

PAGE = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE))
NEEDED = {
    "Compile an ONNX file": ("onnx", "onnxruntime"),
    "Write numpy, with JAX": ("jax",),
    "Export a module of PyTorch": ("torch", "onnxscript", "onnx"),
}
"""What sections need beside the compiler."""


@pytest.mark.parametrize("title", SECTIONS)
def test_section(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("iree.compiler", *NEEDED.get(title, ())):
        pytest.importorskip(package, exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path / "cache"))
    write_files(SECTIONS[title])
    for command in commands(SECTIONS[title]):
        require_printed(command.printed, run(command.line, tmp_path))


def write_files(section: str) -> None:
    """Blocks of files begin with a comment that has the name."""
    for block in blocks(section, "(?:python|mlir)"):
        name = re.match(r"(?:#|//) (\S+)\n", block)
        assert name is not None, block
        Path(name[1]).write_text(block)


def test_each_section_has_commands() -> None:
    assert len(SECTIONS) == 6 and {*NEEDED} < {*SECTIONS}
    for title, section in SECTIONS.items():
        assert commands(section) and blocks(section, "(?:python|mlir)"), title
        assert any(command.line.startswith("jitree compile ") for command in commands(section)), title
