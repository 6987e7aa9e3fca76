"""``vm.list``: made for programs and for arguments of calls. Machine code.

Each has LIST_CAPACITY slots, which it keeps when it is freed (``entries.free_list``): they are all 0 then.
"""

from __future__ import annotations

from jitree.codegen.primitives import below, unlikely
from jitree.codegen.record import place_of
from jitree.modules.hal.native.entries import begun, sweep
from jitree.modules.hal.native.records import State
from jitree.regs.layout import KIND_LIST, LIST_CAPACITY


def new_list(state: State, element_type: int, capacity: int) -> int:
    """A reference to a list without elements; 0 where there is none idle, or it has to have more slots."""
    handle_pool = state.handle_pool
    if below(LIST_CAPACITY, capacity):
        return 0
    if unlikely(not handle_pool.lists):
        sweep(state)
        if not handle_pool.lists:
            return 0
    made = handle_pool.lists
    handle_pool.lists = made.link
    made.element_type = element_type
    return place_of(begun(handle_pool, made, KIND_LIST))
