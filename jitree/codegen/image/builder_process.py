"""The builder process: started as a program, in isolated mode, by :mod:`jitree.codegen.image.builder`.

It imports from the standard library and the packages that it is told the folders of: not from the current
folder, ``PYTHONPATH`` or whatever else lies beside those packages. Argument 1 is JSON of the folders by
package; the others are for :func:`jitree.codegen.image.build.main`. Argument 3 is the first of the two
descriptors that it keeps.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from contextlib import suppress
from ctypes import CDLL
from importlib.machinery import ModuleSpec, PathFinder
from mmap import mmap
from threading import Thread
from typing import Final


class Given:
    """Finds the packages, each in its folders alone: waits before each import while held."""

    def __init__(self, folders: dict[str, list[str]], work: memoryview[float]) -> None:
        """``work``: the first number of the list of work. What is mapped stays, whoever closes the file."""
        self._folders = folders
        self._work = work

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        wait_while_held(self._work)
        return PathFinder.find_spec(name, self._folders[name]) if name in self._folders else None


_PAUSE: Final = 0.002
"""Seconds between two looks whether the program still needs all processors."""
_MOST: Final = 1 << 16
"""Where the system does not say what is open, descriptors are looked for below this number."""


def close_others(kept: int) -> None:
    """Closes inherited files, which would stay open as long as this runs."""
    try:
        found = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        os.closerange(3, kept)
        os.closerange(kept + 2, max(_MOST, kept + 2))
        return
    for descriptor in found:
        if descriptor > 2 and descriptor not in (kept, kept + 1):
            with suppress(OSError):  # of listing them
                os.close(descriptor)


def map_llvm(folders: list[str]) -> Thread:
    """Maps LLVM's library in a thread: Python imports other things meanwhile."""
    paths = [os.fsencode(f"{folder}/llvmlite/binding/libllvmlite.so") for folder in folders]
    thread = Thread(target=lambda: [CDLL(None).dlopen(path, os.RTLD_NOW) for path in paths])
    thread.start()
    return thread


def wait_while_held(work: memoryview[float]) -> None:
    """Leaves all processors to the program as long as it says so (:meth:`.WorkList.hold`)."""
    while work[0] > time.monotonic():
        time.sleep(_PAUSE)


if __name__ == "__main__":
    gc.disable()  # it would look at all that was written again and again, a sixth of the time of that
    kept = int(sys.argv[3])
    close_others(kept)
    work = memoryview(mmap(kept, 8)).cast("d")
    wait_while_held(work)
    given = json.loads(sys.argv.pop(1))
    mapping = map_llvm(given["llvmlite"])
    sys.meta_path.insert(0, Given(given, work))
    from jitree.codegen.image.build import main

    mapping.join()  # a process with several threads makes no copies
    main()
