"""How workers share the work of collecting tests (`collecting.py`)."""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import collecting, emulation


def test_workers_begin_with_other_files() -> None:
    files = list(range(10))
    orders = [collecting.rotated(files, number, 3) for number in range(3)]
    assert [order[0] for order in orders] == [0, 3, 6]
    assert all(sorted(order) == files for order in orders)
    assert collecting.rotated(files, 0, 1) == files


def test_files_that_take_long_go_first() -> None:
    """Then those with many tests; tests of a file stay in their order."""
    folder = Path(collecting.__file__).parent
    slow = [folder / name for name in collecting._SLOW]
    assert all(path.exists() for path in slow)
    few, many = folder / "a.py", folder / "b.py"
    paths = [few, many, slow[1], many, slow[0], many]
    items: Any = [SimpleNamespace(path=path, number=number) for number, path in enumerate(paths)]
    collecting.sort_files(items)
    assert [item.path for item in items] == [slow[0], slow[1], many, many, many, few]
    assert [item.number for item in items] == [4, 2, 1, 3, 5, 0]


@pytest.mark.parametrize("is_off", [False, True])
def test_bytecode_is_kept_elsewhere_where_python_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_off: bool
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", is_off)
    before = sys.pycache_prefix
    config: Any = SimpleNamespace(cache=SimpleNamespace(mkdir=lambda name: tmp_path / name))
    with pytest.raises(ZeroDivisionError), collecting.kept_bytecode(config):
        assert not sys.dont_write_bytecode
        assert sys.pycache_prefix == (str(tmp_path / "bytecode") if is_off else before)
        raise ZeroDivisionError
    assert sys.dont_write_bytecode == is_off and sys.pycache_prefix == before
    with collecting.kept_bytecode(SimpleNamespace()):  # type: ignore[arg-type]
        assert sys.dont_write_bytecode == is_off and sys.pycache_prefix == before


def test_no_garbage_is_searched_for_while_tests_are_collected() -> None:
    with pytest.raises(ZeroDivisionError), collecting.no_collections():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_only_workers_of_all_tests_import_them(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []

    def note(name: str) -> None:
        imported.append(name)
        if len(imported) == 1:
            pytest.skip("as a file that skips itself")

    monkeypatch.setattr(importlib, "import_module", note)
    worker = {"workerid": "gw1", "workercount": 2}
    named: Any = SimpleNamespace(args=["tests/hal"], getini=lambda name: ["tests"], workerinput=worker)
    alone: Any = SimpleNamespace(args=["tests"], getini=lambda name: ["tests"])
    for config in (named, alone):
        collecting.import_shared(config)
    assert not imported
    named.args = ["tests"]
    collecting.import_shared(named)
    names = sorted(imported)
    assert len(names) > 300 and names[0] != imported[0] and __name__ in names


@pytest.mark.parametrize("folder", emulation._TABLES)
def test_what_is_left_out_is_there(folder: str) -> None:
    """Each row of the table names a file, and tests that it has."""
    root = Path(collecting.__file__).parents[1]
    for pattern, reason in emulation.rows(folder):
        file, _, test = pattern.partition("::")
        assert reason and list(root.glob(file)), pattern
        name = test.partition("*")[0].partition("[")[0]
        assert all(f"def {name}" in path.read_text() for path in root.glob(file)), pattern


@pytest.mark.parametrize("durations", [None, 0])
def test_a_worker_says_of_a_test_what_tells_something(
    monkeypatch: pytest.MonkeyPatch, durations: int | None
) -> None:
    """The call, and what has not passed around it; all where durations are asked for."""
    outcomes = [("setup", True), ("call", True), ("teardown", False)]
    reports = [SimpleNamespace(when=when, passed=passed) for when, passed in outcomes]
    monkeypatch.setattr(collecting, "runtestprotocol", lambda item, **_: reports)
    said: list[Any] = []
    hook = SimpleNamespace(pytest_runtest_logreport=lambda report: said.append(report.when))
    config = SimpleNamespace(workerinput={}, getoption={"durations": durations}.get)
    item: Any = SimpleNamespace(config=config, ihook=hook)
    is_done = collecting.run_briefly(item, None)
    assert (is_done, said) == ((True, ["call", "teardown"]) if durations is None else (None, []))
    del config.workerinput
    assert collecting.run_briefly(item, None) is None
