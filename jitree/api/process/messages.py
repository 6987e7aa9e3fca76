"""Exchanges messages between a session and its child: a sealed memory file each.

It holds the length of a text of JSON, that, and the bytes of arrays, which begin at multiples of 64. The
parent makes all of these files: with what it asks goes an empty one for the answer, which the child fills
and the parent seals before it reads.

Arguments and results are rows of that text: a number or null as it is, ``[type, shape]`` for an array,
``[type]`` for a scalar of numpy, and for NaN, whose bits a number in JSON does not have.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np

from jitree.api.calls.refusal import refused
from jitree.api.calls.tensor_packing import as_array
from jitree.api.calls.transfers import native_row
from jitree.base.arguments import shown
from jitree.base.copying import PART, copy_of, ranges
from jitree.base.finalizers import OwnedDescriptor
from jitree.base.platform import mapped_file
from jitree.base.platform.files import SEALABLE, seal
from jitree.base.records import NamedTuple
from jitree.errors import DataLossError, ResourceExhaustedError, pass_interruption
from jitree.params.entry import TensorType, splat_entry
from jitree.params.provider import ParameterIndex, ParameterProvider, array_entry
from jitree.types import BY_NAME, ElementType, element_type

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

_MOST_DIMENSIONS: Final = 64
"""The most dimensions that an array of numpy has."""
_LARGEST: Final = 1 << 48
_WORD: Final = 1 << 64
"""Beyond what any number of a program can be."""


class Message(NamedTuple):
    head: dict[str, Any]
    data: memoryview
    """The bytes of the arrays; read-only."""


def aligned(size: int) -> int:
    return size + ALIGNMENT - 1 & -ALIGNMENT


@contextmanager
def new_file() -> Iterator[int]:
    """An empty one. RESOURCE_EXHAUSTED where the process may not have one more open."""
    try:
        file = OwnedDescriptor(*SEALABLE)
    except OSError as error:
        pass_interruption(error)
        raise ResourceExhaustedError(f"no file can be made for a message: {error}") from None
    with file:
        yield file.number


def send(to: socket.socket, head: dict[str, Any], parts: Sequence[memoryview | bytes], answer: int) -> None:
    """Sends a message and the file for its answer. What :func:`write` raises, and RESOURCE_EXHAUSTED where
    the system takes no file of its size; nothing is sent then."""
    with new_file() as file:
        try:
            write(file, head, parts)
            seal(file)
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


def _too_much(head: dict[str, Any], size: int) -> ResourceExhaustedError:
    """Names the largest part of a message, and the text in it."""
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
        seal(file)
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


def pack(values: Any, names: str, head: dict[str, Any]) -> list[memoryview]:
    """Describes values in the head of a message, under a name; the parts of the message. INVALID_ARGUMENT for
    what is neither an array nor a number."""
    rows: list[Any] = []
    parts: list[memoryview] = []
    for index, value in enumerate(values):
        if value is None or _is_number(value):
            rows.append(value)
            continue
        is_scalar = isinstance(value, (np.generic, float))
        array = np.asarray(value) if is_scalar else as_array(value)
        row = None if array is None else native_row(array.dtype)
        if array is None or row is None:
            raise refused(f"{names} {index}", "an array or a number", value)
        if not array.flags.c_contiguous:
            array = copy_of(array, array.dtype)
        rows.append([row.name] if is_scalar else [row.name, list(array.shape)])
        parts.append(array.reshape(-1).view(np.uint8).data)
    head[names] = rows
    return parts


def unpack(rows: Any, data: memoryview) -> list[Any]:
    """The values that a message describes: arrays over its bytes. DATA_LOSS for rows that do not describe
    it."""
    if not isinstance(rows, list):
        raise DataLossError("values that are no list")
    position, values = 0, list[Any]()
    for row in rows:
        if row is None or isinstance(row, (bool, int, float)):
            values.append(row)
            continue
        name, shape = _described(row)
        dtype = BY_NAME[name].dtype
        count = 1
        for size in shape:
            count *= size
        position = aligned(position)
        if count * dtype.itemsize > len(data) - position:
            raise DataLossError(f"an array of {count} elements that the message has no room for")
        array = np.frombuffer(data, dtype, count, position) if count else np.empty(0, dtype)
        try:
            values.append(array.reshape(shape) if len(row) > 1 else array[0])
        except ValueError as error:  # an empty one, of huge dimensions
            pass_interruption(error)
            raise DataLossError(f"an array of shape {shape}: {error}") from None
        position += count * dtype.itemsize
    return values


def pack_parameters(providers: Iterable[ParameterProvider]) -> tuple[dict[str, Any], list[memoryview]]:
    """The head and the parts of a message with the parameters of a session."""
    rows: list[Any] = []
    parts: list[memoryview] = []
    for provider in providers:
        for entry in provider.index:
            pattern = entry.pattern
            text = None if pattern is None else pattern.hex()
            rows.append([provider.scope, entry.key, entry.length, text, _tensor_row(entry.tensor)])
            if pattern is None:
                parts.append(entry.contents())
    return {"parameters": rows}, parts


def unpack_parameters(rows: Any, data: memoryview) -> tuple[ParameterProvider, ...]:
    """The parameters that the parent has sent."""
    position, indices = 0, dict[str, ParameterIndex]()
    for scope, key, length, pattern, tensor_row in rows:
        tensor = None if tensor_row is None else _tensor_of(*tensor_row)
        if pattern is not None:
            entry = splat_entry(key, bytes.fromhex(pattern), length, tensor=tensor)
        else:
            position = aligned(position)
            array = np.frombuffer(data, np.uint8, length, position) if length else np.empty(0, np.uint8)
            entry = replace(array_entry(key, array), tensor=tensor)
            position += length
        indices.setdefault(scope, ParameterIndex()).add(entry)
    return tuple(ParameterProvider(scope, index) for scope, index in indices.items())


def _tensor_row(tensor: TensorType | None) -> list[Any] | None:
    """Shape, and the number of an element type or the name of another one: programs that were compiled for
    others refuse the parameter in either process."""
    if tensor is None:
        return None
    element = tensor.element
    return [list(tensor.shape), element.code if isinstance(element, ElementType) else element]


def _tensor_of(shape: list[int], element: int | str) -> TensorType:
    return TensorType(tuple(shape), element_type(element) if isinstance(element, int) else element)


def _is_number(value: object) -> bool:
    """Whether JSON has it."""
    if isinstance(value, int):
        return -_WORD <= value < _WORD
    return isinstance(value, float) and value == value


def _described(row: Any) -> tuple[str, tuple[int, ...]]:
    if not isinstance(row, list) or len(row) not in (1, 2) or not isinstance(row[0], str):
        raise DataLossError("a value that is neither a number nor an array")
    if row[0] not in BY_NAME:
        raise DataLossError("a value of no type that there is")
    shape = row[1] if len(row) > 1 else []
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise DataLossError("an array without a shape")
    if not all(type(size) is int and 0 <= size < _LARGEST for size in shape):
        raise DataLossError("an array whose shape has other than sizes")
    return row[0], tuple(shape)
