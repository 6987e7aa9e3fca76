"""Keeps what comes of each test in a file, so that a run of hours goes on where it ended: a plugin of pytest.

``tests/aarch64/run --outcomes FILE`` takes it. ``python -m tests.aarch64.outcomes FILE`` prints the counts of
docs/platforms.md, and what has failed or was cut off.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

VARIABLE = "JITREE_OUTCOMES"
"""The file: a line ``outcome<TAB>test`` a report, and one that says ``started``. The last one counts."""
ENDED = frozenset(("passed", "skipped"))
COLUMNS = "passed", "skipped", "failed", "started"


def outcomes(lines: Iterable[str]) -> dict[str, str]:
    """What came of each test; ``started`` of one whose process ended or that is still running."""
    known: dict[str, str] = {}
    for line in lines:
        outcome, test = line.rstrip("\n").split("\t")
        known[test] = outcome
    return known


def counts(known: dict[str, str]) -> list[str]:
    """Rows of a table: a folder, and how many of its tests have each outcome."""
    by_folder: dict[str, Counter[str]] = {}
    for test, outcome in known.items():
        by_folder.setdefault(folder_of(test), Counter())[outcome] += 1
    return [
        f"| `{folder}` | {' | '.join(str(found[outcome]) for outcome in COLUMNS)} |"
        for folder, found in sorted(by_folder.items())
    ]


def folder_of(test: str) -> str:
    """The folder of ``tests`` in which a test lies, or ``tests``."""
    return "/".join(test.partition("::")[0].split("/")[:-1][:2])


def _stated(test: str) -> str:
    """A name without the folder of the tree, of which each run has another one."""
    return test.replace(f"{os.getcwd()}/", "")


def _write(outcome: str, test: str) -> None:
    with open(os.environ[VARIABLE], "a") as file:
        file.write(f"{outcome}\t{_stated(test)}\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has ended, and what the run before was cut off in: it would be cut off again."""
    path = Path(os.environ[VARIABLE])
    known = outcomes(path.read_text().splitlines() if path.exists() else [])
    left = [item for item in items if known.get(_stated(item.nodeid)) not in ENDED | {"started"}]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(left)])
    items[:] = left


def pytest_runtest_logstart(nodeid: str) -> None:
    _write("started", nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        _write(report.outcome, report.nodeid)


if __name__ == "__main__":
    found = outcomes(Path(sys.argv[1]).read_text().splitlines())
    print(*counts(found), sep="\n")
    print(*(f"{outcome}\t{test}" for test, outcome in found.items() if outcome not in ENDED), sep="\n")
