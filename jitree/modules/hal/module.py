"""The native module ``hal``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

from jitree.dispatch.context import Context
from jitree.dispatch.linking import TIERS_THAT_CALL_CODE
from jitree.dispatch.native_module import NativeExport, NativeModule, Signal
from jitree.hal.device import Device
from jitree.modules.hal import abi_0_2, abi_0_4, abi_0_5, abi_0_6, table
from jitree.modules.hal.native.image import address
from jitree.modules.hal.native.supply import IDLE, Supplier, supplied
from jitree.modules.hal.references import Row, checked, register_hal_types
from jitree.modules.hal.state import HalState, Placement, TraceSink
from jitree.modules.hal.trace import write_to_stderr
from jitree.regs.ref_types import RefTypes

GENERATIONS: Final = (table.ROWS, abi_0_6.ROWS, abi_0_5.ROWS, abi_0_4.ROWS, abi_0_2.ROWS)
"""Import tables, newest first; each has what the one before it replaced. A pair of name and calling
convention means the same in all releases that have it, so one set of rows serves them all."""


class HalModule(NativeModule):
    """``hal`` with the devices that programs may choose from, in order.

    ``trace_sink`` gets the tensors that programs trace (None: they are dropped), ``placement`` decides where
    memory that devices share is allocated (None: with the first).
    """

    name = "hal"
    version = 7
    tables: tuple[tuple[Row, ...], ...] = GENERATIONS

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

    def exports(self) -> Iterable[NativeExport]:
        return _exports(self.tables)

    def register_types(self, ref_types: RefTypes) -> None:
        register_hal_types(ref_types)

    def create_state(self, context: Context) -> HalState:
        supplier = Supplier(context.table, self.devices) if context.tier in TIERS_THAT_CALL_CODE else IDLE
        return HalState(self.devices, self.trace_sink, self.placement, supplier)

    def free_state(self, state: object) -> None:
        """Memory that machine code keeps for reuse goes back to the devices."""
        assert isinstance(state, HalState)
        state.supplier.close()

    def notify(self, state: object, signal: Signal) -> None:
        """Gives back memory that machine code and devices keep for reuse when it is needed elsewhere."""
        assert isinstance(state, HalState)
        if signal in (Signal.SUSPEND, Signal.LOW_MEMORY):
            state.supplier.trim()
            for device in self.devices:
                device.trim()


class CheckedExport(NativeExport):
    """The function of a row behind the tests of its arguments, which are generated when it is first called
    for: programs use a dozen of the hundred. Some have an answer in machine code as well."""

    __slots__ = ("_checked", "_module", "_row")
    _checked: Callable[..., Any] | None
    _module: str
    _row: Row

    def __init__(self, row: Row, module: str = "hal") -> None:
        set_attribute = object.__setattr__  # the base is frozen
        set_attribute(self, "name", row.name)
        set_attribute(self, "cconv", row.cconv)
        set_attribute(self, "attrs", {})
        set_attribute(self, "compiled", address(row.name, row.cconv) if module == "hal" else None)
        set_attribute(self, "_module", module)
        set_attribute(self, "_row", row)
        set_attribute(self, "_checked", None)

    @property
    def function(self) -> Callable[..., Any]:
        function = self._checked
        if function is None:
            function = checked(self._row, self._module)
            if self.compiled is not None:
                function = supplied(self._row.name, function)
            object.__setattr__(self, "_checked", function)
        return function


@cache
def _exports(tables: tuple[tuple[Row, ...], ...]) -> tuple[NativeExport, ...]:
    return tuple(CheckedExport(row) for rows in tables for row in rows)
