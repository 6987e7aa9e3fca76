"""Traces a PyTorch call: the tensors of its functions, with the calling modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from jitree.compare.peers import Peer, Show


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
