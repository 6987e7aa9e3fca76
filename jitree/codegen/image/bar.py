"""What a terminal shows while a program waits for an image: one line, and a bar where `rich` is installed."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from jitree.errors import tell

if TYPE_CHECKING:
    from types import TracebackType

_LEAST_SECONDS: Final = 1.0
"""To import `rich` takes a tenth of a second: no bar for what takes less than this."""
_STEPS: Final = 100
_NEVER_FULL: Final = 0.98
"""What a bar shows at most while the image is not there: builds may take longer than was estimated."""


class Bar:
    """Nothing where stderr is no terminal."""

    def __init__(self, title: str, seconds: float) -> None:
        self._title = title
        self._seconds = seconds
        self._open = ExitStack()
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        if sys.stderr is None or not sys.stderr.isatty():
            return self
        tell(f"jitree: building {self._title} (about {max(1, round(self._seconds))} s, once) …\n")
        if self._seconds >= _LEAST_SECONDS:
            try:
                from rich.console import Console
                from rich.progress import BarColumn, Progress
            except ImportError:
                return self
            bar = Progress(BarColumn(), console=Console(stderr=True), transient=True, auto_refresh=False)
            self._progress = self._open.enter_context(bar)
            self._task = bar.add_task("", total=_STEPS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()

    def show(self, passed: float) -> None:
        """``passed``: seconds of the build."""
        if self._progress is not None:
            part = min(passed / self._seconds, _NEVER_FULL)
            self._progress.update(self._task, completed=_STEPS * part, refresh=True)
