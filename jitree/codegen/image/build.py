"""Building an image, in this process or as the builder process.

The builder is started with a lock on the key's lock file that it inherits; the lock goes when it ends,
however it ends.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jitree.codegen.image import cache, contents
from jitree.codegen.image.flat import FlatImage
from jitree.codegen.image.generated import Generated, Unit
from jitree.codegen.image.keys import key_of
from jitree.codegen.image.recipe import Recipe

if TYPE_CHECKING:
    from jitree.codegen.image.compile import Target

    CompileUnits = Callable[[Sequence[Unit], Target], list[bytes]]


def generate(recipe: Recipe) -> Generated:
    """What the recipe's generator makes of its data."""
    module, _, function = recipe.generator.partition(":")
    made = getattr(importlib.import_module(module), function)(*recipe.data)
    if isinstance(made, Generated):
        return made
    return Generated((Unit(made, recipe.entries),), ())


def build(
    recipe: Recipe, compile_units: CompileUnits | None = None, target: Target | None = None
) -> FlatImage:
    """Generates, compiles (one unit after the other unless told how) and links, for this machine unless told
    another. Imports llvmlite and what the generator imports."""
    from jitree.codegen.image.compile import host_target, one_by_one
    from jitree.codegen.image.link import link

    generated, target = generate(recipe), target or host_target()
    objects = (compile_units or one_by_one)(generated.units, target)
    return link(objects, (*recipe.entries, *generated.entries), generated.notes)


def main() -> None:
    """The builder process. Argument 1 is the recipe as :func:`to_json` wrote it, 2 the descriptor of a file
    with the recipe's data, 3 the key that is waited for, as hexadecimal number."""
    from jitree.codegen.image.compile import at_once

    recipe, key = from_json(sys.argv[1], int(sys.argv[2])), bytes.fromhex(sys.argv[3])
    if key_of(recipe) != key:
        sys.exit("the sources of the image have changed since this program was started; start it again")
    path = cache.store(recipe, key, build(recipe, at_once))
    contents.shrink(contents.maximum_size(), path)
    for suffix in (cache.LOCK_SUFFIX, cache.LOG_SUFFIX):
        path.with_suffix(suffix).unlink(missing_ok=True)


def to_json(recipe: Recipe) -> str:
    """All of a recipe but the bytes of its data."""
    return json.dumps(
        [
            recipe.name,
            recipe.title,
            recipe.generator,
            list(map(str, recipe.sources)),
            recipe.entries,
            recipe.seconds,
            list(map(len, recipe.data)),
        ]
    )


def from_json(text: str, descriptor: int) -> Recipe:
    """The recipe of :func:`to_json`, with its data read from the start of a file."""
    name, title, generator, sources, entries, seconds, sizes = json.loads(text)
    with open(descriptor, "rb") as file:
        file.seek(0)
        data = tuple(file.read(size) for size in sizes)
    return Recipe(name, title, generator, tuple(map(Path, sources)), tuple(entries), seconds, data)
