"""Reads the requests of a program, and finds the provider of their scope.

Finds which kernels bind a parameter, and as what its caller gets it.

Followed from where a parameter is loaded through registers, lists and globals to the dispatches and views of
it. What may be in a register is a set of values; of what cannot be followed (a parameter that is passed on;
one of a call whose tables are not constants) nothing is said. A parameter that is copied is shown by the
views of the very bytes, by offset and length, that it is copied to; without such views nothing is said of it.
"""

from __future__ import annotations

import itertools
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

from jitree.base.cancel_scopes import require_going_on
from jitree.base.copying import PROGRESS, ranges
from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError, NotFoundError, OutOfRangeError
from jitree.hal.allocator import HostMemory
from jitree.regs.buffer import VmBuffer
from jitree.types import ElementType
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.instructions import (
    IMPORT_BIT,
    MOVE_BIT,
    REF_BIT,
    InstructionRecord,
    Moves,
    read_instructions,
)

NAME: Final = struct.Struct("<II")
"""offset and length of a key in the key data"""
SPAN: Final = struct.Struct("<QQQ")
"""parameter offset, buffer offset, length"""
_TOGETHER: Final = 256
_REQUEST: Final = 2048
"""Bytes that the host has of a request, with what it submits for it."""
_FEW: Final = 64
"""So many requests at once are not counted."""

Tables = tuple[VmBuffer | None, VmBuffer, VmBuffer, VmBuffer]
"""Name of a scope, table of keys, the keys, spans."""


class Elements(Protocol):
    """What an archive says about the elements of a parameter; as text ``4x2xf32``."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def element(self) -> ElementType | str:
        """A name where it is no element type of programs."""


class StoredParameter(Protocol):
    """Bytes under a key: a pattern repeated, or contents that the host can address."""

    @property
    def key(self) -> str: ...

    @property
    def length(self) -> int: ...

    @property
    def pattern(self) -> bytes | None:
        """1, 2, 4, 8 or 16 bytes that are repeated; None for a parameter with contents."""

    @property
    def tensor(self) -> Elements | None:
        """None where the archive does not say."""

    @property
    def writable(self) -> bool: ...

    def contents(self) -> memoryview: ...


class ScopeProvider(Protocol):
    """The parameters of one scope."""

    @property
    def scope(self) -> str: ...

    def get(self, key: str) -> StoredParameter:
        """NOT_FOUND naming scope and key, and what was searched."""


def find_provider(providers: Sequence[ScopeProvider], scope: str) -> ScopeProvider:
    """The first provider of exactly that scope.

    NOT_FOUND with the scopes that there are; without any, with the way to name one.
    """
    for provider in providers:
        if provider.scope == scope:
            return provider
    known = ", ".join(_scope_text(provider.scope) for provider in providers)
    example = f"{scope}=weights.irpa" if scope else "weights.irpa"
    there = f"there are: {known}" if known else "there are none at all"
    raise NotFoundError(
        f"no provider of parameters for scope {_scope_text(scope)}; {there}. "
        f'Name an archive for it: --parameters={example}, Session(parameters=["{example}"])'
    )


def _scope_text(scope: str) -> str:
    return f"'{scope}'" if scope else "<global>"


class ParameterRequest(NamedTuple):
    """Bytes of a parameter and where in the program's buffer they belong."""

    parameter: StoredParameter
    parameter_offset: int
    buffer_offset: int
    length: int


def resolve(providers: Sequence[ScopeProvider], tables: Tables, memory: HostMemory) -> list[ParameterRequest]:
    """One request for each span; ``memory`` counts what the host has of them.

    INVALID_ARGUMENT for tables of wrong size, OUT_OF_RANGE for keys outside the key data and for ranges that
    a parameter does not have, NOT_FOUND for scopes and keys.
    """
    name = scope_name(tables)
    provider = find_provider(providers, name)
    requests = list[ParameterRequest]()
    for key, (parameter_offset, buffer_offset, length) in _rows(*tables[1:]):
        parameter = provider.get(key)
        if parameter_offset + length > parameter.length:
            raise OutOfRangeError(
                f"parameter '{name}::{key}': the program asks for bytes {parameter_offset} to "
                f"{parameter_offset + length}, and the parameter has {described(parameter)}"
            )
        requests.append(ParameterRequest(parameter, parameter_offset, buffer_offset, length))
        if len(requests) >= _FEW:
            memory.reach(_REQUEST * len(requests))
    return requests


