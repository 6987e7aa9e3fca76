"""Records command buffers with every check of a recording call, for all drivers.

Drivers implement the ``_record_*`` methods and get references that have been checked. A reference is ``(slot,
buffer, offset, length)``: with a buffer, its slot does not matter and the range has been checked against the
buffer; with None the buffer comes from the binding table of a submission, which
:meth:`CommandBuffer.check_table` checks then.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jitree.base.arguments import integer, integers, items, object_of
from jitree.base.finalizers import Unique, guard
from jitree.base.records import Flags, NamedTuple
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    UnimplementedError,
    pass_interruption,
)
from jitree.hal import checks
from jitree.hal.buffer import Buffer
from jitree.hal.enums import MAXIMUM_BINDINGS, WHOLE_BUFFER, BufferUsage, MemoryAccess, names
from jitree.hal.executable import Executable

if TYPE_CHECKING:
    from jitree.hal.objects import Channel, Event
    from jitree.hal.pipeline_layout import Pushed


class CommandBufferMode(Flags):
    DEFAULT = 0
    """Submitted any number of times, also at the same time."""
    ONE_SHOT = 0x1
    NESTED = 0x2
    """0.2 modules only: executed from other command buffers."""
    ALLOW_INLINE_EXECUTION = 0x10
    UNVALIDATED = 0x20
    UNRETAINED = 0x40


class CommandCategory(Flags):
    TRANSFER = 0x1
    DISPATCH = 0x2
    ANY = 0x3


class DispatchFlags(Flags):
    """As numbered by releases from 3.7.0 on; earlier modules only pass 0."""

    NONE = 0
    DYNAMIC_INDIRECT_PARAMETERS = 0x1
    STATIC_INDIRECT_PARAMETERS = 0x2
    CUSTOM_DIRECT_ARGUMENTS = 0x4
    DYNAMIC_INDIRECT_ARGUMENTS = 0x8
    STATIC_INDIRECT_ARGUMENTS = 0x10
    ALLOW_INLINE_EXECUTION = 0x20


_READ: Final = int(MemoryAccess.READ)
_WRITE: Final = int(MemoryAccess.WRITE)
_SOURCE: Final = int(BufferUsage.TRANSFER_SOURCE)
_TARGET: Final = int(BufferUsage.TRANSFER_TARGET)
_ARGUMENT_FLAGS: Final = int(
    DispatchFlags.CUSTOM_DIRECT_ARGUMENTS
    | DispatchFlags.DYNAMIC_INDIRECT_ARGUMENTS
    | DispatchFlags.STATIC_INDIRECT_ARGUMENTS
)
"""Arguments in other forms than constants and bindings."""
_TRANSFER: Final = int(CommandCategory.TRANSFER)
_DISPATCH: Final = int(CommandCategory.DISPATCH)
_ONE_SHOT: Final = int(CommandBufferMode.ONE_SHOT)
_INLINE: Final = int(CommandBufferMode.ALLOW_INLINE_EXECUTION)


class BufferRange(NamedTuple):
    """Names a range of ``buffer``, or of a submission's ``slot`` when that is None."""

    slot: int
    buffer: Buffer | None
    offset: int
    length: int = WHOLE_BUFFER
    """Bytes; WHOLE_BUFFER = the rest."""


Reference = BufferRange | tuple[int, Buffer | None, int, int]
BindingTable = Sequence[tuple[Buffer | None, int, int]]
"""(buffer, offset, length) per slot; WHOLE_BUFFER as a length is the rest."""


class Dispatch(NamedTuple):
    """Says what a dispatch runs and on what. Its workgroup counts come beside it."""

    executable: Executable
    function: int
    constants: Sequence[int]
    """32-bit words."""
    bindings: Sequence[Reference]
    flags: int


class Collective(NamedTuple):
    """Describes a collective operation. The ranges that are sent and received come beside it."""

    channel: Channel
    operation: int
    """kind | reduction << 8 | element type << 16"""
    parameter: int
    element_count: int


