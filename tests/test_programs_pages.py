"""Each page of ``docs/programs`` works in an empty folder as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import ROOT, blocks, commands, require_printed, run

FOLDER = ROOT / "docs" / "programs"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("[a-z]*.md")}
NEEDED = {"onnx": ("onnx", "onnxruntime"), "jax": ("jax",), "torch": ("torch", "onnxscript", "onnx")}
"""What pages need beside the compiler."""


@pytest.mark.parametrize("name", PAGES)
def test_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("iree.compiler", *NEEDED.get(name, ())):
        pytest.importorskip(package, exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path / "cache"))
    write_files(PAGES[name])
    for command in commands(PAGES[name]):
        require_printed(command.printed, run(command.line, tmp_path))


def write_files(page: str) -> None:
    """Blocks of files begin with a comment that has the name."""
    for block in blocks(page, "(?:python|mlir)"):
        name = re.match(r"(?:#|//) (\S+)\n", block)
        assert name is not None, block
        Path(name[1]).write_text(block)


def test_each_page_has_commands() -> None:
    assert len(PAGES) == 7 and {*NEEDED} < {*PAGES}
    for name, page in PAGES.items():
        assert commands(page) and blocks(page, "(?:python|mlir)"), name
        assert any(command.line.startswith("jitree compile ") for command in commands(page)), name
