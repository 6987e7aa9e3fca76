"""Estimates how long building an image takes here, and shows it on a terminal.

What a recipe states is seconds of some machine's processor. Builders keep in the folder of images how many
times that the last ones of each name took. Seconds of a processor say the same on a busy machine. While a
program waits, a terminal shows one line, and a bar where `rich` is installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from jitree.codegen.image import cache
from jitree.codegen.image.flat import MOST, START_SECONDS
from jitree.errors import ignored, pass_interruption, tell

if TYPE_CHECKING:
    from jitree.codegen.image.flat import Recipe

_FILE: Final = "build-times.json"
_KEPT: Final = 9
"""How many of the last builds count."""

Ratios = dict[str, list[float]]
"""By name of recipes: seconds taken over seconds stated, the last one last."""

_LEAST_SECONDS: Final = 1.0
"""To import `rich` takes a tenth of a second: no bar for what takes less than this."""
_STEPS: Final = 100
_NEVER_FULL: Final = 0.98
"""What a bar shows at most while the image is not there: builds may take longer than was estimated."""


def estimated(recipes: Sequence[Recipe], processors: int, pace: float | None = None) -> float:
    """Estimates seconds of one builder for images of one name. Nothing else uses so many processors.

    ``pace``: how many times the stated seconds it takes, as its images so far say; without it the last
    builders' is taken."""
    total = _stated(recipes) * (pace or last_pace(recipes[0].name))
    start = min(START_SECONDS, total)
    return start + (total - start) / max(1, min(len(recipes), processors))


def shares(recipes: Sequence[Recipe], processors: int, pace: float | None = None) -> list[float]:
    """Seconds that each image adds to that."""
    pace = (pace or last_pace(recipes[0].name)) / max(1, min(len(recipes), processors))
    return [(recipe.seconds - START_SECONDS) * pace for recipe in recipes]


def last_pace(name: str) -> float:
    """Times the stated seconds that the last builders took: median of a recipe's name."""
    ratios = _ratios().get(name)
    return sorted(ratios)[len(ratios) // 2] if ratios else 1.0


def _stated(recipes: Sequence[Recipe]) -> float:
    """Seconds of a processor: the builder starts once."""
    return sum(recipe.seconds for recipe in recipes) - START_SECONDS * (len(recipes) - 1)


def note(recipes: Sequence[Recipe]) -> None:
    """Keeps seconds that images of one name have taken. This process or one that it waited for has built
    them."""
    times = os.times()
    seconds = times.user + times.system + times.children_user + times.children_system
    stated = _stated(recipes)
    if not recipes[0].data or stated <= 0 or seconds <= 0:
        return
    import json

    name, ratios = recipes[0].name, _ratios()
    ratios[name] = [*ratios.get(name, ()), min(seconds / stated, MOST)][-_KEPT:]
    with ignored(OSError):  # the image has its place, this need not
        cache.write(_FILE, json.dumps(ratios).encode())


def _ratios() -> Ratios:
    """What is kept; nothing of a file that is damaged."""
    data = cache.read(_FILE)
    if data is None:
        return {}
    import json

    try:
        found = json.loads(data)
        return {str(name): [_ratio(value) for value in kept[-_KEPT:]] for name, kept in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        pass_interruption(error)
        return {}


def _ratio(value: object) -> float:
    if not isinstance(value, float) or not 1 / MOST <= value <= MOST:
        raise ValueError(value)
    return value


class Bar:
    """Shows a program's waits, one after another. Nothing where stderr is no terminal.

    The first one is told, and the bar is there while one lasts: a call waits for each of its kernels.
    """

    def __init__(self, title: str, seconds: float) -> None:
        self.is_open = False
        """Whether a thread shows that it waits."""
        self._seconds = max(seconds, _LEAST_SECONDS)
        self._progress: Any = None
        self._task: Any = None
        self._completed = 0
        if sys.stderr is None or not sys.stderr.isatty():
            return
        tell(f"jitree: building {title} (about {max(1, round(seconds))} s, once) …\n")
        if seconds >= _LEAST_SECONDS:
            try:
                from rich.console import Console
                from rich.progress import BarColumn, Progress
            except ImportError:
                return
            bar = Progress(BarColumn(), console=Console(stderr=True), transient=True, auto_refresh=False)
            self._progress, self._task = bar, bar.add_task("", total=_STEPS)

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.__enter__()
        self.is_open = True
        return self

    def __exit__(self, *exception: object) -> None:
        self.is_open = False
        if self._progress is not None:
            self._progress.__exit__(*exception)

    def show(self, passed: float) -> None:
        """``passed``: seconds of the build."""
        completed = int(_STEPS * min(passed / self._seconds, _NEVER_FULL))
        if self._progress is not None and completed != self._completed:  # to draw takes a builder's processor
            self._completed = completed
            self._progress.update(self._task, completed=completed, refresh=True)
