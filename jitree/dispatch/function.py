"""Functions as the host sees them, and the way into the VM: a host frame and a two-instruction program.

The host's frame is the outermost one. It runs ``call.internal`` of the function and then ``host.exit``;
arguments lie in its registers before, results after. So entering and returning are ordinary instructions on
every tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.dispatch import conversion
from jitree.dispatch.sites import VIEWS, NativeTarget
from jitree.errors import InvalidArgumentError
from jitree.identity import Unique
from jitree.regs.layout import FRAME, FUNCTION
from jitree.regs.machine import FRAME_WORDS, Machine
from jitree.regs.records import FunctionRecord
from jitree.vmfb.cconv import TAGS, CallingConvention, RegisterSlot, ascending_slots, register_counts
from jitree.vmfb.words import OPCODE, TAG_REF_COPY, TAG_REF_MOVE

if TYPE_CHECKING:
    from jitree.dispatch.bytecode_module import BytecodeModule
    from jitree.dispatch.native_module import NativeModule

_CACHED_CONVENTIONS: Final = 1024
_CALL_WORDS: Final = 5
"""Of ``call.internal`` in front of its arguments, three words each."""


class Function(Unique):
    """A function of a module in a context."""

    __slots__ = ("__weakref__", "attrs", "convention", "module", "name", "ordinal")

    module: BytecodeModule | NativeModule
    attrs: Mapping[str, str]
    """Reflection, such as ``iree.abi.declaration``."""

    def __init__(
        self,
        module: BytecodeModule | NativeModule,
        name: str,
        ordinal: int,
        convention: CallingConvention,
        attrs: Mapping[str, str],
    ) -> None:
        self.module = module
        self.name = name
        self.ordinal = ordinal
        self.convention = convention
        self.attrs = attrs

    @property
    def cconv(self) -> str:
        return self.convention.text

    @property
    def full_name(self) -> str:
        """``module.function``"""
        return f"{self.module.name}.{self.name}"

    def __repr__(self) -> str:
        return f"<Function {self.full_name}{self.convention}>"


class NativeFunction(Function):
    """A function written in Python."""

    __slots__ = ("target",)

    def __init__(
        self, module: NativeModule, ordinal: int, target: NativeTarget, convention: CallingConvention
    ):
        super().__init__(module, target.export.name, ordinal, convention, target.export.attrs)
        self.target = target


class BytecodeFunction(Function):
    """A function of a compiled module: packs arguments into the host's frame and unpacks results from it."""

    __slots__ = ("_argument_count", "_pack", "argument_slots", "host", "record", "result_slots", "unpack")

    def __init__(self, module: BytecodeModule, name: str, record: FunctionRecord) -> None:
        row = module.module.functions[record.ordinal]
        super().__init__(module, name, record.ordinal, module.convention(record.ordinal), row.attrs)
        self.record = record
        self._pack, self.unpack = _transfers(self.convention.text)
        """``unpack(machine)``: the results in the host's frame."""
        self._argument_count = len(self.convention.arguments)
        self.host = _host_record(record, self.convention)
        """The function that the host's frame runs."""
        self.argument_slots, self.result_slots = _slots(self.convention)
        """Registers of the host's frame; no arguments are listed if any is a span."""

    def begin(self, machine: Machine, arguments: Sequence[object]) -> None:
        """Makes the host's frame and puts the arguments into it.

        INVALID_ARGUMENT if number or kind of the arguments is wrong (the frame may hold references then), or
        if the machine is of another context.
        """
        if len(arguments) != self._argument_count:
            conversion.require_count(self.convention, arguments)
        if machine.functions.get(self.host.address) is not self.host:
            raise InvalidArgumentError(f"function '{self.full_name}' belongs to another context")
        machine.begin(self.host)
        machine.pc = 0
        try:
            self._pack(machine, arguments)
        except (TypeError, ValueError, OverflowError):
            machine.release_frames()
            self._pack(machine, conversion.arguments(self.convention, arguments))


