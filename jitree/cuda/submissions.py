"""What single queue operations submit: transfers between buffers, files and the host.

All are called with the stream's lock held and its context current.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from jitree.cuda import transfer
from jitree.cuda.allocation import CudaAllocation
from jitree.hal.transfers import Copy, Fill, Read, Transfer, Update, Write

if TYPE_CHECKING:
    from jitree.base.elements import Bytes
    from jitree.cuda.stream import Stream
    from jitree.hal.buffer import Buffer
    from jitree.hal.command_buffer import CommandBuffer


def reach(stream: Stream, buffer: Buffer) -> int:
    """The buffer's address for what is being submitted, which keeps memory that is not ours."""
    address = stream.device_address(buffer)
    if not stream.orders(buffer.allocation):
        stream.retain(buffer.allocation)
    return address


def is_on_host(buffer: Buffer) -> bool:
    """Whether it is ordinary memory of the host, which another device allocated."""
    return buffer.host_address is not None and not isinstance(buffer.allocation, CudaAllocation)


def _fill(stream: Stream, fill: Fill) -> None:
    target, offset, length, pattern, pattern_length = fill
    if length:
        transfer.fill(stream, reach(stream, target) + offset, length, pattern, pattern_length)


def _update(stream: Stream, update: Update) -> None:
    target, offset, contents = update
    if contents:
        staged, keeper = stream.stage(contents)
        transfer.copy(stream, reach(stream, target) + offset, staged, len(contents))
        del keeper


def _copy(stream: Stream, copy: Copy) -> None:
    """Either side may be ordinary memory of the host."""
    source, source_offset, target, target_offset, length = copy
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


def _read(stream: Stream, read: Read) -> None:
    target = reach(stream, read.target) + read.offset
    transfer.read_file(stream, read.file, read.file_offset, target, read.length)


def _write(stream: Stream, write: Write) -> None:
    source = reach(stream, write.source) + write.offset
    transfer.write_file(stream, source, write.file, write.file_offset, write.length)


_KINDS: Final[dict[type[Transfer], Callable[[Stream, Any], None]]] = {
    Fill: _fill, Update: _update, Copy: _copy, Read: _read, Write: _write
}  # fmt: skip


def submit(stream: Stream, transfer: Transfer) -> None:
    stream.flush()
    _KINDS[type(transfer)](stream, transfer)


def obstacle(transfer: Transfer) -> str | None:
    """Why a recording cannot repeat it."""
    if isinstance(transfer, Read | Write):
        return "a file is used"
    if isinstance(transfer, Copy) and (is_on_host(transfer.source) or is_on_host(transfer.target)):
        return "memory of the host is copied"
    return None


def record(transfer: Transfer, commands: CommandBuffer) -> None:
    """As a command, the form in which recordings take it."""
    if isinstance(transfer, Fill):
        target, offset, length, pattern, pattern_length = transfer
        commands.fill_buffer((0, target, offset, length), pattern, pattern_length)
    elif isinstance(transfer, Update):
        target, offset, contents = transfer
        commands.update_buffer(memoryview(contents), 0, (0, target, offset, len(contents)))
    elif isinstance(transfer, Copy):
        source, source_offset, target, target_offset, length = transfer
        commands.copy_buffer((0, source, source_offset, length), (0, target, target_offset, length))


def upload(stream: Stream, target: Buffer, data: Bytes) -> None:
    stream.flush()
    transfer.upload(stream, reach(stream, target), data)


def download(stream: Stream, source: Buffer) -> Bytes:
    stream.flush()
    return transfer.download(stream, reach(stream, source), source.byte_length)
