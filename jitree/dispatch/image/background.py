"""Starting the builder process and waiting for it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from jitree.dispatch.image import cache
from jitree.dispatch.image.build import to_json
from jitree.dispatch.image.recipe import Recipe

_PACKAGE_ROOT: Final = str(Path(__file__).parents[3])
_PROGRAM: Final = (
    f"import sys; sys.path.insert(0, {_PACKAGE_ROOT!r}); from jitree.dispatch.image.build import main; main()"
)


class Builder:
    """A builder process that this process started. Its messages go to a file beside the image."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def failure(self) -> str:
        """What went wrong; of a builder that has ended without leaving an image."""
        code = self._process.poll()
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        reason = lines[-1] if lines else "it printed nothing"
        return f"the builder process ended with code {code}: {reason} (whole output: {self._log})"


def start_builder(recipe: Recipe, key: bytes, niceness: int) -> Builder | None:
    """Starts a builder that outlives this process; None when another process is building or has built.

    OSError if the cache folder is not writable or no process can be started.
    """
    target = cache.path_of(recipe, key)
    target.parent.mkdir(parents=True, exist_ok=True)
    lock_path, log_path = target.with_suffix(cache.LOCK_SUFFIX), target.with_suffix(cache.LOG_SUFFIX)
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if cache.load(recipe, key) is not None:  # the other one has just finished
            return None
        with open(log_path, "wb") as log, _file_of(recipe.data) as data:
            arguments = (to_json(recipe), str(data.fileno()), key.hex())
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock, data.fileno()),
                start_new_session=True,
                env=_environment(target.parent),
            )
        if niceness:  # from its first moment: what this process does now goes first
            os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
        return Builder(process, log_path)
    finally:
        os.close(lock)  # the builder's copy keeps the lock


def _file_of(data: Sequence[bytes]) -> IO[bytes]:
    """A file without a name that holds the parts one behind the other."""
    file = tempfile.TemporaryFile()
    file.writelines(data)
    file.flush()
    return file


def _environment(directory: Path) -> dict[str, str]:
    """This process's, with its cache folder."""
    return os.environ | {"JITREE_CACHE_DIR": str(directory)}
