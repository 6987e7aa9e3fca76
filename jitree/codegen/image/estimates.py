"""How long building an image takes on this machine: stated for some machine, corrected by what the last
builds took here.

What a recipe states is seconds of a processor. Builders keep in the folder of images how many times that the
last ones of each name took. Seconds of a processor say the same on a busy machine.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from jitree.codegen.image import cache
from jitree.codegen.image.flat import START_SECONDS
from jitree.errors import ignored, pass_interruption

if TYPE_CHECKING:
    from jitree.codegen.image.flat import Recipe

_FILE: Final = "build-times.json"
_KEPT: Final = 9
"""How many of the last builds count."""
_MOST: Final = 1000.0
"""No machine takes so many times as long as another."""

Ratios = dict[str, list[float]]
"""By name of recipes: seconds taken over seconds stated, the last one last."""


def estimated(recipe: Recipe, processors: int) -> float:
    """Seconds until an image is built, if nothing else uses so many processors."""
    ratios = _ratios().get(recipe.name)
    total = recipe.seconds * (sorted(ratios)[len(ratios) // 2] if ratios else 1.0)
    start = min(START_SECONDS, total)
    processes = max(1, min(recipe.processes, processors))
    return start + (total - start) / processes


def note(recipe: Recipe) -> None:
    """Keeps what this process and those that it has waited for have taken to build a program's image."""
    times = os.times()
    seconds = times.user + times.system + times.children_user + times.children_system
    if not recipe.data or recipe.seconds <= 0 or seconds <= 0:
        return
    import json

    ratios = _ratios()
    ratios[recipe.name] = [*ratios.get(recipe.name, ()), min(seconds / recipe.seconds, _MOST)][-_KEPT:]
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
    if not isinstance(value, float) or not 1 / _MOST <= value <= _MOST:
        raise ValueError(value)
    return value
