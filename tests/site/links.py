"""Checks the links of what Sphinx has made: each leads somewhere, and nothing comes from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

LOADED: Final = {("script", "src"), ("link", "href"), ("img", "src"), ("object", "data"), ("source", "src")}
"""What a browser fetches by itself."""
FOLLOWED: Final = {("a", "href"), *LOADED}
RELATIONS: Final = {"canonical", "next", "prev", "index", "search"}
"""Of ``link`` elements, those that are not fetched."""


class Page(HTMLParser):
    """The places of a page, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = {""}
        self.links: list[tuple[str, bool]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attributes}
        self.places |= {named[name] for name in ("id", "name") if name in named}
        for element, attribute in FOLLOWED:
            if element == tag and attribute in named:
                is_loaded = (tag, attribute) in LOADED and named.get("rel") not in RELATIONS
                self.links.append((named[attribute], is_loaded))


def broken(root: Path) -> Iterator[str]:
    """What is wrong with the links of all pages below a folder."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.html"))}
    for path, page in pages.items():
        for link, is_loaded in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if is_loaded and parts.scheme != "data":
                    yield f"{path.relative_to(root.resolve())}: comes from elsewhere: {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            found = pages.get(target)
            if found is None and not target.exists():
                yield f"{path.relative_to(root.resolve())}: no such page: {link}"
            elif found is not None and unquote(parts.fragment) not in found.places:
                yield f"{path.relative_to(root.resolve())}: no such place: {link}"
