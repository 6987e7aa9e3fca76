"""Writes files that nobody sees until they are whole, and private folders."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO, Final

from jitree.errors import (
    InvalidArgumentError,
    StatusError,
    UnavailableError,
    pass_interruption,
    system_refusals,
)

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_NEVER_FOLLOW: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a named pipe must not wait
_FOLDER_ACCESS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATE: Final = os.O_CREAT | os.O_EXCL | _NEVER_FOLLOW
_MOST_MADE: Final = 64
"""Folders, one in the other. To check thousands takes minutes."""
LARGEST: Final = 256 << 20
"""Bytes of a file. One that is longer was not written here: a sparse file of any length takes no room on a
disk, and all memory when it is read."""


def read(folder: str, name: str) -> bytes | None:
    """What a file contains; None if there is none, one that others can have written, or one that is too
    long or cannot be read."""
    try:
        with opened(folder) as directory, open(existing(directory, name, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return file.read(size) if size <= LARGEST else None  # it may grow meanwhile
    except (OSError, MemoryError) as error:
        pass_interruption(error)
        return None


def write(folder: str, name: str, data: bytes) -> None:
    """Puts a file into a folder, which is made if need be; whole or not at all. OSError if the folder
    refuses, or others can write in it, or if :func:`read` would not read the file."""
    if len(data) > LARGEST:
        raise OSError(errno.EFBIG, f"{len(data)} bytes are more than a file may have ({LARGEST})", name)
    make_folder(folder)
    with opened(folder) as directory:
        temporary = f"{os.path.splitext(name)[0]}.{unique()}"
        try:
            with create(directory, temporary) as file:
                file.write(data)
            _move_folder_away(directory, name)
            os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise


def unique() -> str:
    """A part of a file's name that no other process has."""
    return os.urandom(8).hex()


def create(directory: int, name: str) -> BinaryIO:
    """A new file of an open folder, for its user alone whatever the umask. FileExistsError if the name is
    taken."""
    found: list[int] = []
    try:
        next(map(found.append, _opening(directory, name, os.O_WRONLY | _CREATE)))
        os.fchmod(found[0], _FILE_MODE)  # a umask may take away the user's own rights
    except BaseException:
        _close(found)
        raise
    return open(found[0], "wb")


def replace(directory: int, name: str) -> BinaryIO:
    """As :func:`create`, after removing what has the name: a link, not what it leads to."""
    _move_folder_away(directory, name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    return create(directory, name)


def _move_folder_away(directory: int, name: str) -> None:
    """Gives a folder that has the name of a file another name. What is in it is not ours to remove."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            os.rename(name, f"{name}.{unique()}", src_dir_fd=directory, dst_dir_fd=directory)


def existing(directory: int, name: str, access: int) -> int:
    """The descriptor of a file of an open folder. PermissionError if others can have written it."""
    found: list[int] = []
    try:
        next(map(found.append, _opening(directory, name, access | _NEVER_FOLLOW)))
        status = os.fstat(found[0])
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(errno.EPERM, f"'{name}' is not a file")
        _require_private(status, "file", name)
    except BaseException:
        _close(found)
        raise
    return found[0]


def _opening(directory: int, name: str, access: int) -> Iterator[int]:
    """Opens a file when it is iterated on. What does that is in C, and so is what notes the descriptor: an
    interrupt in between would leave it open for good."""
    return map(partial(os.open, dir_fd=directory), (name,), (access,), (_FILE_MODE,))


def _close(found: list[int]) -> None:
    for descriptor in found:
        os.close(descriptor)


def lockable(directory: int, name: str) -> int:
    """The descriptor of a file to lock, which is made if there is none."""
    while True:
        with contextlib.suppress(FileExistsError):
            create(directory, name).close()
        try:
            return existing(directory, name, os.O_RDWR)
        except FileNotFoundError:  # its last user has just removed it
            continue


def make_folder(folder: str) -> None:
    """Makes a folder, and missing ones above it, private whatever the umask is. PermissionError if others can
    change what is above it, OSError for more than 64."""
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = _parent(folder)
    if len(missing) > _MOST_MADE:
        text = f"it is in {len(missing)} folders that are not there, which are too many: name another folder"
        raise OSError(errno.ENAMETOOLONG, text)
    for one in reversed(missing):
        _check_path(_parent(one))
        with contextlib.suppress(FileExistsError):  # another process has just made it
            os.mkdir(one, _FOLDER_MODE)
            os.chmod(one, _FOLDER_MODE)  # a umask may take away the user's own rights


def make_own_folder(folder: str) -> None:
    """As :func:`make_folder`; one that is there is closed to others, if it is the user's."""
    make_folder(folder)
    _check_path(_parent(folder))
    status = os.lstat(folder)
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
        os.chmod(folder, _FOLDER_MODE)


def _parent(folder: str) -> str:
    return os.path.dirname(folder.rstrip("/")) or os.curdir


@contextlib.contextmanager
def opened(folder: str) -> Iterator[int]:
    """The descriptor of a folder, while the block runs. PermissionError, which says what to do about it, if
    others can change what is in it."""
    _check_path(folder)
    found: list[int] = []
    try:
        next(map(found.append, map(os.open, (folder,), (_FOLDER_ACCESS,))))  # as in `_opening`
        _require_private(os.fstat(found[0]), "folder", folder)
        yield found[0]
    finally:
        for descriptor in found:
            os.close(descriptor)


def require_writable(directory: int, folder: str) -> None:
    """Raises PermissionError, with advice, if this process may not write in an open folder."""
    if os.access(".", os.W_OK | os.X_OK, dir_fd=directory, effective_ids=True):
        return
    what, status = f"folder '{folder}' cannot be written", os.fstat(directory)
    if os.fstatvfs(directory).f_flag & os.ST_RDONLY:
        text = f"{what}, since what it is on is mounted read-only: name a folder elsewhere"
    else:
        mode = f"{what} by user {os.geteuid()} (mode {stat.S_IMODE(status.st_mode):04o})"
        remedy = _by_owner(status, "give that right", f"chmod u+wx '{folder}'")
        text = f"{mode}: {remedy}"
    raise PermissionError(errno.EACCES, text)


def _check_path(path: str) -> None:
    """Checks everything on a path, from the root folder down: what passed stays as it is while the rest is
    looked at, since no other user can change it."""
    prefix = "/"
    whole = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)  # there may be no current folder
    for part in whole.split("/"):
        prefix = os.path.join(prefix, part)
        status = os.lstat(prefix)
        if stat.S_ISLNK(status.st_mode):
            _require_owner(status, f"symbolic link '{prefix}'")
            _check_path(os.path.realpath(prefix, strict=True))
        elif not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, f"'{prefix}' is {_kind(status)}: name a folder")
        elif not status.st_mode & stat.S_ISVTX and not _is_of_own_group(status):
            _require_private(status, "folder", prefix)
        else:
            _require_owner(status, f"folder '{prefix}'")


