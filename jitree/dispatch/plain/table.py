"""The handlers of all instructions."""

from __future__ import annotations

from typing import Final

from jitree.dispatch.plain import buffers, calls, control, lists, refs, values
from jitree.dispatch.plain.calls import Handler
from jitree.dispatch.plain.shapes import SHAPES
from jitree.dispatch.semantics import SEMANTICS

BY_MNEMONIC: Final[dict[str, Handler]] = {
    name: SHAPES[row.argument_types, row.result_type](row.function) for name, row in SEMANTICS.items()
}
for _family in (values, refs, buffers, lists, control, calls):
    BY_MNEMONIC.update(_family.HANDLERS)
