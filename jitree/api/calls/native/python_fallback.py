"""Does in Python what machine code leaves of a call, and waits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, cast

from jitree.api.array import WRITES
from jitree.api.calls.packing import unpack_reference, unpacked
from jitree.api.calls.waiting import Begun, await_work, await_work_async, give_up
from jitree.api.function import Function
from jitree.base.events import CALL, Handle, ObservedEvent
from jitree.dispatch.fast.engine import RUNNING
from jitree.dispatch.function import BytecodeFunction
from jitree.dispatch.session_lock import BEGUN
from jitree.dispatch.sites import register_index
from jitree.errors import StatusError, carried, error_context, raise_as_raised, raise_in_place_of
from jitree.hal.fence import Fence

if TYPE_CHECKING:
    from array import array

    from jitree.api.calls.memory_order import Uses
    from jitree.api.calls.native.acceptance import NotingPacker
    from jitree.dispatch.engine import EngineEntry
    from jitree.dispatch.invocation import Call
    from jitree.hal.memory_order import Extent
    from jitree.regs.machine import Machine


class PassedCall(ObservedEvent):
    """A call by machine code that begins."""

    def __init__(self, function: BytecodeFunction, machine: Machine, places: Sequence[_Place]) -> None:
        self.kind = CALL
        self.name = function.full_name
        self.machine = machine
        self._function = function
        self._places = places

    @property
    def registers(self) -> list[Any]:
        """The numbers and handles of arguments, while readers are told."""
        registers = self.machine.host_registers
        return [
            Handle(registers[kind][index]) if kind == _REFERENCES else registers[kind][index]
            for kind, index in self._places
        ]

    @property
    def arguments(self) -> list[Any]:
        """What the program gets, while readers are told."""
        object_of = self.machine.table.object
        return [object_of(value) if type(value) is Handle else value for value in self.registers]


_KINDS: Final = "iIfFr"
"""Of registers, in their order in a window of a machine."""
_REFERENCES: Final = _KINDS.index("r")
_Place = tuple[int, int]
"""Where a register is: its kind, and its index among those."""


class Rest:
    """Does Python's part of direct calls with the lock held. :meth:`wait_for` is without it."""

    def __init__(
        self,
        function: Function,
        vm_function: BytecodeFunction,
        entry: EngineEntry,
        machine: Machine,
        packers: Sequence[NotingPacker],
        rewrites: bool,
        extents: array[int],
    ) -> None:
        """Takes ``packers``, which note what the call may still write to. Its caller goes on meanwhile.
        ``rewrites``: it may write to arrays that the host has copies of. ``extents``: where machine code says
        where the arrays of the call lie, address and length of each argument."""
        self._invoker = function.invoker
        self._device = function.device
        self._devices = function.devices
        self._declaration = function.declaration
        self._unpackers = function.unpackers
        self._vm_function = vm_function
        self._entry = entry
        self._machine = machine
        self._packers = packers
        self._rewrites = rewrites
        self._extents = extents
        self._is_ordered = function.device.array_exchange is None
        self._places: list[_Place] | None = None
        """Where the arguments' registers are; found when the first reader is told."""
        self._overwritten = tuple(parameter.overwritten for parameter in function.arguments)

    def go_on(self) -> None:
        """Completes a call that machine code has left: its results are in the registers then. Whatever it
        fails with; the call is settled then."""
        invoker, machine = self._invoker, self._machine
        try:
            machine.pc = RUNNING
            invoker.carry_on(machine, self._entry, self._vm_function)
        except BaseException as error:
            self._end(error)
            raise

    def tell(self) -> None:
        """Tells readers that a call begins, whose arguments are in the registers."""
        if self._places is None:
            slots = zip(self._vm_function.convention.arguments, self._vm_function.argument_slots, strict=True)
            self._places = [(_KINDS.index(str(item)), register_index(slot)) for item, slot in slots]
        event = PassedCall(self._vm_function, self._machine, self._places)
        for reader in self._invoker.table.readers:
            reader.begins(event)

    def set_aside(self, signal: int) -> Begun | None:
        """As :meth:`go_on`, without waiting: None if the call is complete, or what completes it and gives its
        results when it is awaited. ``signal``: the handle of the fence that it reaches, 0 for none."""
        from jitree.dispatch.suspended_calls import go_on_promptly  # of few programs

        invoker, machine, entry = self._invoker, self._machine, self._entry
        try:
            machine.pc = RUNNING
            call = go_on_promptly(invoker, machine, entry, self._vm_function)
        except BaseException as error:
            self._end(error)
            raise
        if call is None:
            return None
        try:
            return Begun(self._finish(call, signal))
        except BaseException as error:  # an interrupt
            call.close()
            if signal:
                self.give_up_work(signal, error)
            raise

    def _finish(self, call: Call, signal: int) -> Generator[Any, Any, Any]:
        from jitree.dispatch.suspended_calls import drive, end_call

        begun, here = self._invoker.gate[BEGUN], self._invoker.submissions.this_thread
        fence = cast("Fence | None", self._invoker.table.object(signal))
        use: AbstractContextManager[object] = nullcontext()
        begin: Callable[[], object] = bool
        if self._is_ordered:
            from jitree.api.calls.memory_order import AwaitedUse

            uses = self._uses()
            use = ordered = AwaitedUse(lambda: uses, fence)
            begin = ordered.begin
        is_given_up = False
        try:
            with use:
                try:
                    begin()
                    submitted, here.submitted = here.submitted, {}
                    yield
                    results = yield from drive(self._invoker, call, begun, submitted).__await__()
                except BaseException as error:  # before the use fails the fence
                    end_call(self._invoker, call, error)
                    self._fail(error, fence)
                    is_given_up = True
                    raise
            WRITES[0] += self._rewrites
            made = unpacked(results, self._unpackers, self._devices, None)
            if fence is not None:
                yield from await_work_async(self._invoker, begun, fence).__await__()
            return made
        except BaseException as error:  # also an interrupt at the end of the use
            if not is_given_up:
                self._fail(error, fence)
            raise

    def when_reached(self, fence: Fence, results: Any, begun: int) -> Begun:
        """Returns what gives results when a fence is reached. The call began with those cancellations."""
        return Begun(self._await(fence, results, begun))

    def _await(self, fence: Fence, results: Any, begun: int) -> Generator[Any, Any, Any]:
        try:
            yield
            yield from await_work_async(self._invoker, begun, fence).__await__()
            return results
        except BaseException as error:
            self._fail(error, fence)
            raise

    def _fail(self, error: BaseException, fence: Fence | None) -> None:
        """Fails a call with an error that its caller raises. It comes in place of the results at a fence."""
        if isinstance(error, StatusError):
            error.with_context(f"`{self._declaration}`")
        if fence is not None:
            give_up(error, fence)

    def give_up_work(self, work: Fence | int, error: BaseException) -> None:
        """The caller gets an error in place of results. ``work``: a fence that the work of the call reaches,
        or the handle of one."""
        fence = self._invoker.table.object(work) if isinstance(work, int) else work
        give_up(error, cast("Fence", fence))

    def _end(self, error: BaseException) -> None:
        with error_context(f"`{self._declaration}`"):
            self._invoker.abandon(error, self._machine, self._vm_function)
        if isinstance(error, StatusError):
            error.with_context(f"`{self._declaration}`")
        raise_in_place_of(error, carried(error))
        raise_as_raised(error)

    def give_up(self) -> None:
        """Ends a call that :meth:`go_on` was interrupted in before it had begun. May be called again."""
        self._machine.pc = RUNNING
        self._invoker.abandon(KeyboardInterrupt(), self._machine, self._vm_function)

    def take_reference(self, fence: Fence | None, handle: int) -> Any:
        """Takes a result that is no buffer view of one device. ``fence``: is reached when the arrays in it
        are there."""
        return unpack_reference(self._invoker.table.object(handle), self._devices, fence)

    def wait_for(self, fence: Fence, begun: int) -> None:
        """Waits for a fence without the lock. The call began with those cancellations: others may have come
        since it was given up. Raises what the work that signals it failed with."""
        try:
            await_work(self._invoker, begun, fence)
        except StatusError as error:
            error.with_context(f"invoking function '{self._vm_function.name}'")
            error.with_context(f"`{self._declaration}`")
            raise_in_place_of(error, carried(error))
            raise
        except RuntimeError as error:
            raise_as_raised(error)
            raise

    def wait_for_submission(self, tick: int, begun: int) -> None:
        """Waits for a submission of the device, as :meth:`wait_for`. The call began with those cancellations:
        machine code has waited a moment already."""
        self.wait_for(self._promised(tick), begun)

    def pending(self, handle: int) -> Fence | None:
        """The fence of a handle; None if it has been reached."""
        return self._submitted(cast("Fence", self._invoker.table.object(handle)))

    def pending_submission(self, tick: int) -> Fence | None:
        """As :meth:`pending`, the fence of a submission of the device."""
        return self._submitted(self._promised(tick))

    def _promised(self, tick: int) -> Fence:
        timeline = self._device.shared_timeline
        assert timeline is not None
        return Fence(((timeline.promised(tick), 1),))

    def _submitted(self, fence: Fence) -> Fence | None:
        if fence.is_reached():
            return None
        if self._is_ordered:
            from jitree.hal.memory_order import begin

            begin(fence, *self._uses())
        for packer in self._noted() if not self._is_ordered else ():
            for reference in packer.arrays:
                array = reference()
                if array is not None:
                    array._compute_until(fence)
        self._invoker.submitted.add(fence)
        return fence

    def _uses(self) -> Uses:
        """The memory of the call in progress."""
        from jitree.api.calls.memory_order import Uses

        uses: tuple[list[Extent], list[Extent]] = ([], [])
        words = self._extents
        for index, is_overwritten in enumerate(self._overwritten):
            start, length = words[2 * index], words[2 * index + 1]
            if length:
                uses[is_overwritten].append((start, start + length))
        return Uses(*uses)

    def _noted(self) -> Iterable[NotingPacker]:
        return (packer for packer in self._packers if packer.noted[0])
