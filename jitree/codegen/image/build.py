"""Building an image, in this process or as the builder process.

The builder is started with a lock on the key's lock file that it inherits; the lock goes when it ends,
however it ends.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from jitree.base import processor
from jitree.codegen.image import cache, contents, estimates
from jitree.codegen.image.flat import FlatImage, Recipe, from_json
from jitree.codegen.image.generated import Generated
from jitree.codegen.image.keys import key_of
from jitree.codegen.image.shipped import LEVELS
from jitree.errors import not_installed

if TYPE_CHECKING:
    from jitree.codegen.image.compile import Target


def generate(recipe: Recipe) -> Generated:
    """What the recipe's generator makes of its data."""
    module, _, function = recipe.generator.partition(":")
    made: Generated = getattr(importlib.import_module(module), function)(*recipe.data)
    return made


def build(generated: Generated, target: Target) -> FlatImage:
    """Compiles, on all processors, and links. Imports llvmlite."""
    from jitree.codegen.forks import spread
    from jitree.codegen.image.compile import compile_unit
    from jitree.codegen.image.link import link

    objects = spread(partial(compile_unit, target=target), generated.units)
    return link(objects, generated.entries, generated.notes)


def level_target(level: str) -> Target:
    """Any processor of one of :data:`.LEVELS`."""
    from jitree.codegen.image.compile import Target

    machine, _ = LEVELS[level]
    return Target(f"{machine}-unknown-linux-gnu", "generic" if level == machine else level, "")


def main() -> None:
    """The builder process; what is not installed is the last line that it prints. It ends with the number of
    the system's error, if there is one."""
    try:
        _main()
    except ImportError as error:
        traceback.print_exc()
        sys.exit(not_installed(error))
    except OSError as error:
        with suppress(OSError):  # what it prints goes to the same disk
            traceback.print_exc()
        os._exit(error.errno or 1)


def _main() -> None:
    """Argument 1 is the recipe as ``to_json`` wrote it, 2 the descriptor of a file with
    the recipe's data, 3 the key that is waited for, as hexadecimal number."""
    from jitree.codegen.image.compile import host_target

    gc.disable()  # it would look at all that was written again and again, a sixth of the time of that
    recipe, key = from_json(sys.argv[1], int(sys.argv[2])), bytes.fromhex(sys.argv[3])
    if key_of(recipe) != key:
        sys.exit("jitree has changed since this program was started; start it again")
    level = recipe.processor
    if level:
        processor.assume(level, processor.described(*LEVELS[level]))
    target = level_target(level) if level else host_target()
    path = cache.store_here(recipe, key, build(generate(recipe), target))
    estimates.note(recipe)
    contents.shrink(contents.maximum_size(), path)
    for suffix in (cache.LOCK_SUFFIX, cache.LOG_SUFFIX):
        path.with_suffix(suffix).unlink(missing_ok=True)
