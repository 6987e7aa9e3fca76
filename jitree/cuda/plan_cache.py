"""Plans of one-shot command lists by shape, so that the next list of the same commands finds its plan
made."""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from jitree.cuda.plan import LaunchPlan, make_plan
from jitree.cuda.sizes import FixedSizes

if TYPE_CHECKING:
    from jitree.cuda.commands import CudaCommandList
    from jitree.cuda.executable import CudaFunctionTable
    from jitree.cuda.kernels import Kernels

_KEPT: Final = 256
"""Plans; the ones used longest ago go."""


class _CachedPlan(NamedTuple):
    plan: LaunchPlan
    tables: tuple[weakref.ref[CudaFunctionTable], ...]
    """Tables of the executables in use; a shape has their addresses and means nothing without them."""


class PlanCache:
    """The caller holds the stream's lock."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, _CachedPlan] = OrderedDict()
        self._gone: deque[bytes] = deque()

    def plan(self, commands: CudaCommandList, kernels: Kernels) -> LaunchPlan:
        """The plan of a finished list."""
        gone, entries = self._gone, self._entries
        while gone:
            entries.pop(gone.popleft(), None)
        shape = commands.shape()
        entry = entries.get(shape)
        if entry is not None:
            entries.move_to_end(shape)
            return entry.plan
        plan = make_plan(commands, kernels, FixedSizes(commands))
        # The callback may run anywhere, so it only notes the shape.
        forget = partial(_note, gone, shape)
        entries[shape] = _CachedPlan(plan, tuple(weakref.ref(table, forget) for table in commands.tables))
        if len(entries) > _KEPT:
            entries.popitem(last=False)
        return plan

    def clear(self) -> None:
        self._entries.clear()


def _note(gone: deque[bytes], shape: bytes, reference: weakref.ref[CudaFunctionTable]) -> None:
    gone.append(shape)
