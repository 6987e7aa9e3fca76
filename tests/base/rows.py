"""Checks the rows of a table in one test.

One test for each row takes a millisecond and more, which is longer than most rows: workers collect,
share and report it. One test for some of them goes on after a row that fails, and names all that do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import pytest

Row = TypeVar("Row")


def each_row(rows: Mapping[str, Row] | Iterable[Row], check: Callable[[Row], object]) -> None:
    """Checks all rows, and fails with the names of those that do not pass.

    Rows without names are called by what they are. A row that skips itself fails.
    """
    named = rows if isinstance(rows, Mapping) else {repr(row): row for row in rows}
    assert named, "no rows"
    failed: dict[str, BaseException] = {}
    for name, row in named.items():
        try:
            check(row)
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
            error.add_note(f"in the row {name}")
            failed[name] = error
    if failed:
        text = f"{len(failed)} of {len(named)} rows fail: {', '.join(failed)}"
        raise BaseExceptionGroup(text, [*failed.values()])
