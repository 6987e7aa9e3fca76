"""Runs the instructions of a loop one by one, as a Python function that is written for it.

The same loop on the same memory is run once: tests compare with it what is made for several processors.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, NoReturn

from jitree.dispatch.native.ssa import Block, SsaInstruction, SsaLoop, Value
from jitree.dispatch.semantics import SEMANTICS, Semantic
from tests.dispatch.native.nests.harness import CODES, WORD, Bytes

_ENOUGH = 200
"""Loops whose results are kept: those of a test that runs for each of some processors."""


_WRITTEN_OUT = {
    "add.i32": "{} + {}", "fma.i32": "{} * {} + {}",
    "add.i64": "{} + {}", "mul.i64": "{} * {}", "fma.i64": "{} * {} + {}",
}  # fmt: skip
"""Of instructions that loops consist of mostly, what their functions compute and then wrap: to call these
takes most of the time."""
_RANGES = {"i32": f"{-(1 << 31)} <= {{}} < {1 << 31}", "i64": f"{-(1 << 63)} <= {{}} < {1 << 63}"}


class TooLong(Exception):
    """More iterations than a test can wait for."""


class Outcome(NamedTuple):
    left: int
    """What the counter is after the loop."""
    memory: tuple[Bytes, ...]


class Function(NamedTuple):
    """A loop as the source of a function, and what that names."""

    source: str
    numbers: Mapping[str, Any]
    functions: Mapping[str, Callable[..., Any]]
    """Their names say what they do."""
    views: Mapping[str, tuple[int, str]]
    """Of a buffer, as elements of a kind."""
    buffers: tuple[Bytes, ...]


def interpret(loop: SsaLoop, values: Mapping[Value, Any], limit: int = 1 << 62) -> int:
    """Runs a loop instruction by instruction; what its counter is after it.

    IndexError where an access is out of range.
    """
    return _run(_Writer(loop, values).function(), limit)


_outcomes: dict[bytes, Outcome] = {}


def _run(function: Function, limit: int) -> int:
    numbers = {name: (number, _bits(number)) for name, number in function.numbers.items()}
    digest = hashlib.blake2b(repr((function.source, numbers, function.views, limit)).encode())
    for buffer in function.buffers:
        digest.update(len(buffer).to_bytes(8, "little") + buffer.tobytes())
    outcome = _outcomes.pop(digest.digest(), None)
    if outcome is None:
        views = {name: _view(function.buffers[at], code) for name, (at, code) in function.views.items()}
        names = [*function.numbers, *function.functions, *views, "refuse", "too_long"]
        given = [
            *function.numbers.values(), *function.functions.values(), *views.values(), _fail, TooLong,
        ]  # fmt: skip
        left = _compiled(function.source, ", ".join(names))(limit, *given)
        outcome = Outcome(left, tuple(buffer.copy() for buffer in function.buffers))
    else:
        for buffer, after in zip(function.buffers, outcome.memory, strict=True):
            buffer[:] = after
    _outcomes[digest.digest()] = outcome  # the last one to be forgotten
    if len(_outcomes) > _ENOUGH:
        del _outcomes[next(iter(_outcomes))]
    return outcome.left


def _bits(number: Any) -> bytes:
    """What NaNs differ by."""
    return struct.pack("=d", number) if isinstance(number, float) else b""


@lru_cache(_ENOUGH)
def _compiled(source: str, names: str) -> Callable[..., int]:
    found: dict[str, Any] = {}
    exec(f"def run(limit, {names}):\n{source}", found)
    return found["run"]  # type: ignore[no-any-return]


def _view(buffer: Bytes, code: Any) -> Any:
    size = struct.calcsize(code)
    whole = len(buffer) // size * size
    return buffer.data[:whole].cast(code) if whole else ()


def _fail(mnemonic: str, index: int, count: int) -> NoReturn:
    raise IndexError(f"{mnemonic} of element {index} of {count}")


class _Writer:
    """Writes a loop as a Python function: what iterations share is computed once, before it."""

    def __init__(self, loop: SsaLoop, values: Mapping[Value, Any]) -> None:
        self._loop = loop
        self._blocks = sorted(loop.blocks, key=lambda block: -block.order)  # what runs most often first
        self._known = dict(values)
        self._made = {
            value
            for block in loop.blocks
            for value in (*block.parameters, *(r for each in block.instructions for r in each.results))
        }
        self._numbers: dict[str, Any] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._views: dict[str, tuple[int, str]] = {}
        self._buffers: list[Bytes] = []

    def function(self) -> Function:
        lines = [*self._enter(None, self._loop.header), "while limit > 0:", " limit -= 1"]
        for number, block in enumerate(self._blocks):
            lines.append(f" {'el' if number else ''}if block == {number}:")
            for instruction in block.instructions:
                lines += (f"  {line}" for line in self._lines(instruction))
            lines += (f"  {line}" for line in self._leave(block))
        lines += [" else:", f"  return int({self._name(self._loop.header.parameters[0])})", "raise too_long"]
        source = "".join(f" {line}\n" for line in lines)
        return Function(source, self._numbers, self._functions, self._views, tuple(self._buffers))

    def _leave(self, block: Block) -> list[str]:
        if len(block.successors) == 1:
            return self._enter(block, block.successors[0])
        then, otherwise = (self._enter(block, successor) for successor in block.successors)
        condition = self._name(block.terminator.operands[0])
        return [
            f"if {condition}:",
            *(f" {line}" for line in then),
            "else:",
            *(f" {line}" for line in otherwise),
        ]

    def _enter(self, before: Block | None, block: Block) -> list[str]:
        """Gives a block its parameters, all at once."""
        if block not in self._loop.blocks:
            return ["block = -1"]
        names = [self._name(parameter) for parameter in block.parameters]
        sources = [self._name(self._source(block, parameter, before)) for parameter in block.parameters]
        given = [f"{', '.join(names)} = {', '.join(sources)}"] if names else []
        return [*given, f"block = {self._blocks.index(block)}"]

    def _source(self, block: Block, parameter: Value, before: Block | None) -> Value:
        pairs = zip(block.predecessors, parameter.operands, strict=True)
        return next(v for p, v in pairs if (p is before if before else p not in self._loop.blocks))

    def _lines(self, instruction: SsaInstruction) -> list[str]:
        mnemonic = instruction.mnemonic
        if mnemonic.startswith("buffer.load"):
            view, index, check = self._place(mnemonic, mnemonic.endswith(".u"), *instruction.operands)
            return [*check, f"{self._name(instruction.results[0])} = {view}[{index}]"]
        if mnemonic.startswith("buffer.store"):
            buffer, at, stored = instruction.operands
            mask = {"b": 0xFF, "h": 0xFFFF}.get(CODES[mnemonic.split(".")[2]])
            view, index, check = self._place(mnemonic, mask is not None, buffer, at)
            value = self._name(stored)
            return [*check, f"{view}[{index}] = " + (value if mask is None else f"int({value}) & {mask}")]
        return [line for value in instruction.results for line in self._computation(value)]

    def _computation(self, value: Value) -> list[str]:
        """Its function computes what wraps, and all that is not written out."""
        name, computed = self._name(value), f"{self._name(value)} = {self._computed(value)}"
        kinds = {value.operation.rpartition(".")[2], value.type, *(each.type for each in value.operands)}
        if value.operation not in _WRITTEN_OUT or len(kinds) > 1:
            return [computed]
        exact = _WRITTEN_OUT[value.operation].format(*map(self._name, value.operands))
        return [f"{name} = {exact}", f"if not {_RANGES[value.type].format(name)}: {computed}"]

    def _place(
        self, mnemonic: str, is_unsigned: bool, buffer: Value, index: Value
    ) -> tuple[str, str, list[str]]:
        """The view of an access, its index, and the check of that."""
        code = CODES[mnemonic.split(".")[2]]
        memory, at = self._known[buffer], self._name(index)
        number = next((n for n, each in enumerate(self._buffers) if each is memory), len(self._buffers))
        if number == len(self._buffers):
            self._buffers.append(memory)
        name = f"view{number}{code.upper() if is_unsigned else code}"
        self._views[name] = number, code.upper() if is_unsigned else code
        count = len(memory) // struct.calcsize(code)
        return name, at, [f"if not 0 <= {at} < {count}: refuse({mnemonic!r}, {at}, {count})"]

    def _name(self, value: Value) -> str:
        name = f"v{value.number}"
        if value not in self._made:
            self._numbers[name] = self._outside(value)
        return name

    def _outside(self, value: Value) -> Any:
        """A value that no instruction of the loop makes."""
        if value not in self._known:
            operands = [self._outside(operand) for operand in value.operands]
            is_constant = value.operation.startswith("const.")
            self._known[value] = _constant(value) if is_constant else _semantic(value)[1](*operands)
        return self._known[value]

    def _computed(self, value: Value) -> str:
        if value.operation.startswith("const."):
            name = f"v{value.number}_is"
            self._numbers[name] = _constant(value)
            return name
        name, function = _semantic(value)
        self._functions[name] = function
        return f"{name}({', '.join(map(self._name, value.operands))})"


def _semantic(value: Value) -> tuple[str, Callable[..., Any]]:
    """Some functions work on bits: their types are integers where those of the registers are not."""
    semantic = SEMANTICS[value.operation]
    kinds = [operand.type for operand in value.operands]
    name = "_".join([value.operation.replace(".", "_"), *kinds, value.type])
    if [*kinds, value.type] == [*semantic.argument_types, semantic.result_type]:
        return name, semantic.function
    return name, partial(_on_bits, semantic, kinds, value.type)


def _constant(value: Value) -> Any:
    bits = value.literals[0] if value.literals else 0
    wide = 8 if value.type in ("i64", "f64") else 4
    raw = (bits & (1 << 8 * wide) - 1).to_bytes(wide, "little")
    return struct.unpack(WORD[value.type], raw)[0]


def _on_bits(semantic: Semantic, kinds: list[str], kind: str, *operands: Any) -> Any:
    arguments = map(_reinterpreted, operands, kinds, semantic.argument_types)
    return _reinterpreted(semantic.function(*arguments), semantic.result_type, kind)


def _reinterpreted(number: Any, kind: str, wanted: str) -> Any:
    if kind == wanted:
        return number
    return struct.unpack(WORD[wanted], struct.pack(WORD[kind], number))[0]
