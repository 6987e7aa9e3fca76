"""The folder where images are kept between processes.

Files are written under a temporary name and renamed, so a reader sees a whole file or none. A file that is
missing, short, damaged, made for another key, or that others can have written
(:mod:`jitree.base.private_files`) is a miss, never an error. A file's time of modification is when it was
last used; :mod:`jitree.codegen.image.contents` goes by it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from jitree.base import private_files
from jitree.codegen.image.flat import SUFFIX, FlatImage, Recipe, decode, encode
from jitree.codegen.image.place import place, settle
from jitree.errors import ignored

if TYPE_CHECKING:
    from pathlib import Path  # 3 ms to import: not for a look that finds its file

LOCK_SUFFIX: Final = ".lock"
LOG_SUFFIX: Final = ".log"
"""Ending of the file beside an image that is built; the log of a failed build stays."""


def directory() -> Path:
    """The folder that images are written to."""
    from pathlib import Path

    return Path(place().folder)


def path_of(recipe: Recipe, key: bytes) -> Path:
    return directory() / _file_name(recipe, key)


def _file_name(recipe: Recipe, key: bytes) -> str:
    return f"{recipe.name}-{key.hex()[:32]}{SUFFIX}"


def load(recipe: Recipe, key: bytes) -> FlatImage | None:
    """The image of a key, or None."""
    name = _file_name(recipe, key)
    for folder in place().folders:
        path = os.path.join(folder, name)
        if os.path.exists(path):  # a program that waits for it asks often
            data = private_files.read(folder, name)
            image = None if data is None else decode(data, key)
            if image is not None:
                with ignored(OSError):  # another user's, or read-only
                    os.utime(path, follow_symlinks=False)
                return image
    return None


def store(recipe: Recipe, key: bytes, image: FlatImage) -> Path:
    """Writes the file of a key. OSError if no folder can be written."""
    write(_file_name(recipe, key), encode(image, key, recipe.title))
    return path_of(recipe, key)


def store_here(recipe: Recipe, key: bytes, image: FlatImage) -> Path:
    """As :func:`store`, in the folder that the process that waits for it looks into, or nowhere."""
    path = path_of(recipe, key)
    private_files.write(str(path.parent), path.name, encode(image, key, recipe.title))
    return path


def read(name: str) -> bytes | None:
    """A file of the folder; None if there is none that can be trusted."""
    return private_files.read(place().folder, name)


def write(name: str, data: bytes) -> None:
    """Puts a file into the folder, whole. OSError if no folder can be written."""
    private_files.write(settle().folder, name, data)
