"""Finds the images that the package contains: a process uses them at once.

There is one of each image that depends on nothing but the package, for each of :data:`LEVELS`. Which of them
a process maps follows from the processor alone: that they are those of the package is for tests to say.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Final

from jitree.base.platform import mapped_file, processor
from jitree.codegen.image.flat import SUFFIX, FlatImage, Recipe, decode_trusted
from jitree.errors import pass_interruption

FOLDER: Final = os.path.join(os.path.dirname(__file__), "shipped")
STAMP_FILE: Final = os.path.join(FOLDER, "stamp.txt")
STAMP_VARIABLE: Final = "JITREE_BUILD_STAMP"
"""For tests of a package that has changed since its images were made: another stamp, with which none fits."""
CHECKED: Final = os.environ.get(STAMP_VARIABLE, "").startswith("checked")
"""Whether code checks its accesses (:mod:`jitree.codegen.checked`), for tests: with a stamp that says so."""

_V2: Final = frozenset(("cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2"))
_V3: Final = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_V4: Final = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS: Final = {
    "x86-64-v4": ("x86_64", _V4),
    "x86-64-v3": ("x86_64", _V3),
    "x86-64-v2": ("x86_64", _V2),
    "aarch64": ("aarch64", frozenset[str]()),
}
"""Kinds of processors that images are shipped for, the best first: the machine, and what must be among the
flags in /proc/cpuinfo (x86-64 psABI, "Micro-Architecture Levels")."""


def path_of(name: str, level: str) -> str:
    """Where the image of a recipe of this name lies."""
    return os.path.join(FOLDER, f"{name}-{level}{SUFFIX}")


def load(recipe: Recipe) -> FlatImage | None:
    """The image of a recipe for this processor, or None."""
    level = fitting_level()
    if recipe.data or level is None:
        return None
    try:
        with open(path_of(recipe.name, level), "rb", buffering=0) as file:
            # It is mapped, not read: new pages of memory take longer than what is copied from there.
            return decode_trusted(mapped_file(file.fileno(), os.fstat(file.fileno()).st_size))
    except OSError as error:  # not shipped, or left out of an installation; an empty file
        pass_interruption(error)
        return None


@cache
def fitting_level() -> str | None:
    """The best of the levels that this processor has; None if it has none, or with another stamp."""
    return None if STAMP_VARIABLE in os.environ else next(iter(levels_here()), None)


processor.kept.extend((fitting_level,))


def levels_here() -> list[str]:
    """The levels that this processor has, the best first."""
    machine, flags = processor.machine(), processor.words("flags")
    return [level for level, (of, needed) in LEVELS.items() if of == machine and flags >= needed]


@cache
def build_stamp() -> bytes:
    """Changes with all code of the package that decides machine code."""
    given = os.environ.get(STAMP_VARIABLE)
    if given is not None:
        return given.encode()
    with open(STAMP_FILE, "rb") as file:
        return file.read()