class CommandBuffer(Unique, abc.ABC):
    """Commands recorded once and submitted with ``Device.queue_execute``.

    Recording is one thread's business. A finalized command buffer never changes: it can be submitted any
    number of times and by several threads at once, with mode ONE_SHOT once. Commands between two barriers may
    run together.
    """

    VM_TYPE: Final = "hal.command_buffer"

    pushed: Pushed | None = None
    """Arguments of the dispatches that follow, in ABI 0.2 to 0.4."""

    def __init__(self, modes: int, categories: int, queue_affinity: int, binding_capacity: int) -> None:
        """INVALID_ARGUMENT for no category or a negative capacity."""
        modes, categories = integer("modes", modes), integer("categories", categories)
        binding_capacity = integer("binding_capacity", binding_capacity)
        if not categories & CommandCategory.ANY or binding_capacity < 0:
            raise checks.refused(checks.CREATION, categories=categories, capacity=binding_capacity)
        self.modes = modes
        self.categories = categories
        self.queue_affinity = integer("queue_affinity", queue_affinity)
        self.binding_capacity = binding_capacity
        self.recording = True
        self._open_groups = 0
        self._slots: dict[int, tuple[int, int]] = {}
        self._copies: list[tuple[Reference, Reference]] = []
        self._lock = guard()
        self._submitted = False

    # Recording.

    def finalize(self) -> None:
        """Ends recording. FAILED_PRECONDITION when it has ended or a debug group is open."""
        self._begin("finalize", 0)
        if self._open_groups:
            raise checks.refused(checks.OPEN_GROUPS, count=self._open_groups)
        self.recording = False

    def begin_debug_group(self, label: str) -> None:
        self._begin("begin_debug_group", 0)
        self._open_groups += 1

    def end_debug_group(self) -> None:
        self._begin("end_debug_group", 0)
        if not self._open_groups:
            raise FailedPreconditionError("end_debug_group without an open debug group")
        self._open_groups -= 1

    def execution_barrier(self, source_stages: int, target_stages: int, flags: int = 0) -> None:
        """Commands after it see all effects of commands before it."""
        self._begin("execution_barrier", 0)
        self._record_barrier(source_stages, target_stages, flags)

    def signal_event(self, event: Event, source_stages: int) -> None:
        self._begin("signal_event", 0)

    def reset_event(self, event: Event, source_stages: int) -> None:
        self._begin("reset_event", 0)

    def wait_events(self, events: Sequence[Event], source_stages: int, target_stages: int) -> None:
        """Waits for what came before the events' signals; recorded as a barrier."""
        self._begin("wait_events", 0)
        if events:
            self._record_barrier(source_stages, target_stages, 0)

    def advise_buffer(
        self, target: Reference, flags: int = 0, argument0: int = 0, argument1: int = 0
    ) -> None:
        """A hint; nothing is recorded."""
        self._begin("advise_buffer", 0)
        self._check(target, "advise_buffer", 0, 0)

    def flush_buffer(self, target: Reference) -> None:
        """Makes device writes visible to others: nothing to do on coherent memory."""
        self._begin("flush_buffer", _TRANSFER)
        if target[1] is None:  # the real runtime does not look at the range, and nothing happens to it
            self._check(target, "flush_buffer", 0, 0)

    def invalidate_buffer(self, target: Reference) -> None:
        """Makes writes of others visible: nothing to do on coherent memory."""
        self._begin("invalidate_buffer", _TRANSFER)
        if target[1] is None:
            self._check(target, "invalidate_buffer", 0, 0)

    def fill_buffer(self, target: Reference, pattern: int, pattern_length: int, flags: int = 0) -> None:
        """Repeats the low ``pattern_length`` (1, 2 or 4) bytes of ``pattern``, little endian.

        INVALID_ARGUMENT for another pattern length and for an offset or length that is no multiple of it.
        """
        self._begin("fill_buffer", _TRANSFER)
        checks.check_flags("fill_buffer", flags)
        target = self._check(target, "fill_buffer", _TARGET, _WRITE)
        checks.check_fill(target[2], target[3], pattern_length)
        if target[3]:
            self._record_fill(target, pattern & (1 << 8 * pattern_length) - 1, pattern_length)

    def update_buffer(
        self, source: memoryview, source_offset: int, target: Reference, flags: int = 0
    ) -> None:
        """Writes ``target``'s length of bytes of ``source``, captured now; at most 65536.

        OUT_OF_RANGE outside the source, INVALID_ARGUMENT for more bytes.
        """
        self._begin("update_buffer", _TRANSFER)
        checks.check_flags("update_buffer", flags)
        target = self._check(target, "update_buffer", _TARGET, _WRITE)
        contents = checks.update_contents(source, source_offset, target[3])
        if len(contents):
            self._record_update(contents, (target[0], target[1], target[2], len(contents)))

    def copy_buffer(self, source: Reference, target: Reference, flags: int = 0) -> None:
        """Copies between ranges of one length that do not overlap (else INVALID_ARGUMENT). Equal ranges, if
        both are known, are nothing to do."""
        self._begin("copy_buffer", _TRANSFER)
        checks.check_flags("copy_buffer", flags)
        source = self._check(source, "copy_buffer", _SOURCE, _READ)
        length = source[3] if source[3] != WHOLE_BUFFER else target[3]
        target = self._check((target[0], target[1], target[2], length), "copy_buffer", _TARGET, _WRITE)
        if target[3] != length:  # only the target's length is known: the rest of its buffer
            source = (source[0], source[1], source[2], target[3])
        if source[1] is None or target[1] is None:
            self.require_apart(source, target)
        elif not checks.check_overlap(source[1], source[2], target[1], target[2], length):
            return
        if length:
            self._record_copy(source, target)

    def collective(
        self,
        channel: Channel,
        operation: int,
        parameter: int,
        send: Reference | None,
        receive: Reference | None,
        element_count: int,
    ) -> None:
        """A collective operation over a channel; for the numbers see :class:`Collective`."""
        self._begin("collective", _TRANSFER)
        send = None if send is None else self._check(send, "collective", 0, _READ)
        receive = None if receive is None else self._check(receive, "collective", 0, _WRITE)
        self._record_collective(Collective(channel, operation, parameter, element_count), send, receive)

    def dispatch(
        self,
        executable: Executable,
        function: int,
        workgroups: tuple[int, int, int],
        constants: Sequence[int],
        bindings: Sequence[Reference],
        flags: int = 0,
    ) -> None:
        """Runs a grid of workgroups; any count of zero is no work.

        ``constants`` are 32-bit words, ``bindings[i]`` is binding i. OUT_OF_RANGE for an unknown function or
        more than 32 bindings, INVALID_ARGUMENT for other counts of constants or bindings than the executable
        states.
        """
        self._begin("dispatch", _DISPATCH)
        dispatch = self._check_dispatch(executable, function, constants, bindings, flags)
        if 0 not in workgroups:
            self._record_dispatch(workgroups, dispatch)

    def dispatch_indirect(
        self,
        executable: Executable,
        function: int,
        workgroups: Reference,
        constants: Sequence[int],
        bindings: Sequence[Reference],
        flags: int = 0,
    ) -> None:
        """Dispatches with three u32 counts that a buffer has at execution. For the rest as :meth:`dispatch`.

        The offset must be a multiple of 4 (INVALID_ARGUMENT) and the 12 bytes inside the buffer.
        """
        self._begin("dispatch_indirect", _DISPATCH)
        dispatch = self._check_dispatch(executable, function, constants, bindings, flags)
        slot, buffer, offset, _ = workgroups
        if offset % 4:
            raise InvalidArgumentError(f"workgroup counts at offset {offset}: must be a multiple of 4")
        counts = self._check((slot, buffer, offset, 12), "dispatch_indirect", 0, _READ)
        self._record_dispatch_indirect(counts, dispatch)

    # Submission.

    def check_submission(self, waits: bool) -> None:
        """A queue asks before it submits: FAILED_PRECONDITION when recording has not ended.

        INVALID_ARGUMENT when inline execution is allowed and the submission waits.
        """
        if self.recording:
            raise FailedPreconditionError("a command buffer must be finalized before it is submitted")
        if waits and self.modes & _INLINE:
            raise checks.refused(checks.INLINE_WAIT)

    def mark_submitted(self) -> None:
        """Notes a submission that cannot fail any more. FAILED_PRECONDITION for a ONE_SHOT one's second
        time."""
        if self.modes & _ONE_SHOT:
            with self._lock:
                if self._submitted:
                    raise FailedPreconditionError("a ONE_SHOT command buffer was submitted a second time")
                self._submitted = True

    def check_table(self, table: BindingTable) -> list[tuple[Buffer, int, int] | None]:
        """Resolves a submission's binding table to (buffer, offset, length), None for empty entries.

        INVALID_ARGUMENT when a slot that commands use has no buffer or copies overlap, OUT_OF_RANGE for an
        entry outside its buffer, PERMISSION_DENIED for missing usage or access. Ranges inside entries are for
        the driver to check.
        """
        try:
            entries: list[tuple[Buffer, int, int] | None] = [
                None if buffer is None else (buffer, offset, buffer.range(offset, length))
                for buffer, offset, length in table
            ]
        except (TypeError, ValueError, AttributeError) as error:
            pass_interruption(error)
            raise InvalidArgumentError(
                f"binding table: expected a buffer or None, an offset and a length for each slot: {error}"
            ) from None
        for slot, (usage, access) in sorted(self._slots.items()):
            entry = entries[slot] if slot < len(entries) else None
            if entry is None:
                raise checks.refused(checks.UNBOUND_SLOT, slot=slot, count=len(entries))
            checks.check_buffer(entry[0], f"slot {slot}", usage, access)
        for source, target in self._copies:
            _check_slot_copy(entries, source, target)
        return entries

    # Checks.

    def _begin(self, command: str, category: int) -> None:
        if not self.recording:
            raise FailedPreconditionError(f"{command}: the command buffer has been finalized")
        if category & ~self.categories:
            wanted, own = names(CommandCategory(category)), names(CommandCategory(self.categories))
            raise checks.refused(checks.CATEGORY, command=command, wanted=wanted, own=own)

    def _check(self, reference: Reference, command: str, usage: int, access: int) -> Reference:
        slot, buffer, offset, length = reference
        if buffer is not None:
            if usage | access:
                checks.check_buffer(buffer, command, usage, access)
            return slot, buffer, offset, buffer.range(offset, length)
        capacity = self.binding_capacity
        if refusal := checks.slot_refusal(capacity, slot, offset, length):
            place = {"slot": slot, "offset": offset, "length": length}
            raise checks.refused(refusal, command=command, capacity=capacity, **place)
        self.require_slot(slot, usage, access)
        return reference

    def require_slot(self, slot: int, usage: int, access: int) -> None:
        """Submissions must have a buffer with that usage and access in a slot."""
        slot, usage, access = integers("slot, usage and access", (slot, usage, access))
        known = self._slots.get(slot, (0, 0))
        self._slots[slot] = known[0] | usage, known[1] | access

    def require_apart(self, source: Reference, target: Reference) -> None:
        """Requires copied ranges in slots to be apart, or the same. Submissions must have ranges of one
        length there."""
        self._copies.append((source, target))

    def _check_dispatch(
        self,
        executable: Executable,
        function: int,
        constants: Sequence[int],
        bindings: Sequence[Reference],
        flags: int,
    ) -> Dispatch:
        object_of("executable", executable, Executable)
        function, flags = integer("function", function), integer("flags", flags)
        if flags & _ARGUMENT_FLAGS:
            raise UnimplementedError(f"dispatch with flags {names(DispatchFlags(flags))}")
        if not 0 <= function < executable.function_count:
            raise OutOfRangeError(
                f"dispatch of function {function} of an executable with {executable.function_count} functions"
            )
        constants, bindings = items("constants", constants), items("bindings", bindings)
        if len(bindings) > MAXIMUM_BINDINGS:
            raise OutOfRangeError(f"dispatch with {len(bindings)} bindings; at most {MAXIMUM_BINDINGS}")
        _check_count("constants", executable.constant_count(function), len(constants), executable, function)
        _check_count("bindings", executable.binding_count(function), len(bindings), executable, function)
        checked = [self._check(reference, "dispatch", 0, 0) for reference in bindings]
        return Dispatch(executable, function, constants, checked, flags)

    # What drivers implement.

    @property
    def copied_bytes(self) -> int:
        """Sums the bytes of its copies, as far as lengths are known."""
        return 0

    @abc.abstractmethod
    def _record_barrier(self, source_stages: int, target_stages: int, flags: int) -> None: ...

    @abc.abstractmethod
    def _record_fill(self, target: Reference, pattern: int, pattern_length: int) -> None: ...

    @abc.abstractmethod
    def _record_update(self, contents: memoryview, target: Reference) -> None: ...

    @abc.abstractmethod
    def _record_copy(self, source: Reference, target: Reference) -> None:
        """Lengths are equal, or both WHOLE_BUFFER when both are slots."""

    @abc.abstractmethod
    def _record_dispatch(self, workgroups: tuple[int, int, int], dispatch: Dispatch) -> None: ...

    @abc.abstractmethod
    def _record_dispatch_indirect(self, workgroups: Reference, dispatch: Dispatch) -> None: ...

    def _record_collective(
        self, collective: Collective, send: Reference | None, receive: Reference | None
    ) -> None:
        raise UnimplementedError("this device has no collective operations")


def _check_count(what: str, stated: int | None, count: int, executable: Executable, function: int) -> None:
    if stated is not None and stated != count:
        name = executable.function_name(function)
        raise checks.refused(checks.STATED_COUNT, name=name, what=what, count=count, stated=stated)


def _check_slot_copy(
    entries: Sequence[tuple[Buffer, int, int] | None], source: Reference, target: Reference
) -> None:
    """Checks a copy with a slot on one side, once the table is known."""
    ranges = []
    for slot, buffer, offset, length in (source, target):
        entry = entries[slot] if buffer is None else (buffer, 0, buffer.byte_length)
        if entry is None:
            raise InvalidArgumentError(f"slot {slot} of the binding table has no buffer")
        ranges.append((entry[0], entry[1] + offset, entry[2] - offset if length == WHOLE_BUFFER else length))
    (source_buffer, source_offset, length), (target_buffer, target_offset, target_length) = ranges
    if length != target_length:
        raise InvalidArgumentError(f"a copy of {length} bytes into a range of {target_length}")
    checks.check_overlap(source_buffer, source_offset, target_buffer, target_offset, length)
