"""All handlers, by opcode word."""

from __future__ import annotations

from typing import Final

from jitree.dispatch.plain import buffers, calls, control, lists, refs, values
from jitree.dispatch.plain.handler import Handler
from jitree.dispatch.plain.shapes import SHAPES
from jitree.dispatch.semantics import SEMANTICS
from jitree.errors import InternalError
from jitree.regs.machine import Machine
from jitree.vmfb.words import BASE_OPCODE, OPCODE

_BY_MNEMONIC: Final[dict[str, Handler]] = {
    name: SHAPES[row.argument_types, row.result_type](row.function) for name, row in SEMANTICS.items()
}
for _family in (values, refs, buffers, lists, control, calls):
    _BY_MNEMONIC.update(_family.HANDLERS)

_DECODED_AWAY: Final = ("call", "call.variadic", "call.yieldable", "call.variadic.yieldable")
"""The decoder turns these into ``call.internal`` and ``call.import``."""


def _undecoded(machine: Machine, pc: int) -> int:
    raise InternalError(f"word {pc} of the decoded code holds no instruction")


_BASE: Final = [_undecoded if name in _DECODED_AWAY else _BY_MNEMONIC[name] for name in OPCODE]

HANDLERS: Final[list[Handler]] = [_BASE[opcode] for opcode in BASE_OPCODE]
"""``HANDLERS[opcode word]`` executes one instruction; of a fused form the first one."""
