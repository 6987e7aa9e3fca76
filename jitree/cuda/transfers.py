"""Moves bytes between buffers, files, the host and the device.

Small ranges are moved by a kernel of ours, which starts sooner after other kernels than the copy engine does,
and to or from pinned memory, for which no thread has to wait; large ones by the driver. All functions are
called with the stream's lock held and its context current.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.cuda.kernels import SMALL_COPY
from jitree.cuda.stream_share import CudaAllocation
from jitree.errors import memory_errors
from jitree.hal.objects import File, MemoryFile
from jitree.hal.transfers import Copy, Fill, Read, Transfer, Update, Write

if TYPE_CHECKING:
    from jitree.base.elements import Bytes
    from jitree.cuda.context import PooledEvent
    from jitree.cuda.stream import Stream
    from jitree.hal.buffer import Buffer

_STAGED_LIMIT: Final = 1 << 20
"""Bytes of host memory that are copied to pinned memory first. The driver's own way with pageable memory is
as quick above, and slower below because it waits."""
_PINNED_LIMIT: Final = 64 << 20
"""Bytes of a result that is read into pinned memory, which is kept for reuse."""
_CHUNK: Final = 8 << 20
"""Bytes of a file that are moved at a time."""


def fill(stream: Stream, address: int, length: int, pattern: int, pattern_length: int) -> None:
    """Repeats the low ``pattern_length`` bytes of ``pattern``."""
    if length <= SMALL_COPY:
        stream.kernels.fill(stream, address, length, pattern, pattern_length)
    else:
        low = pattern & (1 << 8 * pattern_length) - 1
        stream.api.fill(address, length, low, pattern_length, stream.handle)


def copy(stream: Stream, target: int, source: int, length: int) -> None:
    """Between addresses of the device, pinned host memory included."""
    if length <= SMALL_COPY:
        stream.kernels.copy(stream, target, source, length)
    else:
        stream.api.copy(target, source, length, stream.handle)


def copy_from_host(stream: Stream, target: int, data: Bytes) -> None:
    """Copies from any host memory, which may be changed as soon as this returns."""
    length = len(data)
    if not length:
        return
    if length <= _STAGED_LIMIT:
        address, keeper = stream.stage(data.data)
        copy(stream, target, address, length)
        del keeper
    else:
        stream.api.copy_from_host(target, data.ctypes.data, length, stream.handle)


def copy_to_host(stream: Stream, source: int, length: int) -> Bytes:
    """Copies device memory to the host, readable once the stream is there."""
    if length <= _PINNED_LIMIT and stream.has_pinned_room:
        target = stream.pinned(length)
        if length:
            copy(stream, target.address, source, length)
        return target.host_array()
    with memory_errors(f"reading {length} bytes from the device"):
        array = np.empty(length, np.uint8)
    stream.api.copy_to_host(array.ctypes.data, source, length, stream.handle)
    return array


def read_file(stream: Stream, file: File, file_offset: int, target: int, length: int) -> None:
    """Copies from a file to the device, reading it before this returns."""
    if isinstance(file, MemoryFile):
        view = file.contents[file_offset : file_offset + length]
        copy_from_host(stream, target, np.frombuffer(view, np.uint8) if length else np.empty(0, np.uint8))
        return
    chunks = _Chunks(stream, length)
    for start in range(0, length, _CHUNK):
        size = min(_CHUNK, length - start)
        chunk = chunks.next()
        file.read_into(file_offset + start, chunk.host_view()[:size])
        stream.api.copy(target + start, chunk.address, size, stream.handle)
        chunks.submitted()
    chunks.close()


def write_file(stream: Stream, source: int, file: File, file_offset: int, length: int) -> None:
    """Copies from the device to a file; everything is done when this returns."""
    if not length:
        return
    chunk = stream.pinned(min(_CHUNK, length))
    for start in range(0, length, _CHUNK):
        size = min(_CHUNK, length - start)
        stream.api.copy(chunk.address, source + start, size, stream.handle)
        stream.api.synchronize_stream(stream.handle)
        file.write_from(chunk.host_view()[:size], file_offset + start)


class _Chunks:
    """Two pieces of pinned memory in turn: one is filled while the other is on its way to the device."""

    def __init__(self, stream: Stream, length: int) -> None:
        self._stream = stream
        self._buffers = [stream.pinned(min(_CHUNK, length)) for _ in range(1 if length <= _CHUNK else 2)]
        self._events: list[PooledEvent | None] = [None] * len(self._buffers)
        self._turn = 0

    def next(self) -> Buffer:
        """The piece whose turn it is, once the device has done with it."""
        event = self._events[self._turn]
        if event is not None:
            self._stream.api.call("cuEventSynchronize", event.handle)
        return self._buffers[self._turn]

    def submitted(self) -> None:
        """A copy from the piece has been submitted."""
        stream = self._stream
        event = self._events[self._turn]
        if event is None:
            event = self._events[self._turn] = stream.events.acquire()
        stream.api.record_event(event.handle, stream.handle)
        self._turn = (self._turn + 1) % len(self._buffers)

    def close(self) -> None:
        for event in self._events:
            if event is not None:
                event.release()


def reach(stream: Stream, buffer: Buffer) -> int:
    """Gives the buffer's address for a submission, which keeps others' memory."""
    address = stream.device_address(buffer)
    if not stream.orders(buffer.allocation):
        stream.retain(buffer.allocation)
    return address


def is_on_host(buffer: Buffer) -> bool:
    """Whether it is ordinary memory of the host, which another device allocated."""
    return buffer.host_address is not None and not isinstance(buffer.allocation, CudaAllocation)


def _fill(stream: Stream, order: Fill) -> None:
    target, offset, length, pattern, pattern_length = order
    if length:
        fill(stream, reach(stream, target) + offset, length, pattern, pattern_length)


def _update(stream: Stream, update: Update) -> None:
    target, offset, contents = update
    if contents:
        staged, keeper = stream.stage(contents)
        copy(stream, reach(stream, target) + offset, staged, len(contents))
        del keeper


def _copy(stream: Stream, order: Copy) -> None:
    """Either side may be ordinary memory of the host."""
    source, source_offset, target, target_offset, length = order
    if not length:
        return
    if is_on_host(source):
        data = source.host_array()[source_offset : source_offset + length]
        copy_from_host(stream, reach(stream, target) + target_offset, data)
    elif is_on_host(target):
        data = target.host_array()[target_offset : target_offset + length]
        source_address = reach(stream, source) + source_offset
        stream.api.copy_to_host(data.ctypes.data, source_address, length, stream.handle)
    else:
        target_address = reach(stream, target) + target_offset
        copy(stream, target_address, reach(stream, source) + source_offset, length)


def _read(stream: Stream, read: Read) -> None:
    target = reach(stream, read.target) + read.offset
    read_file(stream, read.file, read.file_offset, target, read.length)


def _write(stream: Stream, write: Write) -> None:
    source = reach(stream, write.source) + write.offset
    write_file(stream, source, write.file, write.file_offset, write.length)


_KINDS: Final[dict[type[Transfer], Callable[[Stream, Any], None]]] = {
    Fill: _fill, Update: _update, Copy: _copy, Read: _read, Write: _write
}  # fmt: skip


def submit(stream: Stream, transfer: Transfer) -> None:
    stream.flush()
    _KINDS[type(transfer)](stream, transfer)


def upload(stream: Stream, target: Buffer, data: Bytes) -> None:
    stream.flush()
    copy_from_host(stream, reach(stream, target), data)


def download(stream: Stream, source: Buffer) -> Bytes:
    stream.flush()
    return copy_to_host(stream, reach(stream, source), source.byte_length)
