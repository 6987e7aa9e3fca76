"""What Sphinx makes the site with; ``python -m tests.site`` runs it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from sphinx.util.inspect import stringify_signature

import jitree
from tests.site.drawings import drawn

project = "jitree"
version = release = jitree.__version__
copyright = "the authors of jitree, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # programs of MLIR, for which Pygments has no lexer
autodoc_typehints_format = "short"
autodoc_member_order = "groupwise"
autoclass_content = "both"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
pygments_style, pygments_dark_style = "default", "github-dark"
html_theme = "furo"
html_title = f"jitree {release}"
html_show_sphinx = False
html_static_path = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("search.js"))
html_css_files = ["site.css"]


def signature(
    _app: Any, _what: str, _name: str, value: Any, _options: Any, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """What is called takes and gives; defaults whose text is no Python, of functions and flags, are names."""
    initialise = getattr(value, "__init__", None)
    if isinstance(value, type) and inspect.isfunction(initialise):  # also where __new__ hands all of it on
        parameters = [*inspect.signature(initialise).parameters.values()][1:]
        arguments = stringify_signature(inspect.Signature(parameters), unqualified_typehints=True)
        result = ""
    return arguments and re.sub(r"<(?:function |class ')?([\w.]+)[^<>]*>", r"\1", arguments), result


def with_code(_app: Any, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    """Paragraphs of docstrings that are indented are code."""
    found: list[str] = []
    inside = False
    for line in lines:
        begins = line.startswith("    ") and (not found or not found[-1].strip())
        if begins and not inside and not "".join(found).rstrip().endswith("::"):
            found += [".. code-block:: python", ""]
        inside = begins or (inside and (line.startswith("    ") or not line.strip()))
        found.append(line)
    lines[:] = found


def with_parameters(_app: Any, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    """Paragraphs that say what each parameter is become lists."""
    found: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        items = re.split(r"(?:^|(?<=[.)]))\s*(?=``\w+``(?:, ``\w+``)*: )", paragraph)
        if paragraph.startswith((" ", "..")) or len(items) < 3:
            found += [*paragraph.split("\n"), ""]
        else:
            found += [*items[0].split("\n"), ""]
            found += [f"* {' '.join(item.split())}" for item in items[1:]] + [""]
    lines[:] = found


def with_drawings(_app: Any, name: str, source: list[str]) -> None:
    """Drawings of text become SVG, but in the sources that are copied."""
    source[0] = drawn(source[0], name)


def setup(app: Any) -> None:
    app.connect("source-read", with_drawings)
    app.connect("autodoc-process-docstring", with_parameters)
    app.connect("autodoc-process-docstring", with_code)
    app.connect("autodoc-process-signature", signature)
