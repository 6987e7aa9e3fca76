"""Replaces forms of operators that the compiler refuses, or gets wrong or slow.

A window that is put once, and does not reach the end of what it is put on, has a dimension of size one that
the compiler (3.13) drops; it then asks for an operand as long as the window. So the rest is taken away
beforehand: first of the padding, then of the elements.

Padding by other elements of the tensor (reflect, edge, wrap) is wrong by a tensor's size in the compiler. So
pieces of the tensor are joined; where these are many, elements are gathered by their indices, which takes
twenty times as long.

DepthToSpace whose blocks are the faster channels (mode CRD) is computed by the importer as if they were the
slower ones. So the channels are gathered in that order.

Of nearest resizing by whole factors, the importer writes other roundings than down (PyTorch's and ONNX's
defaults) as elements that are looked up by indices, each computed in several roundings; rounding down becomes
a copy that repeats elements. For a factor of two all usual forms are the same. Where an element differs, the
operator stays.

Transposed convolutions are written in phases (`onnx_phases.py`), recurrent operators in steps
(`onnx_recurrent.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from jitree.errors import UnimplementedError

_PADDING: Final[dict[str, Any]] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
"""Modes of ONNX, and of numpy."""
_MOST_PIECES: Final = 32
_LARGEST: Final = 1 << 16
"""Elements of a dimension that are compared at most."""
_DOWN: Final = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
_OF_NEAREST: Final = {*_DOWN, "mode", "cubic_coeff_a", "exclude_outside", "extrapolation_value"}
"""What nearest resizing of all dimensions may have: the last three say nothing for it."""


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


def _round_down(node: Any, known: KnownValues, _: NodeChain) -> None:
    """Changes the attributes of a Resize; one of open sizes, by other factors or in other forms stays."""
    attributes, shape = {one.name: one for one in node.attribute}, known.shapes.get(node.input[0])
    if shape is None or not all(shape) or not {*attributes} <= _OF_NEAREST:
        return
    if "mode" in attributes and attributes["mode"].s != b"nearest":
        return
    sizes = [size or 0 for size in shape]
    factors = _factors(node, sizes, known)
    given = {name: attributes[name].s for name in _DOWN if name in attributes}
    if not factors or given == _DOWN:
        return
    coordinates = given.get("coordinate_transformation_mode", b"half_pixel")
    rounding = given.get("nearest_mode", b"round_prefer_floor")
    for size, factor in zip(sizes, factors, strict=True):
        found = _nearest(size, factor, coordinates, rounding)
        if found is None or (found != np.arange(size * factor) // factor).any():
            return
    _set_rounding(node, attributes)


def _factors(node: Any, sizes: Sequence[int], known: KnownValues) -> list[int]:
    """Times that each dimension grows; none where these are unknown, or no whole numbers."""
    names = [*node.input, "", "", ""][2:4]
    given = [known.array(name) for name in names if name]
    if len(given) != 1 or given[0] is None or given[0].shape != (len(sizes),):
        return []
    if given[0].dtype.kind not in "fi":
        return []
    factors = given[0].astype(np.float64) / (sizes if names[1] else 1)
    if not (factors == np.floor(factors)).all() or factors.min() < 1 or (factors * sizes).max() > _LARGEST:
        return []
    return [int(factor) for factor in factors]


def _nearest(size: int, factor: int, coordinates: bytes, rounding: bytes) -> Any:
    """The elements that are taken along a dimension, as ONNX says; None for forms that are not known."""
    steps = np.arange(size * factor)
    if coordinates == b"asymmetric":
        places = steps / factor
    elif coordinates in (b"half_pixel", b"pytorch_half_pixel"):
        places = (steps + 0.5) / factor - 0.5
    else:
        return None
    rounded = {
        b"round_prefer_floor": np.ceil(places - 0.5), b"round_prefer_ceil": np.floor(places + 0.5),
        b"floor": np.floor(places), b"ceil": np.ceil(places),
    }.get(rounding)  # fmt: skip
    return None if rounded is None else np.clip(rounded, 0, size - 1)


def _set_rounding(node: Any, attributes: Mapping[str, Any]) -> None:
    import onnx

    for name, value in _DOWN.items():
        if name in attributes:
            attributes[name].s = value
        else:
            node.attribute.append(onnx.helper.make_attribute(name, value))


_FORMS: Final[dict[str, Callable[[Any, KnownValues, NodeChain], None]]] = {
    "Conv": _trim, "MaxPool": _trim, "AveragePool": _trim,
    "Pad": _pad, "DepthToSpace": _order_channels, "ConvTranspose": part_phases, "Resize": _round_down,
    **dict.fromkeys(RECURRENT, write_steps),
}  # fmt: skip
"""What replaces an operator, or leaves it: (node, what is known, nodes of its place)."""
