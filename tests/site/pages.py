"""Gathers the pages of the site: all Markdown of the tree, in the order of ``docs/README.md``.

Nothing lists pages a second time. A page is in the table of contents where the index of all pages has it; one
that the index does not have is below the README of the nearest folder above it, or among the parts of the
package.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from tests.site.performance import PAGE as PERFORMANCE

ROOT: Final = Path(__file__).resolve().parent.parent.parent
FRONT: Final = "README.md"
INDEX: Final = "docs/README.md"
LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
BLOCK: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE: Final = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


class Section(NamedTuple):
    """A part of the table of contents."""

    title: str
    pages: list[str]


def own_files(root: Path = ROOT) -> Iterator[str]:
    """Paths of all files but what .gitignore names; a source distribution has no repository to ask."""
    ignored = [".git", *(line.strip("/") for line in (root / ".gitignore").read_text().split())]
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not any(fnmatch(name, pattern) for pattern in ignored)]
        for name in names:
            if not any(fnmatch(name, pattern) for pattern in ignored):
                yield (Path(folder) / name).relative_to(root).as_posix()


def all_pages() -> dict[str, str]:
    """The text of each page by its path."""
    names = sorted(
        name for name in own_files() if name.endswith(".md") and not name.startswith("tests/data/")
    )
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names}


def resolved(page: str, target: str) -> str:
    """The path in the tree that a link of a page means."""
    return os.path.normpath(PurePosixPath(page).parent / target).replace(os.sep, "/")


def sections(pages: dict[str, str]) -> list[Section]:
    """The tables of the index: links in first columns. The index itself comes first."""
    found = [Section("", [INDEX])]
    for line in pages[INDEX].splitlines():
        if line.startswith("## "):
            found.append(Section(line.removeprefix("## "), []))
        elif line.startswith("| ["):
            targets = [resolved(INDEX, link.group(3)) for link in LINK.finditer(line.split(" | ")[0])]
            found[-1].pages.extend(target for target in targets if target.endswith(".md"))
    return found


def descriptions(pages: dict[str, str]) -> dict[str, str]:
    """What the index says of each page that it has."""
    rows = (re.fullmatch(r"\| (\[.*?\)) \| (.*) \|", line) for line in pages[INDEX].splitlines())
    found = ((LINK.match(row.group(1)), plain(row.group(2))) for row in rows if row)
    return {resolved(INDEX, link.group(3)): said for link, said in found if link}


def plain(text: str) -> str:
    """A text with the words of its links alone."""
    return LINK.sub(r"\2", text)


def parents(pages: dict[str, str], listed: set[str]) -> dict[str, list[str]]:
    """The pages that the index does not have, by the page that they are below: ``parts.md`` if none is.

    They are in the order in which that page links to them."""
    below: dict[str, list[str]] = {}
    for page in sorted(pages.keys() - listed - {FRONT}):
        owners = (f"{folder}/README.md" for folder in PurePosixPath(page).parents if str(folder) != ".")
        owner = next((owner for owner in owners if owner in pages and owner not in (page, INDEX)), "parts.md")
        below.setdefault(owner, []).append(page)
    for owner, names in below.items():
        linked = [resolved(owner, link.group(3)) for link in LINK.finditer(pages.get(owner, ""))]
        names.sort(key=lambda name: linked.index(name) if name in linked else len(linked))
    return below


def contents(title: str, names: list[str], pages: dict[str, str], hidden: bool = True) -> str:
    """A table of contents for Sphinx; paths begin at the root of the site."""
    options = [":hidden:"] if hidden else []
    options += [f":caption: {title}"] if title else []
    entries = [
        f"{short(pages[name])} </{name.removesuffix('.md')}>"
        if name in pages
        else f"/{name.removesuffix('.rst')}"
        for name in names
    ]
    return "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])


def rewritten(page: str, text: str, pages: dict[str, str]) -> tuple[str, set[str]]:
    """The page as the site has it, and the files that it links to.

    A link to a folder becomes its text, one to the README of the tree goes to the front page."""
    files: set[str] = set()

    def replace(link: re.Match[str]) -> str:
        picture, words, target, anchor = link.groups()
        if not target or re.match(r"[a-z]+:", target):
            return link.group(0)
        path = resolved(page, target)
        if path == FRONT:
            here = PurePosixPath(page).parent
            return f"[{words}]({os.path.relpath('index.md', here)}{anchor or ''})"
        if (ROOT / path).is_dir() or (path.endswith(".md") and path not in pages):
            return words
        if path not in pages:
            files.add(path)
        elif words.endswith(".md"):  # the site has names of pages in place of those of files
            words = short(pages[path])
        return f"{picture}[{words}]({target}{anchor or ''})"

    kept: list[str] = []
    end = 0
    for code in CODE.finditer(text):  # which has no links
        if not text[end : code.start()].endswith("["):
            kept += [LINK.sub(replace, text[end : code.start()]), code.group(0)]
            end = code.end()
    kept.append(LINK.sub(replace, text[end:]))
    return "".join(kept), files


def gather(target: Path, generated: dict[str, str]) -> dict[str, str]:
    """Writes all pages, those that are ``generated``, and what they link to, into an empty folder. Gives the
    text of each in the order of the table of contents."""
    pages = all_pages() | {name: text for name, text in generated.items() if name.endswith(".md")}
    chapters = sections(pages)
    listed = {page for chapter in chapters for page in chapter.pages} | {PERFORMANCE}
    below = parents(pages, listed)
    pages["parts.md"] = parts_page(below["parts.md"], pages)
    chapters.insert(2, Section("Look up", ["reference/index.rst", PERFORMANCE]))
    chapters[-1].pages.append("parts.md")
    staged = {name: rewritten(name, text, pages) for name, text in pages.items()}
    for name, (text, files) in staged.items():
        text += contents("", below.get(name, []), pages) if name in below else ""
        if name == FRONT:
            text += "".join(contents(*chapter, pages) for chapter in chapters)
        write(target / ("index.md" if name == FRONT else name), text)
        for file in files:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, target / file)
    for name in generated.keys() - pages.keys():
        write(target / name, generated[name])
    order = [FRONT, *(page for chapter in chapters for page in with_those_below(chapter.pages, below))]
    return {name: pages[name] for name in order if name in pages}


def with_those_below(names: list[str], below: dict[str, list[str]]) -> Iterator[str]:
    for name in names:
        yield name
        yield from with_those_below(below.get(name, []), below)


PARTS: Final = """# Parts of the package

Folders whose way of working is not plain from their code have a page.

| Folder | What |
| --- | --- |
"""


def parts_page(names: list[str], pages: dict[str, str]) -> str:
    """One line for each folder of the package: what its README has as its headline."""
    rows = (f"| [{PurePosixPath(name).parent}]({name}) | {headline(pages[name])} |\n" for name in names)
    return PARTS + "".join(rows)


def headline(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")


def short(text: str) -> str:
    """The headline, as far as the colon: what comes after it is for those who search."""
    return headline(text).partition(": ")[0]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
