"""Building an image, in this process or as the builder process.

The builder is started with a lock on the key's lock file that it inherits; the lock goes when it ends,
however it ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from jitree.dispatch.image import cache
from jitree.dispatch.image.flat import FlatImage
from jitree.dispatch.image.recipe import Recipe, key_of


def build(recipe: Recipe) -> FlatImage:
    """Generates, compiles and links; imports llvmlite, and what the generator imports."""
    from jitree.dispatch.image.compile import compile_object, host_target
    from jitree.dispatch.image.link import link

    module, _, function = recipe.generator.partition(":")
    texts = getattr(importlib.import_module(module), function)()
    return link(compile_object(texts, recipe.entries, host_target()), recipe.entries)


def main() -> None:
    """The builder process: argument 1 is the recipe as :func:`to_json` wrote it."""
    recipe = from_json(sys.argv[1])
    os.nice(int(sys.argv[2]))
    path = cache.store(recipe, key_of(recipe), build(recipe))
    for suffix in (cache.LOCK_SUFFIX, cache.LOG_SUFFIX):
        path.with_suffix(suffix).unlink(missing_ok=True)


def to_json(recipe: Recipe) -> str:
    return json.dumps(
        [
            recipe.name,
            recipe.title,
            recipe.generator,
            list(map(str, recipe.sources)),
            recipe.entries,
            recipe.seconds,
        ]
    )


def from_json(text: str) -> Recipe:
    name, title, generator, sources, entries, seconds = json.loads(text)
    return Recipe(name, title, generator, tuple(map(Path, sources)), tuple(entries), seconds)
