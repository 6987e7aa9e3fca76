"""Functions as the host sees them, and the way into the VM: a host frame and a two-instruction program.

The host's frame is the outermost one. It runs ``call.internal`` of the function and then ``host.exit``;
arguments lie in its registers before, results after. So entering and returning are ordinary instructions on
every tier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from jitree.base.finalizers import Unique, require_interpreter
from jitree.dispatch.sites import VIEWS, HostTarget, register_index
from jitree.errors import InvalidArgumentError, ResourceExhaustedError, pass_interruption
from jitree.regs.layout import FUNCTION
from jitree.regs.machine import Machine
from jitree.regs.records import FunctionRecord
from jitree.vmfb.cconv import TAGS, CallingConvention, RegisterSlot, ascending_slots, register_counts
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
    """A function of a compiled module: packs arguments into the host's frame and unpacks results from it."""

    _pack: Pack
    unpack: Unpack
    """Gives the results in the host's frame of a machine."""

    __slots__ = ("_argument_count", "_pack", "argument_slots", "host", "record", "result_slots", "unpack")

    def __init__(self, module: BytecodeModule, name: str, record: FunctionRecord) -> None:
        row = module.module.functions[record.ordinal]
        super().__init__(module, name, record.ordinal, module.convention(record.ordinal), row.attrs)
        self.record = record
        self._argument_count = len(self.convention.arguments)
        slots = self.argument_slots, self.result_slots = register_slots(self.convention)
        """Registers of the host's frame; no arguments are listed if any is a span."""
        words = [*host_call(record, slots, TAG_REF_MOVE), OPCODE["host.exit"]]
        self.host = host_record(record, words, host_registers(slots))
        """The function that the host's frame runs."""

    def __getattr__(self, name: str) -> Any:
        """What packs and unpacks is made when the host first calls the function. Python comes here
        for what a property raises, too, and forgets that: there is none, for a handler's AttributeError."""
        if name not in ("_pack", "unpack"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        require_interpreter()
        self._pack, self.unpack = transfers(self.convention, (self.argument_slots, self.result_slots))
        return getattr(self, name)

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


Pack = Callable[[Machine, Sequence[object]], None]
Unpack = Callable[[Machine], list[Any]]


def transfers(convention: CallingConvention, slots: HostSlots) -> tuple[Pack, Unpack]:
    """Gives what fills the host frame's registers and what reads results. Machine code makes the usual calls,
    so nothing is generated for this: that would take longer than a first call's kernel."""
    sources, destinations = (
        [(VIEWS[str(item)], register_index(slot)) for item, slot in zip(items, some, strict=True)]
        for items, some in zip((convention.arguments, convention.results), slots, strict=True)
    )

    def pack(machine: Machine, arguments: Sequence[object]) -> None:
        for (view, register), argument in zip(sources, arguments, strict=True):
            if view == _REFERENCES:
                machine.refs[register] = machine.table.wrap(argument)
            else:
                getattr(machine, view)[register] = argument

    def unpack(machine: Machine) -> list[Any]:
        object_of = machine.table.object
        return [
            object_of(machine.refs[register]) if view == _REFERENCES else getattr(machine, view)[register]
            for view, register in destinations
        ]

    return pack, unpack
