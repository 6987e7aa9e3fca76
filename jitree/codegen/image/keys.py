"""Computes keys of images, and finds packages that decide them.

The key tells whether a file in the cache is still that image. It does not import the compilers: their
versions are read from their version files. Where this process has its packages from, the builder process is
told, so that it has the same and nothing else.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Final

from jitree.base.platform import processor
from jitree.codegen.image.flat import Recipe, absorbed, begin_digest, hashed
from jitree.codegen.image.shipped import LEVELS, build_stamp
from jitree.errors import pass_interruption

if TYPE_CHECKING:
    from hashlib import blake2b

_COMPILERS: Final = ("llvmlite", "numba")


def folders_of(package: str) -> list[str]:
    """The folders, or archives, that a package lies in: where it was imported from, else where an import
    finds it. The current folder comes last then, since anything may lie there. Empty if it is nowhere."""
    spec = getattr(sys.modules.get(package), "__spec__", None) or _not_imported(package)
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [os.path.dirname(os.path.abspath(path)) for path in spec.submodule_search_locations]
    return [os.path.dirname(os.path.abspath(spec.origin))] if spec.origin else []


def _not_imported(package: str) -> ModuleSpec | None:
    elsewhere = [entry for entry in sys.path if not _is_current(entry)]
    return PathFinder.find_spec(package, elsewhere) or importlib.util.find_spec(package)


def _is_current(entry: str) -> bool:
    """Whether an entry of ``sys.path`` is the current folder."""
    try:
        return not entry or os.path.samefile(entry, os.curdir)
    except OSError as error:  # there is no such folder
        pass_interruption(error)
        return False


def key_of(recipe: Recipe) -> bytes:
    """Computes an image's key, with this package and compiler."""
    return key_for(source_key(recipe), environment(recipe.processor))


def key_for(source: bytes, made_in: bytes) -> bytes:
    """The key of an image that this package makes: of what (:func:`source_key`), and the digest of where."""
    return hashed((build_stamp(), made_in, source))


def source_key(recipe: Recipe) -> bytes:
    """Tells what images are made of, whatever machine and compiler make them."""
    state = _begun(recipe.name, recipe.generator, recipe.data[:1]).copy()
    return absorbed(state, recipe.data[1:]).digest()


@lru_cache(maxsize=1)
def _begun(name: str, generator: str, first: tuple[bytes, ...]) -> blake2b:
    """The digest of what images have in common that are made of the same: all kernels that call anything."""
    return absorbed(begin_digest(), (f"{name} {generator}".encode(), *first))


forget: Final = _begun.cache_clear
"""Forgets that, which is the text of a whole executable: for the end of whatever wanted a key."""


@cache
def environment(level: str = "") -> bytes:
    """Digests the processor or level, and the compiler."""
    return hashed((processor_key(level), *_versions()))


processor.kept.extend((environment,))


def processor_key(level: str = "") -> bytes:
    """Tells kinds of processors apart."""
    if not level:
        features = (name.encode() for name in sorted(processor.arm_features()))
        return hashed((processor.machine().encode(), _processor(), *features))
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
