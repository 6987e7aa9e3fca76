"""Builds the site: ``python -m tests.site`` (``pip install '.[site]'``). It is in ``build/site/html`` then.

Warnings are errors, and so are links that lead nowhere, what a browser would have to fetch from elsewhere,
and questions that the search does not answer.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path
from typing import Final

from tests.site import finding, links, pages, performance, reference

HERE: Final = Path(__file__).resolve().parent


def main() -> int:
    from sphinx.cmd.build import build_main

    parser = argparse.ArgumentParser(prog="python -m tests.site", description="Builds the site.")
    parser.add_argument("--to", type=Path, default=pages.ROOT / "build" / "site", help="build/site")
    target: Path = parser.parse_args().to
    source, html = target / "source", target / "html"
    shutil.rmtree(target, ignore_errors=True)
    texts = pages.gather(source, generated())
    strict = ["-q", "-W", "--keep-going", "-j", "auto", "-b", "html"]
    status = int(build_main([*strict, "-c", str(HERE), "-d", str(target / "read"), str(source), str(html)]))
    (html / "llms.txt").write_text(short_list(texts), encoding="utf-8")
    (html / "llms-full.txt").write_text("\n\n".join(texts.values()), encoding="utf-8")
    wrong = [*links.broken(html), *finding.unanswered(html)] if status == 0 else ["Sphinx has warned"]
    print(*wrong, f"{len(texts)} pages in {html}", sep="\n")
    return status or int(bool(wrong))


def generated() -> dict[str, str]:
    """Pages that are made of what else the tree has."""
    measurements = (pages.ROOT / performance.SOURCE).read_text(encoding="utf-8")
    return {**reference.pages(), performance.PAGE: performance.page(measurements)}


def short_list(texts: dict[str, str]) -> str:
    """The pages for programs that read: names, what they are about, and their text without a frame."""
    said = pages.descriptions(texts)
    lines = ["# jitree", "", f"> {about(texts[pages.FRONT])}", "", "## Pages", ""]
    lines += [
        f"- [{pages.headline(text)}](_sources/{name}.txt): {said.get(name) or about(text)}"
        for name, text in texts.items()
        if name != pages.FRONT
    ]
    lines += ["", "## Public names", ""]
    lines += [f"- [{path}](reference/{path}.html): {text}" for path, _, text in reference.entries()]
    return "\n".join([*lines, ""])


def about(text: str) -> str:
    """The first sentence below a headline, not of a table, a picture, a list or code."""
    parts = pages.BLOCK.sub("", text).split("\n\n")[1:]
    first = next((" ".join(part.split()) for part in parts if part.strip() and part[0] not in "|#!<*"), "")
    return re.split(r"(?<=[.:)]) ", pages.plain(first))[0]


if __name__ == "__main__":
    sys.exit(main())
