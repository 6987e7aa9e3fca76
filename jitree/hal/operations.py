"""Checks the arguments of queue operations, once for all drivers.

All take a wait and a signal fence, either of which may be None. Order is given by fences only: an operation
starts when its wait fence is reached and reaches its signal fence when it is done; two operations without a
fence between them may overlap. Errors in the arguments fail the call. When the wait fence or the operation
itself fails, the signal fence fails with the same status (and the call, when there is no signal fence and the
failure is known before it returns). Operations keep what they use alive until they are done.

Rows of operations that move bytes, and the checks of these, are loaded when the first one is submitted: in
most programs machine code does it.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, cast

from jitree.base.arguments import object_of
from jitree.errors import InvalidArgumentError, UnimplementedError, pass_interruption
from jitree.hal.buffer import Buffer

if TYPE_CHECKING:
    from typing import Protocol

    from jitree.base.events import EventReader
    from jitree.hal import transfers
    from jitree.hal.allocator import Allocator
    from jitree.hal.command_buffer import BindingTable, CommandBuffer, Reference
    from jitree.hal.command_list import CommandList
    from jitree.hal.executable import Executable
    from jitree.hal.fence import Fence
    from jitree.hal.objects import File
    from jitree.hal.transfers import Transfer

    class TransferRows(Protocol):
        """The module of rows."""

        Fill: type[transfers.Fill]
        Update: type[transfers.Update]
        Copy: type[transfers.Copy]
        Read: type[transfers.Read]
        Write: type[transfers.Write]

    Order = tuple[int, Fence | None, Fence | None]
    """When an operation runs: its queue affinity, and the fences that it waits for and signals."""


class QueueOperations(abc.ABC):
    """Submits operations to a device."""

    readers: tuple[EventReader, ...] = ()
    """Those of its events (:mod:`jitree.base.events`)."""

    is_observable = False
    """Whether the device tells readers of single steps."""

    def listen(self, reader: EventReader) -> None:
        """Tells a reader of all that is submitted from now on. Others go on being told.

        ``reader``: an :class:`jitree.base.events.EventReader`. INVALID_ARGUMENT for what is none.
        """
        from jitree.base.events import listen  # only programs that look pay for it

        listen(self, reader)

    def stop_listening(self, reader: EventReader) -> None:
        """Takes :meth:`listen` back. A ``reader`` that does not listen raises nothing."""
        from jitree.base.events import stop_listening

        stop_listening(self, reader)

    def readers_changed(self) -> None:
        """See :class:`jitree.base.events.Source`."""
        return None

    def readers_of(self, work: Transfer | CommandBuffer | CommandList) -> list[EventReader]:
        """Tells readers of ``work`` that is submitted. Gives those of its steps.

        It raises what a reader raises.
        """
        from jitree.base.events import is_reading

        if is_reading():
            return []
        found = (reader.submitted(work) for reader in self.readers)
        return [reader for reader in found if reader is not None]

    device_allocator: Allocator
    """Allocates memory that the device uses."""

    def queue_alloca(
        self,
        queue_affinity: int,
        wait: Fence | None,
        signal: Fence | None,
        pool: int,
        memory_type: int,
        usage: int,
        size: int,
        flags: int = 0,
    ) -> Buffer:
        """Allocates a buffer, which exists at once. Its memory may be touched after ``signal``.

        ``memory_type`` and ``usage``: bits, as programs state them. ``size``: bytes. ``pool`` must be 0.
        ``queue_affinity``, ``wait`` and ``flags`` as of :meth:`queue_fill`. UNIMPLEMENTED for pools,
        OUT_OF_RANGE for a negative size, RESOURCE_EXHAUSTED without memory.
        """
        if pool:
            raise UnimplementedError(f"queue.alloca from pool {pool}: there are no pools but the default one")
        buffer = self.device_allocator.allocate(memory_type, usage, size)
        if self.readers:
            from jitree.base.callbacks import take_kept
            from jitree.base.events import Allocated

            failure = take_kept()  # of a reader that machine code has told
            if failure is not None:
                raise failure
            for reader in self.readers:
                reader.ends(Allocated(self, (buffer.address, size), buffer))
        self._submit_barrier((queue_affinity, wait, signal), "alloca")
        return buffer

    def queue_dealloca(
        self, queue_affinity: int, wait: Fence | None, signal: Fence | None, buffer: Buffer, flags: int = 0
    ) -> None:
        """Ends a buffer's use; a barrier unless :meth:`queue_alloca` made it.

        The memory of ``buffer`` goes back when nothing refers to it any more, so a use that comes too late
        reads old bytes. ``queue_affinity``, ``wait``, ``signal`` and ``flags`` as of :meth:`queue_fill`;
        INVALID_ARGUMENT for what is no fence.
        """
        self._submit_barrier((queue_affinity, wait, signal), "dealloca")

    def queue_fill(
        self,
        queue_affinity: int,
        wait: Fence | None,
        signal: Fence | None,
        target: Buffer,
        offset: int,
        length: int,
        pattern: int,
        pattern_length: int,
        flags: int = 0,
    ) -> None:
        """Fills bytes of a buffer with a pattern, after ``wait``; ``signal`` tells the end.

        ``queue_affinity``: bits of the queues that may do it, -1 for any. ``wait`` and ``signal``: fences, or
        None. ``target``: the buffer. ``offset`` and ``length``: its bytes; -1 means to the end. ``pattern``:
        a number of ``pattern_length`` bytes (1, 2 or 4). ``flags`` must be 0.

        INVALID_ARGUMENT for what these cannot be, OUT_OF_RANGE for bytes outside, PERMISSION_DENIED for
        memory that must stay as it is. What goes wrong later fails ``signal``.
        """
        fill = _rows().Fill(target, offset, _range("target", target, offset, length), pattern, pattern_length)
        self._check_and_submit((queue_affinity, wait, signal), fill, flags)

    def queue_update(
        self,
        queue_affinity: int,
        wait: Fence | None,
        signal: Fence | None,
        source: memoryview,
        source_offset: int,
        target: Buffer,
        offset: int,
        length: int,
        flags: int = 0,
    ) -> None:
        """Writes bytes of the host to a buffer. They are captured by the call.

        ``source`` and ``source_offset``: from where; ``target``, ``offset`` and ``length``: to where, in
        bytes. ``queue_affinity``, ``wait``, ``signal``, ``flags`` and errors as of :meth:`queue_fill`.
        """
        length = _range("target", target, offset, length)
        update = _rows().Update.of(source, source_offset, target, offset, length)
        self._check_and_submit((queue_affinity, wait, signal), update, flags)

    def queue_copy(
        self,
        queue_affinity: int,
        wait: Fence | None,
        signal: Fence | None,
        source: Buffer,
        source_offset: int,
        target: Buffer,
        target_offset: int,
        length: int,
        flags: int = 0,
    ) -> None:
        """Copies bytes between buffers, after ``wait``; ``signal`` tells the end.

        ``source`` and ``source_offset``: from where; ``target`` and ``target_offset``: to where; ``length``:
        bytes. ``queue_affinity``, ``flags`` and errors as of :meth:`queue_fill`; INVALID_ARGUMENT for a copy
        that overlaps itself.
        """
        length = _range("target", target, target_offset, _range("source", source, source_offset, length))
        copy = _rows().Copy(source, source_offset, target, target_offset, length)
        if source.address + source_offset == target.address + target_offset:
            copy = copy._replace(length=0)  # onto itself
        self._check_and_submit((queue_affinity, wait, signal), copy, flags)

    def queue_read(
        self,
        queue_affinity: int,
        wait: Fence | None,
        signal: Fence | None,
        file: File,
        file_offset: int,
        target: Buffer,
        offset: int,
        length: int,
        flags: int = 0,
    ) -> None:
        """Reads bytes of a file into a buffer, after ``wait``; ``signal`` tells the end.

        ``file`` and ``file_offset``: from where, as of :meth:`Device.import_file`; ``target``, ``offset`` and
        ``length``: to where, in bytes. ``queue_affinity``, ``flags`` and errors as of :meth:`queue_fill`;
        OUT_OF_RANGE for bytes outside the file.
        """
        read = _rows().Read(file, file_offset, target, offset, _range("target", target, offset, length))
        self._check_and_submit((queue_affinity, wait, signal), read, flags)

    def queue_write(
        self,
        queue_affinity: int,
        wait: Fence | None,
        signal: Fence | None,
        source: Buffer,
        offset: int,
        file: File,
        file_offset: int,
        length: int,
        flags: int = 0,
    ) -> None:
        """Writes bytes of a buffer to a file, after ``wait``; ``signal`` tells the end.

        ``source``, ``offset`` and ``length``: from where, in bytes; ``file`` and ``file_offset``: to where.
        ``queue_affinity``, ``flags`` and errors as of :meth:`queue_fill`; OUT_OF_RANGE for bytes outside the
        file, PERMISSION_DENIED for a file that is only read.
        """
        write = _rows().Write(source, offset, file, file_offset, _range("source", source, offset, length))
        self._check_and_submit((queue_affinity, wait, signal), write, flags)

    def queue_barrier(
        self, queue_affinity: int, wait: Fence | None, signal: Fence | None, flags: int = 0
    ) -> None:
        """Signals ``signal`` after ``wait``, nothing else.

        ``queue_affinity``, ``flags`` and errors as of :meth:`queue_fill`.
        """
        if type(flags) is not int or flags:
            from jitree.hal.checks import check_flags

            check_flags("queue.barrier", flags)
        self._submit_barrier((queue_affinity, wait, signal), "barrier")

    def queue_dispatch(
        self,
        queue_affinity: int,
        wait: Fence | None,
        signal: Fence | None,
        executable: Executable,
        function: int,
        workgroups: tuple[int, int, int],
        constants: Sequence[int],
        bindings: Sequence[Reference],
        flags: int = 0,
    ) -> None:
        """Runs one dispatch without a command buffer.

        ``executable``: prepared by :meth:`Device.create_executable_cache`. ``function``: the number of its
        export. ``workgroups``: how many along x, y and z. ``constants`` and ``bindings`` as of
        ``CommandBuffer.dispatch``, without slots. ``queue_affinity``, ``wait``, ``signal``, ``flags`` and
        errors as of :meth:`queue_fill`.
        """
        from jitree.hal.command_buffer import CommandBufferMode, CommandCategory

        commands = self.create_command_buffer(
            CommandBufferMode.ONE_SHOT, CommandCategory.DISPATCH, queue_affinity
        )
        commands.dispatch(executable, function, workgroups, constants, bindings, flags)
        commands.finalize()
        self.queue_execute(queue_affinity, wait, signal, commands)

    def queue_execute(
        self,
        queue_affinity: int,
        wait: Fence | None,
        signal: Fence | None,
        command_buffer: CommandBuffer | None,
        binding_table: BindingTable = (),
        flags: int = 0,
    ) -> None:
        """Runs a finalized command buffer after ``wait``; ``signal`` tells the end.

        ``command_buffer``: of this device; None is a barrier. ``binding_table``: ranges of buffers for its
        slots, which are copied. ``queue_affinity`` and ``flags`` as of :meth:`queue_fill`. INVALID_ARGUMENT
        for another device's, and for a table that does not fit, FAILED_PRECONDITION for one that still
        records.
        """
        if command_buffer is None:
            self._submit_barrier((queue_affinity, wait, signal), "barrier")
            return
        try:
            check = command_buffer.check_submission
        except AttributeError as error:
            pass_interruption(error)
            kind = type(command_buffer).__name__
            raise InvalidArgumentError(f"command_buffer: expected a CommandBuffer but got {kind}") from None
        check(wait is not None)
        readers = self.readers_of(command_buffer) if self.readers else ()
        order = queue_affinity, wait, signal
        if readers:
            self._submit_observed(order, command_buffer, binding_table, readers)
        else:
            self._submit_commands(order, command_buffer, binding_table)

    def _check_and_submit(self, order: Order, transfer: Transfer, flags: int) -> None:
        if flags:
            from jitree.hal.checks import check_flags

            check_flags(f"queue.{transfer.name}", flags)
        transfer.check()
        readers = self.readers_of(transfer) if self.readers else ()
        if readers:
            self._submit_observed(order, transfer, (), readers)
        else:
            self._submit_transfer(order, transfer)

    def is_far_ahead(self, wait: Fence, size: int = 0) -> bool:
        """Tells whether this thread's call must wait for a fence before it goes on.

        It has submitted what waits for ``wait`` and has got ``size`` bytes of memory: else it would have ever
        more memory in use. It raises nothing.
        """
        return False

    def can_be_awaited(self, wait: Fence) -> bool:
        """Tells whether submitted work reaches ``wait``, so that its submitter may wait for it. It raises
        nothing.
        """
        return False

    # What drivers implement.

    @abc.abstractmethod
    def create_command_buffer(
        self, modes: int, categories: int, queue_affinity: int = -1, binding_capacity: int = 0
    ) -> CommandBuffer:
        """Makes a command buffer that is recording.

        ``modes`` and ``categories``: bits (categories: 1 transfer, 2 dispatch). ``queue_affinity``: the
        queues that run it. ``binding_capacity``: how many slots, elements of a binding table, it may refer
        to. INVALID_ARGUMENT for no category and a negative capacity.
        """

    @abc.abstractmethod
    def queue_flush(self, queue_affinity: int = -1) -> None:
        """Launches the launch batch of the queues of ``queue_affinity``; a hint, which raises nothing."""

    @abc.abstractmethod
    def _submit_barrier(self, order: Order, name: str) -> None:
        """Signals after the wait; ``name`` is the operation's, for messages and profiles."""

    @abc.abstractmethod
    def _submit_transfer(self, order: Order, transfer: Transfer) -> None:
        """A transfer that has been checked."""

    @abc.abstractmethod
    def _submit_commands(
        self, order: Order, command_buffer: CommandBuffer, binding_table: BindingTable
    ) -> None:
        """A command buffer that has been finalized. INVALID_ARGUMENT for one of another device; for the table
        as ``CommandBuffer.check_table``."""

    def _submit_observed(
        self,
        order: Order,
        work: Transfer | CommandBuffer,
        binding_table: BindingTable,
        readers: Sequence[EventReader],
    ) -> None:
        """As :meth:`_submit_transfer` or :meth:`_submit_commands`, and tells readers of each step."""
        raise UnimplementedError(f"the device {self!r} tells nothing of single steps")


@cache
def _rows() -> TransferRows:
    """Rows of what moves bytes, imported when the first one is submitted; an import in each call would take a
    sixth of the time of a small one."""
    from jitree.hal import transfers

    return transfers


def _range(name: str, buffer: Buffer, offset: int, length: int) -> int:
    return cast(Buffer, object_of(name, buffer, Buffer)).range(offset, length)
