"""Writes transposed convolutions as convolutions, whose features are those of each phase.

The compiler makes of one with strides a convolution over an image with zeros between the elements; strides of
two leave a quarter of its products. An element of the result at ``stride * step + phase`` is made by the taps
``phase + stride * n`` of the filter, of the elements ``step - n``. So all elements of a phase are what one
convolution with these taps makes of the elements as they are. Afterwards phases are interleaved, and what the
padding takes away is cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from jitree.base.records import NamedTuple
from jitree.compiling.onnx_nodes import KnownValues, NodeChain, integers

_MOST_ZEROS: Final = 16
"""Times that filters may grow by taps that phases lack: strides of thousands would take all memory."""


class _Phases(NamedTuple):
    """The sizes of a transposed convolution, by dimension."""

    strides: Sequence[int]
    taps: Sequence[int]
    """Of a phase, the last ones zeros for phases that have less."""
    starts: Sequence[int]
    """Where the result begins among the elements of all phases."""
    ends: Sequence[int]
    steps: Sequence[int]
    """The elements of a phase."""
    rests: Sequence[int]
    """Steps after the last element."""


def part_phases(node: Any, known: KnownValues, chain: NodeChain) -> None:
    """Replaces a transposed convolution with strides; others, those of open sizes, and what ONNX does not
    allow, stay."""
    attributes = {one.name: one for one in node.attribute}
    shape = known.shapes.get(node.input[0])
    arrays = [known.array(name) for name in node.input[1:] if name]
    if shape is None or len(shape) < 3 or None in shape[1:]:
        return
    if not arrays or any(array is None for array in arrays):
        return
    filters, *biases = arrays
    sizes = [size or 0 for size in shape[2:]]
    phases = _phases(attributes, sizes, filters.shape[2:])
    groups = attributes["group"].i if "group" in attributes else 1
    if phases is None or groups < 1 or filters.shape[0] % groups or filters.shape[0] != shape[1]:
        return
    features, rank = filters.shape[1] * groups, len(sizes)
    if not filters.size or any(bias.shape != (features,) for bias in biases):
        return
    parts = [_filters(filters, groups, phases), *(np.repeat(bias, prod(phases.strides)) for bias in biases)]
    pads = [*(tap - 1 for tap in phases.taps), *phases.rests]
    value = chain.op("Conv", node.input[0], *map(chain.constant, parts), pads=pads, group=groups)
    value = chain.reshaped(value, 0, features, *phases.strides, *phases.steps)
    order = [0, 1, *(axis + part for axis in range(2, rank + 2) for part in (rank, 0))]
    joined = [step * stride for step, stride in zip(phases.steps, phases.strides, strict=True)]
    value = chain.reshaped(chain.op("Transpose", value, perm=order), 0, features, *joined)
    chain.give(node.output, [chain.sliced(value, phases.starts, phases.ends, range(2, rank + 2))])


def _phases(attributes: Mapping[str, Any], sizes: Sequence[int], kernel: Sequence[int]) -> _Phases | None:
    """None where there is one phase, or where sizes are said in another way."""
    rank = len(sizes)
    strides = integers(attributes, "strides") or (1,) * rank
    pads = integers(attributes, "pads") or (0,) * (2 * rank)
    extra = integers(attributes, "output_padding") or (0,) * rank
    automatic = attributes["auto_pad"].s if "auto_pad" in attributes else b"NOTSET"
    if automatic != b"NOTSET" or "output_shape" in attributes or {*integers(attributes, "dilations")} - {1}:
        return None
    if not len(kernel) == len(strides) == len(extra) == len(pads) // 2 == rank or {*strides} <= {1}:
        return None
    # an end before 0 would be one from behind
    if min(strides) < 1 or min(pads) < 0 or integers(attributes, "kernel_shape") not in ((), kernel):
        return None
    if not all(0 <= more < stride for more, stride in zip(extra, strides, strict=True)):
        return None
    ends = [
        (size - 1) * stride + width - cut + more
        for size, stride, width, cut, more in zip(sizes, strides, kernel, pads[rank:], extra, strict=True)
    ]
    steps = [max(-(-end // stride), size) for end, stride, size in zip(ends, strides, sizes, strict=True)]
    rests = [step - size for step, size in zip(steps, sizes, strict=True)]
    taps = [-(-width // stride) for width, stride in zip(kernel, strides, strict=True)]
    if prod(taps) * prod(strides) > _MOST_ZEROS * prod(kernel):
        return None
    is_empty = any(end <= start for start, end in zip(pads, ends, strict=False))
    return None if is_empty else _Phases(strides, taps, pads[:rank], ends, steps, rests)


def _filters(filters: Any, groups: int, phases: _Phases) -> Any:
    """Writes filters as those of phases.

    (channels, features of a group, rows, …) → (features and phases, channels of a group, taps, …)
    """
    rank, pairs = len(phases.taps), list(zip(phases.taps, phases.strides, strict=True))
    padding = [
        (0, tap * stride - width) for (tap, stride), width in zip(pairs, filters.shape[2:], strict=True)
    ]
    filters = np.pad(filters, [(0, 0), (0, 0), *padding])
    filters = filters.reshape(groups, -1, filters.shape[1], *(part for pair in pairs for part in pair))
    filters = np.flip(filters, tuple(3 + 2 * axis for axis in range(rank)))
    filters = filters.transpose([0, 2, *range(4, 4 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2)])
    return np.ascontiguousarray(filters.reshape(prod(filters.shape[: 2 + rank]), -1, *phases.taps))