_KINDS: Final = {
    stat.S_IFREG: "a file",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "something else than a folder")


def _is_of_own_group(status: os.stat_result) -> bool:
    """Whether a folder can be written by its user and that user's own group: many systems give each user a
    group of the same number, and make folders that the group may write."""
    user = os.geteuid()
    return status.st_uid == status.st_gid == user != 0 and not status.st_mode & stat.S_IWOTH


def _require_private(status: os.stat_result, kind: str, name: str) -> None:
    what = f"{kind} '{name}'"
    _require_owner(status, what)
    mode = status.st_mode
    if not mode & _OTHERS_WRITE:
        return
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        remedy = "it is for files of all users; name a folder in it, for this user alone"
    else:
        remedy = _by_owner(status, "take that right away", f"chmod go-w '{name}'")
    raise PermissionError(
        errno.EPERM,
        f"{what} can be written by others (mode {stat.S_IMODE(mode):04o}), so what is in it cannot be "
        f"trusted: {remedy}",
    )


def _by_owner(status: os.stat_result, action: str, command: str) -> str:
    """Says what to do by the folder's owner, whom this process may be."""
    if os.geteuid() in (status.st_uid, 0):
        return f"{action} ({command}), or name another folder"
    return f"name another folder, or have user {status.st_uid} {action} ({command})"


def _require_owner(status: os.stat_result, what: str) -> None:
    if status.st_uid not in (os.geteuid(), 0) and status.st_uid != os.stat("/").st_uid:
        raise PermissionError(
            errno.EPERM,
            f"{what} belongs to user {status.st_uid}, so what is in it cannot be trusted: name a folder of "
            f"user {os.geteuid()}",
        )


_SPECIAL: Final = (
    (stat.S_ISDIR, "a folder; name a file in it"),
    (stat.S_ISCHR, "a device, and would be a file from then on; name a file"),
    (stat.S_ISBLK, "a device, and would be a file from then on; name a file"),
    (stat.S_ISFIFO, "a pipe, and would be a file from then on; name a file"),
    (stat.S_ISSOCK, "a socket, and would be a file from then on; name a file"),
)


@contextlib.contextmanager
def written(path: str) -> Iterator[str]:
    """Makes an empty file beside the path, which takes its place in the end; one that is there stays until
    then. UNAVAILABLE where it cannot be written, INVALID_ARGUMENT for what is there and is no file, before
    anything else is done."""
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
        put_in_place(temporary, place)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def write_file(path: str, data: bytes) -> None:
    """A file with these bytes. UNAVAILABLE where it cannot be written, INVALID_ARGUMENT for what is there and
    is no file."""
    with written(path) as temporary:
        fill(temporary, data, path)


def fill(temporary: str, data: bytes, path: str) -> None:
    """Writes what :func:`written` puts in the place of a path. UNAVAILABLE where there is no room."""
    with system_refusals(f"cannot write '{path}'"), open(temporary, "wb") as file:
        file.write(data)


def put_in_place(temporary: str, path: str) -> None:
    """Puts a file into its place. UNAVAILABLE where that is not possible any more."""
    with system_refusals(f"cannot write '{path}'"):
        os.replace(temporary, path)


def refuse_special(path: str) -> None:
    """INVALID_ARGUMENT for a folder, a device, a pipe or a socket: a file would take its place."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    for is_kind, text in _SPECIAL:
        if is_kind(mode):
            raise InvalidArgumentError(f"cannot write '{path}': it is {text}")
