"""Calls Python functions and PyTorch modules, and traces the arrays that they make.

Of a function these are what lines assign to local variables, or change, and what functions of PyTorch give.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Final

import numpy as np

from jitree.base.folding import is_of_user
from jitree.compare.lone_dispatch import LoneDispatch
from jitree.compare.peers import Peer, Show
from jitree.errors import attribute_of, has_attribute

_LIBRARIES: Final = (os.path.dirname(os.__file__), "site-packages", "dist-packages")
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
        if (has_attribute(value, "__array__") or has_attribute(value, "__dlpack__"))
        and not isinstance(value, type)
    ]


def _mark(value: Any) -> tuple[int, bytes]:
    """Another one where a variable has another array, or most of its elements have changed."""
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
    """``show`` is told of each tensor that a function of PyTorch gives on this thread, in a ``with`` block.
    ``names``: of modules, by identity; others have that of their type."""
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
    """A function of Python: shows its local variables that are arrays, and what PyTorch computes for it."""

    nothing_shown = (
        "no array is assigned to a local variable of Python, no function of PyTorch is called (give models "
        "themselves: a module of PyTorch, a session of onnxruntime or the path of its file)"
    )

    def __init__(self, callee: Callable[..., Any]) -> None:
        self._callee = callee
        self.is_memory = isinstance(attribute_of(callee, "__self__"), LoneDispatch)

    def call(self, inputs: Sequence[Any], show: Show | None) -> Any:
        """See :meth:`Peer.call`."""
        if show is None:
            return self._callee(*inputs)
        if "torch" not in sys.modules:
            return traced(lambda: self._callee(*inputs), show)
        with watched(show, {}):
            return traced(lambda: self._callee(*inputs), show)
