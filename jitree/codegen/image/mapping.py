"""Placing a flat image in memory: written while it is writable, executable only after it is not."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from typing import Final

from jitree.base.memory import EXECUTE, READ, WRITE, Mapping
from jitree.codegen.image.flat import FlatImage


class Image:
    """Executable code. ``addresses`` of its entries are valid while this object lives; ``notes`` are what its
    generator kept with it."""

    def __init__(self, addresses: MappingOf[str, int], memory: Mapping, notes: bytes = b"") -> None:
        self.addresses: Final = addresses
        self.notes: Final = notes
        self.end: Final = memory.address + memory.size
        self._memory: Final = memory


def map_image(image: FlatImage) -> Image:
    """Copies, rebases and protects an image (read and execute).

    RESOURCE_EXHAUSTED without memory, PERMISSION_DENIED where the system refuses executable memory.
    """
    size = len(image.code)
    memory = Mapping(size)
    memory.protect(0, size, READ | WRITE)
    view = memory.view()
    view[:size] = image.code
    words = view.cast("Q")
    for place in memoryview(image.rebase).cast("I"):
        words[place >> 3] += memory.address
    memory.protect(0, size, READ | EXECUTE)
    memory.publish()
    return Image(
        {name: memory.address + offset for name, offset in image.entries.items()}, memory, image.notes
    )
