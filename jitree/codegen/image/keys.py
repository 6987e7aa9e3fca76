"""The key of an image that is built here, which tells whether a file in the cache is still that image.

Computing it does not import the compilers: their versions are read from their version files.
"""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Final

from jitree.base import processor
from jitree.codegen.image.flat import Recipe, hashed
from jitree.codegen.image.packages import folders_of
from jitree.codegen.image.shipped import LEVELS, build_stamp

_COMPILERS: Final = ("llvmlite", "numba")


def key_of(recipe: Recipe) -> bytes:
    """The key of an image that this package makes here, with the compiler that is installed."""
    return key_for(source_key(recipe), environment(recipe.processor))


def key_for(source: bytes, made_in: bytes) -> bytes:
    """The key of an image that this package makes: of what (:func:`source_key`), and the digest of where."""
    return hashed((build_stamp(), made_in, source))


def source_key(recipe: Recipe) -> bytes:
    """Tells what images are made of, whatever machine and compiler make them."""
    stated = f"{recipe.name} {recipe.generator}".encode()
    return hashed((stated, *recipe.data))


def environment(level: str = "") -> bytes:
    """A digest of the processor that images are made for, one of a level or this one, and of the compiler."""
    return hashed((processor_key(level), *_versions()))


def processor_key(level: str = "") -> bytes:
    """Tells kinds of processors apart."""
    if not level:
        return hashed((processor.machine().encode(), _processor()))
    machine, flags = LEVELS[level]
    return hashed((machine.encode(), processor.described(machine, flags)))


@cache
def _versions() -> tuple[bytes, ...]:
    return tuple(map(_version, _COMPILERS))


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
    b"physical id",
    b"siblings",
    b"cpu cores",
    b"microcode",
)
"""Lines of a processor's description that do not say what it can execute. The number of processors differs
between machines that have the same ones."""


def _processor() -> bytes:
    """Model and instruction set extensions."""
    described = processor.description()
    if not described:
        import platform  # only where the system says nothing

        return platform.processor().encode()
    return b"\n".join(line for line in described.splitlines() if not line.startswith(_CHANGING))
