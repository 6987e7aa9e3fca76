"""A pytest plugin: the fast tier runs the Numba function ``jitree.dispatch.fast.loop.run``, not its image."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from jitree.dispatch.fast import engine

TABLE = ("buffers", "context", "control", "lists", "refs", "values", "waiting")
"""Tests that are made for every tier."""
_HERE = Path(__file__).parent
_calls = 0


def use_the_function() -> None:
    """From now on, in this process."""
    from jitree.dispatch.fast.loop import run

    def counted(state: int) -> int:
        global _calls
        _calls += 1
        return run(state)  # type: ignore[no-any-return]

    engine.run_function = lambda loop: counted


def run_the_table() -> int:
    """Runs its tests in this process, which print to standard error. Returns pytest's exit status."""
    files = [str(_HERE / f"test_{name}.py") for name in TABLE]
    options = ["-n", "0", "-p", "no:cacheprovider", "-k", "fast"]
    with redirect_stdout(sys.stderr):
        return pytest.main([*options, *files], [sys.modules[__name__]])


def pytest_configure() -> None:
    use_the_function()


def pytest_terminal_summary(terminalreporter: object) -> None:
    terminalreporter.write_line(f"calls of the function: {_calls}")  # type: ignore[attr-defined]
