"""Checks the site's search: each question of ``questions.tsv`` finds its page among the first.

Node runs what a browser runs: Sphinx' ``searchtools.js`` with ``search.js``, over the index of the site."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

FIRST: Final = 3
"""A reader looks at so many results."""
HERE: Final = Path(__file__).resolve().parent
NODE: Final = shutil.which("node")


class Question(NamedTuple):
    """What a user searches for, and the pages that have the answer, or their headings (``page#anchor``)."""

    words: str
    pages: list[str]

    def is_answered(self, results: list[str]) -> bool:
        """Whether the first of the results have it."""
        first = results[:FIRST]
        return not {*self.pages}.isdisjoint([*first, *(result.partition("#")[0] for result in first)])


def questions() -> list[Question]:
    lines = (HERE / "questions.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return [Question(words, pages.split()) for words, pages in rows]


def found(html: Path, queries: list[str]) -> list[list[str]]:
    """What the search of a site gives for each query, the best first: pages with the anchor of a heading."""
    asked = subprocess.run(
        [str(NODE), str(HERE / "ask.js"), str(html)],
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [[f"{name}{anchor}" for name, anchor in results] for results in json.loads(asked.stdout)]


def unanswered(html: Path) -> Iterator[str]:
    """Questions whose page is not among the first results; without node none is asked."""
    if NODE is None:
        print("node is not installed: the search is not asked")
        return
    asked = questions()
    for question, results in zip(asked, found(html, [each.words for each in asked]), strict=True):
        if not question.is_answered(results):
            yield f"Searching for {question.words!r} finds {results[:FIRST]}, not {question.pages}"
