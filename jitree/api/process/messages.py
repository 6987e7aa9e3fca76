"""What goes between the process of a session and its child: for each message a sealed memory file.

It holds the length of a text of JSON, that, and the bytes of arrays, which begin at multiples of 64.
The parent makes all of these files: with what it asks goes an empty one for the answer, which the child fills
and the parent seals before it reads.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from typing import Any, Final

from jitree.base.arguments import shown
from jitree.base.copying import PART, ranges
from jitree.base.memory import mapped_file
from jitree.base.records import NamedTuple
from jitree.errors import DataLossError, ResourceExhaustedError, pass_interruption

ALIGNMENT: Final = 64
MOST: Final = 1 << 40
"""Bytes of what the parent sends."""
MOST_TEXT: Final = 4 << 20
"""Bytes of a message's JSON."""
_TITLES: Final = {
    "named": "names of arguments",
    "parameters": "names of parameters",
    "modules": "names and declarations of functions",
}
"""What users call parts of messages, where they do not have the name of the part."""
LINK: Final = "link"
"""The other of the two methods of sessions that load modules."""
_MARK: Final = b"m"
"""What goes through the socket beside files."""
_LENGTH: Final = struct.Struct("<Q")
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Message(NamedTuple):
    head: dict[str, Any]
    data: memoryview
    """The bytes of the arrays; read-only."""


def aligned(size: int) -> int:
    return size + ALIGNMENT - 1 & -ALIGNMENT


def owned(make: Callable[..., int], *arguments: object) -> FileIO:
    """What a function of the system opens, with its owner: all of it in C, so that no Ctrl-C comes before
    that, and leaves a descriptor which nothing closes."""
    return next(map(FileIO, map(make, *((argument,) for argument in arguments)), ("rb",)))


@contextmanager
def new_file() -> Iterator[int]:
    """An empty one. RESOURCE_EXHAUSTED where the process may not have one more open."""
    try:
        file = owned(os.memfd_create, "jitree-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        pass_interruption(error)
        raise ResourceExhaustedError(f"no file can be made for a message: {error}") from None
    with file:
        yield file.fileno()


def send(to: socket.socket, head: dict[str, Any], parts: Sequence[memoryview | bytes], answer: int) -> None:
    """Sends a message and the file for its answer. What :func:`write` raises, and RESOURCE_EXHAUSTED where
    the system takes no file of its size; nothing is sent then."""
    with new_file() as file:
        try:
            write(file, head, parts)
            _seal(file)
        except OSError as error:
            pass_interruption(error)
            raise ResourceExhaustedError(f"a message to the process cannot be written: {error}") from None
        socket.send_fds(to, [_MARK], [file, answer])


def write(file: int, head: dict[str, Any], parts: Sequence[memoryview | bytes]) -> None:
    """Writes a message; its ``parts`` lie one after the other, each aligned.

    RESOURCE_EXHAUSTED for more text than the other side takes, of which nothing is written."""
    text = json.dumps(head).encode()
    if len(text) > MOST_TEXT:
        raise _too_much(head, len(text))
    position = aligned(_LENGTH.size + len(text))
    _write(file, memoryview(_LENGTH.pack(len(text)) + text), 0)
    for part in parts:
        position = aligned(position)
        _write(file, memoryview(part).cast("B"), position)
        position += memoryview(part).nbytes


def _seal(file: int) -> None:
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)


def _too_much(head: dict[str, Any], size: int) -> ResourceExhaustedError:
    """Names the part of a message, and the text in it, that takes the most."""
    name = max(head, key=lambda name: len(json.dumps(head[name])))
    text = max(_texts(head[name]), key=len, default="")
    longest = f", the longest of them {shown(text)} of {len(text)} characters" if text else ""
    return ResourceExhaustedError(
        f"a message between a session and its process has {size} bytes of texts and numbers, and at most "
        f"{MOST_TEXT}; most are its {_TITLES.get(name, name)}{longest}"
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _write(file: int, data: memoryview, position: int) -> None:
    """Looks between parts whether the thread is to end what it does."""
    for part in ranges(len(data), PART):
        rest, place = data[part], position + part.start
        while rest:
            written = os.pwrite(file, rest, place)
            rest, place = rest[written:], place + written


def receive(source: socket.socket) -> tuple[Message, int] | None:
    """The next message of the parent and the file for its answer; None when the parent has ended."""
    try:
        _, files, _, _ = socket.recv_fds(source, 1, 2, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError as error:
        pass_interruption(error)
        return None
    if not files:
        return None
    file, answer = files
    try:
        return read(file, MOST), answer
    finally:
        os.close(file)


def answer(to: socket.socket, file: int, head: dict[str, Any], parts: Sequence[memoryview | bytes]) -> None:
    """Answers a message in the file that came with it. What :func:`write` raises; another answer may follow
    then."""
    write(file, head, parts)
    os.close(file)
    os.write(to.fileno(), _MARK)


def receive_answer(source: socket.socket, file: int, most: int) -> Message | None:
    """The message that the child has written to a file; None when the child has ended. DATA_LOSS for what is
    none, has more than ``most`` bytes, or may still change."""
    try:
        if source.recv(1) != _MARK:
            return None
    except ConnectionError as error:
        pass_interruption(error)
        return None
    try:
        _seal(file)
        return read(file, most)
    except (OSError, ValueError, RecursionError, ResourceExhaustedError) as error:
        pass_interruption(error)
        raise DataLossError(f"a message that cannot be read: {error}") from None


def require_text(head: dict[str, Any]) -> None:
    """DATA_LOSS for halves of characters, which JSON may name: printing such a text fails."""
    try:
        json.dumps(head, ensure_ascii=False).encode()
    except ValueError:
        raise DataLossError("a message with a text that is none") from None


def read(file: int, most: int) -> Message:
    """The message in a sealed file."""
    size = os.lseek(file, 0, os.SEEK_END)
    if not _LENGTH.size <= size <= most:
        raise DataLossError(f"a message of {size} bytes; at most {most} are expected")
    try:
        data = mapped_file(file, size)
    except OSError as error:
        pass_interruption(error)
        raise ResourceExhaustedError(f"no room for a message of {size} bytes: {error.strerror}") from None
    [length] = _LENGTH.unpack_from(data)
    if length > min(MOST_TEXT, size - _LENGTH.size):
        raise DataLossError(f"a message with a text of {length} bytes")
    head = json.loads(bytes(data[_LENGTH.size : _LENGTH.size + length]))
    if not isinstance(head, dict):
        raise DataLossError("a message that is no mapping")
    return Message(head, data[aligned(_LENGTH.size + length) :])
