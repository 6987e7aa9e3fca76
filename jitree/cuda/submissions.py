"""What single queue operations submit: transfers between buffers, files and the host.

All are called with the stream's lock held and its context current.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitree.cuda import transfer

if TYPE_CHECKING:
    from jitree.cuda.stream import Stream
    from jitree.elements import Bytes
    from jitree.hal.buffer import Buffer
    from jitree.hal.objects import File


def reach(stream: Stream, buffer: Buffer) -> int:
    """The buffer's address for what is being submitted, which keeps memory that is not ours."""
    address = stream.device_address(buffer)
    if not stream.orders(buffer.allocation):
        stream.retain(buffer.allocation)
    return address


def is_on_host(buffer: Buffer) -> bool:
    """Whether it is ordinary memory of the host, which another device allocated."""
    return buffer.host_address is not None and not hasattr(buffer.allocation.source, "stream")


def fill(stream: Stream, target: Buffer, offset: int, length: int, pattern: int, pattern_length: int) -> None:
    stream.flush()
    if length:
        transfer.fill(stream, reach(stream, target) + offset, length, pattern, pattern_length)


def update(stream: Stream, staged: int, keeper: object, target: Buffer, offset: int, length: int) -> None:
    """``staged``: device address of the bytes, which ``keeper`` keeps until this has been submitted."""
    stream.flush()
    if length:
        transfer.copy(stream, reach(stream, target) + offset, staged, length)


def copy(
    stream: Stream, source: Buffer, source_offset: int, target: Buffer, target_offset: int, length: int
) -> None:
    """Either side may be ordinary memory of the host."""
    stream.flush()
    if not length:
        return
    if is_on_host(source):
        data = source.host_array()[source_offset : source_offset + length]
        transfer.upload(stream, reach(stream, target) + target_offset, data)
    elif is_on_host(target):
        data = target.host_array()[target_offset : target_offset + length]
        source_address = reach(stream, source) + source_offset
        stream.api.copy_to_host(data.ctypes.data, source_address, length, stream.handle)
    else:
        target_address = reach(stream, target) + target_offset
        transfer.copy(stream, target_address, reach(stream, source) + source_offset, length)


def read(stream: Stream, file: File, file_offset: int, target: Buffer, offset: int, length: int) -> None:
    stream.flush()
    transfer.read_file(stream, file, file_offset, reach(stream, target) + offset, length)


def write(stream: Stream, source: Buffer, offset: int, file: File, file_offset: int, length: int) -> None:
    stream.flush()
    transfer.write_file(stream, reach(stream, source) + offset, file, file_offset, length)


def upload(stream: Stream, target: Buffer, data: Bytes) -> None:
    stream.flush()
    transfer.upload(stream, reach(stream, target), data)


def download(stream: Stream, source: Buffer) -> Bytes:
    stream.flush()
    return transfer.download(stream, reach(stream, source), source.byte_length)
