"""Digests of recipes: 32 bytes that change with all that decides the machine code but machine and compiler.

Hashing the files that every program's images are made from takes 1.5 ms, asking for their sizes and times a
tenth of that. So the digest of a recipe's files is kept in the cache folder with how they looked then.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

from jitree.codegen.image import cache
from jitree.codegen.image.hashing import DIGEST_SIZE, hashed
from jitree.codegen.image.recipe import FORMAT, Recipe

SUFFIX: Final = ".digest"
_SETTLED_NANOSECONDS: Final = 2_000_000_000
"""A file changed so lately may change again without its times telling: file systems count in steps."""


def digest_of(recipe: Recipe) -> bytes:
    """The digest of a recipe. OSError if one of its sources cannot be read."""
    digest = _kept(recipe._replace(data=()))
    if not recipe.data:
        return digest
    return hashed((digest, *recipe.data))


def _kept(recipe: Recipe) -> bytes:
    """As :func:`digest_of`, of a recipe without data: kept or computed."""
    stated = (FORMAT, recipe.name, recipe.generator, recipe.entries)
    paths = [os.fspath(source) for source in recipe.sources]
    found = [os.stat(path) for path in paths]
    times = [(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns) for status in found]
    identity = repr((stated, paths)).encode()
    looks = identity + repr(times).encode()
    name = f"sources-{hashed((identity,)).hex()[:32]}{SUFFIX}"
    kept = cache.read(name)
    if kept is not None and len(kept) == len(looks) + DIGEST_SIZE and kept.startswith(looks):
        return kept[-DIGEST_SIZE:]
    digest = hashed((repr(stated).encode(), *map(_contents, paths)))
    if max((row[-1] for row in times), default=0) + _SETTLED_NANOSECONDS < time.time_ns():
        with contextlib.suppress(OSError):  # a folder that refuses
            cache.write(name, looks + digest)
    return digest


def _contents(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
