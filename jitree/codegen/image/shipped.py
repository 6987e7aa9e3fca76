"""Images that come with the package, so that the first program on a machine need not wait for a builder.

There is one of each image that depends on nothing but the package's files, for x86-64 processors of level v3,
which is every one since Haswell and Zen. Elsewhere, and when the files have changed since, it is a miss.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Final

from jitree.base import processor
from jitree.codegen.image.cache import IMAGE_SUFFIX
from jitree.codegen.image.flat import FlatImage, decode
from jitree.codegen.image.recipe import Recipe

PROCESSORS: Final = "x86-64-v3"
"""LLVM's name of the processors."""
FOLDER: Final = os.path.join(os.path.dirname(__file__), "shipped")

_FLAGS: Final = frozenset(
    ("cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2", "abm",
     "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
)  # fmt: skip
"""Level v3 (x86-64 psABI, "Micro-Architecture Levels") in the names of /proc/cpuinfo."""


def path_of(name: str) -> str:
    """Where the image of a recipe of this name lies."""
    return os.path.join(FOLDER, f"{name}-{PROCESSORS}{IMAGE_SUFFIX}")


def load(recipe: Recipe, digest: bytes) -> FlatImage | None:
    """The image of a recipe with this digest, or None."""
    if recipe.data or not suits():
        return None
    try:
        with open(path_of(recipe.name), "rb") as file:
            return decode(file.read(), digest)
    except OSError:  # not shipped, or left out of an installation
        return None


@cache
def suits() -> bool:
    """Whether this processor is one that images are shipped for."""
    return os.uname().machine == "x86_64" and processor.words("flags") >= _FLAGS
