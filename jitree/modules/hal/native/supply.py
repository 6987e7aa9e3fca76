"""Supply what machine code lacked when it gave up a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from weakref import ref

from jitree.codegen import image
from jitree.hal.enums import MemoryType
from jitree.modules.hal.native import RECIPE
from jitree.modules.hal.native.layout import STAGED
from jitree.regs.buffer import VmBuffer
from jitree.regs.ref_types import stated_type

if TYPE_CHECKING:
    from jitree.hal.command_buffer import CommandBuffer
    from jitree.hal.command_list import CommandList
    from jitree.hal.device import Device
    from jitree.hal.fence import Fence
    from jitree.modules.hal.native.handle_pool import HandlePool
    from jitree.regs.handles import HandleTable
    from jitree.regs.machine import Machine

    class Supplied(Protocol):
        """The state of a module."""

        supplier: Supplier


_FEW: Final = 8
_ON_HOST: Final = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
_INLINE_SIZE: Final = 1
"""What programs without a device allocate, and the position of the size."""
_FENCE: Final = "hal.fence"
_MEMORY_TYPE: Final = 5
_SIZE: Final = 7
"""Positions of the memory type and the size among the arguments of an allocation."""
_SOURCE: Final = 3
_UPDATE_LENGTH: Final = 7
"""Positions after the device among a transfer's arguments: source or target, length of an update."""


class Supplier:
    """Makes a context's pools when its fast paths first need them."""

    def __init__(self, table: HandleTable, devices: Sequence[Device]) -> None:
        self._table = table
        self._local = next((device for device in devices if device.queue_record()), None)
        self.is_local = self._local is not None
        """Whether fast paths can work with any of the devices."""
        self._handle_pool: HandlePool | None = None
        self._own: HandlePool | None = None
        """The same if this context made them, which is the first of those that share a table."""
        if table.make_pool is None:
            table.make_pool = partial(_made_by, ref(self))

    @property
    def handle_pool(self) -> HandlePool | None:
        """None as long as there are no fast paths."""
        return self._handle_pool or self._connect()

    def refill(self) -> bool:
        """Refills pools of entries and command buffers; whether one was empty."""
        handle_pool = self.handle_pool
        return handle_pool is not None and handle_pool.supply()

    def expect(self, command_buffers: int) -> None:
        """A program is about to record so many: memory for them is there before the first, which Python would
        record otherwise, and comes at once. Where they are few Python is as quick as what that takes."""
        wanted = self.is_local and command_buffers > _FEW
        handle_pool = self.handle_pool if wanted else None
        if handle_pool is not None:
            handle_pool.expect(command_buffers)
            handle_pool.supply()

    def _connect(self) -> HandlePool | None:
        table = self._table
        if image.get(RECIPE) is None:
            return None
        from jitree.modules.hal.native.handle_pool import HandlePool

        if table.handle_pool is None and table.make_pool is not None:
            table.make_pool()
        if table.handle_pool is None:  # who shares the table is closed
            self.make()
        assert isinstance(table.handle_pool, HandlePool)
        self._handle_pool = table.handle_pool
        return self._handle_pool

    def make(self) -> None:
        """Makes the pools, which are closed with this context."""
        table, code = self._table, image.get(RECIPE)
        if code is None or table.handle_pool is not None:
            return
        from jitree.modules.hal.native.handle_pool import HandlePool

        self._own = HandlePool(table, self._local, code)
        table.connect(self._own)

    def learn_dispatch(self, commands: CommandList) -> None:
        """A dispatch without a device is Python's: raises what it has failed with, if machine code has made
        it, and gives what the next ones need."""
        handle_pool = self.handle_pool if self.is_local else None
        if handle_pool is not None:
            failure = handle_pool.take_failure()
            if failure is not None:
                failure.raise_error(commands)
            self.refill()
            handle_pool.supply_local_memory(commands.most_local_memory, 1)

    def publish(self, arguments: Iterable[object]) -> None:
        """Tells fast paths of fences that are reached by now: without that, every operation after this one
        would be Python's too."""
        for argument in arguments:
            if stated_type(argument) == _FENCE:
                cast("Fence", argument).publish(self._table)
            elif type(argument) is list:
                self.publish(argument)

    def trim(self) -> None:
        """Memory that is idle goes back."""
        if self._handle_pool is not None:
            self._handle_pool.trim()

    def close(self) -> None:
        """The context is closed."""
        if self._own is not None:
            self._own.close()


def _made_by(supplier: ref[Supplier]) -> None:
    """The table does not own who owns it."""
    there = supplier()
    if there is not None:
        there.make()


