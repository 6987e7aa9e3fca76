"""Makes the page of measurements: what ``perf/README.md`` has as tables, in one, and what is slower."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

SOURCE: Final = "perf/README.md"
PAGE: Final = "performance.md"
COMMAND: Final = re.compile(r"`(python perf/[^`]+)`,? ?(.*)", re.DOTALL)
MEAN: Final = re.compile(r"^(?:(.*): )?geometric mean ([\d.]+) of (\d+), worst ([\d.]+)")
ROW: Final = re.compile(r"^(\w.*?)  +(iree\.runtime) .*ratio +([\d.]+)(?:  (.*))?$")
FRONT: Final = """# Performance

Ratios are the other side's time over jitree's, measured in turn in one run: above 1 jitree takes less time.
The least is of one program, the mean of all. [perf/README.md](perf/README.md) has every row, and commands to
measure it again; this page is made of its tables. `python perf/against.py BASE` compares two versions.
"""
HEADS: Final = "| Programs | Number | Mean | Least |\n| --- | --- | --- | --- |\n"
SLOWER: Final = """
## What is slower

Rows of its tables in which jitree takes longer:

| What | Ratio | Measured by | On |
| --- | --- | --- | --- |
"""


class Table(NamedTuple):
    """A block of figures, and what it says of itself."""

    section: str
    command: str
    place: str
    rows: list[str]


def tables(text: str) -> Iterator[Table]:
    """The blocks of each section, with the last command before them."""
    place = dated = ""
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        command = ""
        for number, part in enumerate(re.split(r"^```\n", body, flags=re.MULTILINE)):
            if number % 2:
                yield Table(title, command, place, part.splitlines())
            for paragraph in part.split("\n\n") if number % 2 == 0 else ():
                if found := COMMAND.search(paragraph):
                    command = " ".join(found.group(1).split())
                    place = where(found.group(2), dated)
                    dated = place if re.search(r"20\d\d-", place) else dated
                elif found := re.match(r"With `(--[^`]+)`", paragraph.strip()):
                    command = f"{command.partition(' --')[0]} {found.group(1)}"


def where(text: str, before: str) -> str:
    """The date and machine that a sentence begins with: that of the measurement before, if it is the same."""
    plain = " ".join(text.split())
    return (
        before
        if plain.startswith(("the same machine", "same machine"))
        else re.split(r"(?<=[a-z0-9)])[:.](?= |$)", plain)[0]
    )


def page(text: str) -> str:
    """All means, by what measured them, then all rows below 1."""
    means: dict[tuple[str, str], list[str]] = {}
    slower: list[str] = []
    for table in tables(text):
        title = "" if table.section in {section for section, _ in means} else f"\n## {table.section}\n"
        title += f"\n`{table.command}`, {table.place}.\n\n{HEADS}"
        day = re.search(r"20\d\d-\d\d-\d\d", table.place)
        command = table.command.replace("|", r"\|")  # which would end a cell
        measured = f"`{command}` | {day.group() if day else ''} |\n"
        for line in table.rows:
            if found := MEAN.match(line):
                what, mean, programs, worst = found.groups()
                row = f"| {what or 'all'} | {programs} | {mean} | {worst} |\n"
                means.setdefault((table.section, table.command), [title]).append(row)
                if what and what.startswith("against") and float(worst) < 1:
                    slower.append(f"| {table.section}, {what}, at worst (mean {mean}) | {worst} | {measured}")
            elif (found := ROW.match(line)) and float(found.group(3)) < 1:
                name, more = " ".join(found.group(1).split()), f", {found.group(4)}" if found.group(4) else ""
                slower.append(f"| {table.section}: {name}{more} | {found.group(3)} | {measured}")
    said = "".join(f"* {sentence}\n" for sentence in sentences(text))
    all_means = "".join(row for rows in means.values() for row in rows)
    return FRONT + SLOWER + "".join(slower) + f"\nAnd in its text:\n\n{said}" + all_means


def sentences(text: str) -> list[str]:
    """Those outside of tables that state a ratio below 1 as the least, or as what something has."""
    plain = " ".join(re.sub(r"^```.*?^```", "\n", text, flags=re.MULTILINE | re.DOTALL).split())
    return [
        part for part in re.split(r"(?<=[.:]) (?=[A-Z`])", plain) if re.search(r"(worst|has) \(?0\.\d", part)
    ]