class RepeatedCall:
    """Calls of a function without results that share all arguments but some i32 ones.

    The host's frame stays as it is from call to call: its references are copied to the function, not moved.
    """

    __slots__ = ("_pack", "_results", "_varied", "function", "host")

    def __init__(self, function: BytecodeFunction, varied: Sequence[int]) -> None:
        """``varied`` are the positions of the arguments that change, all of them i32."""
        self.function = function
        self.host = _host_record(function.record, function.convention, TAG_REF_COPY)
        self._pack, _ = _transfers(function.convention.text)
        sources, _ = _slots(function.convention)
        self._varied = tuple(sources[position][1] for position in varied)
        self._results = _CALL_WORDS + 3 * len(sources)
        """Where the destinations of results begin in the host's program."""

    def starts(
        self, machine: Machine, arguments: Sequence[object], variations: Iterable[Sequence[int]]
    ) -> Iterator[None]:
        """Makes the machine ready for one call after the other; ``variations`` has the values, in signed
        range, of the arguments that change, for which ``arguments`` may have any."""
        machine.begin(self.host)
        self._pack(machine, arguments)
        for values in variations:
            registers = machine.i32
            for register, value in zip(self._varied, values, strict=True):
                registers[register] = value
            machine.pc = 0
            yield

    def resumes(self, machine: Machine) -> Iterator[None]:
        """Makes the machine ready to go on with a call that compiled code has left, by writing what the
        host's frame must hold for it to end."""
        machine.begin(self.host)
        frames, code = machine.frames, self.host.code_address
        frames[FRAME.word("pc")] = code + 4 * self.host.code[1]
        frames[FRAME_WORDS + FRAME.word("results")] = code + 4 * self._results
        machine.pc = machine.adopt()
        yield


def _slots(convention: CallingConvention) -> tuple[tuple[RegisterSlot, ...], tuple[RegisterSlot, ...]]:
    """Registers of arguments and results in the host's frame. They share registers: arguments are gone when
    results arrive."""
    return ascending_slots(convention.argument_tags or ()), ascending_slots(convention.result_tags)


def _host_record(
    callee: FunctionRecord, convention: CallingConvention, reference_tag: int = TAG_REF_MOVE
) -> FunctionRecord:
    sources, destinations = _slots(convention)
    words = [OPCODE["call.internal"], 0, callee.ordinal, len(sources), len(destinations)]
    for (tag, source), target in zip(sources, callee.argument_slots, strict=True):
        words += (reference_tag if tag == TAGS["r"] else tag, source, target)
    for slot in destinations:
        words += slot
    words[1] = len(words)
    words.append(OPCODE["host.exit"])
    counts = [max(pair) for pair in zip(register_counts(sources), register_counts(destinations), strict=True)]
    memory = np.zeros(FUNCTION.size // 8, np.int64)
    record = FunctionRecord(memory, np.array(words, np.int32), 0, (counts[0] + 1 & ~1, counts[1]), ())
    record.attach(callee.module, callee.ordinal, callee.name)
    return record


Pack = Callable[[Machine, Sequence[object]], None]
Unpack = Callable[[Machine], list[Any]]


@lru_cache(maxsize=_CACHED_CONVENTIONS)
def _transfers(text: str) -> tuple[Pack, Unpack]:
    from jitree.vmfb.cconv import parse

    convention = parse(text)
    scope: dict[str, Any] = {}
    exec(compile(_source(convention), f"<host call of {text}>", "exec"), scope)
    return scope["pack"], scope["unpack"]


def register(character: str, slot: int) -> str:
    """The register of a calling convention's character in the views of a machine."""
    return f"{VIEWS[character]}[{slot >> 1 if character in 'IF' else slot}]"


def _register(character: str, slot: int) -> str:
    return f"machine.{register(character, slot)}"


def _source(convention: CallingConvention) -> str:
    sources, destinations = _slots(convention)
    characters = [str(item) for item in convention.arguments]
    lines = ["def pack(machine, arguments):"]
    if characters:
        lines.append(f"    {', '.join(f'a{n}' for n in range(len(characters)))}, = arguments")
    for number, (character, (_, slot)) in enumerate(zip(characters, sources, strict=True)):
        value = f"machine.table.wrap(a{number})" if character == "r" else f"a{number}"
        lines.append(f"    {_register(character, slot)} = {value}")
    values = []
    for character, (_, slot) in zip(convention.results, destinations, strict=True):
        value = _register(character, slot)
        values.append(f"machine.table.object({value})" if character == "r" else value)
    lines += ["    return None", "def unpack(machine):", f"    return [{', '.join(values)}]"]
    return "\n".join(lines)
