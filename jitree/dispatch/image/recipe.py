"""What an image is made from, and the key that tells whether a file is still that image.

Computing a key does not import llvmlite: its version is read from its version file.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import TYPE_CHECKING, Final

from jitree.records import NamedTuple

try:
    from _blake2 import blake2b  # hashlib loads OpenSSL first: 2 ms
except ImportError:
    from hashlib import blake2b

if TYPE_CHECKING:
    from hashlib import blake2b

FORMAT: Final = 4
"""Raised when the builder, linker or file form changes so that old files must not be used."""

_COMPILER: Final = "llvmlite"


class Recipe(NamedTuple):
    """One image: a few functions made from LLVM IR, kept in one file.

    ``generator`` is ``"package.module:function"``; the builder process calls it with ``data`` for the LLVM IR
    to compile (see :mod:`jitree.dispatch.image.generated`). ``sources`` are the files that decide what it
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


def key_of(recipe: Recipe) -> bytes:
    """32 bytes that change with anything that could change the image's machine code."""
    digest = blake2b(_environment(), digest_size=32)
    digest.update(repr((FORMAT, recipe.name, recipe.generator, recipe.entries, len(recipe.data))).encode())
    for source in recipe.sources:
        with open(source, "rb") as file:
            _add(digest, file.read())
    for part in recipe.data:
        _add(digest, part)
    return digest.digest()


def _add(digest: blake2b, data: bytes) -> None:
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)


@cache
def _environment() -> bytes:
    return b"\0".join([os.uname().machine.encode(), processor(), _version(_COMPILER)])


def _version(package: str) -> bytes:
    """The text of the package's version file; empty if the package is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return b""
    try:
        with open(os.path.join(spec.submodule_search_locations[0], "_version.py"), "rb") as file:
            return file.read()
    except FileNotFoundError:
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


def processor() -> bytes:
    """What the system says about the first processor: model and instruction set extensions."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            first = file.read(1 << 14).split(b"\n\n")[0]
    except OSError:
        import platform  # only where there is no /proc

        return platform.processor().encode()
    return b"\n".join(line for line in first.splitlines() if not line.startswith(_CHANGING))
