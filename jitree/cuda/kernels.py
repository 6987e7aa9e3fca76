"""Launches our own kernels: fills, copies, and conversions for reductions.

Fills and copies cost less than the copy engine's as long as ranges are small; reductions of 16-bit integers
need conversions.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from jitree.cuda import ptx

if TYPE_CHECKING:
    from jitree.cuda.api import Api, Handle, Owned
    from jitree.cuda.context import CudaContext

    class LaunchStream(Protocol):
        """The stream that work is submitted to."""

        api: Api
        handle: Handle


SMALL_COPY: Final = 128 << 10
"""Bytes. Above, a copy between host and device is the copy engine's business."""
THREADS: Final = 256
"""Threads of a block."""
BYTES_PER_BLOCK: Final = 16 * THREADS
"""That one thread block moves in one go, 16 bytes a thread."""
MAXIMUM_BLOCKS: Final = 2048
"""Enough to fill the largest GPU; threads stride over what is left."""
_TEXT: Final = Path(__file__).with_name("kernels.ptx")


def block_count(length: int) -> int:
    """Thread blocks for a range of ``length`` bytes."""
    return min(max(1, -(-length // BYTES_PER_BLOCK)), MAXIMUM_BLOCKS)


class Kernels:
    """Launches the functions of ``kernels.ptx`` in one context."""

    def __init__(self, context: CudaContext) -> None:
        context.enter()
        self._functions: dict[str, Any] = {}
        self._modules: list[Owned] = []
        text = _TEXT.read_bytes()
        waiting = ptx.with_waits(text) if context.launches_early else None
        self.wait = waiting is not None
        """Whether they first wait for the launches that they depend on."""
        cubins = ptx.compile_image(context, waiting or text)
        for part, cubin in zip(ptx.split(text), cubins, strict=True):
            owned = context.make("cuModuleLoadData", (cubin,), "cuModuleUnload")
            self._modules.append(owned)
            module = owned.handle
            for name in ptx.signatures(part):
                self._functions[name] = context.api.call("cuModuleGetFunction", module, name.encode())
        self.copy_function = self._functions["jitree_copy"]
        """(target, source, length)"""
        self.fill_function = self._functions["jitree_fill"]
        """(target, length, pattern repeated to four bytes)"""
        self._words = array("q", bytes(32))
        first = self._words.buffer_info()[0]
        self._pointers = array("q", (first, first + 8, first + 16, first + 24))
        self._parameters: int = self._pointers.buffer_info()[0]

    def close(self) -> None:
        """Unloads the functions; nothing may run them any more."""
        self._modules.clear()

    def copy(self, stream: LaunchStream, target: int, source: int, length: int) -> None:
        """Copies between ranges that do not overlap, in one launch, whatever their alignment.

        Addresses are the device's; the caller holds the stream's lock and has flushed it.
        """
        words = self._words
        words[0], words[1], words[2] = target, source, length
        self._launch(stream, self.copy_function, length)

    def fill(
        self, stream: LaunchStream, address: int, length: int, pattern: int, pattern_length: int
    ) -> None:
        """Repeats the low bytes of ``pattern`` (1, 2 or 4) over ``length`` bytes. For the rest as
        :meth:`copy`."""
        words = self._words
        words[0], words[1], words[2] = address, length, repeated(pattern, pattern_length)
        self._launch(stream, self.fill_function, length)

    def widen(self, stream: LaunchStream, target: int, source: int, count: int, sign: int) -> None:
        """Widens ``count`` 16-bit integers to 32 bits. ``sign``: 1 for signed ones, 0 for unsigned."""
        words = self._words
        words[0], words[1], words[2], words[3] = target, source, count, sign
        self._launch(stream, self._functions["jitree_widen"], 4 * count)

    def narrow(self, stream: LaunchStream, target: int, source: int, count: int) -> None:
        """Makes ``count`` 16-bit integers of the low halves of 32-bit ones."""
        words = self._words
        words[0], words[1], words[2] = target, source, count
        self._launch(stream, self._functions["jitree_narrow"], 4 * count)

    def _launch(self, stream: LaunchStream, function: Any, length: int) -> None:
        if length:
            grid = (block_count(length), 1, 1)
            stream.api.launch_kernel(function, grid, (THREADS, 1, 1), 0, stream.handle, self._parameters)


def repeated(pattern: int, pattern_length: int) -> int:
    """A pattern of 1, 2 or 4 bytes as four."""
    factor = {1: 0x01010101, 2: 0x00010001, 4: 1}[pattern_length]
    return (pattern & (1 << 8 * pattern_length) - 1) * factor
