"""Export the rows of module ``hal``, and keep its state of a context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule, Signal
from jitree.errors import NotFoundError, StatusError, tell
from jitree.modules.hal.native import address
from jitree.modules.hal.native.supply import Supplier, refill_of, supplied
from jitree.modules.hal.references import HAL_TYPES, checked
from jitree.modules.import_rows import ImportRow, named, rows, stated
from jitree.regs.ref_types import stated_type
from jitree.types import element_type

if TYPE_CHECKING:
    from jitree.dispatch.host_module import ModuleContext
    from jitree.hal.allocator import HostMemory
    from jitree.hal.buffer import BufferView
    from jitree.hal.device import Device
    from jitree.hal.executable import ExecutableCache
    from jitree.hal.fence import Fence
    from jitree.regs.ref_types import RefTypes


_WAIT: Final = "wait_fence: hal.fence?"
"""A parameter of functions that submit an operation."""
_FENCE: Final = "hal.fence"

TraceSink = Callable[[str, Sequence["BufferView"]], None]
"""Gets the key and the tensors of ``hal.buffer_view.trace``, which the host can read until it returns."""

Placement = Callable[[Sequence[tuple["Device", int]], int, int], tuple["Device", int]]
"""Chooses the (device, queue affinity) for memory that several share: (candidates, memory types, usage)."""


class HalState:
    """State of the module in one context."""

    __slots__ = ("_caches", "_context", "devices", "placement", "supplier", "trace_sink")

    def __init__(
        self,
        devices: Sequence[Device],
        trace_sink: TraceSink | None,
        placement: Placement | None,
        supplier: Supplier,
        context: ModuleContext,
    ) -> None:
        self._context = ref(context)
        self.devices = tuple(devices)
        self.supplier = supplier
        self.trace_sink = trace_sink
        self.placement = placement
        self._caches: dict[Device, ExecutableCache] = {}

    def host_memory(self) -> HostMemory:
        """Memory of the host for an object that a program has made; where its memory is limited, so is
        this."""
        from jitree.hal.allocator import HostMemory

        return HostMemory(self.devices[0].device_allocator.limited_charge if self.devices else None)

    @property
    def stores_to_constants(self) -> bool:
        """Whether kernels of the program may."""
        from jitree.modules.hal.constant_stores import may_store_to_constants  # of bytes, and in a sandbox

        context = self._context()
        modules = () if context is None else context.modules
        loaders = [loader for device in self.devices for loader in device.loaders]
        return may_store_to_constants(modules, loaders)

    def executable_cache(self, device: Device) -> ExecutableCache:
        """The context's executable cache of a device. NOT_FOUND for one that the module was not given."""
        cache = self._caches.get(device)
        if cache is None:
            if device not in self.devices:
                raise NotFoundError(f"device {device.id} is not one of this context's devices")
            cache = self._caches[device] = device.create_executable_cache("hal")
        return cache


def write_to_stderr(key: str, views: Sequence[BufferView]) -> None:
    """What happens to traced tensors unless the host wants them: ``=== key ===``, one line per tensor, an
    empty line."""
    lines = [f"=== {key} ===", *[view_text(view) for view in views], "", ""]
    tell("\n".join(lines))


def view_text(view: BufferView) -> str:
    """``4xf32=1 2 3 4``; a reason in place of the elements when the host cannot read them."""
    from jitree.base.elements import HostTensor  # few programs trace

    row = element_type(view.element_type)
    try:
        return HostTensor(row, view.shape, view.buffer.host_array()).text()
    except StatusError as error:
        shape = "".join(f"{size}x" for size in view.shape)
        return f"{shape}{row.name}=<{error}>"


class RowModule(HostModule):
    """Makes a host module of rows of ``imports.tsv``, read when needed."""

    def exports(self) -> Iterable[HostExport]:
        return [_export(row) for row in rows(self.name)]

    def find(self, name: str) -> dict[str, HostExport]:
        return {row.cconv: _export(row) for row in named(self.name, name)}

    def get(self, name: str, cconv: str) -> HostExport | None:
        row = stated(self.name, name, cconv)
        return None if row is None else _export(row)

    def register_types(self, ref_types: RefTypes) -> None:
        ref_types.declare(HAL_TYPES)


class HalModule(RowModule):
    """``hal`` with the devices that programs may choose from, in order.

    ``trace_sink`` gets the tensors that programs trace (None: they are dropped), ``placement`` decides where
    memory that devices share is allocated (None: with the first).
    """

    name = "hal"
    version = 7

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        trace_sink: TraceSink | None = write_to_stderr,
        placement: Placement | None = None,
    ) -> None:
        self.devices = tuple(devices)
        self.trace_sink = trace_sink
        self.placement = placement

    def create_state(self, context: ModuleContext) -> HalState:
        supplier = Supplier(context.table, self.devices)
        return HalState(self.devices, self.trace_sink, self.placement, supplier, context)

    def free_state(self, state: object) -> None:
        """Memory that machine code keeps for reuse goes back to the devices."""
        assert isinstance(state, HalState)
        state.supplier.close()

    def notify(self, state: object, signal: Signal) -> None:
        """Gives back kept memory that is needed elsewhere. Machine code and devices keep it for reuse."""
        assert isinstance(state, HalState)
        if signal in (Signal.SUSPEND, Signal.LOW_MEMORY):
            state.supplier.trim()
            for device in self.devices:
                device.trim()


class CheckedExport(HostExport):
    """Checks arguments before a row's function is called. The tests are generated when it is first called
    for: programs use a dozen of the hundred. Some have a fast path in machine code as well."""

    __slots__ = ("_checked", "_row")
    _checked: Callable[..., Any] | None
    _row: ImportRow

    def __init__(self, row: ImportRow) -> None:
        self.name = row.name
        self.cconv = row.cconv
        self.attrs = {}
        self.compiled = partial(address, row) if row.fast_path else None
        self.refill = None if self.compiled is None else refill_of(row.name)
        self._row = row
        self._checked = None

    @property
    def function(self) -> Callable[..., Any]:  # type: ignore[override]  # made when it is asked for
        if self._checked is None:
            function = checked(self._row)
            if self.compiled is not None:
                function = supplied(self._row.name, function)
            is_submission = self._row.module == "hal" and _WAIT in self._row.parameters
            self._checked = _submission(function) if is_submission else function
        return self._checked


def _submission(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that submits an operation. If that waits, the call may have to, too."""

    def call(state: object, device: Device, affinity: int, wait: Fence | None, *arguments: Any) -> Any:
        if wait is None or stated_type(wait) != _FENCE or wait.is_reached():
            return function(state, device, affinity, wait, *arguments)
        from jitree.modules.hal.pacing import submit  # few programs submit more than runs at once

        return submit(partial(function, state, device, affinity, wait, *arguments), device, wait)

    return call


_export = cache(CheckedExport)
"""The function of a row, the same for all modules."""
