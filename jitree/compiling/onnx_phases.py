"""Writes transposed convolutions as convolutions, whose features are those of each phase.

The compiler makes of one with strides a convolution over an image with zeros between the elements; strides of
two leave a quarter of its products. An element of the result at ``stride * step + phase`` is made by the taps
``phase + stride * n`` of the filter, of the elements ``step - n``. So all elements of a phase are what one
convolution with these taps makes of the elements as they are. Afterwards phases are interleaved, and what the
padding takes away is cut off.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np

from jitree.base.records import NamedTuple
from jitree.compiling.onnx_nodes import NOT_SET, RULES, KnownValues, NodeChain, attribute, shared_padding

_MOST_ZEROS: Final = 16
"""Times that filters may grow by taps that phases lack: strides of thousands would take all memory."""


class _Phases(NamedTuple):
    """The sizes of a transposed convolution, by dimension, as arrays of Python's integers."""

    strides: Any
    dilations: Any
    taps: Any
    """Of a phase, the last ones zeros for phases that have less."""
    starts: Any
    """Where the result begins among the elements of all phases."""
    ends: Any
    steps: Any
    """The elements of a phase."""
    rests: Any
    """Steps after the last element."""


def part_phases(node: Any, known: KnownValues, chain: NodeChain) -> None:
    """Replaces a transposed convolution with strides, or with padding that is not stated; others, those of
    open sizes, and what ONNX does not allow, stay."""
    shape, groups = known.shapes.get(node.input[0]), attribute(node, "group", 1)
    arrays = [known.array(name) for name in node.input[1:] if name]
    if shape is None or len(shape) < 3 or None in shape[1:]:
        return
    if not arrays or any(array is None for array in arrays):
        return
    filters, *biases = arrays
    if groups < 1 or filters.shape[0] % groups or filters.shape[0] != shape[1]:
        return
    features, rank = filters.shape[1] * groups, len(shape) - 2
    if not filters.size or any(bias.shape != (features,) for bias in biases):
        return
    phases = _phases(node, np.array(shape[2:], object), filters.shape[2:])
    if phases is None:
        return
    parts = [_filters(filters, groups, phases), *(np.repeat(bias, prod(phases.strides)) for bias in biases)]
    pads = [*(tap - 1 for tap in phases.taps), *phases.rests]
    value = chain.op("Conv", node.input[0], *map(chain.constant, parts), pads=pads, group=groups)
    value = chain.reshaped(value, 0, features, *phases.strides, *phases.steps)
    order = [0, 1, *(axis + part for axis in range(2, rank + 2) for part in (rank, 0))]
    value = chain.op("Transpose", value, perm=order)
    value = chain.reshaped(value, 0, features, *(phases.steps * phases.strides))
    chain.give(node.output, [chain.sliced(value, [*phases.starts], [*phases.ends], range(2, rank + 2))])


def _phases(node: Any, sizes: Any, kernel: Any) -> _Phases | None:
    """None for one phase of stated padding, and for what ONNX does not allow."""
    rank, rule, stated = len(sizes), attribute(node, "auto_pad", NOT_SET), attribute(node, "output_shape", ())
    usual = (("strides", 1), ("dilations", 1), ("output_padding", 0))
    strides, dilations, extra = (
        np.array(attribute(node, name, ()) or (value,) * rank, object) for name, value in usual
    )
    pads = np.array(attribute(node, "pads", ()) or (0,) * 2 * rank, object)
    if {*map(len, (strides, dilations, extra, kernel)), len(pads) / 2} != {rank} or rule not in RULES:
        return None
    is_stated = rule == NOT_SET and not stated
    at_least_zero = (*(strides - 1), *(dilations - 1), *extra, *(strides - 1 - extra), *pads)
    if min(at_least_zero) < 0 or attribute(node, "kernel_shape", kernel) != kernel:
        return None  # an end before 0 would be one from behind
    if (is_stated and max(strides) == 1) or (stated and (rule == b"VALID" or len(stated) != rank)):
        return None
    widths = (np.array(kernel, object) - 1) * dilations + 1
    ends = (sizes - 1) * strides + widths + extra
    starts, cuts = np.split(pads, 2)
    if not is_stated:
        totals = 0 * ends if rule == b"VALID" else ends - (stated or sizes * strides)
        if min(totals) < 0:  # tools differ in it
            return None
        starts, cuts = shared_padding(rule, totals)
    ends = ends - cuts
    steps, taps = np.maximum(-(-ends // strides), sizes), -(-widths // strides)
    if prod(taps) * prod(strides) > _MOST_ZEROS * prod(kernel) or (ends <= starts).any():
        return None
    return _Phases(strides, dilations, taps, starts, ends, steps, steps - sizes)


def _filters(filters: Any, groups: int, phases: _Phases) -> Any:
    """Writes filters as those of phases.

    (channels, features of a group, rows, …) → (features and phases, channels of a group, taps, …)
    """
    rank, pairs = len(phases.taps), [*zip(phases.taps, phases.strides, strict=True)]
    spread = np.zeros((*filters.shape[:2], *(phases.taps * phases.strides)), filters.dtype)
    taps = zip(filters.shape[2:], phases.dilations, strict=True)
    places: list[Any] = [slice(0, size * apart, apart) for size, apart in taps]
    spread[(..., *places)] = filters
    filters = spread.reshape(groups, -1, filters.shape[1], *(part for pair in pairs for part in pair))
    filters = np.flip(filters, tuple(3 + 2 * axis for axis in range(rank)))
    filters = filters.transpose([0, 2, *range(4, 4 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2)])
    return np.ascontiguousarray(filters.reshape(prod(filters.shape[: 2 + rank]), -1, *phases.taps))
