"""Snippets of ``docs/scale.md`` run as they are written there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "scale.md").read_text()
SNIPPETS = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def test_snippets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(SNIPPETS, str(ROOT / "docs" / "scale.md"), "exec"), {})
