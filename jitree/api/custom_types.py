"""Converts values of custom functions by their annotations, and compiles those of numbers.

Numba makes machine code of a function of numbers, which bytecode calls without Python. Besides the function
there is a thunk that reads the arguments from the caller's registers and writes the results there. When the
function raises, the thunk says that nothing has happened, and the call is made again from Python, where the
exception can be raised: such functions have no other effects than their results.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.conversion import convert_exactly, has_every_value, holds, mismatch, widened
from jitree.api.calls.declaration import Parameter
from jitree.api.calls.reference_packing import ReferencePacker
from jitree.api.calls.refusal import describe
from jitree.api.calls.tensor_packing import LISTS, ArrayTransfer, ready_view
from jitree.api.calls.transfers import native_row, to_numpy
from jitree.base.arguments import is_masked, shown
from jitree.base.finalizers import guard
from jitree.errors import (
    InternalError,
    InvalidArgumentError,
    StatusError,
    UnavailableError,
    has_attribute,
    not_installed,
    pass_interruption,
)
from jitree.hal.buffer import BufferView
from jitree.hal.device import Device, home_of
from jitree.modules.hal.references import type_name
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import COMPILED_DONE
from jitree.regs.list import VmList
from jitree.regs.ref_types import RefTypes
from jitree.types import ElementType

i32 = Annotated[int, "i32"]
i64 = Annotated[int, "i64"]
f32 = Annotated[float, "f32"]
f64 = Annotated[float, "f64"]


def _describe(alias: Any, given: str) -> None:
    """Annotates a number of {bits} bits of a custom function: {kind}, or an element of a ``list``.

    It is ``{base}`` to type checkers. What does not fit is INVALID_ARGUMENT as an argument, INTERNAL as a
    result.

    >>> module = jitree.CustomModule("numbers")
    >>> @module.export
    ... def twice(x: jitree.{name}) -> jitree.{name}:
    ...     return x + x
    >>> jitree.Session("local-sync").load(module).twice({given})
    {result}
    """  # the text of each alias, which would have that of ``typing``
    base, name = typing.get_args(alias)
    kind, result = "a signed integer" if base is int else "an IEEE float", 2 * base(given)
    alias.__doc__ = inspect.cleandoc(_describe.__doc__ or "").format(
        bits=name[1:], kind=kind, base=base.__name__, name=name, given=given, result=result
    )


for _alias, _given in ((i32, "21"), (i64, "21"), (f32, "0.5"), (f64, "0.5")):
    _describe(_alias, _given)

NUMBERS: Final = {"i32": "i", "i64": "I", "f32": "f", "f64": "F"}
"""Character of each number type in calling conventions."""

_ARENA_WORDS: Final = 1 << 28
"""More than a frame can have; indices are the decoder's and checked there."""
_NUMPY_NAMES: Final = {"i": "int32", "I": "int64", "f": "float32", "F": "float64"}
_FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What conversions need to know of the context that they happen in."""

    devices: Sequence[Device]
    """Where arrays lie, new ones on the first; none if the context has no devices."""
    ref_types: RefTypes


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of arguments and results. ``nullable`` ones may be None."""

    name: str
    character: str
    """Its letter in calling conventions."""
    accepts: tuple[type, ...] = ()
    """Classes of the VM's objects; empty = any."""
    receive: Callable[[Any, Surroundings], object] | None = None
    """Makes what the function gets of the VM's object; None: it gets the object."""
    declared: str = ""
    """Reference type that results become."""
    gives: tuple[type, ...] = ()
    """Classes of results; empty = whatever can become such a reference."""
    nullable: bool = False
    element: ElementType | None = None
    """What elements of results become, if the annotation says it."""

    @property
    def is_number(self) -> bool:
        return self.character != "r"


def _first_device(surroundings: Surroundings) -> Device:
    if not surroundings.devices:
        raise InvalidArgumentError("tensors need a device, and this session has no module 'hal'")
    return surroundings.devices[0]


def _home_of(view: BufferView, surroundings: Surroundings) -> Device:
    _first_device(surroundings)
    return home_of(view.buffer, surroundings.devices)


def _receive_ndarray(view: BufferView, surroundings: Surroundings) -> object:
    array = to_numpy(view, _home_of(view, surroundings)).view()
    array.flags.writeable = False  # it may be a constant of the program, or used by others
    return array


def _receive_array(view: BufferView, surroundings: Surroundings) -> object:
    return Array(view, _home_of(view, surroundings))


