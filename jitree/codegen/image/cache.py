"""Keeps images in a folder between processes, and decides which folder that is.

Stated is the argument of a session, else ``JITREE_CACHE_DIR``, else the user's folder for caches. A folder
that cannot be used (others can write in it, it is read-only, it is none at all) does not keep programs from
being compiled: images then go to a folder of this user's own among the temporary files, and a warning says so
once. What is already in a stated folder that cannot be written is used.

Files are written under a temporary name and renamed, so a reader sees a whole file or none. A file that is
missing, short, damaged, made for another key, or that others can have written
(:mod:`jitree.base.private_files`) is a miss, never an error. A file's time of modification is when it was
last used; :mod:`jitree.codegen.image.contents` goes by it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

from jitree.base import private_files
from jitree.base.records import NamedTuple
from jitree.codegen.image.flat import SUFFIX, FlatImage, Recipe, decode, encode
from jitree.errors import ignored, pass_interruption, printable, tell

if TYPE_CHECKING:
    from pathlib import Path  # 3 ms to import: not for a look that finds its file

VARIABLE: Final = "JITREE_CACHE_DIR"
_ARGUMENT: Final = "cache_dir"
_TEMPORARY: Final = ("/tmp", "/var/tmp", "/usr/tmp")
_SAMPLE: Final = 1 << 16
"""Bytes that are written to see whether there is room: a small image."""

LOCK_SUFFIX: Final = ".lock"
LOG_SUFFIX: Final = ".log"
"""Suffix of the file beside an image that is built; the log of a failed build stays."""


class CacheFolder(NamedTuple):
    """Where images are kept."""

    folder: str
    """They are written there."""
    stated: str
    """The folder that was to be taken; empty without one."""
    source: str
    """What states it."""
    refusal: str
    """Why it is not taken, and what to do about that; empty if it is."""
    obstacle: str
    """Why nothing can be written to the folder that is taken instead; empty if it can."""

    @property
    def folders(self) -> tuple[str, ...]:
        """Where images are looked for."""
        return (self.stated, self.folder) if self.refusal and self.stated else (self.folder,)

    @property
    def reason(self) -> str:
        """The refusal, what is refused, and what follows; empty if the stated folder is taken."""
        if not self.refusal:
            return ""
        start = f"{self.source}: '{self.stated}' is not used for machine code: {self.refusal}"
        if self.obstacle:
            return f"{start}; neither is '{self.folder}': {self.obstacle}; so nothing is compiled"
        return f"{start}; it is kept in '{self.folder}' instead"


class _Stated(NamedTuple):
    path: str
    source: str
    is_own: bool
    """Whether it is only for jitree, whose earlier versions left its rights to the umask."""


_chosen: str | None = None
_places: Final[dict[tuple[_Stated, tuple[str, ...]], CacheFolder]] = {}
_tried: Final[set[str]] = set()
"""Folders that a file was written to."""
_told: Final[set[str]] = set()
"""Warnings that were given."""


def choose_directory(path: str | os.PathLike[str]) -> None:
    """The stated folder for the rest of the process, whatever the environment says."""
    global _chosen
    _chosen = _absolute(os.fspath(path))


@contextlib.contextmanager
def kept_in(path: str) -> Iterator[None]:
    """A block whose images are kept in a folder of their own."""
    global _chosen
    before, _chosen = _chosen, _absolute(path)
    try:
        yield
    finally:
        _chosen = before


def place() -> CacheFolder:
    """As it was decided when it was first asked for."""
    stated, temporary = _stated(), _temporary_folders()
    found = _places.get((stated, temporary))
    if found is None:
        found = _places[stated, temporary] = _decided(stated, temporary, _refusal(stated.path, stated.is_own))
    return found


def settle() -> CacheFolder:
    """The place, before something is written there: decided anew if that has become impossible, and with a
    warning, given once, if it is not the stated one."""
    found, stated, temporary = place(), _stated(), _temporary_folders()
    is_stated = not found.refusal
    refusal = _refusal(found.folder, stated.is_own or not is_stated) or _unwritable(found.folder)
    if refusal:
        found = _places[stated, temporary] = _decided(
            stated, temporary, refusal if is_stated else found.refusal
        )
    if found.refusal:
        _tell(found)
    return found


def _tell(found: CacheFolder) -> None:
    text = printable(f"jitree: {found.reason}")
    if text not in _told:
        _told.add(text)
        from jitree.base.folding import warn

        try:
            warn(text)
        except RuntimeWarning:  # where warnings are errors: it is none of the call that comes by
            tell(f"{text}\n")


def _stated() -> _Stated:
    if _chosen is not None:
        return _Stated(_chosen, _ARGUMENT, False)
    variable = os.environ.get(VARIABLE)
    if variable:
        return _Stated(_absolute(variable), VARIABLE, False)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification ignores relative ones
        return _Stated(os.path.join(base, "jitree"), "XDG_CACHE_HOME", True)
    base = os.path.expanduser("~/.cache")
    return _Stated(os.path.join(base, "jitree") if os.path.isabs(base) else "", "HOME", True)


@cache
def _absolute(path: str) -> str:
    """Makes a path absolute for the rest of the process. The current folder may change while something is
    built. Where there is no current folder any more it cannot be used."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        return path


