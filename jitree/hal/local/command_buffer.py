"""Records command buffers of the local drivers into one flat command list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jitree.errors import InvalidArgumentError, PermissionDeniedError
from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import BindingTable, Collective, Reference
from jitree.hal.command_list import DIRECT, NO_SLOT, CommandList, ListCommandBuffer, Range, Slot
from jitree.hal.executable import Executable, LocalExecutable
from jitree.hal.local.queue_record import UNKNOWN_COST


class LocalCommandBuffer(ListCommandBuffer):
    """Records a :class:`CommandList`, which the command executor runs."""

    def __init__(
        self,
        modes: int,
        categories: int,
        queue_affinity: int,
        binding_capacity: int,
        charge: Callable[[int], object] | None = None,
    ) -> None:
        super().__init__(modes, categories, queue_affinity, binding_capacity)
        self.commands = CommandList(charge)
        self._kept: set[int] = set()
        self.submissions = 0
        self.cost = UNKNOWN_COST
        """The last estimate, in nanoseconds."""

    def bind(self, table: BindingTable) -> tuple[Sequence[Slot], object]:
        """Resolves slots for the command executor, and what to keep until its end.

        Errors as :meth:`CommandBuffer.check_table`.
        """
        entries = self.check_table(table)
        ranges = [
            NO_SLOT
            if entry is None
            else (local_address(entry[0]) + entry[1], entry[2], entry[0].allowed_access)
            for entry in entries
        ]
        return ranges, entries

    def _range(self, reference: Reference) -> Range:
        slot, buffer, offset, length = reference
        if buffer is None:
            return slot, offset, length, 0
        allocation = buffer.allocation
        if id(allocation) not in self._kept:
            self._kept.add(id(allocation))
            self.commands.keep(allocation)
        return DIRECT, local_address(buffer) + offset, length, allocation.allowed_access

    @property
    def is_published(self) -> bool:
        return not self.commands.collectives

    def _record_collective(
        self, collective: Collective, send: Reference | None, receive: Reference | None
    ) -> None:
        from jitree.hal.groups.collectives import check_channel

        check_channel(collective.channel)
        self.commands.collective(collective, send and self._range(send), receive and self._range(receive))

    def _functions(self, executable: Executable) -> LocalExecutable:
        if not isinstance(executable, LocalExecutable):
            raise InvalidArgumentError(
                f"an executable of type {type(executable).__name__} cannot run on a local device; prepare it "
                "with the device's own executable cache"
            )
        return executable


def local_address(buffer: Buffer) -> int:
    """Where the buffer begins. PERMISSION_DENIED for memory of another device that the host cannot see."""
    address = buffer.host_address
    if address is None:
        raise PermissionDeniedError(f"{buffer!r} cannot be used by a local device: the host cannot see it")
    return address
