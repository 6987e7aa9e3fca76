"""Gives functions to the host. The way into the VM is a host frame and a two-instruction program.

The host's frame is the outermost one. It runs ``call.internal`` of the function and then ``host.exit``;
arguments lie in its registers before, results after. So entering and returning are ordinary instructions on
every tier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from jitree.base.finalizers import Unique
from jitree.dispatch.sites import VIEWS, HostTarget
from jitree.errors import InvalidArgumentError, ResourceExhaustedError, pass_interruption
from jitree.regs.layout import FUNCTION
from jitree.regs.machine import Machine
from jitree.regs.records import FunctionRecord
from jitree.vmfb.cconv import TAGS, CallingConvention, Item, RegisterSlot, ascending_slots, register_counts
from jitree.vmfb.words import OPCODE, TAG_REF_MOVE

if TYPE_CHECKING:
    from jitree.vmfb.decode import BytecodeModule
    from jitree.vmfb.schema import Attr, Dependency

    class ExportingModule(Protocol):
        """A module of either kind."""

        @property
        def name(self) -> str: ...
        @property
        def version(self) -> int: ...
        @property
        def attrs(self) -> Sequence[Attr]: ...
        @property
        def dependencies(self) -> Sequence[Dependency]: ...
        def export_names(self) -> list[str]: ...


_REFERENCES: Final = VIEWS["r"]


class VmFunction(Unique):
    """A function of a module in a context."""

    __slots__ = ("__weakref__", "attrs", "cconv", "convention", "full_name", "module", "name", "ordinal")

    module: ExportingModule
    attrs: Mapping[str, str]
    """Reflection, such as ``iree.abi.declaration``."""

    def __init__(
        self,
        module: ExportingModule,
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
        self.cconv = convention.text
        self.full_name = f"{module.name}.{name}"
        """``module.function``"""

    def __repr__(self) -> str:
        return f"<Function {self.full_name}{self.convention}>"


class HostFunction(VmFunction):
    """A function written in Python."""

    __slots__ = ("target",)

    def __init__(
        self, module: ExportingModule, ordinal: int, target: HostTarget, convention: CallingConvention
    ):
        super().__init__(module, target.export.name, ordinal, convention, target.export.attrs)
        self.target = target


class BytecodeFunction(VmFunction):
    """Calls a function of a compiled module. It packs arguments into the host's frame and unpacks results
    from it."""

    __slots__ = (
        "_argument_count", "_destinations", "_sources", "argument_slots", "host", "record", "result_slots",
    )  # fmt: skip

    def __init__(self, module: BytecodeModule, name: str, record: FunctionRecord) -> None:
        row = module.module.functions[record.ordinal]
        super().__init__(module, name, record.ordinal, module.convention(record.ordinal), row.attrs)
        self.record = record
        self._argument_count = len(self.convention.arguments)
        slots = self.argument_slots, self.result_slots = register_slots(self.convention)
        """Registers of the host's frame; no arguments are listed if any is a span."""
        self._sources = _places(self.convention.arguments, self.argument_slots)
        self._destinations = _places(self.convention.results, self.result_slots)
        words = [*host_call(record, slots, TAG_REF_MOVE), OPCODE["host.exit"]]
        self.host = host_record(record, words, host_registers(slots))
        """The function that the host's frame runs."""

    def begin(self, machine: Machine, arguments: Sequence[object]) -> None:
        """Makes the host's frame and puts the arguments into it.

        INVALID_ARGUMENT if number or kind of the arguments is wrong (the frame may hold references then), or
        if the machine is of another context.
        """
        try:
            is_complete = len(arguments) == self._argument_count
        except TypeError as error:
            pass_interruption(error)
            is_complete = False
        if not is_complete:
            from jitree.dispatch.conversion import require_count

            require_count(self.convention, arguments)
        if machine.functions.get(self.host.address) is not self.host:
            raise InvalidArgumentError(f"function '{self.full_name}' belongs to another context")
        machine.begin(self.host)
        machine.pc = 0
        try:
            self._pack(machine, arguments)
        except (TypeError, ValueError, OverflowError) as error:
            pass_interruption(error)
            from jitree.dispatch.conversion import arguments as converted

            machine.release_frames()
            self._pack(machine, converted(self.convention, arguments))

    def _pack(self, machine: Machine, arguments: Sequence[object]) -> None:
        for (view, register), argument in zip(self._sources, arguments, strict=True):
            if view == _REFERENCES:
                machine.refs[register] = machine.table.wrap(argument)
            else:
                getattr(machine, view)[register] = argument

    def unpack(self, machine: Machine) -> list[Any]:
        """Gives the results in the host's frame of a machine."""
        object_of = machine.table.object
        return [
            object_of(machine.refs[register]) if view == _REFERENCES else getattr(machine, view)[register]
            for view, register in self._destinations
        ]


Slots = tuple[RegisterSlot, ...]
HostSlots = tuple[Slots, Slots]
"""Those of arguments and of results."""


def register_slots(convention: CallingConvention) -> HostSlots:
    """Registers of arguments and results in the host's frame. They share registers: arguments are gone when
    results arrive."""
    return ascending_slots(convention.argument_tags or ()), ascending_slots(convention.result_tags)


def host_call(callee: FunctionRecord, slots: HostSlots, reference_tag: int) -> list[int]:
    """The words of a ``call.internal`` in the host's frame."""
    sources, destinations = slots
    words = [OPCODE["call.internal"], 0, callee.ordinal, len(sources), len(destinations)]
    for (tag, source), target in zip(sources, callee.argument_slots, strict=True):
        words += (reference_tag if tag == TAGS["r"] else tag, source, target)
    for slot in destinations:
        words += slot
    words[1] = len(words)
    return words


def host_registers(slots: HostSlots) -> tuple[int, int]:
    """Counts value slots (even) and references of the host's frame."""
    counts = [register_counts(some) for some in slots]
    values, references = map(max, zip(*counts, strict=True))
    return values + 1 & ~1, references


def host_record(callee: FunctionRecord, words: Sequence[int], counts: tuple[int, int]) -> FunctionRecord:
    """The function that the host's frame runs: it has ``counts`` registers and ends with ``host.exit``.
    RESOURCE_EXHAUSTED if there is no room."""
    try:
        memory = np.zeros(FUNCTION.size // 8, np.int64)
    except MemoryError as error:
        pass_interruption(error)
        raise ResourceExhaustedError(f"no memory to prepare function '{callee.name}' for calls") from error
    record = FunctionRecord(memory, np.array(words, np.int32), 0, counts, ())
    record.module, record.ordinal, record.name = callee.module, callee.ordinal, callee.name
    record.write(callee.module.address)
    return record


def _places(items: Iterable[Item], slots: Slots) -> list[tuple[str, int]]:
    """Names a machine's view of each register, and where it is there; of spans nothing is listed."""
    return [
        (VIEWS[str(item)], register >> (tag == TAGS["I"]))
        for item, (tag, register) in zip(items, slots, strict=False)
    ]
