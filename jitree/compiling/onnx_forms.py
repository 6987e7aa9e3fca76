"""Replaces forms of operators that the compiler refuses, or gets wrong or slow.

A window that is put once, and does not reach the end of what it is put on, has a dimension of size one that
the compiler (3.13) drops; it then asks for an operand as long as the window. So the rest is taken away
beforehand: first of the padding, then of the elements.

Padding by other elements of the tensor (reflect, edge, wrap) is wrong by a tensor's size in the compiler. So
pieces of the tensor are joined; where these are many, elements are gathered by their indices, which takes
twenty times as long.

DepthToSpace whose blocks are the faster channels (mode CRD) is computed by the importer as if they were the
slower ones. So the channels are gathered in that order.

Transposed convolutions are written in phases (`onnx_phases.py`), recurrent operators in steps
(`onnx_recurrent.py`), and nearest resizing by rounding down (`onnx_resize.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from jitree.compiling.onnx_inputs import operator_of
from jitree.compiling.onnx_nodes import (
    KnownValues,
    NodeChain,
    Shape,
    graphs_in,
    graphs_of,
    integers,
    names_of,
    taken_in,
)
from jitree.compiling.onnx_phases import part_phases
from jitree.compiling.onnx_recurrent import RECURRENT, write_steps
from jitree.compiling.onnx_resize import round_down
from jitree.errors import UnimplementedError

_PADDING: Final[dict[str, Any]] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
"""Modes of ONNX, and of numpy."""
_MOST_PIECES: Final = 32


def replace_forms(model: Any) -> None:
    """Replaces forms of operators. It takes away what no window reaches, where there is one window, and
    takes what pads out of the tensor. Shapes have to be known."""
    _drop_places(model.graph)
    _replace(model.graph, KnownValues({}, {}), names_of(model.graph))


def _drop_places(graph: Any) -> None:
    """Takes places of maxima away that nothing takes. UNIMPLEMENTED for others: the importer counts them in
    each image, with its padding, and ONNX counts in the tensor."""
    taken = taken_in(graph) - {""}
    for node in (node for each in graphs_in(graph) for node in each.node):
        if operator_of(node) == "MaxPool" and {*node.output[1:]} & taken:
            raise UnimplementedError(
                f"MaxPool that makes '{node.output[0]}' gives places of maxima, which the importer counts in "
                "another way than ONNX; export the model without them"
            )
        if operator_of(node) == "MaxPool":
            del node.output[1:]


def _replace(graph: Any, outside: KnownValues, names: set[str]) -> None:
    known = outside.within(graph)
    for index in reversed(range(len(graph.node))):
        node = graph.node[index]
        form = _FORMS.get(operator_of(node))
        if form is not None and node.input and any(node.output):
            output = next(name for name in node.output if name)
            chain = NodeChain(f"{output}__{node.op_type}", names)
            form(node, known, chain)
            chain.put(graph, index)
        for inner in graphs_of(node):
            _replace(inner, known, names)


def _order_channels(node: Any, known: KnownValues, chain: NodeChain) -> None:
    """Makes blocks the slower channels of a DepthToSpace."""
    attributes, shape = {one.name: one for one in node.attribute}, known.shapes.get(node.input[0])
    if "mode" not in attributes or attributes["mode"].s != b"CRD" or shape is None or len(shape) != 4:
        return
    block = attributes["blocksize"].i ** 2 if "blocksize" in attributes else 0
    if not (shape[1] and block) or shape[1] % block:  # which ONNX does not allow
        return
    attributes["mode"].s = b"DCR"
    order = np.arange(shape[1]).reshape(-1, block).T
    if len(order.T) > 1:
        node.input[0] = chain.gathered(node.input[0], order.flatten(), 1)


def _pad(node: Any, known: KnownValues, chain: NodeChain) -> None:
    """Replaces padding by elements of the tensor."""
    mode = next((one.s.decode(errors="replace") for one in node.attribute if one.name == "mode"), "constant")
    shape, given = known.shapes.get(node.input[0]), [known.array(name) for name in node.input[1::2] if name]
    if mode not in _PADDING or shape is None or None in shape or any(array is None for array in given):
        return
    if not given or 0 in shape or (given[0] < 0).any():  # which takes elements away
        return
    axes = given[1].tolist() if len(given) == 2 else range(len(shape))
    if given[0].shape != (2 * len(axes),) or any(axis not in range(-len(shape), len(shape)) for axis in axes):
        return
    value = node.input[0]
    for axis, pad in zip(axes, np.reshape(given[0], (2, -1)).T.tolist(), strict=True):
        if any(pad):
            elements = np.pad(np.arange(shape[axis] or 0), pad, _PADDING[mode])
            value = _taken(chain, value, axis, elements)
    chain.give(node.output, [value])


def _taken(chain: NodeChain, value: str, axis: int, elements: Any) -> str:
    """Takes elements along an axis: by pieces of those that follow each other, or many pieces by indices."""
    pieces = np.split(elements, np.flatnonzero(np.diff(elements) != 1) + 1)
    if len(pieces) > _MOST_PIECES:
        return chain.gathered(value, elements, axis)
    parts = [chain.sliced(value, piece[:1], piece[-1:] + 1, [axis]) for piece in pieces]
    return chain.joined(parts, axis)


def _trim(node: Any, known: KnownValues, chain: NodeChain) -> None:
    """Takes away what the only window does not reach: of the padding, and of the operand."""
    ends = _ends(node, known)
    if ends:
        node.input[0] = chain.sliced(node.input[0], [0] * len(ends), [*ends.values()], [*ends])


def _ends(node: Any, known: KnownValues) -> dict[int, int]:
    """Shortens the padding; returns where the operand has to end, by axis."""
    given, attributes = known.shapes.get(node.input[0]), {one.name: one for one in node.attribute}
    kernel: Shape = integers(attributes, "kernel_shape")
    if not kernel:  # of a convolution, which has weights
        kernel = next((known.shapes.get(name) or () for name in node.input[1:2]), ())[2:]
    automatic = attributes["auto_pad"].s if "auto_pad" in attributes else b"NOTSET"
    if given is None or automatic != b"NOTSET" or ("ceil_mode" in attributes and attributes["ceil_mode"].i):
        return {}
    rank, ends = len(given) - 2, {}
    strides, dilations = (integers(attributes, name) or (1,) * rank for name in ("strides", "dilations"))
    pads = list(integers(attributes, "pads") or (0,) * (2 * rank))
    if not len(pads) == 2 * len(strides) == 2 * len(dilations) == 2 * rank:
        return {}
    for axis, (size, width) in enumerate(zip(given[2:], kernel, strict=False)):
        if size is None or width is None:
            continue
        reach = (width - 1) * dilations[axis] + 1
        rest = size + pads[axis] + pads[rank + axis] - reach
        if not 0 < rest < strides[axis]:
            continue
        padding = min(rest, pads[rank + axis])
        pads[rank + axis] -= padding
        if rest > padding:
            ends[axis + 2] = size - (rest - padding)
    if "pads" in attributes:
        attributes["pads"].ints[:] = pads
    return ends


_FORMS: Final[dict[str, Callable[[Any, KnownValues, NodeChain], None]]] = {
    "Conv": _trim, "MaxPool": _trim, "AveragePool": _trim,
    "Pad": _pad, "DepthToSpace": _order_channels, "ConvTranspose": part_phases, "Resize": round_down,
    **dict.fromkeys(RECURRENT, write_steps),
}  # fmt: skip
"""What replaces an operator, or leaves it: (node, what is known, nodes of its place)."""
