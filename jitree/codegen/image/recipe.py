"""What an image is made from."""

from __future__ import annotations

import os
from typing import Final

from jitree.base.records import NamedTuple

FORMAT: Final = 4
"""Raised when the builder, linker or file form changes so that old files must not be used."""


class Recipe(NamedTuple):
    """One image: a few functions made from LLVM IR, kept in one file.

    ``generator`` is ``"package.module:function"``; the builder process calls it with ``data`` for the LLVM IR
    to compile (see :mod:`jitree.codegen.image.generated`). ``sources`` are the files that decide what it
    returns. ``entries`` are functions called from outside; a generator may add more. ``name`` begins the
    file's name. ``title`` and ``seconds`` (to build it) are for messages.
    """

    name: str
    title: str
    generator: str
    sources: tuple[str | os.PathLike[str], ...]
    entries: tuple[str, ...]
    seconds: float
    data: tuple[bytes, ...] = ()


def files(folder: str, prefix: str, suffix: str) -> list[str]:
    """The files in a folder whose names begin and end so, sorted (``pathlib`` takes 3 ms to import)."""
    names = [name for name in os.listdir(folder) if name.startswith(prefix) and name.endswith(suffix)]
    return [os.path.join(folder, name) for name in sorted(names)]