def _decided(stated: _Stated, temporary: tuple[str, ...], refusal: str) -> CacheFolder:
    if not refusal:
        return CacheFolder(stated.path, stated.path, stated.source, "", "")
    folder = os.path.join(_writable(temporary), f"jitree-{os.geteuid()}")
    obstacle = _refusal(folder, is_own=True) or _unwritable(folder)
    if obstacle:  # another user may have made that folder: a random name is free
        new = f"{folder}-{private_files.unique()}"
        if not (_refusal(new, is_own=True) or _unwritable(new)):
            atexit.register(_remove, new, os.getpid())
            folder, obstacle = new, ""
    return CacheFolder(folder, stated.path, stated.source, refusal, obstacle)


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:
        import shutil  # only for few

        shutil.rmtree(folder, ignore_errors=True)


def _temporary_folders() -> tuple[str, ...]:
    """Lists temporary folders as `tempfile`, but never the current folder. `tempfile` fails where that is
    gone: files of the current folder are not to be run, and programs run without a cache, too."""
    stated = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    return tuple(folder for folder in (*stated, *_TEMPORARY) if os.path.isabs(folder))


def _writable(folders: tuple[str, ...]) -> str:
    return next((folder for folder in folders if os.access(folder, os.W_OK | os.X_OK)), _TEMPORARY[0])


def _refusal(path: str, is_own: bool) -> str:
    """Why a folder cannot be used, and what to do about that; empty if it is there, for its user alone, and
    this process may write in it."""
    if not os.path.isabs(path):
        return "it is not the whole path of a folder, and there is none that it is in: name the whole path"
    try:
        (private_files.make_own_folder if is_own else private_files.make_folder)(path)
        with private_files.opened(path) as directory:
            private_files.require_writable(directory, path)
    except OSError as error:
        pass_interruption(error)
        return _why(error)
    except ValueError as error:  # a name with a NUL
        pass_interruption(error)
        return f"{error}: name another folder"
    return ""


def _unwritable(path: str) -> str:
    """Why no file can be written to a folder, by trying it once; empty if one can."""
    if path in _tried:
        return ""
    name = f"sample-{private_files.unique()}{private_files.unique()}.try"
    try:
        with private_files.opened(path) as directory:
            try:
                with private_files.create(directory, name) as file:
                    file.write(bytes(_SAMPLE))
            finally:
                with ignored(OSError):
                    os.unlink(name, dir_fd=directory)
    except OSError as error:
        pass_interruption(error)
        return f"a file in '{path}' cannot be written ({error.strerror}): name another folder"
    _tried.add(path)
    return ""


def _why(error: OSError) -> str:
    if error.filename is None:  # of the checks of folders, which say what to do
        return error.strerror or str(error)
    return f"'{os.fsdecode(error.filename)}' cannot be made or opened ({error.strerror}): name another folder"


def directory() -> Path:
    """The folder that images are written to."""
    from pathlib import Path

    return Path(place().folder)


def path_of(recipe: Recipe, key: bytes) -> Path:
    return directory() / _file_name(recipe, key)


def place_of(folder: str, recipe: Recipe, key: bytes) -> str:
    """The path of an image in a folder."""
    return f"{folder}/{_file_name(recipe, key)}"


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


def has_any(recipe: Recipe) -> bool:
    """Whether there may be an image of a recipe's name: one look in place of one for each of many."""
    beginning = f"{recipe.name}-"
    for folder in place().folders:
        try:
            with os.scandir(folder) as entries:
                if any(entry.name.startswith(beginning) for entry in entries):
                    return True
        except OSError as error:
            pass_interruption(error)
            return True  # a folder may be open to whom it shows no names
    return False


def store(recipe: Recipe, key: bytes, image: FlatImage) -> Path:
    """Writes the file of a key. OSError if no folder can be written."""
    write(_file_name(recipe, key), encode(image, key, recipe.title))
    return path_of(recipe, key)


def store_here(recipe: Recipe, key: bytes, image: FlatImage) -> Path:
    """Stores in the folder where the waiting process looks, or nowhere. See :func:`store`."""
    path = path_of(recipe, key)
    private_files.write(str(path.parent), path.name, encode(image, key, recipe.title))
    return path


def read(name: str) -> bytes | None:
    """A file of the folder; None if there is none that can be trusted."""
    return private_files.read(place().folder, name)


def write(name: str, data: bytes) -> None:
    """Puts a file into the folder, whole. OSError if no folder can be written."""
    private_files.write(settle().folder, name, data)
