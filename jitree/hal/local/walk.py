"""Executing command lists: natively as soon as the walker's image is there, in Python until then."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from jitree.codegen import image
from jitree.hal.command_list import CommandList
from jitree.hal.local import walk_image

if TYPE_CHECKING:
    from jitree.hal.local.walk_native import NativeWalker

_native: NativeWalker | None = None


def execute(commands: CommandList, addresses: array[int], lengths: array[int]) -> None:
    """Runs a list on this thread; ``addresses`` and ``lengths`` are what :meth:`CommandList.bind` gave.

    INTERNAL when a function fails, naming executable, function, workgroup and what it returned.
    """
    walker = _native or native_walker()
    if walker is None:
        from jitree.hal.local.walk_python import PythonWalker

        PythonWalker(commands, addresses, lengths).run()
    else:
        walker.execute(commands, addresses, lengths)


def native_walker() -> NativeWalker | None:
    """The native walker if its image is ready; the first call starts building it in the background."""
    if _native is not None or not walk_image.supported():
        return _native
    ready = image.get(walk_image.RECIPE)
    return None if ready is None else _use(ready)


def require_native_walker() -> NativeWalker:
    """The native walker, waiting for its image if need be. UNAVAILABLE if it cannot be built."""
    return _native or _use(image.wait(walk_image.RECIPE))


def _use(ready: image.Image) -> NativeWalker:
    global _native
    from jitree.hal.local.walk_native import NativeWalker

    _native = NativeWalker(ready)
    return _native