def in_turn(requests: Sequence[ParameterRequest]) -> Iterator[ParameterRequest]:
    """Each of them; looks now and then whether the thread is to end."""
    for part in ranges(len(requests), _TOGETHER):
        yield from requests[part]


def told_in_turn(requests: Sequence[ParameterRequest]) -> Iterator[ParameterRequest]:
    """As :func:`in_turn`, and reports how far it has come."""
    told = sys.modules.get(PROGRESS)
    if told is None:
        yield from in_turn(requests)
        return
    done, total = 0, sum(request.length for request in requests)
    for request in in_turn(requests):
        yield request
        done += request.length
        told.report("loading parameters", done, total, "bytes")


def scope_name(tables: Tables) -> str:
    scope = tables[0]
    return "" if scope is None else _text(scope.view)


def described(parameter: StoredParameter) -> str:
    """``32 bytes (4xf64)``"""
    return f"{parameter.length} bytes" + ("" if parameter.tensor is None else f" ({parameter.tensor})")


def _rows(
    key_table: VmBuffer, key_data: VmBuffer, spans: VmBuffer
) -> Iterator[tuple[str, tuple[int, int, int]]]:
    if len(spans) % SPAN.size:
        raise InvalidArgumentError(
            f"a table of spans has {len(spans)} bytes; it must be a multiple of {SPAN.size}"
        )
    count = len(spans) // SPAN.size
    if len(key_table) < count * NAME.size:
        raise InvalidArgumentError(
            f"a key table of {len(key_table)} bytes for {count} parameters; it needs {count * NAME.size}"
        )
    for index in (index for part in ranges(count, _TOGETHER) for index in range(part.start, part.stop)):
        offset, length = NAME.unpack_from(key_table.view, index * NAME.size)
        if offset + length > len(key_data):
            raise OutOfRangeError(
                f"key {index} is bytes {offset} to {offset + length} of key data that has {len(key_data)}"
            )
        yield (
            _text(key_data.view[offset : offset + length]),
            SPAN.unpack_from(spans.view, index * SPAN.size),
        )


def _text(view: memoryview) -> str:
    return str(view, "utf-8", "backslashreplace")


Parameter = tuple[str, str]
"""scope and key"""
_Value = tuple[str, Any]
_Values = frozenset[_Value]
_State = dict[int, _Values]
_Range = tuple[Any, ...]
"""offset and length of bytes"""
T = TypeVar("T")

_OTHER: Final[_Values] = frozenset({("other", None)})
_U32: Final = 0xFFFFFFFF
_HARMLESS: Final = frozenset({"cmp.eq.ref", "cmp.ne.ref", "cmp.nz.ref", "discard.refs"})
_NUMBERS: Final = frozenset({"const.i32", "const.i32.zero", "const.i64", "const.i64.zero"})
_NOT_FOLLOWED: Final = frozenset({"global.load.indirect.ref", "cond_break", "break", "yield"})
_SHOW: Final = frozenset({"hal.buffer_view.create", "hal_inline.buffer_view.create"})
_COPIES: Final = {
    ("hal.command_buffer.copy_buffer", 6): 4,
    ("hal.command_buffer.copy_buffer", 8): 6,
    ("hal.command_buffer.copy_buffer", 9): 6,
    ("hal.device.queue.copy", 10): 7,
}
"""Where the target's offset and the length are, by name and number of arguments."""
_MOST_BYTES: Final = 4 << 20
"""The most bytecode that is read: more of it takes too long in Python."""


class NotFollowedError(Exception):
    """Nothing can be said of the module."""


class ParameterUses:
    """Lists how programs use parameters. ``kernels`` has the parameters that only kernels use, with the names
    of these, ``shown`` those that no kernel uses, with the numbers of the element types of their views; all
    uses are known. ``copied`` has those whose bytes are somewhere else, too, where kernels may read them."""

    def __init__(self, modules: Iterable[BytecodeModule]) -> None:
        uses = [_ModuleUses(module) for module in modules]
        hidden = {parameter for row in uses for parameter in row.hidden}
        kernels = _united((row.kernels for row in uses), hidden)
        shown = _united((row.shown() for row in uses), hidden)
        self.kernels = {parameter: names for parameter, names in kernels.items() if parameter not in shown}
        self.shown = {
            parameter: {element for element in types if element is not None}
            for parameter, types in shown.items()
            if parameter not in kernels and None not in types
        }
        self.copied = {parameter for row in uses for parameter in row.copied}


def _united(rows: Iterable[dict[Parameter, set[T]]], hidden: set[Parameter]) -> dict[Parameter, set[T]]:
    found: dict[Parameter, set[T]] = {}
    for row in rows:
        for parameter, values in row.items():
            if parameter not in hidden:
                found.setdefault(parameter, set()).update(values)
    return found


