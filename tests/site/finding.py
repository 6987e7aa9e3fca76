"""Checks the site's search: each question of ``questions.tsv`` finds its page among the first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

FIRST: Final = 3
"""A reader looks at so many results."""
TITLE: Final = 15
TERM: Final = 5
"""What a word in the title of a page counts in Sphinx' search, and one in its text; the best one decides."""


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
    """Pages as the search of the site has them, the best first.

    It finds titles that have what is looked for as it stands, and pages that have all words."""
    from sphinx.search.en import SearchEnglish

    language = SearchEnglish({})
    names, titles, looked_for = index["docnames"], index["titles"], words.lower()
    scores: dict[int, int] = {}
    for title, places in index["alltitles"].items():
        if looked_for in title.lower() and 2 * len(words) >= len(title):
            for page, _ in places:
                score = round(TITLE * len(words) / len(title)) + (titles[page] == title)
                scores[page] = max(scores.get(page, 0), score)
    found: dict[int, int] | None = None
    for word in (
        language.stem(word) for word in re.findall(r"\w+", looked_for) if language.word_filter(word)
    ):
        of_word: dict[int, int] = {}
        for field, score in (("terms", TERM), ("titleterms", TITLE)):
            pages = index[field].get(word, [])
            of_word |= dict.fromkeys([pages] if isinstance(pages, int) else pages, score)
        common = of_word.keys() if found is None else found.keys() & of_word.keys()
        found = {page: max(of_word[page], (found or {}).get(page, 0)) for page in common}
    for page, score in (found or {}).items():
        scores[page] = max(scores.get(page, 0), score)
    for page in scores:
        scores[page] += sum(more for folder, more in by_folder().items() if names[page].startswith(folder))
    return [names[page] for page in sorted(scores, key=lambda page: (-scores[page], titles[page].lower()))]


def unanswered(html: Path) -> Iterator[str]:
    """Questions whose page is not among the first results."""
    index = read_index(html)
    for question, words, page in questions():
        found = results(index, words)[:FIRST]
        if page not in found:
            yield f"{question} Searching for {words!r} finds {found}, not {page}"
