"""Starting the builder process and waiting for it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, BinaryIO, Final

from jitree.base import private_files
from jitree.codegen.image import cache
from jitree.codegen.image.build import to_json
from jitree.codegen.image.packages import folders_of
from jitree.codegen.image.recipe import Recipe

_PROGRAM: Final = Path(__file__).with_name("builder_process.py")
_ISOLATED: Final = ("-I", "-S")
"""Without what the environment, the current folder and the files of installed packages would add."""
_PACKAGES: Final = ("jitree", "numpy", "ml_dtypes", "numba", "llvmlite", "elftools")
"""This one and what is installed with it: what generators may import."""


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
        lines = (cache.read(self._log.name) or b"").decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else "it printed nothing"
        return f"the builder process ended with code {code}: {reason} (whole output: {self._log})"


def start_builder(recipe: Recipe, key: bytes, niceness: int) -> Builder | None:
    """Starts a builder that outlives this process; None when another process is building or has built.

    OSError if the cache folder is not writable or no process can be started.
    """
    target = cache.path_of(recipe, key)
    folder, log_path = str(target.parent), target.with_suffix(cache.LOG_SUFFIX)
    private_files.make_folder(folder)
    with private_files.opened(folder) as directory:
        lock = private_files.lockable(directory, target.with_suffix(cache.LOCK_SUFFIX).name)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if cache.load(recipe, key) is not None:  # the other one has just finished
                return None
            with private_files.replace(directory, log_path.name) as log:
                process = _start(recipe, key, folder, lock, log)
        finally:
            os.close(lock)  # the builder's copy keeps the lock
    if niceness:  # from its first moment: what this process does now goes first
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
    return Builder(process, log_path)


def _start(recipe: Recipe, key: bytes, folder: str, lock: int, log: BinaryIO) -> subprocess.Popen[bytes]:
    packages = {*_PACKAGES, recipe.generator.partition(".")[0]}
    with _file_of(recipe.data) as data:
        return subprocess.Popen(
            [
                sys.executable,
                *_ISOLATED,
                _PROGRAM,
                json.dumps({package: folders_of(package) for package in packages}),
                to_json(recipe),
                str(data.fileno()),
                key.hex(),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock, data.fileno()),
            start_new_session=True,
            env=os.environ | {"JITREE_CACHE_DIR": folder},
        )


def _file_of(data: Sequence[bytes]) -> IO[bytes]:
    """A file without a name that holds the parts one after the other."""
    file = tempfile.TemporaryFile()
    file.writelines(data)
    file.flush()
    return file
