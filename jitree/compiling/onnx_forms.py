"""Replaces forms of operators that the compiler refuses, or gets wrong or slow.

A window that is put once, and does not reach the end of what it is put on, has a dimension of size one that
the compiler (3.13) drops; it then asks for an operand as long as the window. So the rest is taken away
beforehand: first of the padding, then of the elements. Padding that follows a rule, and windows that reach
beyond it (ceil_mode), which the importer counts or divides wrongly, are stated as numbers.

Maxima, sizes, bounds, quotients and order of unsigned bytes are computed as if these were signed. So they are
computed in wider elements.

Padding by other elements of the tensor (reflect, edge, wrap) is wrong by a tensor's size in the compiler. So
pieces of the tensor are joined; where these are many, elements are gathered by their indices, which takes
twenty times as long.

DepthToSpace whose blocks are the faster channels (mode CRD) is computed by the importer as if they were the
slower ones. So the channels are gathered in that order.

Nearest resizing by whole factors is written as rounding down, where ONNX takes the same elements. The
importer writes other roundings (PyTorch's and ONNX's defaults) as elements that are looked up by indices,
each computed in several roundings; rounding down becomes a copy that repeats elements.

Transposed convolutions are written in phases (`onnx_phases.py`), recurrent operators in steps
(`onnx_recurrent.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from jitree.compiling.onnx_inputs import operator_of
from jitree.compiling.onnx_nodes import (
    NOT_SET,
    NOTHING_KNOWN,
    RULES,
    KnownValues,
    NodeChain,
    Shape,
    attribute,
    graphs_of,
    names_of,
    nodes_in,
    set_attributes,
    shared_padding,
    taken_in,
)
from jitree.compiling.onnx_phases import part_phases
from jitree.compiling.onnx_recurrent import RECURRENT, write_steps
from jitree.errors import UnimplementedError

_PADDING: Final[dict[bytes, Any]] = {b"reflect": "reflect", b"edge": "edge", b"wrap": "wrap"}
"""Modes of ONNX, and of numpy."""
_MOST_PIECES: Final = 32
_LARGEST: Final = 1 << 16
"""Elements of a dimension at most, which are listed: runtimes round the places of more differently."""
_DOWN: Final = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
_OF_NEAREST: Final = {*_DOWN, "mode", "cubic_coeff_a", "exclude_outside", "extrapolation_value"}
"""What nearest resizing of all dimensions may have: the last three say nothing for it."""


def replace_forms(model: Any) -> None:
    """Replaces forms of operators. It takes away what no window reaches, where there is one window, and
    takes what pads out of the tensor. Shapes have to be known."""
    _drop_places(model.graph)
    _replace(model.graph, NOTHING_KNOWN, names_of(model.graph))


def _drop_places(graph: Any) -> None:
    """Takes places of maxima away that nothing takes. UNIMPLEMENTED for others: the importer counts them in
    each image, with its padding, and ONNX counts in the tensor."""
    taken = taken_in(graph) - {""}
    for node in (one for one in nodes_in(graph) if operator_of(one) == "MaxPool"):
        if {*node.output[1:]} & taken:
            raise UnimplementedError(
                f"MaxPool that makes '{node.output[0]}' gives places of maxima, which the importer counts in "
                "another way than ONNX; export the model without them"
            )
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
    shape, block = known.shapes.get(node.input[0]), attribute(node, "blocksize", 0) ** 2
    if attribute(node, "mode", b"DCR") != b"CRD" or shape is None or len(shape) != 4 or not block:
        return
    if not shape[1] or shape[1] % block:  # which ONNX does not allow
        return
    set_attributes(node, mode="DCR")
    order = np.arange(shape[1]).reshape(-1, block).T
    if len(order.T) > 1:
        node.input[0] = chain.gathered(node.input[0], order.flatten(), 1)


def _pad(node: Any, known: KnownValues, chain: NodeChain) -> None:
    """Replaces padding by elements of the tensor, of sizes that are known."""
    mode = attribute(node, "mode", b"constant")
    shape, given = known.shapes.get(node.input[0]), [known.array(name) for name in node.input[1::2] if name]
    is_whole = all(array is not None and array.dtype.kind == "i" and array.ndim == 1 for array in given)
    if mode not in _PADDING or shape is None or not given or not is_whole:
        return
    axes = given[1].tolist() if len(given) == 2 else range(len(shape))
    if given[0].shape != (2 * len(axes),) or any(axis not in range(-len(shape), len(shape)) for axis in axes):
        return
    pads = {axis: pad for axis, *pad in zip(axes, *given[0].reshape(2, -1).tolist(), strict=True) if any(pad)}
    # less than nothing takes elements away
    if not all(0 <= pad <= _LARGEST for pad in given[0]) or not all(shape[axis] for axis in pads):
        return
    value = node.input[0]
    for axis, pad in pads.items():
        value = _taken(chain, value, axis, np.pad(np.arange(shape[axis] or 0), pad, _PADDING[mode]))
    chain.give(node.output, [value])


def _taken(chain: NodeChain, value: str, axis: int, elements: Any) -> str:
    """Takes elements along an axis: by pieces of those that follow each other, or many pieces by indices."""
    pieces = np.split(elements, np.flatnonzero(np.diff(elements) != 1) + 1)
    if len(pieces) > _MOST_PIECES:
        return chain.gathered(value, elements, axis)
    parts = [chain.sliced(value, piece[:1], piece[-1:] + 1, [axis]) for piece in pieces]
    return chain.joined(parts, axis)


def _fit(node: Any, known: KnownValues, chain: NodeChain) -> None:
    """States the padding of windows. The only one reaches the end then: of it, and of the operand."""
    sizes, place = (known.shapes.get(node.input[0]) or ())[2:], 3 if node.op_type == "QLinearConv" else 1
    weights: Shape = next((known.shapes.get(name) or () for name in node.input[place : place + 1]), ())
    widths, rank = attribute(node, "kernel_shape", ()) or weights[2:], len(sizes)
    strides, dilations = (attribute(node, name, ()) or (1,) * rank for name in ("strides", "dilations"))
    stated = attribute(node, "pads", ()) or (0,) * (2 * rank)
    rule, rounds_up = attribute(node, "auto_pad", NOT_SET), attribute(node, "ceil_mode", 0)
    is_stated, cuts = rule == NOT_SET and not rounds_up, {}
    if {*map(len, (widths, strides, dilations)), len(stated) / 2} != {rank} or min(strides, default=0) < 1:
        return
    begins, ends, beyond = [*stated[:rank]], [*stated[rank:]], [0] * rank
    for axis, (size, width, stride) in enumerate(zip(sizes, widths, strides, strict=True)):
        if size is None or width is None:
            if rounds_up and node.op_type == "AveragePool":
                raise UnimplementedError(
                    f"AveragePool that makes '{node.output[0]}' rounds up (ceil_mode), which the importer "
                    "divides wrongly; give the shapes of all inputs (--input-shape=), or export the model "
                    "without it"
                )
            if not is_stated:
                return
            continue
        reach = (width - 1) * dilations[axis] + 1
        if rule != NOT_SET:
            total = 0 if rule == b"VALID" else (size - 1) // stride * stride + reach - size
            if total < 0 or rule not in RULES:  # tools differ in these paddings
                return
            begins[axis], ends[axis] = shared_padding(rule, total)
        rest = begins[axis] + size + ends[axis] - reach
        steps = rest // stride
        if rounds_up:  # but for a window that would begin after the elements
            steps = min(-(-rest // stride), (begins[axis] + size - 1) // stride)
        over = rest - steps * stride
        if rest < 0:
            return
        beyond[axis] = max(-over, 0)
        if not steps and over > ends[axis]:
            cuts[axis + 2] = size + ends[axis] - over
        if not (is_stated and steps):
            ends[axis] = max(ends[axis] - over, 0)
    if cuts:
        node.input[0] = chain.sliced(node.input[0], [0] * len(cuts), [*cuts.values()], [*cuts])
    if any(beyond) and attribute(node, "count_include_pad", 0):  # which counts, and what is beyond does not
        inside = [end - more for end, more in zip(ends, beyond, strict=True)]
        node.input[0] = chain.op("Pad", node.input[0], chain.constant([0, 0, *begins, 0, 0, *inside]))
        begins, ends = [0] * rank, beyond
        set_attributes(node, count_include_pad=None)
    if not is_stated or (*begins, *ends) != stated:
        set_attributes(node, pads=[*begins, *ends], auto_pad=None, ceil_mode=None)


def _round_down(node: Any, known: KnownValues, _: NodeChain) -> None:
    """Changes the attributes of a Resize; one of open sizes, by other factors or in other forms stays."""
    shape, names = known.shapes.get(node.input[0]), [*node.input, "", "", ""][2:4]
    given = [known.array(name) for name in names if name]
    if not shape or not all(shape) or len(given) != 1 or given[0] is None:
        return
    is_nearest = attribute(node, "mode", b"nearest") == b"nearest"
    if not is_nearest or not {one.name for one in node.attribute} <= _OF_NEAREST:
        return
    if given[0].shape != (len(shape),) or given[0].dtype.kind not in "fi":
        return
    sizes = np.array(shape, np.float64)
    factors = given[0] / sizes if names[1] else given[0].astype(np.float64)
    if not (factors == np.floor(factors)).all() or factors.min() < 1 or (factors * sizes).max() > _LARGEST:
        return
    coordinates = attribute(node, "coordinate_transformation_mode", b"half_pixel")
    rounding = attribute(node, "nearest_mode", b"round_prefer_floor")
    # centres of elements are never half-way between two, and corners are from a factor of two on
    is_same = coordinates.endswith(b"half_pixel") and rounding.startswith(b"round_prefer_")
    is_same |= (coordinates, rounding) == (b"asymmetric", b"round_prefer_floor") and factors.max() <= 2
    if is_same:
        set_attributes(node, **_DOWN)


def _sign(node: Any, known: KnownValues, chain: NodeChain) -> None:
    """Computes what is of unsigned bytes in wider elements."""
    import onnx

    element = known.types.get(node.input[0], 0)
    if node.op_type == "MaxPool":
        _fit(node, known, chain)
    if element != onnx.TensorProto.UINT8:  # the only unsigned type that the importer casts to
        return
    wide = onnx.TensorProto.FLOAT if node.op_type == "MaxPool" else onnx.TensorProto.INT32
    taken = node.input[:1] if node.op_type == "TopK" else node.input
    values = [chain.op("Cast", name, to=wide) if name else "" for name in taken]
    settings = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    value, *others = chain.ops(node.op_type, len(node.output), *values, *node.input[len(taken) :], **settings)
    chain.give(node.output, [chain.op("Cast", value, to=element), *others])


_FORMS: Final[dict[str, Callable[[Any, KnownValues, NodeChain], None]]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv", "AveragePool", "LpPool"), _fit),
    **dict.fromkeys(("MaxPool", "Abs", "Clip", "Div", "Mod", "TopK"), _sign),
    "Pad": _pad, "DepthToSpace": _order_channels, "ConvTranspose": part_phases, "Resize": _round_down,
    **dict.fromkeys(RECURRENT, write_steps),
}  # fmt: skip
"""What replaces an operator, or leaves it: (node, what is known, nodes of its place)."""