_VIEW: Final = "!hal.buffer_view"
_ROWS: Final = (
    *(ValueType(name, character) for name, character in NUMBERS.items()),
    ValueType("array", "r", (BufferView,), _receive_ndarray, _VIEW),
    ValueType("device array", "r", (BufferView,), _receive_array, _VIEW),
    ValueType("buffer", "r", (VmBuffer,), None, "!vm.buffer", (VmBuffer, bytes, bytearray, memoryview)),
    ValueType("bytes", "r", (VmBuffer,), lambda value, _: bytes(value), "!vm.buffer",
              (VmBuffer, bytes, bytearray, memoryview)),
    ValueType("list", "r", (VmList,), None, "!vm.list<?>", (VmList, list, tuple)),
    ValueType("ref", "r", nullable=True),
)  # fmt: skip
_BY_NAME: Final = {row.name: row for row in _ROWS}
_BY_CLASS: Final[Mapping[object, str]] = {
    int: "i64", float: "f64", np.int32: "i32", np.int64: "i64", np.float32: "f32", np.float64: "f64",
    np.ndarray: "array", Array: "device array", VmBuffer: "buffer", bytes: "bytes", VmList: "list",
    list: "list", object: "ref", Any: "ref",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FunctionType:
    arguments: tuple[ValueType, ...]
    results: tuple[ValueType, ...]

    @property
    def cconv(self) -> str:
        arguments = "".join(item.character for item in self.arguments) or "v"
        return f"0{arguments}_{''.join(item.character for item in self.results) or 'v'}"

    @property
    def is_scalar(self) -> bool:
        return all(item.is_number for item in (*self.arguments, *self.results))


# -- from text -------------------------------------------------------------------------------------------


def parse_signature(text: str) -> FunctionType:
    """``i32, array -> f32`` or ``(i32, array?) -> (f32, buffer)``; ``?`` allows null, ``()`` is nothing.

    INVALID_ARGUMENT for unknown types.
    """
    arguments, arrow, results = text.partition("->")
    if not arrow:
        raise InvalidArgumentError(f"signature '{text}' has no `->`; expected e.g. 'i32, array -> f32'")
    return FunctionType(_parse_types(arguments, text), _parse_types(results, text))


def _parse_types(text: str, signature: str) -> tuple[ValueType, ...]:
    names = text.strip().removeprefix("(").removesuffix(")").split(",")
    return tuple(_named(name.strip(), signature) for name in names if name.strip())


def _named(name: str, signature: str) -> ValueType:
    row = _BY_NAME.get(name.removesuffix("?"))
    if row is None or (name.endswith("?") and row.is_number):
        raise InvalidArgumentError(
            f"signature '{signature}': '{name}' is no type; there are {', '.join(_BY_NAME)}, with a `?` "
            "after it, unless it is a number, if null is allowed"
        )
    return replace(row, nullable=True) if name.endswith("?") else row


# -- from annotations ------------------------------------------------------------------------------------


def signature_of(function: Callable[..., Any], skipped: int, classes: Mapping[type, str]) -> FunctionType:
    """The types that a function's annotations state, without its first ``skipped`` parameters.

    ``classes`` are reference types by Python class. INVALID_ARGUMENT, naming the parameter, for what has no
    annotation or one that is no type of the VM.
    """
    label = f"function '{function.__name__}'"
    try:
        names = {cls.__name__: cls for cls in classes}
        hints = typing.get_type_hints(function, localns=names, include_extras=True)
    except NameError as error:
        raise InvalidArgumentError(f"{label}: an annotation cannot be resolved: {error}") from None
    parameters = list(inspect.signature(function).parameters.values())[skipped:]
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InvalidArgumentError(f"{label}: parameter '{parameter.name}' is not positional")
    arguments = tuple(
        _annotated(hints.get(parameter.name), f"{label}: parameter '{parameter.name}'", classes)
        for parameter in parameters
    )
    if "return" not in hints:
        raise InvalidArgumentError(f"{label}: what it returns is not annotated; `-> None` for nothing")
    return FunctionType(arguments, _result_types(hints["return"], label, classes))


def _result_types(hint: Any, label: str, classes: Mapping[type, str]) -> tuple[ValueType, ...]:
    if hint is None or hint is type(None):
        return ()
    hints = typing.get_args(hint) if typing.get_origin(hint) is tuple else (hint,)
    return tuple(_annotated(item, f"{label}: result {index}", classes) for index, item in enumerate(hints))


def _aliased(hint: Any) -> Any:
    """The class that a hint, or an alias of one, stands for: ``NDArray`` is a ``type`` alias since NumPy 2.5.
    None for what is no class."""
    while has_attribute(hint, "__value__"):
        hint = typing.get_origin(hint.__value__) or hint.__value__
    return hint if isinstance(hint, typing.Hashable) else None


def _annotated(hint: Any, label: str, classes: Mapping[type, str]) -> ValueType:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated and arguments[1] in NUMBERS:
        return _BY_NAME[arguments[1]]
    if origin in (typing.Union, types.UnionType) and type(None) in arguments and len(arguments) == 2:
        inner = arguments[arguments[0] is type(None)]
        row = _annotated(inner, label, classes)
        if not row.is_number:
            return replace(row, nullable=True)
    if origin is list and typing.get_origin(arguments[0]) is Annotated:
        element = _annotated(arguments[0], label, classes)
        return replace(_BY_NAME["list"], declared=f"!vm.list<{element.name}>")
    if arguments and _aliased(origin) is np.ndarray:
        return replace(_BY_NAME["array"], element=_element_of(arguments[-1]))
    name = _BY_CLASS.get(_aliased(hint if origin is None else origin))
    if name is not None:
        return _BY_NAME[name]
    if isinstance(hint, type) and hint in classes:
        return ValueType(classes[hint], "r", (hint,), None, f"!{classes[hint]}", (hint,))
    given = "no annotation" if hint is None else f"annotation {shown(hint)}"
    raise InvalidArgumentError(
        f"{label} has {given}; use jitree.i32, i64, f32 or f64, np.ndarray, jitree.Array, VmBuffer, bytes, "
        "VmList, list, object, a class that the module registers, or any of those but numbers with `| None`"
    )


def _element_of(hint: Any) -> ElementType | None:
    """The element type of ``NDArray[np.float32]``; None where a class of several is stated, or none."""
    scalar = (typing.get_args(hint) or (hint,))[0]
    is_one = isinstance(scalar, type) and issubclass(scalar, np.generic) and not scalar.__subclasses__()
    return native_row(np.dtype(scalar)) if is_one else None


# -- conversions -----------------------------------------------------------------------------------------


def receive(item: ValueType, value: object, index: int, surroundings: Surroundings) -> object:
    """An argument as the function gets it. INVALID_ARGUMENT for null and objects of other types."""
    if value is None:
        if item.nullable:
            return None
        raise InvalidArgumentError(f"argument {index}: ref is null; expected {item.name}")
    if item.accepts and not isinstance(value, item.accepts):
        raise InvalidArgumentError(
            f"argument {index}: ref type mismatch; expected {item.name} but got a {type_name(value)}"
        )
    return value if item.receive is None else item.receive(value, surroundings)


def give(item: ValueType, value: object, index: int, surroundings: Surroundings) -> object:
    """A result as the VM takes it. INTERNAL for what is of another type."""
    if value is None and item.nullable:
        return None
    if value is not None and not item.gives and not item.declared:
        return value
    if value is None or (item.gives and not isinstance(value, item.gives)):
        raise _wrong_result(item, value, index)
    if isinstance(value, (BufferView, *item.accepts)) and item.element is None:
        return value
    plain = value if isinstance(value, (int, float, complex, *LISTS)) else None
    if item.declared == _VIEW:
        value = _tensor(item, value, index)
    transfer = ArrayTransfer(_first_device(surroundings), ready_view)
    packer = ReferencePacker(Parameter(f"result {index}", item.declared), transfer, surroundings.ref_types)
    try:
        if item.element is not None:
            value = _converted(item.element, value, plain, f"result {index}", surroundings)
        return packer.pack(value)
    except StatusError as error:
        raise InternalError(error.message, *error.contexts) from None


def _tensor(item: ValueType, value: object, index: int) -> object:
    if isinstance(value, (Array, BufferView)):
        return value
    if is_masked(value):
        raise _wrong_result(item, value, index)
    try:
        array = np.asarray(value)
    except ValueError as error:
        pass_interruption(error)
        array = np.asarray(None)
    if native_row(array.dtype) is None:
        raise _wrong_result(item, value, index)
    return array


def _converted(
    wanted: ElementType, value: Any, plain: object, name: str, surroundings: Surroundings
) -> object:
    """A tensor of the stated type, by the rule for arguments of calls (``docs/arrays.md``). ``plain``: the
    number or list that it was."""
    if isinstance(value, BufferView):
        value = _receive_array(value, surroundings)
    given = native_row(value.dtype)
    assert given is not None  # else it is no tensor
    if holds(wanted.code, given.code):
        return value
    if plain is not None and not isinstance(plain, np.generic):
        return convert_exactly(value, wanted.dtype, name, f"elements of {wanted.name}", plain)
    if not has_every_value(given.code, wanted.code):
        raise mismatch(name, given.code, wanted)
    return widened(np.asarray(value), wanted)


def _wrong_result(item: ValueType, value: object, index: int) -> InternalError:
    return InternalError(f"result {index}: expected {item.name} but the function returned {describe(value)}")


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
    """INVALID_ARGUMENT, with Numba's explanation, for what Numba cannot compile; UNAVAILABLE without it."""
    try:
        import numba
        from numba.core.errors import NumbaError
    except ImportError as error:
        pass_interruption(error)
        what = f"function '{function.__name__}' is to be compiled (jit=True): {not_installed(error)}"
        raise UnavailableError(f"{what}, or leave jit=True out") from None
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
    return result(*[of(each) for each in types.arguments])


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
