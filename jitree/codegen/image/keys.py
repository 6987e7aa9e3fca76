"""The key of an image that is built here, which tells whether a file in the cache is still that image.

Computing it does not import the compilers: their versions are read from their version files.
"""

from __future__ import annotations

import contextlib
import os
from functools import cache
from typing import Final

from jitree.base import processor
from jitree.codegen.image.flat import Recipe, hashed
from jitree.codegen.image.packages import folders_of
from jitree.codegen.image.shipped import build_stamp

_COMPILERS: Final = ("llvmlite", "numba")


def key_of(recipe: Recipe) -> bytes:
    """The key on this machine, with this package and the compiler that is installed."""
    stated = f"{recipe.name} {recipe.generator}".encode()
    return hashed((build_stamp(), *_environment(), stated, *recipe.data))


@cache
def _environment() -> tuple[bytes, ...]:
    return os.uname().machine.encode(), _processor(), *map(_version, _COMPILERS)


def _version(package: str) -> bytes:
    """The text of the package's version file; empty if the package is not installed."""
    for folder in folders_of(package):
        with contextlib.suppress(FileNotFoundError), open(f"{folder}/{package}/_version.py", "rb") as file:
            return file.read()
    return b""


_CHANGING: Final = (
    b"processor",
    b"cpu MHz",
    b"bogomips",
    b"BogoMIPS",
    b"apicid",
    b"initial apicid",
    b"core id",
)
"""Lines of a processor's description that do not say what it can execute."""


def _processor() -> bytes:
    """Model and instruction set extensions."""
    described = processor.description()
    if not described:
        import platform  # only where the system says nothing

        return platform.processor().encode()
    return b"\n".join(line for line in described.splitlines() if not line.startswith(_CHANGING))
