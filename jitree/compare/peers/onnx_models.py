"""Runs ONNX models by onnxruntime, and names the values of their graphs.

Values are compared with what dispatches make. Protocol buffers are fields in a row, each a number, a kind and
a value; two parts of one message are one when they follow each other. So the file with one more part says
that the graph has more outputs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from jitree.api.calls.refusal import describe
from jitree.base.records import NamedTuple
from jitree.compare.peers import Peer, Show
from jitree.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    attribute_of,
    has_attribute,
    is_interruption,
    pass_interruption,
)

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

SUFFIX: Final = ".onnx"
_MOST_AT_ONCE: Final = 64
_ENOUGH: Final = 32 << 20
"""Bytes of the values that a run gives: all of them at once would keep the memory of a model from being used
again. Runs give more values until they have so many."""
_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_ONLY_ERRORS: Final = 3


class GraphValue(NamedTuple):
    name: str
    operation: str
    """The operation of the node that makes it."""


def values_of(model: bytes) -> list[GraphValue]:
    """What nodes of the graph make, in their order.

    INVALID_ARGUMENT for what is no such file.
    """
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


class OnnxPeer(Peer):
    """The path of a model, or an ``onnxruntime.InferenceSession``.

    Its results are those of the model as it is; values come from runs with more outputs of the graph, whose
    operations are then not fused.
    """

    def __init__(self, given: Any) -> None:
        self._session = given if has_attribute(given, "run") else None
        path = attribute_of(given, "_model_path") if self._session is not None else given
        self._path = None if path is None else Path(os.fsdecode(path))
        self._bytes: bytes | None = attribute_of(given, "_model_bytes")
        self.nothing_shown = (
            "its graph has no nodes"
            if self._path or self._bytes
            else "the session does not tell its model; give the path of the .onnx file instead"
        )

    def call(self, inputs: Sequence[Any], show: Show | None) -> Any:
        """See :meth:`Peer.call`. UNAVAILABLE without onnxruntime, INVALID_ARGUMENT for what it refuses."""
        session = self._session or self._opened(self._model())
        names = [one.name for one in session.get_inputs()]
        if len(inputs) != len(names):
            raise InvalidArgumentError(
                f"the ONNX model takes {len(names)} inputs ({', '.join(names)}) but got {len(inputs)}"
            )
        given = {name: _array(one) for name, one in zip(names, inputs, strict=True)}
        results = _run(session, None, given)
        if show is not None and (self._path or self._bytes):
            self._show(given, show)
        return results

    def _show(self, given: dict[str, Any], show: Show) -> None:
        model = self._model()
        values, outputs = values_of(model), set(outputs_of(model))
        session = self._opened(with_outputs(model, [one.name for one in values if one.name not in outputs]))
        place, count = 0, 1
        while place < len(values):
            part = values[place : place + count]
            arrays = _run(session, [one.name for one in part], given)
            size = sum(getattr(array, "nbytes", 0) for array in arrays)
            place += count
            count = min(2 * count, _MOST_AT_ONCE) if size < _ENOUGH else max(1, count // 4)
            for value in part:
                array = arrays.pop(0)
                if isinstance(array, np.ndarray):  # others are sequences and maps
                    show(f"{value.operation} {value.name}", array)

    def _model(self) -> bytes:
        if self._bytes is None:
            assert self._path is not None
            try:
                return self._path.read_bytes()
            except OSError as error:
                pass_interruption(error)
                raise NotFoundError(f"cannot read '{self._path}': {error.strerror}") from None
        return self._bytes

    def _opened(self, model: bytes) -> Any:
        try:
            import onnxruntime
        except ImportError as error:
            raise UnavailableError(f"onnxruntime cannot be imported ({error}); install it") from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ONLY_ERRORS
        if self._path is not None:
            options.add_session_config_entry(_FOLDER, str(self._path.resolve().parent))
        providers = ["CPUExecutionProvider"] if self._session is None else self._session.get_providers()
        try:
            return onnxruntime.InferenceSession(model, options, providers=providers)
        except Exception as error:
            if is_interruption(error):
                raise
            raise InvalidArgumentError(f"onnxruntime cannot load the ONNX model: {error}") from error


def is_onnx(given: Any) -> bool:
    """Whether it is the path of a model, or a session of onnxruntime."""
    if isinstance(given, (str, os.PathLike)):
        return os.fsdecode(given).endswith(SUFFIX)
    return all(has_attribute(given, name) for name in ("run", "get_inputs", "get_outputs"))


def _run(session: Any, names: Sequence[str] | None, given: dict[str, Any]) -> Any:
    try:
        return session.run(names, given)
    except Exception as error:
        if is_interruption(error):
            raise
        raise InvalidArgumentError(f"onnxruntime cannot run the ONNX model: {error}") from error


def _array(given: Any) -> np.ndarray[Any, Any]:
    for name in ("detach", "cpu"):  # PyTorch's
        if has_attribute(given, name):
            given = getattr(given, name)()
    array = np.asarray(given)
    if array.dtype.hasobject:
        raise InvalidArgumentError(f"onnxruntime takes arrays, and {describe(given)} is none")
    return array
