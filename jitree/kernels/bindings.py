"""Shows the bindings of dispatches, from names, signatures and a tap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from jitree.base.records import NamedTuple
from jitree.base.tables import html_table, text_table
from jitree.observe.export_names import fits

if TYPE_CHECKING:
    from jitree.observe.tensors import ObservedDispatch, ObservedTensor


_HEADER: Final = ("dispatch", "binding", "type", "use", "source")


class Binding(NamedTuple):
    """Describes a tensor in a binding of a dispatch."""

    dispatch: str
    number: int
    """Of the binding; several tensors may lie in one."""
    type: str
    """As ``types=`` of a kernel has it: ``4x71xf32@2304`` has bytes before it in a binding with more than
    it."""
    use: str
    """``read`` or ``written``; what is not changed counts as read."""
    source: str
    """Where the type comes from: ``declared``, ``name``, ``guess …``, ``unknown``."""


class Bindings:
    """Describes the bindings of dispatches that have run; prints as a table."""

    def __init__(self) -> None:
        self.rows: list[Binding] = []

    def note(self, dispatch: ObservedDispatch) -> None:
        """Adds a dispatch the first time that it runs."""
        if any(row.dispatch == dispatch.name for row in self.rows):
            return
        uses = [(tensor, "read") for tensor in dispatch.inputs]
        uses += [(tensor, "written") for tensor in dispatch.outputs]
        self.rows += [
            Binding(dispatch.name, tensor.binding, self._type(tensor, dispatch), use, tensor.source)
            for tensor, use in sorted(uses, key=lambda pair: pair[0].binding)
        ]

    @staticmethod
    def _type(tensor: ObservedTensor, dispatch: ObservedDispatch) -> str:
        start, room = dispatch.operands[tensor.binding]
        is_whole = tensor.extent[0] == start and (tensor.kind is None or fits(tensor.kind, room))
        return tensor.type if is_whole else f"{tensor.type}@{tensor.extent[0] - start}"

    def __str__(self) -> str:
        return text_table([_HEADER, *([str(cell) for cell in row] for row in self.rows)])

    def _repr_html_(self) -> str:
        return html_table("jitree.kernels.describe", _HEADER, self.rows)


@contextmanager
def describe(session: Any, pattern: str = "*") -> Iterator[Bindings]:
    """Describes bindings of dispatches that run in a ``with`` block: they give the types of a kernel, ``with
    jitree.kernels.describe(session) as bindings: module.main(x); print(bindings)``."""
    found = Bindings()
    with session.tap(pattern, keep=found.note):
        yield found
