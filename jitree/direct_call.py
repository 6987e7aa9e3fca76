"""Calls of functions by code generated for each of them.

The first call of a function takes the general way (``Function.call_general``), which handles everything. When
the context can make direct calls (:mod:`jitree.dispatch.direct`), the function gets code of its own: tests of
the arguments, stores into registers, one entry into machine code, loads of the results. It knows arguments in
their usual form: numbers of the exact type, device arrays that were passed before, small numpy arrays of the
declared type. For any other it calls the general way, which converts, or says what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.array import Array
from jitree.declaration import Parameter, TensorType
from jitree.dispatch import direct
from jitree.dispatch.direct import DirectFrame
from jitree.dispatch.function import BytecodeFunction, register
from jitree.elements import is_packed
from jitree.errors import StatusError
from jitree.hal.buffer import BufferView
from jitree.hal.heap import HeapAllocator
from jitree.number_packing import F32_MAX, IntegerPacker, narrow_float, number_packer
from jitree.packing import TensorPacker, number_unpacker, unpack_reference
from jitree.records import NamedTuple
from jitree.regs.layout import ENTRY
from jitree.result_views import LARGE
from jitree.transfers import WRAP_MINIMUM

if TYPE_CHECKING:
    from jitree.argument_blocks import ArgumentBlocks
    from jitree.module import Function

_CACHED_SOURCES: Final = 512
_FILE: Final = "<direct call>"
_ALWAYS_NAMED: Final = frozenset(("__builtins__", "acquire", "call_general", "invoker", "owned", "release"))
"""What the code names also when no machine is ready."""
_KIND: Final = ENTRY.word("kind")
_REGISTER_BITS: Final = {"i": 32, "I": 64}


class Argument(NamedTuple):
    """Lines of code for one argument."""

    tests: list[str]
    """Before the lock is taken; they go the general way."""
    stores: list[str]
    """With the registers there."""
    trials: tuple[str, ...] = ()
    """Before that: stores that Python refuses if the number does not fit. Nothing has happened then."""
    looks: tuple[str, ...] = ()
    """With the lock held: ``machine`` becomes None if the general way must be taken. Before the lock is held,
    another thread could still donate an array that was looked at."""


class Unsuitable(Exception):
    """The function has an argument that only the general way handles."""


def install(function: Function) -> bool:
    """Gives a function code of its own, if its arguments are such that this pays. False if that has to be
    tried another time."""
    vm_function, invoker = function.vm_function, function.invoker
    if not isinstance(vm_function, BytecodeFunction) or not function.is_synchronous:
        return True
    if vm_function.convention.has_spans:
        return True
    with invoker.lock:
        if invoker.engine.entry is None or not invoker.may_prepare():
            return False
        try:
            scope, source = _Generator(function, vm_function).generate()
        except Unsuitable:
            return True
    exec(_compiled(source), scope)
    members = {"__slots__": (), "__call__": scope["call"], "__doc__": type(function).__doc__}
    function.__class__ = type(type(function).__name__, (type(function),), members)
    return True


def retire(function: Function) -> None:
    """Takes back what :func:`install` gave, with all that its code refers to. A call that is just beginning
    goes on the general way. The context must be closed."""
    call = type(function).__call__
    if call.__code__.co_filename != _FILE:
        return
    function.__class__ = type(function).__mro__[1]
    scope = call.__globals__
    scope["invoker"] = _Retired(scope["acquire"])
    for name in scope.keys() - _ALWAYS_NAMED:
        del scope[name]


class _Retired:
    """In place of an invoker: nothing is ready."""

    ready = None

    def __init__(self, acquire: Callable[[], bool]) -> None:
        self.wait_for_turn = acquire


@lru_cache(maxsize=_CACHED_SOURCES)
def _compiled(source: str) -> CodeType:
    return compile(source, _FILE, "exec")


class _Generator:
    """Source of a direct call, and the objects that it names."""

    def __init__(self, function: Function, vm_function: BytecodeFunction) -> None:
        self._function = function
        self._vm_function = vm_function
        self._invoker = function.invoker
        entry = self._invoker.engine.entry
        assert entry is not None
        frame = DirectFrame(vm_function, self._invoker, entry)
        self._invoker.settle()
        self._sets_state = frame.sets_state
        table = self._invoker.table
        self._table = table
        views = function.session.result_views
        lock = self._invoker.lock
        self._scope: dict[str, Any] = {
            "Array": Array, "BufferView": BufferView, "ndarray": np.ndarray, "new_array": Array.__new__,
            "call_general": type(function).call_general, "device": function.session.device,
            "invoker": self._invoker, "acquire": lock.acquire, "release": lock.release,
            "owned": lock._is_owned,  # type: ignore[attr-defined]
            "table": table, "entry": entry,
            "run": frame.run, "host": frame.host, "state": frame.state,
            "frame_words": frame.frame_words, "state_words": frame.state_words,
            "place": direct.STATE_ENTRY, "i32": frame.i32, "i64": frame.i64, "f32": frame.f32,
            "f64": frame.f64, "refs": frame.refs, "entries": table.i32, "vm_function": vm_function,
            "deferred": table.deferred, "views": views, "gone": () if views is None else views.gone,
            "give_back": table.deferred.append if views is None else views.give_back,
            "give_back_large": table.deferred.append if views is None else views.give_back_large,
            "StatusError": StatusError, "take_reference": self._take_reference,
        }  # fmt: skip

    def generate(self) -> tuple[dict[str, Any], str]:
        """(globals, source)"""
        signature, convention = self._function.signature, self._vm_function.convention
        arguments = [
            self._argument(index, parameter, str(item), slot[1])
            for index, (parameter, item, slot) in enumerate(
                zip(signature.arguments, convention.arguments, self._vm_function.argument_slots, strict=True)
            )
        ]
        results = [
            self._result(index, parameter, character, slot[1])
            for index, (parameter, character, slot) in enumerate(
                zip(signature.results, convention.results, self._vm_function.result_slots, strict=True)
            )
        ]
        names = [f"a{index}" for index in range(len(arguments))]
        values = [f"r{index}" for index in range(len(results))]
        returned = values[0] if len(values) == 1 else f"({', '.join(values)})" if values else "None"
        lines = [
            "def call(self, *arguments, **named):",
            f"    if named or len(arguments) != {len(arguments)}:",
            "        return call_general(self, arguments, named)",
            *([f"    {', '.join(names)}, = arguments"] if names else []),
            *_indented(1, [line for argument in arguments for line in argument.tests]),
            "    held = machine = None",
            "    try:",
            "        held = acquire(False) or invoker.wait_for_turn()",
            "        machine = invoker.ready",
            *_indented(2, _looks(arguments)),
            *_indented(2, _trials(arguments)),
            "        if machine is not None:",
            "            invoker.ready = None",
            "            invoker.nesting = 1",
            *_indented(3, self._body(arguments, results)),
            "    except BaseException as error:",
            "        if machine is not None:",
            "            invoker.abandon(error, machine, vm_function)",
            "            if isinstance(error, StatusError):",
            "                error.with_context(f'`{self.declaration}`')",
            "        raise",
            "    finally:",
            "        if held or owned():",
            "            release()",
            "    if machine is None:",
            "        return call_general(self, arguments, named)",
            f"    return {returned}",
        ]
        return self._scope, "\n".join(lines)

    def _body(self, arguments: list[Argument], results: list[list[str]]) -> list[str]:
        """What happens with the lock held. It is taken and given back by its methods, which takes half as
        long as ``with``; Ctrl-C after it was taken and before ``held`` was set leaves it ``owned``."""
        return [
            "if machine.host is not host:",
            "    machine.show_host(host, frame_words)",
            "if gone:",
            f"    views.sweep(state, {len(results) + 3})",
            *(line for argument in arguments for line in argument.stores),
            *([] if self._sets_state else ["state[place] = state_words"]),
            f"machine.pc = {direct.RUNNING}",
            "if run():",
            "    invoker.carry_on(machine, entry)",
            *(line for result in results for line in result),
            f"if state[{direct.RELEASED}]:",
            "    table.drain(state)",
            "if invoker.shortcomings:",
            "    invoker.require_faultless()",
            "invoker.nesting = 0",
            "invoker.ready = machine",
        ]

    # -- arguments -----------------------------------------------------------------------------------

    def _argument(self, index: int, parameter: Parameter, character: str, slot: int) -> Argument:
        name = f"a{index}"
        target = register(character, slot)
        if character == "r":
            return self._array(index, parameter, target)
        if character in _REGISTER_BITS:
            packer = number_packer(parameter, character)
            if not isinstance(packer, IntegerPacker):
                raise Unsuitable
            low, high = packer.unchanged
            bits = _REGISTER_BITS[character]
            if (low, high) == (-(1 << bits - 1), (1 << bits - 1) - 1):
                return Argument(_general_if(f"{name}.__class__ is not int"), [], (f"{target} = {name}",))
            test = f"{name}.__class__ is not int or not {low} <= {name} <= {high}"
        elif character == "F":
            test = f"{name}.__class__ is not float"
        else:
            if narrow_float(parameter.type) is not None:
                raise Unsuitable
            test = f"{name}.__class__ is not float or not {-F32_MAX!r} <= {name} <= {F32_MAX!r}"
        return Argument(_general_if(test), [f"{target} = {name}"])

    def _array(self, index: int, parameter: Parameter, target: str) -> Argument:
        """A device array that this type of parameter took before, or a small numpy array."""
        tensor = parameter.tensor
        if tensor is None or parameter.consumed:
            raise Unsuitable
        name, marker, pools, pool = f"a{index}", f"t{index}", f"pools{index}", f"p{index}"
        accepted = _Acceptance(self._function, parameter.name, tensor)
        self._scope[marker] = accepted.marker
        self._scope[f"accept{index}"] = accepted.accept
        row = tensor.element_type
        on_host = isinstance(self._function.session.device_allocator, HeapAllocator)
        looks = [
            f"if {name}.__class__ is Array:",
            f"    {pool} = None",
            f"    if {name}._passed_as is not {marker} and not accept{index}({name}):",
            "        machine = None",
        ]
        if row is not None and on_host and not is_packed(row):
            self._scope[pools] = _Pools(self._function, tensor)
            self._scope[f"d{index}"] = row.dtype
            looks += [
                f"elif {name}.__class__ is ndarray and {name}.dtype is d{index}:",
                f"    {pool} = {pools}[{name}.shape]",
                f"    if {pool} is None:",
                "        machine = None",
            ]
        looks += ["else:", "    machine = None"]
        stores = [
            f"if {pool} is None:",
            f"    entries[{name}._count] += 1",
            f"    {target} = {name}._handle",
            "else:",
            f"    block = {pool}.take()",
            f"    block.elements[...] = {name}",
            "    entries[block.count] += 1",
            f"    {target} = block.handle",
        ]
        return Argument([], stores, looks=tuple(looks))

    # -- results -------------------------------------------------------------------------------------

    def _result(self, index: int, parameter: Parameter, character: str, slot: int) -> list[str]:
        source, name = register(character, slot), f"r{index}"
        if character != "r":
            return self._number(index, parameter, name, source)
        view_kind = self._table.ref_types.lookup("hal.buffer_view")
        return [
            f"h = {source}",
            f"{source} = 0",
            f"if h and entries[(h - {self._table.base} >> 2) + {_KIND}] == {view_kind}:",
            f"    {name} = new_array(Array)",
            f"    {name}._fence = {name}._view = {name}._array = {name}._passed_as = {name}._place = None",
            f"    {name}._device = device",
            f"    {name}._views = views",
            f"    {name}._give_back = give_back{'_large' if _may_be_large(parameter) else ''}",
            f"    {name}._handle = h",
            f"    {name}._table = table",
            "else:",
            f"    {name} = take_reference(h)",
        ]

    def _number(self, index: int, parameter: Parameter, name: str, source: str) -> list[str]:
        unpack = number_unpacker(parameter.type)
        if unpack is None:
            return [f"{name} = {source}"]
        self._scope[f"unpack{index}"] = unpack
        return [f"{name} = unpack{index}({source}, device, None)"]

    def _take_reference(self, handle: int) -> Any:
        """A result that is no buffer view."""
        value = self._table.object(handle)
        result = unpack_reference(value, self._function.session.device, None)
        self._table.release(handle)
        return result


def _may_be_large(parameter: Parameter) -> bool:
    tensor = parameter.tensor
    if tensor is None or tensor.element_type is None or None in tensor.shape:
        return True
    return tensor.element_type.byte_length(math.prod(size or 0 for size in tensor.shape)) >= LARGE


def _looks(arguments: list[Argument]) -> list[str]:
    lines = [line for argument in arguments for line in argument.looks]
    return [
        "if machine is not None:",
        "    if deferred:",
        "        table.drain_deferred()",
        *_indented(1, lines),
    ]


def _trials(arguments: list[Argument]) -> list[str]:
    lines = [line for argument in arguments for line in argument.trials]
    if not lines:
        return []
    return [
        "if machine is not None:",
        "    try:",
        *_indented(2, lines),
        "    except ValueError:",
        "        machine = None",
    ]


def _general_if(condition: str) -> list[str]:
    return [f"if {condition}:", "    return call_general(self, arguments, named)"]


def _indented(depth: int, lines: list[str]) -> list[str]:
    return [f"{'    ' * depth}{line}" for line in lines]


class _Acceptance:
    """Whether device arrays fit a parameter as they are."""

    def __init__(self, function: Function, name: str, tensor: TensorType) -> None:
        self._packer = TensorPacker(name, tensor, function.transfer())
        self._tensor = tensor
        self._code = -1 if tensor.element_type is None else tensor.element_type.code
        self._invoker = function.invoker
        self.marker = function.session.tensor_marker(tensor)
        """What stands for the declared type in the session: arrays remember it when they are accepted."""

    def accept(self, array: Array) -> bool:
        """Gives the array a handle if need be. False: the general way must look at it."""
        if array.fence is not None:
            return False
        if not array.matches(self._code, self._tensor.shape):
            try:
                self._packer.check(array.view)
            except StatusError:
                return False
        with self._invoker.lock:
            if self._invoker.closed or not array.hold_in(self._invoker.table):
                return False
        array._passed_as = self.marker
        return True


class _Pools(dict[tuple[int, ...], "ArgumentBlocks | None"]):
    """Blocks for numpy arguments of one parameter by shape; None for shapes that the general way handles."""

    MAXIMUM: Final = 64
    """Shapes that are remembered."""

    def __init__(self, function: Function, tensor: TensorType) -> None:
        super().__init__()
        self._pool: Callable[..., ArgumentBlocks] = function.session.argument_blocks
        self._tensor = tensor

    def __missing__(self, shape: tuple[int, ...]) -> ArgumentBlocks | None:
        if len(self) >= self.MAXIMUM:
            self.clear()
        row, declared = self._tensor
        assert row is not None
        fits = len(shape) == len(declared) and all(
            size is None or size == given for size, given in zip(declared, shape, strict=True)
        )
        size = row.byte_length(int(np.prod(shape, dtype=np.int64)))
        self[shape] = pool = self._pool(row, shape) if fits and size < WRAP_MINIMUM else None
        return pool
