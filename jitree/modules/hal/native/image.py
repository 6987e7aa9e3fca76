"""Which imports have an answer, and the image of them all."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.codegen import image

if TYPE_CHECKING:
    from collections.abc import Callable


class Answer(NamedTuple):
    """The answer to one import."""

    name: str
    cconv: str
    function: str
    """Of the modules beside this one: ``module.function``."""
    constants: tuple[int, ...] = ()
    """Its arguments behind the four that all have."""

    @property
    def symbol(self) -> str:
        return f"hal.{self.name}.{self.cconv}"


ANSWERS: Final = (
    Answer("device.allocator", "0r_r", "buffers.device_allocator"),
    Answer("buffer.assert", "0rrrIii_v", "buffers.buffer_assert"),
    Answer("buffer.subspan", "0rII_r", "buffers.buffer_subspan"),
    Answer("buffer.length", "0r_I", "buffers.buffer_length"),
    Answer("buffer.load", "0rIi_i", "buffers.buffer_load"),
    Answer("buffer.store", "0irIi_v", "buffers.buffer_store"),
    Answer("buffer_view.create", "0rIIiiCID_r", "views.view_create"),
    Answer("buffer_view.assert", "0rriiCID_v", "views.view_assert"),
    Answer("buffer_view.buffer", "0r_r", "views.view_buffer"),
    Answer("buffer_view.element_type", "0r_i", "views.view_element_type"),
    Answer("buffer_view.encoding_type", "0r_i", "views.view_encoding_type"),
    Answer("buffer_view.rank", "0r_i", "views.view_rank"),
    Answer("buffer_view.dim", "0ri_I", "views.view_dim"),
    Answer("fence.create", "0rI_r", "fences.fence_create"),
    Answer("fence.create", "0ri_r", "fences.fence_create"),
    Answer("fence.join", "0ICrD_r", "fences.fence_join", (1,)),
    Answer("fence.join", "0CrD_r", "fences.fence_join", (0,)),
    Answer("fence.query", "0r_i", "fences.fence_query"),
    Answer("fence.signal", "0r_v", "fences.fence_signal"),
    Answer("fence.await", "0iICrD_i", "fences.fence_await", (2,)),
    Answer("fence.await", "0iCrD_i", "fences.fence_await", (1,)),
    Answer("command_buffer.create", "0riiIi_r", "commands.commands_create"),
    Answer("command_buffer.finalize", "0r_v", "commands.commands_finalize"),
    Answer("command_buffer.execution_barrier", "0riiI_v", "commands.commands_barrier"),
    Answer("command_buffer.execution_barrier", "0riii_v", "commands.commands_barrier"),
    Answer("command_buffer.fill_buffer", "0rrIIiIiI_v", "commands.commands_fill"),
    Answer("command_buffer.fill_buffer", "0rrIIiii_v", "commands.commands_fill"),
    Answer("command_buffer.update_buffer", "0rrIrIIiI_v", "commands.commands_update"),
    Answer("command_buffer.update_buffer", "0rrIrIIi_v", "commands.commands_update"),
    Answer("command_buffer.copy_buffer", "0riirIrIII_v", "commands.commands_copy"),
    Answer("command_buffer.copy_buffer", "0riirIrII_v", "commands.commands_copy"),
    Answer("command_buffer.dispatch", "0rrIiiiICiDCiirIID_v", "dispatches.commands_dispatch"),
    Answer("command_buffer.dispatch", "0rriiiiICiDCiirIID_v", "dispatches.commands_dispatch"),
    Answer("executable.lookup.function", "0rr_I", "dispatches.executable_lookup"),
    Answer("device.queue.alloca", "0rIrrIiiII_r", "buffers.queue_alloca"),
    Answer("device.queue.alloca", "0rIrriiiI_r", "buffers.queue_alloca"),
    Answer("device.queue.dealloca", "0rIrrrI_v", "buffers.queue_dealloca"),
    Answer("device.queue.dealloca", "0rIrrr_v", "buffers.queue_dealloca"),
    Answer("device.queue.barrier", "0rIrrI_v", "fences.queue_barrier", (4,)),
    Answer("device.queue.flush", "0rI_v", "fences.queue_flush"),
    Answer("device.queue.fill", "0rIrrrIIIiI_v", "transfers.queue_fill"),
    Answer("device.queue.update", "0rIrrrIrIII_v", "transfers.queue_update"),
    Answer("device.queue.copy", "0rIrrrIrIII_v", "transfers.queue_copy"),
    Answer("device.queue.execute", "0rIrrrI_v", "execution.queue_execute", (4, 0)),
    Answer("device.queue.execute", "0rIrrCrD_v", "execution.queue_execute_list"),
    Answer("device.queue.execute.indirect", "0rIrrrICrIID_v", "execution.queue_execute", (4, 6)),
    Answer("device.queue.execute.indirect", "0rIrrrCrIID_v", "execution.queue_execute", (4, 5)),
)
"""Signatures of ABI 0.5 to 0.7; older programs share most of them."""

SWEEP: Final = "sweep"
FREE: Final = "free_entry"

RECIPE: Final = image.Recipe(
    "hal", "the answers of module hal", "jitree.modules.hal.native.texts:generate", 1.0
)

_SYMBOLS: Final = {(answer.name, answer.cconv): answer.symbol for answer in ANSWERS}


def address(name: str, cconv: str) -> Callable[[], int] | None:
    """Gives the address of an import's answer, 0 while it is being built; None if it has none."""
    symbol = _SYMBOLS.get((name, cconv))
    return None if symbol is None else partial(_address, symbol)


def _address(symbol: str) -> int:
    built = image.get(RECIPE)
    return 0 if built is None else built.addresses[symbol]
