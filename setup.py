"""Gives the description of the package that an index shows: README.md without links to files.

All else is in ``pyproject.toml``. A relative link leads to a file of the source distribution; an index has
no such files, so the name of the file takes the link's place.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup

CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:)([^)#\s]+)(?:#[^)\s]*)?\)")
NOTE = "`pip install jitree` installs it. Files and commands named here are of the source distribution.\n"


def named(link: re.Match[str]) -> str:
    picture, words, path = link.groups()
    if picture:
        return f"{words}: `{path}`"
    return f"`{path}`" if path.startswith(words) else f"{words} in `{path}`"


def description(readme: str) -> str:
    """The page with names of files in place of links to them and of pictures, outside of code."""
    kept: list[str] = []
    end = 0
    for code in CODE.finditer(readme):
        kept += [LINK.sub(named, readme[end : code.start()]), code.group(0)]
        end = code.end()
    title, _, text = "".join([*kept, LINK.sub(named, readme[end:])]).partition("\n\n")
    first, _, rest = text.partition("\n\n")
    return f"{title}\n\n{first}\n\n{NOTE}\n{rest.lstrip()}"


if __name__ == "__main__":
    page = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(long_description=description(page), long_description_content_type="text/markdown")
