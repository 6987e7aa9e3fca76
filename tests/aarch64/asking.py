"""Asks for machine code inside of an emulation, where :mod:`tests.aarch64.outside` compiles it.

As a program it is a builder process: ``python asking.py builder_process.py arguments``. So it imports from
the standard library alone before the builder says where packages lie.
"""

from __future__ import annotations

import os
import pickle
import runpy
import socket
import struct
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SOCKET = os.environ.get("JITREE_COMPILER_OUTSIDE", "")
"""Where it listens; empty: everything is compiled here."""
_SIZE = struct.Struct("<q")
_BUILD = "jitree.codegen.image.build"
_PACKAGE = os.path.join(os.path.abspath(__file__).rpartition(os.path.join("", "tests", ""))[0], "jitree")
"""What is outside, too: tests change copies of it."""


def send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_SIZE.pack(len(data)) + data)


def receive(connection: socket.socket) -> bytes:
    (size,) = _SIZE.unpack(_received(connection, _SIZE.size))
    return _received(connection, size)


def _received(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the compiler outside has ended")
        data += part
    return bytes(data)


def ask(kind: str, *operands: object) -> Any:
    """What a function of :mod:`tests.aarch64.outside` returns; None if it fails."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(SOCKET)
        send(connection, pickle.dumps((kind, *operands)))
        return pickle.loads(receive(connection))


def plain(unit: Any) -> tuple[object, ...]:
    """A unit as tuples of what every process knows."""
    return tuple(unit.texts), tuple(unit.entries), tuple(unit.pipeline)


def compile_units_outside() -> None:
    """From now on this process has the units of its images compiled outside."""
    from jitree.codegen.image import compile

    inside = compile.compile_unit

    def compile_unit(unit: Any, target: Any) -> bytes:
        is_for_here = "aarch64" in target.triple
        compiled: bytes | None = ask("unit", plain(unit), tuple(target)) if is_for_here else None
        return compiled or inside(unit, target)

    compile.compile_unit = compile_unit


def build_outside(build: ModuleType) -> None:
    """From now on this builder has the package's images built outside, but not those of tests' generators."""
    from jitree.codegen.image.flat import FlatImage

    generate, build_inside = build.generate, build.build
    is_of_package = str(build.__file__).startswith(_PACKAGE)

    def build_image(recipe: Any, target: Any) -> FlatImage:
        is_known = is_of_package and recipe.generator.startswith("jitree.") and "aarch64" in target.triple
        parts = ask("image", tuple(recipe), tuple(target)) if is_known else None
        made: FlatImage = build_inside(generate(recipe), target) if parts is None else FlatImage(*parts)
        return made

    build.generate, build.build = (lambda recipe: recipe), build_image  # type: ignore[attr-defined]
    build.shapes_of = lambda made: []  # type: ignore[attr-defined]  # of x86-64 alone, and made are recipes
    build.build_like = lambda recipe, target, shapes: build_image(recipe, target)  # type: ignore[attr-defined]


class _Finder:
    """Changes the builder's module when it is imported."""

    def find_spec(self, name: str, path: Any = None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == _BUILD else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                build_outside(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if __name__ == "__main__":
    del sys.argv[0]
    sys.meta_path.insert(0, _Finder())
    runpy.run_path(sys.argv[0], run_name="__main__")
