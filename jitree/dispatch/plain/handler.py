"""What a handler is, and how it reads references."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final, TypeVar

from jitree.errors import InvalidArgumentError
from jitree.regs.machine import Machine

T = TypeVar("T")

Handler = Callable[[Machine, int], int]
"""``handler(machine, pc) -> next pc``: executes the instruction at word ``pc`` of ``machine.code``.

Returns STOP when the engine must stop. When it raises, nothing of the instruction has happened.
"""

BANKS: Final[dict[int, tuple[Callable[[Machine], memoryview], int]]] = {
    32: (attrgetter("i32"), 0), 64: (attrgetter("i64"), 1),
}  # fmt: skip
"""By width: a machine's view of registers with values, floats as bits; by how many bits a slot is shifted to
be an index of it."""


def take(machine: Machine, refs: memoryview, register: int, moves: int) -> int:
    """The handle in a register as a reference of the caller: moved out, or counted again."""
    handle: int = refs[register]
    if moves:
        refs[register] = 0
        return handle
    return machine.table.retain(handle)


def reference_to(cls: type[T], name: str) -> Callable[[Machine, int], T]:
    """Reads a ref register that must hold a ``cls``, which programs know as ``vm.<name>``.

    INVALID_ARGUMENT for null and for other types.
    """

    def read(machine: Machine, register: int) -> T:
        table = machine.table
        value = table.object(machine.refs[register])
        if not isinstance(value, cls):
            if value is None:
                raise InvalidArgumentError(f"{name} reference is null")
            actual = table.ref_types.name(table.ref_types.id_of(value))
            raise InvalidArgumentError(f"ref type mismatch: expected vm.{name} but have {actual}")
        return value

    return read
