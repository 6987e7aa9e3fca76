"""Which imports have a fast path, and the image of them all."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.codegen import image

if TYPE_CHECKING:
    from collections.abc import Callable


class NativeFastPath(NamedTuple):
    """The fast path to one import."""

    name: str
    cconv: str
    function: str
    """Of the modules beside this one: ``module.function``."""
    constants: tuple[int, ...] = ()
    """Its arguments after the four that all have."""

    @property
    def symbol(self) -> str:
        return f"hal.{self.name}.{self.cconv}"


FAST_PATHS: Final = (
    NativeFastPath("device.allocator", "0r_r", "buffers.device_allocator"),
    NativeFastPath("buffer.assert", "0rrrIii_v", "buffers.buffer_assert"),
    NativeFastPath("buffer.subspan", "0rII_r", "buffers.buffer_subspan"),
    NativeFastPath("buffer.length", "0r_I", "buffers.buffer_length"),
    NativeFastPath("buffer.load", "0rIi_i", "buffers.buffer_load"),
    NativeFastPath("buffer.store", "0irIi_v", "buffers.buffer_store"),
    NativeFastPath("buffer_view.create", "0rIIiiCID_r", "views.view_create"),
    NativeFastPath("buffer_view.assert", "0rriiCID_v", "views.view_assert"),
    NativeFastPath("buffer_view.buffer", "0r_r", "views.view_buffer"),
    NativeFastPath("buffer_view.element_type", "0r_i", "views.view_element_type"),
    NativeFastPath("buffer_view.encoding_type", "0r_i", "views.view_encoding_type"),
    NativeFastPath("buffer_view.rank", "0r_i", "views.view_rank"),
    NativeFastPath("buffer_view.dim", "0ri_I", "views.view_dim"),
    NativeFastPath("fence.create", "0rI_r", "fences.fence_create"),
    NativeFastPath("fence.create", "0ri_r", "fences.fence_create"),
    NativeFastPath("fence.join", "0ICrD_r", "fences.fence_join", (1,)),
    NativeFastPath("fence.join", "0CrD_r", "fences.fence_join", (0,)),
    NativeFastPath("fence.query", "0r_i", "fences.fence_query"),
    NativeFastPath("fence.signal", "0r_v", "fences.fence_signal"),
    NativeFastPath("fence.await", "0iICrD_i", "fences.fence_await", (2,)),
    NativeFastPath("fence.await", "0iCrD_i", "fences.fence_await", (1,)),
    NativeFastPath("command_buffer.create", "0riiIi_r", "commands.commands_create"),
    NativeFastPath("command_buffer.finalize", "0r_v", "commands.commands_finalize"),
    NativeFastPath("command_buffer.execution_barrier", "0riiI_v", "commands.commands_barrier"),
    NativeFastPath("command_buffer.execution_barrier", "0riii_v", "commands.commands_barrier"),
    NativeFastPath("command_buffer.fill_buffer", "0rrIIiIiI_v", "commands.commands_fill"),
    NativeFastPath("command_buffer.fill_buffer", "0rrIIiii_v", "commands.commands_fill"),
    NativeFastPath("command_buffer.update_buffer", "0rrIrIIiI_v", "commands.commands_update"),
    NativeFastPath("command_buffer.update_buffer", "0rrIrIIi_v", "commands.commands_update"),
    NativeFastPath("command_buffer.copy_buffer", "0riirIrIII_v", "commands.commands_copy"),
    NativeFastPath("command_buffer.copy_buffer", "0riirIrII_v", "commands.commands_copy"),
    NativeFastPath("command_buffer.dispatch", "0rrIiiiICiDCiirIID_v", "dispatches.commands_dispatch"),
    NativeFastPath("command_buffer.dispatch", "0rriiiiICiDCiirIID_v", "dispatches.commands_dispatch"),
    NativeFastPath("executable.lookup.function", "0rr_I", "dispatches.executable_lookup"),
    NativeFastPath("device.queue.alloca", "0rIrrIiiII_r", "buffers.queue_alloca"),
    NativeFastPath("device.queue.alloca", "0rIrriiiI_r", "buffers.queue_alloca"),
    NativeFastPath("device.queue.dealloca", "0rIrrrI_v", "buffers.queue_dealloca"),
    NativeFastPath("device.queue.dealloca", "0rIrrr_v", "buffers.queue_dealloca"),
    NativeFastPath("device.queue.barrier", "0rIrrI_v", "fences.queue_barrier", (4,)),
    NativeFastPath("device.queue.flush", "0rI_v", "fences.queue_flush"),
    NativeFastPath("device.queue.fill", "0rIrrrIIIiI_v", "transfers.queue_fill"),
    NativeFastPath("device.queue.update", "0rIrrrIrIII_v", "transfers.queue_update"),
    NativeFastPath("device.queue.copy", "0rIrrrIrIII_v", "transfers.queue_copy"),
    NativeFastPath("device.queue.execute", "0rIrrrI_v", "execution.queue_execute", (4, 0)),
    NativeFastPath("device.queue.execute", "0rIrrCrD_v", "execution.queue_execute_list"),
    NativeFastPath("device.queue.execute.indirect", "0rIrrrICrIID_v", "execution.queue_execute", (4, 6)),
    NativeFastPath("device.queue.execute.indirect", "0rIrrrCrIID_v", "execution.queue_execute", (4, 5)),
)
"""Signatures of ABI 0.5 to 0.7; older programs share most of them."""

SWEEP: Final = "sweep"
FREE: Final = "free_entry"

RECIPE: Final = image.Recipe(
    "hal", "the fast paths of module hal", "jitree.modules.hal.native.texts:generate", 1.0
)

_SYMBOLS: Final = {(path.name, path.cconv): path.symbol for path in FAST_PATHS}


def address(name: str, cconv: str) -> Callable[[], int] | None:
    """Gives the address of an import's fast path, 0 while it is being built; None if it has none."""
    symbol = _SYMBOLS.get((name, cconv))
    return None if symbol is None else partial(_address, symbol)


def _address(symbol: str) -> int:
    built = image.get(RECIPE)
    return 0 if built is None else built.addresses[symbol]
