"""Writes files that a person names, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jitree.base.private_files import unique
from jitree.errors import InvalidArgumentError, StatusError, UnavailableError, pass_interruption

_KINDS: Final = (
    (stat.S_ISDIR, "a folder; name a file in it"),
    (stat.S_ISCHR, "a device, and would be a file from then on; name a file"),
    (stat.S_ISBLK, "a device, and would be a file from then on; name a file"),
    (stat.S_ISFIFO, "a pipe, and would be a file from then on; name a file"),
    (stat.S_ISSOCK, "a socket, and would be a file from then on; name a file"),
)


@contextlib.contextmanager
def written(path: str) -> Iterator[str]:
    """A new, empty file beside the path, which takes its place when all has gone well; one that is there
    stays until then. UNAVAILABLE where it cannot be written, INVALID_ARGUMENT for what is there and is no
    file, before anything else is done."""
    try:
        place = os.path.abspath(path)  # whatever becomes of the folder that names begin with
        temporary = f"{place}.{unique()}"
        refuse_special(path)
        open(temporary, "xb").close()  # never through a link that has this name
    except OSError as error:
        pass_interruption(error)
        raise UnavailableError(f"cannot write '{path}': {error.strerror}") from None
    except StatusError:
        raise
    except ValueError as error:  # a name with a zero in it
        pass_interruption(error)
        raise InvalidArgumentError(f"cannot write '{path}': {error}") from None
    try:
        yield temporary
        replace(temporary, place)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def write(path: str, data: bytes) -> None:
    """A file with these bytes. UNAVAILABLE where it cannot be written, INVALID_ARGUMENT for what is there and
    is no file."""
    with written(path) as temporary:
        try:
            Path(temporary).write_bytes(data)
        except OSError as error:
            pass_interruption(error)
            raise UnavailableError(f"cannot write '{path}': {error.strerror}") from None


def replace(temporary: str, path: str) -> None:
    """Puts a file into its place. UNAVAILABLE where that is not possible any more."""
    try:
        os.replace(temporary, path)
    except OSError as error:
        pass_interruption(error)
        raise UnavailableError(f"cannot write '{path}': {error.strerror}") from None


def refuse_special(path: str) -> None:
    """INVALID_ARGUMENT for a folder, a device, a pipe or a socket: a file would take its place."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    for is_kind, text in _KINDS:
        if is_kind(mode):
            raise InvalidArgumentError(f"cannot write '{path}': it is {text}")
