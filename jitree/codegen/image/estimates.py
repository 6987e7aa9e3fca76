"""How long building an image takes on this machine: stated for some machine, corrected by what the last
builds took here.

What a recipe states is seconds of a processor. Builders keep in the folder of images how many times that the
last ones of each name took. Seconds of a processor say the same on a busy machine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
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


def estimated(recipes: Sequence[Recipe], processors: int) -> float:
    """Seconds until one builder has built images of one name, if nothing else uses so many processors."""
    total = _stated(recipes) * _pace(recipes)
    start = min(START_SECONDS, total)
    return start + (total - start) / max(1, min(len(recipes), processors))


def shares(recipes: Sequence[Recipe], processors: int) -> list[float]:
    """Seconds that each image adds to that."""
    pace = _pace(recipes) / max(1, min(len(recipes), processors))
    return [(recipe.seconds - START_SECONDS) * pace for recipe in recipes]


def _pace(recipes: Sequence[Recipe]) -> float:
    """How many times the stated seconds builders take on this machine."""
    ratios = _ratios().get(recipes[0].name)
    return sorted(ratios)[len(ratios) // 2] if ratios else 1.0


def _stated(recipes: Sequence[Recipe]) -> float:
    """Seconds of a processor: the builder starts once."""
    return sum(recipe.seconds for recipe in recipes) - START_SECONDS * (len(recipes) - 1)


def note(recipes: Sequence[Recipe]) -> None:
    """Keeps what this process and those that it has waited for have taken to build images of programs, all of
    one name."""
    times = os.times()
    seconds = times.user + times.system + times.children_user + times.children_system
    stated = _stated(recipes)
    if not recipes[0].data or stated <= 0 or seconds <= 0:
        return
    import json

    name, ratios = recipes[0].name, _ratios()
    ratios[name] = [*ratios.get(name, ()), min(seconds / stated, _MOST)][-_KEPT:]
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
