"""The folder where images are kept between processes.

Files are written under a temporary name and renamed, so a reader sees a whole file or none. A file that is
missing, short, damaged, made for another key, or that others can have written
(:mod:`jitree.base.private_files`) is a miss, never an error. A file's time of modification is when it was
last used; :mod:`jitree.codegen.image.contents` goes by it.
"""

from __future__ import annotations

import contextlib
import os
from functools import cache
from typing import TYPE_CHECKING, Final

from jitree.base import private_files
from jitree.codegen.image.flat import SUFFIX, FlatImage, Recipe, decode, encode

if TYPE_CHECKING:
    from pathlib import Path  # 3 ms to import: not for a look that finds its file

LOCK_SUFFIX: Final = ".lock"
LOG_SUFFIX: Final = ".log"
"""Ending of the file beside an image that is built; the log of a failed build stays."""
_TEMPORARY: Final = ("/tmp", "/var/tmp", "/usr/tmp")

_chosen: str | None = None


def choose_directory(path: str | os.PathLike[str]) -> None:
    """The folder for the rest of the process, whatever the environment says."""
    global _chosen
    _chosen = _absolute(os.fspath(path))


def directory() -> Path:
    """The folder of :func:`_folder`."""
    from pathlib import Path

    return Path(_folder())


def _folder() -> str:
    """The chosen folder, else ``JITREE_CACHE_DIR``, else ``~/.cache/jitree``, else (one that cannot be used)
    one for temporary files."""
    stated = os.environ.get("JITREE_CACHE_DIR")
    return _chosen or (_absolute(stated) if stated else _default_folder())


@cache
def _absolute(path: str) -> str:
    """Makes a path absolute that may be relative, for the rest of the process, which may change its current
    folder while something is built. Where there is no current folder any more, a read or write says so."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        return path


@cache
def _default_folder() -> str:
    bases = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")
    base = next(filter(os.path.isabs, bases), "")  # the XDG specification ignores relative ones
    path = os.path.join(base, "jitree")
    if base and _is_usable(path):
        return path
    path = os.path.join(_temporary_folder(), f"jitree-{os.geteuid()}")
    _is_usable(path)  # if it is not, a read or write of a file there says why
    return path


def _temporary_folder() -> str:
    """As `tempfile` finds it, which however takes the current folder where no other can be written, and fails
    without that: files of the current folder are not to be run, and programs run without a cache, too."""
    stated = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    folders = [folder for folder in (*stated, *_TEMPORARY) if os.path.isabs(folder)]
    return next((folder for folder in folders if os.access(folder, os.W_OK | os.X_OK)), _TEMPORARY[0])


def _is_usable(path: str) -> bool:
    """Whether a folder of this program's own is there, for its user alone, and can be written."""
    try:
        private_files.make_own_folder(path)  # earlier versions left its rights to the umask
        with private_files.opened(path):
            return os.access(path, os.W_OK | os.X_OK)
    except OSError:
        return False


def path_of(recipe: Recipe, key: bytes) -> Path:
    return directory() / _file_name(recipe, key)


def _file_name(recipe: Recipe, key: bytes) -> str:
    return f"{recipe.name}-{key.hex()[:32]}{SUFFIX}"


def load(recipe: Recipe, key: bytes) -> FlatImage | None:
    """The image of a key, or None."""
    name = _file_name(recipe, key)
    if not os.path.exists(os.path.join(_folder(), name)):  # a program that waits for it asks often
        return None
    data = read(name)
    image = None if data is None else decode(data, key)
    if image is not None:
        with contextlib.suppress(OSError):  # another user's, or read-only
            os.utime(os.path.join(_folder(), name), follow_symlinks=False)
    return image


def store(recipe: Recipe, key: bytes, image: FlatImage) -> Path:
    """Writes the file of a key. OSError if the folder refuses."""
    write(_file_name(recipe, key), encode(image, key, recipe.title))
    return path_of(recipe, key)


def read(name: str) -> bytes | None:
    """A file of the folder; None if there is none that can be trusted."""
    return private_files.read(_folder(), name)


def write(name: str, data: bytes) -> None:
    """Puts a file into the folder, whole. OSError if the folder refuses or others can write in it."""
    private_files.write(_folder(), name, data)
