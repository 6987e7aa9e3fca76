"""Checks the site's search: each question of ``questions.tsv`` finds its page among the first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

FIRST: Final = 3
"""A reader looks at so many results."""
IN_TITLE: Final = 15
IN_TEXT: Final = 5
"""What a word counts, as in Sphinx' own search."""


class Question(NamedTuple):
    """What a user wants to know, the words that he searches for, and the page that has the answer."""

    question: str
    words: str
    page: str


def questions() -> list[Question]:
    lines = (Path(__file__).parent / "questions.tsv").read_text(encoding="utf-8").splitlines()
    return [Question(*line.split("\t")) for line in lines if line and not line.startswith("#")]


def read_index(html: Path) -> dict[str, Any]:
    text = (html / "searchindex.js").read_text(encoding="utf-8")
    index: dict[str, Any] = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    return index


def by_folder() -> dict[str, int]:
    """What pages of a folder get beside: ``scorer.js`` has the table, for the browser too."""
    text = (Path(__file__).parent / "scorer.js").read_text(encoding="utf-8")
    return {folder: int(more) for folder, more in re.findall(r'"([\w/]+)": (-?\d+)', text)}


def results(index: dict[str, Any], words: str) -> list[str]:
    """Pages that have all words, the best first."""
    from sphinx.search.en import SearchEnglish

    stem = SearchEnglish({}).stem
    scores = {
        page: sum(more for folder, more in by_folder().items() if name.startswith(folder))
        for page, name in enumerate(index["docnames"])
    }
    for word in (stem(word) for word in words.lower().split()):
        of_word: dict[int, int] = {}
        for field, score in (("terms", IN_TEXT), ("titleterms", IN_TITLE)):
            found = index[field].get(word, [])
            of_word |= dict.fromkeys([found] if isinstance(found, int) else found, score)
        scores = {page: scores[page] + of_word[page] for page in scores.keys() & of_word.keys()}
    return [index["docnames"][page] for page in sorted(scores, key=lambda page: -scores[page])]


def unanswered(html: Path) -> Iterator[str]:
    """Questions whose page is not among the first results."""
    index = read_index(html)
    for question, words, page in questions():
        found = results(index, words)[:FIRST]
        if page not in found:
            yield f"{question} Searching for {words!r} finds {found}, not {page}"
