"""The program of the child: gets ready, confines itself, and then does what the messages say.

It is started in isolated mode, like the builder process. Argument 2 is the descriptor of its socket, argument
3 JSON of what the session is to be.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from importlib.machinery import ModuleSpec, PathFinder


class Packages:
    """Finds the packages, each in its folders alone."""

    def __init__(self, folders: dict[str, list[str]]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self._folders[name]) if name in self._folders else None


def main() -> None:
    sys.meta_path.insert(0, Packages(json.loads(sys.argv[1])))
    from jitree.api.process.serving import serve

    serve(socket.socket(fileno=int(sys.argv[2])), json.loads(sys.argv[3]))


if __name__ == "__main__":
    try:
        main()
    finally:
        os._exit(1)
