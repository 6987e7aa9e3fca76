"""Which part of a block of constants a product of matrices reads.

Programs bind all of their constants to each dispatch, and say in a number of the dispatch, a push constant,
where in them its weights begin. What else such numbers are for, other tensors tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jitree.observe.tensors import ELEMENTS_NAMED, NAMED, READ, UNKNOWN

if TYPE_CHECKING:
    from jitree.hal.observing import Extent
    from jitree.observe.export_names import ExportName, TensorKind
    from jitree.observe.tensors import ObservedTensor

_ALIGNMENT: Final = 64
"""Tensors in a block begin at multiples of it."""


def place_factors(
    inputs: Sequence[ObservedTensor],
    outputs: Sequence[ObservedTensor],
    operands: Sequence[Extent],
    name: ExportName,
    constants: Sequence[int],
) -> None:
    """Gives inputs that are whole blocks of constants the part that the name and the constants of the
    dispatch say, where there is one way only: as many blocks as places and operands that nothing else
    explains."""
    blocks = [tensor for tensor in inputs if _is_block(tensor, operands)]
    others = [tensor for tensor in (*inputs, *outputs) if tensor not in blocks]
    places = list(constants)
    for tensor in others:
        offset = tensor.extent[0] - operands[tensor.binding][0]
        if offset in places:
            places.remove(offset)
    kinds = _unread(name, [tensor for tensor in others if tensor not in outputs])
    if not blocks or not len(blocks) == len(places) == len(kinds):
        return
    parts = list(zip(blocks, places, kinds, strict=True))
    if all(_fits(tensor, place, kind) for tensor, place, kind in parts):
        for tensor, place, kind in parts:
            tensor.extent = tensor.extent[0] + place, kind.byte_length
            tensor.kind, tensor.source, tensor.offset = kind, NAMED, place


def _is_block(tensor: ObservedTensor, operands: Sequence[Extent]) -> bool:
    is_whole = tensor.extent == operands[tensor.binding]
    return is_whole and tensor.source in (ELEMENTS_NAMED, UNKNOWN) and tensor.origin in ("", READ)


def _unread(name: ExportName, known: Sequence[ObservedTensor]) -> list[TensorKind]:
    """Operands of the product that are none of the known inputs."""
    kinds = list(name.factors)
    for tensor in known:
        found = next((kind for kind in kinds if kind.byte_length == tensor.extent[1]), None)
        if found is not None:
            kinds.remove(found)
    return kinds


def _fits(tensor: ObservedTensor, place: int, kind: TensorKind) -> bool:
    return 0 <= place <= tensor.extent[1] - kind.byte_length and place % _ALIGNMENT == 0
