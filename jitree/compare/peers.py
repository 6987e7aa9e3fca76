"""Runs what programs are compared with: Python functions, PyTorch and ONNX models."""

from __future__ import annotations

import abc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree import errors
from jitree.api.calls.refusal import describe
from jitree.base.folding import is_of_user
from jitree.base.records import NamedTuple
from jitree.compare.lone_dispatch import LoneDispatch

if TYPE_CHECKING:
    from typing import Self

Show = Callable[[str, Any], None]
"""Is told of the name of a value and the value, in the order of the computation."""


class Peer(abc.ABC):
    """No program: its results are compared, and what it shows between."""

    nothing_shown: str = ""
    """Why it shows nothing, where it does not."""
    is_memory: bool = False
    """Whether results are the memory of a dispatch. A build may put the elements there in another order."""

    @abc.abstractmethod
    def call(self, inputs: Sequence[Any], show: Show | None) -> Any:
        """Results of a call.

        With ``show`` it is told of what the call computes on the way.
        """

    @contextmanager
    def open(self) -> Iterator[Self]:
        """As sides that are programs."""
        yield self


_LIBRARIES: Final = (*map(os.path.dirname, (os.__file__, np.__file__)), "site-packages", "dist-packages")
"""Parts of paths. numpy, which fills arrays in Python, may lie in any folder (``pip install --target``)."""
_SAMPLES: Final = 64

Trace = Callable[[FrameType, str, Any], Any]


def traced(work: Callable[[], Any], show: Callable[[str, Any], None]) -> Any:
    """Does the work; ``show`` is told of arrays of functions that are the user's, with their lines. What
    traces this thread (debuggers, coverage) rests meanwhile."""

    def enters(frame: FrameType, event: str, argument: Any) -> Trace | None:
        file = frame.f_code.co_filename
        if event != "call" or not is_of_user(file) or any(part in file for part in _LIBRARIES):
            return None
        return _TracedFunction(frame, show).goes_on

    outer = sys.gettrace()
    sys.settrace(enters)
    try:
        return work()
    finally:
        sys.settrace(outer)


class _TracedFunction:
    """One call of a function: which arrays its variables had when they were looked at last."""

    def __init__(self, frame: FrameType, show: Callable[[str, Any], None]) -> None:
        self._show = show
        self._line = frame.f_lineno
        self._known = {name: _mark(value) for name, value in _arrays(frame)}

    def goes_on(self, frame: FrameType, event: str, argument: Any) -> Trace:
        """A line is about to begin, or the function returns: the line before has done its work."""
        code = frame.f_code
        for name, value in _arrays(frame):
            mark = _mark(value)
            if self._known.get(name) != mark:
                self._known[name] = mark
                self._show(f"{name} ({code.co_filename}:{self._line} in {code.co_qualname})", value)
        self._line = frame.f_lineno
        return self.goes_on


def _arrays(frame: FrameType) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in frame.f_locals.items()
        if (errors.has_attribute(value, "__array__") or errors.has_attribute(value, "__dlpack__"))
        and not isinstance(value, type)
    ]


