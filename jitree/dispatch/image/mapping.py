"""Placing a flat image in memory: written while it is writable, executable only after it is not."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from typing import Final

import numpy as np

from jitree.dispatch.image.flat import FlatImage
from jitree.memory import EXECUTE, READ, WRITE, Mapping


class Image:
    """Executable code. ``addresses`` of its entries are valid while this object lives."""

    def __init__(self, addresses: MappingOf[str, int], memory: Mapping) -> None:
        self.addresses: Final = addresses
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
    words = np.frombuffer(view, np.uint64)
    words[np.frombuffer(image.rebase, "<u4") >> 3] += np.uint64(memory.address)
    memory.protect(0, size, READ | EXECUTE)
    memory.publish()
    return Image({name: memory.address + offset for name, offset in image.entries.items()}, memory)