_OF_ANY_DEVICE: Final = frozenset((
    "device.allocator", "buffer.assert", "buffer.length", "buffer_view.assert", "buffer_view.dim",
    "buffer_view.element_type", "buffer_view.encoding_type", "buffer_view.rank",
))  # fmt: skip
"""What fast paths know of devices and buffers that only Python can work with."""


_TRANSFERS: Final = frozenset(("device.queue.fill", "device.queue.copy", "device.queue.update"))
_EXECUTE: Final = "device.queue.execute"
_DISPATCH: Final = "executable.dispatch"

Refill = Callable[[Any, "Machine", int], bool]
"""See :attr:`HostExport.refill`."""


def refill_of(name: str) -> Refill | None:
    """What refills pools for the fast path of an import. Of transfers and executions Python makes the first
    ones: from those it learns what else they need."""
    if name in _TRANSFERS or name.startswith((_EXECUTE, _DISPATCH)):
        return None
    if name == "device.queue.alloca":
        return _refill_storage
    if name == "buffer.allocate":
        return _refill_memory
    return _refill if name in _OF_ANY_DEVICE else _refill_locally


def _refill(state: Supplied, machine: Machine, site: int) -> bool:
    return state.supplier.refill()


def _refill_locally(state: Supplied, machine: Machine, site: int) -> bool:
    return state.supplier.is_local and state.supplier.refill()


def _refill_storage(state: Supplied, machine: Machine, site: int) -> bool:
    handle_pool = state.supplier.handle_pool if state.supplier.is_local else None
    if handle_pool is None:
        return False
    size, memory_type = machine.module.program.registers(site, _SIZE, _MEMORY_TYPE)
    return handle_pool.supply_storage(machine.i64[size], machine.i32[memory_type]) or handle_pool.supply()


def _refill_memory(state: Supplied, machine: Machine, site: int) -> bool:
    handle_pool = state.supplier.handle_pool if state.supplier.is_local else None
    if handle_pool is None:
        return False
    is_refilled = handle_pool.supply()
    if handle_pool.has_timeline:
        return False
    [size] = machine.module.program.registers(site, _INLINE_SIZE)
    return handle_pool.supply_storage(machine.i64[size], _ON_HOST) or is_refilled


def supplied(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of an import that has a fast path."""
    if name in _OF_ANY_DEVICE:
        return function
    if name.startswith(_EXECUTE):
        return _executed(function)
    return _published(_transferred(function) if name in _TRANSFERS else function, function)


def _transferred(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(state: Supplied, device: Device, *arguments: Any) -> Any:
        state.supplier.refill()
        handle_pool = state.supplier.handle_pool
        result = function(state, device, *arguments)
        if handle_pool is not None:
            handle_pool.learn_transfers(device)
            if isinstance(arguments[_SOURCE], VmBuffer):
                handle_pool.supply_storage(arguments[_UPDATE_LENGTH], STAGED)
        return result

    return call


def _published(function: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose fences fast paths should know of; ``elsewhere`` where there are no local devices."""

    def call(state: Supplied, *arguments: Any) -> Any:
        supplier = state.supplier
        if not supplier.is_local:
            return elsewhere(state, *arguments)
        result = function(state, *arguments)
        supplier.publish(arguments)
        return result

    return call


def _executed(function: Callable[..., Any]) -> Callable[..., Any]:
    """An execution; the fast path may have given up because it failed."""
    from jitree.hal.command_list import ListCommandBuffer  # for what Python executes
    from jitree.hal.device import Device
    from jitree.hal.local.command_buffer import LocalCommandBuffer

    def call(
        state: Supplied,
        device: Device,
        queue_affinity: int,
        wait: Fence | None,
        signal: Fence | None,
        commands: CommandBuffer | list[CommandBuffer],
        *arguments: Any,
    ) -> Any:
        supplier = state.supplier
        handle_pool = supplier.handle_pool if supplier.is_local else None
        supplier.refill()
        if handle_pool is None or not isinstance(device, Device) or not device.queue_record():
            return function(state, device, queue_affinity, wait, signal, commands, *arguments)
        local = commands[0] if isinstance(commands, list) and commands else commands
        if device.shared_timeline is not None and isinstance(local, ListCommandBuffer):
            result = function(state, device, queue_affinity, wait, signal, commands, *arguments)
            handle_pool.learn(local)
            return result
        if isinstance(local, LocalCommandBuffer):
            failure = handle_pool.take_failure()
            if failure is not None:
                local.mark_submitted()
                return device.queue_failed(
                    queue_affinity, signal, partial(failure.raise_error, local.commands)
                )
            handle_pool.supply_local_memory(local.commands.most_local_memory, device.thread_count)
        result = function(state, device, queue_affinity, wait, signal, commands, *arguments)
        supplier.publish((wait, signal))
        return result

    return call
