"""A pytest plugin: the fast tier runs the Numba function ``jitree.dispatch.fast.loop.run``, not its image."""

from __future__ import annotations

from jitree.dispatch.fast import engine

_calls = 0


def use_the_function() -> None:
    """From now on, in this process."""
    from jitree.dispatch.fast.loop import run

    def counted(state: int) -> int:
        global _calls
        _calls += 1
        return run(state)  # type: ignore[no-any-return]

    engine.run_function = lambda loop: counted


def pytest_configure() -> None:
    use_the_function()


def pytest_terminal_summary(terminalreporter: object) -> None:
    terminalreporter.write_line(f"calls of the function: {_calls}")  # type: ignore[attr-defined]
