"""Custom functions of numbers, compiled by Numba: machine code that bytecode calls without Python.

Besides the function itself there is a thunk that reads the arguments from the caller's registers and writes
the results there. When the function raises, the thunk says that nothing has happened, and the call is made
again from Python, where the exception can be raised: such functions have no other effects than their results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jitree.api.custom_types import FunctionType, ValueType
from jitree.base.endings import guard
from jitree.errors import InvalidArgumentError
from jitree.regs.layout import COMPILED_DONE

_ARENA_WORDS: Final = 1 << 28
"""More than a frame can have; indices are the decoder's and checked there."""
_NUMPY_NAMES: Final = {"i": "int32", "I": "int64", "f": "float32", "F": "float64"}
_FAILED: Final = 1
assert COMPILED_DONE == 0


class CompiledFunction:
    """Compiled when first needed, since importing Numba takes half a second."""

    def __init__(self, function: Callable[..., Any], types: FunctionType) -> None:
        """``types`` are numbers only."""
        self._function = function
        self._types = types
        self._lock = guard()
        self._dispatcher: Any = None
        self._thunk: Any = None

    def call(self, state: object, *arguments: object) -> object:
        """The compiled function called from Python."""
        return self.dispatcher(*arguments)

    @property
    def dispatcher(self) -> Any:
        with self._lock:
            if self._dispatcher is None:
                self._dispatcher = _compile(self._function, self._types)
            return self._dispatcher

    def address(self) -> int:
        """The address of the thunk; see ``jitree.regs.layout.COMPILED_DONE``."""
        dispatcher = self.dispatcher
        with self._lock:
            if self._thunk is None:
                self._thunk = _compile_thunk(dispatcher, self._types)
            address: int = self._thunk.address
            return address


def _compile(function: Callable[..., Any], types: FunctionType) -> Any:
    """INVALID_ARGUMENT, with Numba's explanation, for what Numba cannot compile."""
    import numba
    from numba.core.errors import NumbaError

    try:
        return numba.njit(_signature(types), nogil=True)(function)
    except NumbaError as error:
        raise InvalidArgumentError(
            f"function '{function.__name__}' cannot be compiled by Numba: {error}"
        ) from error


def _signature(types: FunctionType) -> Any:
    import numba

    def of(item: ValueType) -> Any:
        return getattr(numba.types, _NUMPY_NAMES[item.character])

    results = [of(item) for item in types.results]
    if len(results) > 1:
        result = numba.types.Tuple(results)
    else:
        result = results[0] if results else numba.types.void
    return result(*map(of, types.arguments))


def _compile_thunk(dispatcher: Any, types: FunctionType) -> Any:
    import numba
    import numpy as np

    scope: dict[str, Any] = {"function": dispatcher, "carray": numba.carray, "np": np}
    exec(compile(thunk_source(types), "<thunk of a custom function>", "exec"), scope)
    kinds = numba.types
    pointer = kinds.voidptr
    return numba.cfunc(kinds.int32(pointer, pointer, pointer, kinds.CPointer(kinds.int32)))(scope["thunk"])


def thunk_source(types: FunctionType) -> str:
    """The thunk in Python: registers are the odd words, those of 64-bit kinds are even and count halves."""
    lines = ["def thunk(state, values, refs, words):"]
    for character in sorted({item.character for item in (*types.arguments, *types.results)}):
        name = _NUMPY_NAMES[character]
        lines.append(f"    {name} = carray(values, ({_ARENA_WORDS},), np.{name})")
    arguments = [_register(item, index) for index, item in enumerate(types.arguments)]
    first = len(arguments)
    targets = [_register(item, first + index) for index, item in enumerate(types.results)]
    lines += [
        "    try:",
        f"        result = function({', '.join(arguments)})",
        "    except Exception:",
        f"        return {_FAILED}",
    ]
    for index, target in enumerate(targets):
        lines.append(f"    {target} = {'result' if len(targets) == 1 else f'result[{index}]'}")
    return "\n".join([*lines, f"    return {COMPILED_DONE}"])


def _register(item: ValueType, position: int) -> str:
    halves = " >> 1" if item.character in "IF" else ""
    return f"{_NUMPY_NAMES[item.character]}[words[{2 * position + 1}]{halves}]"
