"""The table of what campaigns have done: ``campaigns.tsv``, which adds up, and its form in SECURITY.md."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from tests.fuzz.campaign import NAMES, campaign

FILE: Final = Path(__file__).with_name("campaigns.tsv")
HEADER: Final = "campaign\tnext\tcases\tseconds\tfindings\tlast find\tlast run"
NEVER: Final = "-"
PAGE: Final = Path(__file__).parents[2] / "SECURITY.md"
_BEFORE: Final = "findings are mended, and have tests:\n\n"
_AFTER: Final = "\n## What was wrong"
"""What is before and after the table."""


@dataclass(frozen=True)
class Row:
    """All runs of a campaign."""

    name: str
    next: int = 0
    """The first number that has not been run."""
    cases: int = 0
    seconds: int = 0
    """Of one processor each, added up."""
    findings: int = 0
    last_find: str = NEVER
    last_run: str = NEVER

    def added(self, cases: int, seconds: float, findings: int, today: str) -> Row:
        """The row after one more run."""
        return replace(
            self,
            cases=self.cases + cases,
            seconds=self.seconds + round(seconds),
            findings=self.findings + findings,
            last_find=today if findings else self.last_find,
            last_run=today,
        )

    @property
    def rate(self) -> float:
        return self.cases / max(1, self.seconds)


def rows(text: str) -> dict[str, Row]:
    """Rows of the text of a table by the name of their campaign; campaigns without one have an empty row."""
    found = {name: Row(name) for name in NAMES}
    for line in text.splitlines()[1:]:
        name, *cells = line.split("\t")
        kinds = [field.type for field in fields(Row)][1:]
        values = [int(cell) if kind == "int" else cell for kind, cell in zip(kinds, cells, strict=True)]
        found[name] = Row(name, *values)  # type: ignore[arg-type]
    return found


def written(table: dict[str, Row]) -> str:
    lines = ["\t".join(str(getattr(row, field.name)) for field in fields(Row)) for row in table.values()]
    return "\n".join([HEADER, *lines, ""])


def add(path: Path, name: str, last: int, cases: int, seconds: float, findings: int, today: str) -> Row:
    """Adds a run to the table of a file, which others may add to at the same time."""
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        table = rows(file.read())
        row = table[name].added(cases, seconds, findings, today)
        table[name] = replace(row, next=max(row.next, last))
        file.seek(0)
        file.truncate()
        file.write(written(table))
    return table[name]


def page() -> Iterator[str]:
    """The table of SECURITY.md."""
    yield "| `python -m tests.fuzz` | cases | of | a second | hours of a processor | findings | last find |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in rows(FILE.read_text()).values():
        cells = (
            f"`{row.name}`",
            f"{row.cases:,}",
            campaign(row.name).counts,
            f"{row.rate:,.1f}",
            f"{row.seconds / 3600:.2f}",
            str(row.findings),
            row.last_find,
        )
        yield f"| {' | '.join(cells)} |"


def update_page() -> None:
    """Writes the table to SECURITY.md, in the place of the one that is there."""
    before, rest = PAGE.read_text().split(_BEFORE, 1)
    _, after = rest.split(_AFTER, 1)
    PAGE.write_text(before + _BEFORE + "\n".join([*page(), ""]) + _AFTER + after)


if __name__ == "__main__":
    update_page()
