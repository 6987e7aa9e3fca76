"""What an image is made from, and the keys that tell whether a file is still that image.

Computing a key does not import llvmlite: its version is read from its version file.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import TYPE_CHECKING, Final

from jitree import processor
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


def digest_of(recipe: Recipe) -> bytes:
    """32 bytes that change with all that decides the machine code but the machine and the compiler."""
    digest = blake2b(digest_size=32)
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


def host_key(digest: bytes) -> bytes:
    """The key of an image that was built here: also changes with the machine and the compiler."""
    return blake2b(_environment() + digest, digest_size=32).digest()


def shipped_key(digest: bytes, processors: str) -> bytes:
    """The key of an image that comes with the package, built for all processors of a kind."""
    return blake2b(processors.encode() + b"\0" + digest, digest_size=32).digest()


def key_of(recipe: Recipe) -> bytes:
    """The :func:`host_key` of a recipe."""
    return host_key(digest_of(recipe))


@cache
def _environment() -> bytes:
    return b"\0".join([os.uname().machine.encode(), _processor(), _version(_COMPILER), b""])


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


def _processor() -> bytes:
    """Model and instruction set extensions."""
    described = processor.description()
    if not described:
        import platform  # only where the system says nothing

        return platform.processor().encode()
    return b"\n".join(line for line in described.splitlines() if not line.startswith(_CHANGING))
