"""The numbers of `ceilings.tsv`: ways do not become longer, and what rises is stated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import sizes
from tests.sizes import PACKAGE, ceilings
from tests.ways import CallCounter, Way, measured

NAMES = sorted(name.removesuffix(": files") for name in ceilings() if name.endswith(": files"))
"""Every way that has a ceiling."""


@pytest.fixture(scope="module")
def ways() -> dict[str, Way]:
    return measured()


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="machine code makes calls of CPython")
@pytest.mark.parametrize("name", NAMES)
def test_ways_do_not_become_longer(ways: dict[str, Way], name: str) -> None:
    allowed = ceilings()
    found = {f"{name}: {measure}": number for measure, number in ways[name]._asdict().items()}
    assert min(found.values()) > 0
    assert {key: number for key, number in found.items() if number > allowed[key]} == {}, "tests/ceilings.tsv"


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="machine code makes calls of CPython")
def test_every_way_has_a_ceiling(ways: dict[str, Way]) -> None:
    assert sorted(ways) == NAMES


def test_a_feature_states_its_lines_of_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceiling has no number of its own, so none rises without a row that says what for."""
    table = tmp_path / "ceilings.tsv"
    table.write_text("# Rows\nlines of code: all there was\t100\nlines of code: a debugger\t20\nfiles\t7\n")
    monkeypatch.setattr(sizes, "CEILINGS", table)
    assert ceilings() == {"lines of code": 120, "files": 7}


def test_what_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Calls and changes of file of the package; not comprehensions, nor what others do in between."""
    names: dict[str, Callable[[], object]] = {}
    for file, name in (
        (f"{PACKAGE}/a.py", "first"),
        (f"{PACKAGE}/b.py", "second"),
        ("/elsewhere.py", "third"),
    ):
        exec(compile(f"def {name}(): return sorted(x for x in [1])", file, "exec"), names)

    def play() -> None:
        for name in ("first", "first", "second", "third", "first"):
            names[name]()

    CallCounter().count("way", play)
    assert capsys.readouterr().out == "way\t2\t4\t3\n"
