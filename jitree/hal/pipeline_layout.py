"""Describes functions of executables: layouts (ABI 0.2 to 0.4) and source lines."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.codegen.record import MemoryRecord
from jitree.hal.command_layout import PUSHED_BINDINGS, pushed_slot
from jitree.hal.enums import MAXIMUM_CONSTANTS, MAXIMUM_SET_BINDINGS
from jitree.vmfb.words import TAG_REF_COPY, TAG_VALUE32, TAG_VALUE64, signed

if TYPE_CHECKING:
    from jitree.codegen.record import i64
    from jitree.hal.allocator import HostMemory
    from jitree.hal.buffer import Buffer


class PipelineRecord(MemoryRecord):
    """A pipeline layout as machine code reads it. After it, the words that name the function's constants and
    bindings among the registers of what is pushed, as the words of a call name its arguments."""

    constant_count: i64  # 32-bit words
    binding_count: i64
    bindings: i64  # a bit for each, by its number


def binding_number(set_index: int, binding: int) -> int:
    return set_index * MAXIMUM_SET_BINDINGS + binding


def _words(number: int) -> tuple[int, ...]:
    """The words of a binding's five registers, of which the first is reserved."""
    slot = pushed_slot(number)
    values = TAG_VALUE32, slot, TAG_VALUE32, slot
    return *values, TAG_REF_COPY, number, TAG_VALUE64, slot + 2, TAG_VALUE64, slot + 4


def set_and_binding(number: int) -> tuple[int, int]:
    """What :func:`binding_number` numbers."""
    return divmod(number, MAXIMUM_SET_BINDINGS)


class DescriptorSetLayout:
    """Lists the bindings of one set of a pipeline layout."""

    VM_TYPE: Final = "hal.descriptor_set_layout"
    __slots__ = ("bindings", "flags")

    def __init__(self, flags: int, bindings: tuple[tuple[int, int, int], ...]) -> None:
        self.flags = flags
        self.bindings = bindings
        """(binding, descriptor type, flags)"""


class PipelineLayout:
    """Says what one function of an executable takes."""

    VM_TYPE: Final = "hal.pipeline_layout"
    __slots__ = ("_has_registers", "_memory", "_record", "bindings", "constant_count")

    def __init__(
        self, constant_count: int, bindings: tuple[tuple[int, int], ...], memory: object = None
    ) -> None:
        """``memory``: counts what it has, until it dies."""
        self._memory = memory
        self.constant_count = constant_count
        """32-bit words."""
        self.bindings = bindings
        """(set, binding) in the order in which the function gets them."""
        numbers = [binding_number(*binding) for binding in bindings]
        self._has_registers = max(numbers, default=0) < PUSHED_BINDINGS
        bits = signed(sum(1 << number for number in numbers), 64)
        self._record = array("q", (constant_count, len(bindings), bits if self._has_registers else 0))
        words = [word for index in range(constant_count) for word in (TAG_VALUE32, index)]
        words += [word for number in numbers for word in _words(number)]
        self._record.frombytes(array("i", words).tobytes())

    @property
    def record(self) -> int:
        """Address of a PipelineRecord, valid as long as the layout; 0 where a binding has no registers."""
        return self._record.buffer_info()[0] if self._has_registers else 0


class Pushed:
    """Holds what a program has pushed into a command buffer. Constants are 0 until then."""

    __slots__ = ("bindings", "constants", "memory")

    def __init__(self, memory: HostMemory) -> None:
        self.memory = memory
        self.constants = [0] * MAXIMUM_CONSTANTS
        self.bindings: dict[tuple[int, int], tuple[int, Buffer | None, int, int]] = {}
        """The (slot, buffer, offset, length) that is bound, by set and binding."""


class SourceLocation(NamedTuple):
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"