def _mark(value: Any) -> tuple[int, bytes]:
    """Changes the mark where a variable has another array, or most elements have changed."""
    if not isinstance(value, np.ndarray) or value.dtype.hasobject or not value.size:
        return id(value), b""
    step = max(1, value.size // _SAMPLES)
    return id(value), value.flat[::step].tobytes()


class TorchPeer(Peer):
    """A ``torch.nn.Module``; numpy arrays are given to it as tensors."""

    nothing_shown = "it calls no functions of PyTorch from Python"

    def __init__(self, module: Any) -> None:
        self._module = module

    def call(self, inputs: Sequence[Any], show: Show | None) -> Any:
        """See :meth:`Peer.call`."""
        import torch

        tensors = [torch.from_numpy(np.array(one)) if isinstance(one, np.ndarray) else one for one in inputs]
        with torch.no_grad():
            if show is None:
                return self._module(*tensors)
            names = {id(one): name for name, one in self._module.named_modules()}
            with watched(show, names):
                return self._module(*tensors)


def is_module(value: Any) -> bool:
    """Whether it is a module of PyTorch, which is not imported for it."""
    return any(
        one.__module__ == "torch.nn.modules.module" and one.__name__ == "Module"
        for one in type(value).__mro__
    )


def _uncompiled() -> AbstractContextManager[Any]:
    """What ``torch.compile`` makes shows nothing; PyTorch from 2.6 on calls what it was made from."""
    from torch import compiler

    return compiler.set_stance("force_eager") if hasattr(compiler, "set_stance") else nullcontext()


@contextmanager
def watched(show: Show, names: Mapping[int, str]) -> Iterator[None]:
    """Tells ``show`` of each tensor that PyTorch gives on this thread, in a block. ``names``: of modules, by
    identity; others have that of their type."""
    from torch import Tensor
    from torch.nn.modules import module as modules
    from torch.overrides import TorchFunctionMode

    entered: list[str] = []

    class Watching(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = function(*args, **(kwargs or {}))
            place = f" in {entered[-1]}" if entered else ""
            for one in given if isinstance(given, (tuple, list)) else (given,):
                if isinstance(one, Tensor):
                    show(f"{getattr(function, '__name__', function)}{place}", one)
            return given

    def enters(module: Any, arguments: Any) -> None:
        entered.append(names.get(id(module)) or type(module).__name__)

    def leaves(module: Any, arguments: Any, given: Any) -> None:
        entered.pop()

    hooks = [
        modules.register_module_forward_pre_hook(enters),
        modules.register_module_forward_hook(leaves, always_call=True),
    ]
    try:
        with _uncompiled(), Watching():
            yield
    finally:
        for hook in hooks:
            hook.remove()


class CallablePeer(Peer):
    """Compares with a function of Python. It shows its local variables that are arrays, and what PyTorch
    computes for it."""

    nothing_shown = (
        "no array is assigned to a local variable of Python, no function of PyTorch is called (give models "
        "themselves: a module of PyTorch, a session of onnxruntime or the path of its file)"
    )

    def __init__(self, callee: Callable[..., Any]) -> None:
        self._callee = callee
        self.is_memory = isinstance(errors.attribute_of(callee, "__self__"), LoneDispatch)

    def call(self, inputs: Sequence[Any], show: Show | None) -> Any:
        """See :meth:`Peer.call`."""
        if show is None:
            return self._callee(*inputs)
        if "torch" not in sys.modules:
            return traced(lambda: self._callee(*inputs), show)
        with watched(show, {}):
            return traced(lambda: self._callee(*inputs), show)


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


def _damaged() -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError("the file is no ONNX model, or damaged")


class OnnxPeer(Peer):
    """The path of a model, or an ``onnxruntime.InferenceSession``.

    Its results are those of the model as it is; values come from runs with more outputs of the graph, whose
    operations are then not fused.
    """

    def __init__(self, given: Any) -> None:
        self._session = given if errors.has_attribute(given, "run") else None
        path = errors.attribute_of(given, "_model_path") if self._session is not None else given
        self._path = None if path is None else Path(os.fsdecode(path))
        self._bytes: bytes | None = errors.attribute_of(given, "_model_bytes")
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
            raise errors.InvalidArgumentError(
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
                errors.pass_interruption(error)
                raise errors.NotFoundError(f"cannot read '{self._path}': {error.strerror}") from None
        return self._bytes

    def _opened(self, model: bytes) -> Any:
        try:
            import onnxruntime
        except ImportError as error:
            raise errors.UnavailableError(f"onnxruntime cannot be imported ({error}); install it") from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ONLY_ERRORS
        if self._path is not None:
            options.add_session_config_entry(_FOLDER, str(self._path.resolve().parent))
        providers = ["CPUExecutionProvider"] if self._session is None else self._session.get_providers()
        try:
            return onnxruntime.InferenceSession(model, options, providers=providers)
        except Exception as error:
            if errors.is_interruption(error):
                raise
            raise errors.InvalidArgumentError(f"onnxruntime cannot load the ONNX model: {error}") from error


def is_onnx(given: Any) -> bool:
    """Whether it is the path of a model, or a session of onnxruntime."""
    if isinstance(given, (str, os.PathLike)):
        return os.fsdecode(given).endswith(SUFFIX)
    return all(errors.has_attribute(given, name) for name in ("run", "get_inputs", "get_outputs"))


def _run(session: Any, names: Sequence[str] | None, given: dict[str, Any]) -> Any:
    try:
        return session.run(names, given)
    except Exception as error:
        if errors.is_interruption(error):
            raise
        raise errors.InvalidArgumentError(f"onnxruntime cannot run the ONNX model: {error}") from error


def _array(given: Any) -> np.ndarray[Any, Any]:
    for name in ("detach", "cpu"):  # PyTorch's
        if errors.has_attribute(given, name):
            given = getattr(given, name)()
    array = np.asarray(given)
    if array.dtype.hasobject:
        raise errors.InvalidArgumentError(f"onnxruntime takes arrays, and {describe(given)} is none")
    return array
