"""The builder process: started as a program, in isolated mode, by :mod:`jitree.codegen.image.background`.

It imports from the standard library and the packages that it is told the folders of: not from the current
folder, ``PYTHONPATH`` or whatever else lies beside those packages. Argument 1 is JSON of the folders by
package; the others are for :func:`jitree.codegen.image.build.main`.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec, PathFinder


class Given:
    """Finds the packages, each in its folders alone."""

    def __init__(self, folders: dict[str, list[str]]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self._folders[name]) if name in self._folders else None


if __name__ == "__main__":
    sys.meta_path.insert(0, Given(json.loads(sys.argv.pop(1))))
    from jitree.codegen.image.build import main

    main()
