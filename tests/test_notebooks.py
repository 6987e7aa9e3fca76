"""Runs the notebooks of `examples/notebooks`: each cell in its order, and what its last line shows."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SAID = {
    "serving": "0 calls failed",
    "first_steps": "the digit is",
    "find_a_nan": "bytes; classify_dispatch_2",
    "replace_a_kernel": "with the kernel",
}


def shown(value: Any) -> str:
    """What a notebook shows of the value of a cell's last line."""
    html = getattr(value, "_repr_html_", None)
    return repr(value) if html is None else html()


def run(source: str, names: dict[str, Any], label: str) -> str:
    """A cell; its last line is shown if it is an expression."""
    tree = ast.parse(source, label)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, label, "exec"), names)
        return ""
    del tree.body[-1]
    exec(compile(tree, label, "exec"), names)
    value = eval(compile(ast.Expression(last.value), label, "eval"), names)
    return "" if value is None else shown(value)


def test_there_are_five() -> None:
    assert len(NOTEBOOKS) >= 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(FOLDER)
    notebook, names = json.loads(path.read_text(encoding="utf-8")), {"__name__": "__main__"}
    is_drawing = importlib.util.find_spec("matplotlib") is not None
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        assert not cell["outputs"] and cell["execution_count"] is None, "outputs are not stored"
        if ".plot(" in source and not is_drawing:
            source = "\n".join(line for line in source.splitlines() if ".plot(" not in line) or "pass"
        run(source, names, f"{path.name}, cell {number}")
    said = capsys.readouterr().out
    assert SAID.get(path.stem, "min") in said
