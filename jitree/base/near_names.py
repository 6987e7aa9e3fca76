"""Finds what a misspelled name probably means.

Only failures come here, so the slow module that compares names is imported when one does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from jitree.errors import pass_interruption

_SEARCHED: Final = 5000
"""Comparing takes tens of microseconds a name, and archives may have millions."""
_LONGEST: Final = 256
"""Characters of what is compared, and folders of a path: comparing takes the square of them."""
_SHOWN: Final = 3
_LIKENESS: Final = 0.5
_OF_FILES: Final = 0.6


def near_names(name: str, known: Iterable[str], count: int = 1, likeness: float = _LIKENESS) -> list[str]:
    """The known names that are most like a name, whatever their case; none where nothing is near."""
    import difflib

    if len(name) > _LONGEST:
        return []
    folded: dict[str, str] = {}
    for candidate, _ in zip(known, range(_SEARCHED), strict=False):
        folded.setdefault(candidate.casefold(), candidate)
    found = difflib.get_close_matches(name.casefold(), folded, count, likeness)
    return [folded[item] for item in found]


def nearest(name: str, known: Iterable[str]) -> str:
    """``; nearest: 'a', 'b'``, or nothing when nothing is near."""
    found = near_names(name, known, _SHOWN)
    return f"; nearest: {', '.join(repr(item) for item in found)}" if found else ""


def did_you_mean(name: str, known: Iterable[str], before: str = "") -> str:
    """``; did you mean 'a'?``, or nothing when nothing is near."""
    found = near_names(name, known)
    return f"; did you mean '{before}{found[0]}'?" if found else ""


def near_path(path: str) -> str:
    """``; did you mean 'b/a.vmfb'?`` for a file that does not exist, or nothing when none is like it.

    Folders of the path are corrected one by one; a file may also be in this folder instead of another.
    """
    if path.count(os.sep) > _LONGEST:
        return ""
    if path.startswith("~"):
        return "; pass os.path.expanduser(path)"
    folder, name = os.path.split(path)
    found = _corrected(path)
    if found is None and folder and os.path.exists(name):
        found = name
    return f"; did you mean '{found}'?" if found else ""


def _corrected(path: str) -> str | None:
    if os.path.exists(path):
        return path
    folder, name = os.path.split(path)
    place = (_corrected(folder) if folder != path else None) if folder else ""
    if place is None or not name:
        return place
    try:
        there = os.listdir(place or ".")
    except (OSError, ValueError) as error:
        pass_interruption(error)
        return None
    found = [name] if name in there else near_names(name, there, likeness=_OF_FILES)
    return os.path.join(place, found[0]) if found else None