class _ModuleUses:
    def __init__(self, module: BytecodeModule) -> None:
        self.kernels: dict[Parameter, set[str]] = {}
        self.hidden: set[Parameter] = set()
        """Parameters that are used otherwise, or may be."""
        self._views: dict[_Range, set[int | None]] = {}
        """The element types of all views; None where one may be any."""
        self._shown: dict[Parameter, set[int | None]] = {}
        self.copied: dict[Parameter, set[_Range]] = {}
        """Where parameters are copied to."""
        self._module = module.module
        self._imports = [row.full_name for row in self._module.imports]
        self._loads: list[list[Parameter]] = []
        self._load_numbers: dict[tuple[int, int], int] = {}
        self._globals: dict[int, _Values] = {}
        self._changed = True
        while self._changed:
            self._changed = False
            for function in self._module.functions:
                self._follow(function.ordinal)

    def shown(self) -> dict[Parameter, set[int | None]]:
        """The element types that parameters are shown with; None for one that is not known."""
        is_known = not any(None in place for place in (*self._views, *itertools.chain(*self.copied.values())))
        views = self._views if is_known else {}
        copied = {
            parameter: {element for place in places for element in views.get(place, {None})}
            for parameter, places in self.copied.items()
        }
        return _united((self._shown, copied), set())

    def _follow(self, ordinal: int) -> None:
        """Runs the blocks of a function until their registers can hold nothing else."""
        blocks = self._blocks(ordinal)
        entries: dict[int, _State] = {0: {}}
        pending = [0]
        while pending:
            require_going_on()  # a program may have registers hold ever more, one way after the other
            at = pending.pop()
            state = dict(entries[at])
            for record in blocks[at]:
                self._step(ordinal, record, state)
            for target, moves in blocks[at][-1].exits():
                entry = _after_moves(state, moves)
                joined = _join(entries[target], entry) if target in entries else entry
                if joined != entries.get(target):
                    entries[target] = joined
                    pending.append(target)

    def _blocks(self, ordinal: int) -> dict[int, list[InstructionRecord]]:
        body = bytes(self._module.body(self._module.functions[ordinal]))
        blocks: dict[int, list[InstructionRecord]] = {}
        for record in read_instructions(body, self._module.bytecode_version[0]):
            if record.instruction.mnemonic in _NOT_FOLLOWED:
                raise NotFollowedError
            if record.instruction.block_marker:
                block = blocks[record.offset] = []
            block.append(record)
        return blocks

    def _step(self, function: int, record: InstructionRecord, state: _State) -> None:
        mnemonic, operands = record.instruction.mnemonic, record.operands
        result = _OTHER
        if mnemonic in _NUMBERS:
            result = frozenset({("number", operands[0] if len(operands) > 1 else 0)})
        elif mnemonic == "const.ref.rodata":
            result = frozenset({("rodata", operands[0])})
        elif mnemonic == "const.ref.zero":
            result = frozenset({("null", None)})
        elif mnemonic == "global.load.ref":
            result = self._globals.get(operands[0], _OTHER)
        elif mnemonic == "global.store.ref":
            self._store(operands[0], _get(state, operands[2]))
        elif mnemonic in ("assign.ref", "cast.any.ref"):
            result = _get(state, operands[0])
        elif mnemonic == "list.get.ref":
            result = self._items(_get(state, operands[0]), _get(state, operands[1]))
        elif mnemonic.startswith("call") and operands[0] & IMPORT_BIT:
            name = self._imports[operands[0] & ~IMPORT_BIT]
            args = operands[2 if "variadic" in mnemonic else 1]
            result = self._call(name, (function, record.offset), [_get(state, word) for word in args])
        elif mnemonic not in _HARMLESS:
            for word in _words(record, output=False):
                self._hide(_get(state, word))
        for word in _words(record, output=True):
            state[_register(word)] = result

    def _store(self, slot: int, values: _Values) -> None:
        joined = self._globals.get(slot, _OTHER) | values
        self._changed |= joined != self._globals.get(slot)
        self._globals[slot] = joined

    def _items(self, lists: _Values, index: _Values) -> _Values:
        items: set[_Value] = set()
        numbers = [value for kind, value in index if kind == "number"]
        for kind, value in lists:
            loaded = self._loads[value] if kind == "list" else []
            if len(numbers) == len(index) == 1 and 0 <= numbers[0] < len(loaded):
                items.add(("parameter", loaded[numbers[0]]))
            else:
                self.hidden.update(loaded)
                items |= _OTHER
        return frozenset(items)

    def _call(self, name: str, place: tuple[int, int], args: list[_Values]) -> _Values:
        if name in ("io_parameters.load", "io_parameters.gather"):
            number = self._load_numbers.setdefault(place, len(self._loads))
            self._loads[number:] = [self._asked(args), *self._loads[number + 1 :]]
            if name == "io_parameters.load":
                return frozenset({("list", number)})
            self.hidden.update(self._loads[number])
        elif name == "hal.executable.lookup.function":
            return frozenset(("kernel", self._text(value) or "") for value in args[1])
        elif name == "hal.command_buffer.dispatch" and all(kind == "kernel" for kind, _ in args[2]):
            bound = {value for values in args for kind, value in values if kind == "parameter"}
            for parameter in bound:
                self.kernels.setdefault(parameter, set()).update(kernel for _, kernel in args[2])
            return _OTHER
        elif name in _SHOW:
            self._show(args)
            return _OTHER
        elif (name, len(args)) in _COPIES:
            first = _COPIES[name, len(args)]
            target = _numbers(args[first : first + 2])
            for parameter in _parameters(args):
                self.copied.setdefault(parameter, set()).add(target)
            return _OTHER
        for values in args:
            self._hide(values)
        return _OTHER

    def _show(self, args: list[_Values]) -> None:
        buffer, offset, length, element, *_ = args
        types = {value & _U32 if kind == "number" else None for kind, value in element}
        self._views.setdefault(_numbers((offset, length)), set()).update(types)
        for parameter in _parameters([buffer]):
            self._shown.setdefault(parameter, set()).update(types)
        self._hide(frozenset(value for value in buffer if value[0] == "list"))

    def _asked(self, args: list[_Values]) -> list[Parameter]:
        """The parameters of a call, from its constant tables."""
        scope = self._text(*args[4]) if len(args[4]) == 1 else None
        tables = [self._data(*values) if len(values) == 1 else None for values in args[-3:]]
        table, keys, spans = tables
        if scope is None or table is None or keys is None or spans is None:
            raise NotFollowedError
        rows = [NAME.unpack_from(table, number * NAME.size) for number in range(len(spans) // SPAN.size)]
        return [(scope, str(keys[start : start + size], "utf-8", "backslashreplace")) for start, size in rows]

    def _data(self, value: _Value) -> bytes | None:
        return bytes(self._module.rodata[value[1]].data) if value[0] == "rodata" else None

    def _text(self, value: _Value) -> str | None:
        data = b"" if value[0] == "null" else self._data(value)
        return None if data is None else str(data, "utf-8", "backslashreplace")

    def _hide(self, values: _Values) -> None:
        for kind, value in values:
            if kind == "parameter":
                self.hidden.add(value)
            elif kind == "list":
                self.hidden.update(self._loads[value])


def find_uses(modules: list[BytecodeModule]) -> ParameterUses:
    """How programs use their parameters, as far as that can be told at once."""
    if sum(row.length for module in modules for row in module.module.functions) > _MOST_BYTES:
        return ParameterUses(())
    try:
        return ParameterUses(modules)
    except (NotFollowedError, struct.error):
        return ParameterUses(())


def _parameters(args: Iterable[_Values]) -> set[Parameter]:
    return {value for values in args for kind, value in values if kind == "parameter"}


def _numbers(args: Iterable[_Values]) -> _Range:
    """None for what is no constant."""
    return tuple(next(iter(values))[1] if _is_number(values) else None for values in args)


def _is_number(values: _Values) -> bool:
    return len(values) == 1 and all(kind == "number" for kind, _ in values)


def _register(word: int) -> int:
    return word & ~MOVE_BIT if word & REF_BIT else word


def _get(state: _State, word: int) -> _Values:
    return state.get(_register(word), _OTHER)


def _words(record: InstructionRecord, output: bool) -> Iterator[int]:
    """The registers that an instruction writes, or reads."""
    for operand, value in zip(record.instruction.operands, record.operands, strict=True):
        if operand.output == output and operand.kind != "list.segment":
            if operand.kind.startswith("r."):
                yield value
            elif operand.kind.startswith("list."):
                yield from value


def _after_moves(state: _State, moves: Moves) -> _State:
    state = dict(state)
    for source, destination in moves:
        state[_register(destination)] = _get(state, source)
    return state


def _join(one: _State, other: _State) -> _State:
    return {word: one.get(word, _OTHER) | other.get(word, _OTHER) for word in one.keys() | other.keys()}
