"""Forks the children of sandboxes, having imported what they need once.

It runs in isolated mode, like the builder process, and has one thread. Its standard input is the socket on
which it is asked. It sees nothing of what children do, and ends when no process can ask any more.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_MOST = 1 << 16
"""Bytes of a message that asks for a child."""
_FILES = 64
"""Descriptors below this number are closed, more than the process has open."""


class Packages:
    """Finds the packages, each in its folders alone."""

    def __init__(self, folders: dict[str, list[str]]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self._folders[name]) if name in self._folders else None


def main() -> None:
    sys.meta_path.insert(0, Packages(json.loads(sys.argv[1])))
    control = socket.socket(fileno=0)
    from jitree.api.process import serving
    from jitree.base.platform.starting import OpenedProcess

    failure = serving.prepare()
    gc.collect()
    gc.freeze()  # pages of what children only read stay common to all
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for keepers
    while failure is None:
        text, files, _, _ = socket.recv_fds(control, _MOST, 2)
        if not text:
            return
        if os.fork() == 0:
            _keep(files, OpenedProcess, serving.serve, json.loads(text))
        for file in files:
            os.close(file)
    _, (connection, _), _, _ = socket.recv_fds(control, _MOST, 2)
    serving.refuse(socket.socket(fileno=connection), failure)


def _keep(files: list[int], open_process: Any, serve: Any, options: dict[str, Any]) -> None:
    """Starts a child, and ends it when the second file, a socket, closes; tells there how the child has
    ended. Native code in the child can do nothing to the process that does this."""
    connection, life = files
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    keeper = os.getpid()
    child = os.fork()
    os.dup2(life if child else connection, 0)
    os.closerange(3, _FILES)
    if child == 0:
        serve(socket.socket(fileno=0), options, keeper)
        os._exit(0)
    waited = select.poll()
    opened = open_process(child)
    waited.register(opened.descriptor, select.POLLIN)
    waited.register(0, select.POLLIN)
    waited.poll()
    os.kill(child, signal.SIGKILL)  # it is not reaped yet: the number is its own
    _, status = os.waitpid(child, 0)
    os.write(0, struct.pack("<i", os.waitstatus_to_exitcode(status)))
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    finally:
        os._exit(1)
