"""The graph of an ONNX file, as far as its values have to be named: which nodes make which.

Protocol buffers are fields in a row, each a number, a kind and a value; two parts of one message are one when
they follow each other. So the file with one more part says that the graph has more outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError

_GRAPH: Final = 7
"""The field of a model; below those of a graph, a node and a value."""
_NODE: Final = 1
_OUTPUT: Final = 12
_NODE_OUTPUT: Final = 2
_OPERATION: Final = 4
_NAME: Final = 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_CONSTANT: Final = b"Constant"


class GraphValue(NamedTuple):
    name: str
    operation: str
    """The operation of the node that makes it."""


def values_of(model: bytes) -> list[GraphValue]:
    """What nodes of the graph make, in their order. INVALID_ARGUMENT for what is no such file."""
    found = []
    for graph in _parts(memoryview(model), _GRAPH):
        for node in _parts(graph, _NODE):
            operation = b"".join(_parts(node, _OPERATION))
            if operation != _CONSTANT:
                names = [_text(name) for name in _parts(node, _NODE_OUTPUT)]
                found += [GraphValue(name, _text(operation)) for name in names if name]
    return found


def with_outputs(model: bytes, names: Sequence[str]) -> bytes:
    """The same model, with more outputs of its graph."""
    outputs = b"".join(_field(_OUTPUT, _field(_NAME, name.encode())) for name in names)
    return model + _field(_GRAPH, outputs)


def outputs_of(model: bytes) -> list[str]:
    """Names of the outputs that it has."""
    graphs = _parts(memoryview(model), _GRAPH)
    return [
        _text(name) for graph in graphs for value in _parts(graph, _OUTPUT) for name in _parts(value, _NAME)
    ]


def _text(data: memoryview | bytes) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise _damaged() from None


def _parts(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """The values of one field."""
    place = 0
    while place < len(message):
        key, place = _number(message, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, place = _number(message, place)
            continue
        if kind == _BYTES:
            length, place = _number(message, place)
        elif kind in _SIZES:
            length = _SIZES[kind]
        else:
            raise _damaged()
        if length > len(message) - place:
            raise _damaged()
        if number == wanted and kind == _BYTES:
            yield message[place : place + length]
        place += length


def _number(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            break
        value |= (message[place] & 0x7F) << shift
        place += 1
        if message[place - 1] < 0x80:
            return value, place
    raise _damaged()


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*digits, value))


def _damaged() -> InvalidArgumentError:
    return InvalidArgumentError("the file is no ONNX model, or damaged")
