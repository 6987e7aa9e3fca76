"""Models of ONNX, run by onnxruntime: values of their graphs are compared with what dispatches make."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from jitree.api.calls.refusal import describe
from jitree.compare.peers.base import Peer, Show
from jitree.compare.peers.onnx_graph import outputs_of, values_of, with_outputs
from jitree.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    attribute_of,
    has_attribute,
    is_interruption,
    pass_interruption,
)

SUFFIX: Final = ".onnx"
_MOST_AT_ONCE: Final = 64
_ENOUGH: Final = 32 << 20
"""Bytes of the values that a run gives: all of them at once would keep the memory of a model from being used
again. Runs give more values until they have so many."""
_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_ONLY_ERRORS: Final = 3


class OnnxPeer(Peer):
    """The path of a model, or an ``onnxruntime.InferenceSession``. Its results are those of the model as it
    is; values come from runs with more outputs of the graph, whose operations are then not fused."""

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
