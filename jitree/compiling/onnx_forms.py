"""Forms of operators that the compiler takes, instead of those that mean the same and that it refuses.

A window that is put once, and does not reach the end of what it is put on, has a dimension of size one that
the compiler (3.13) drops; it then asks for an operand as long as the window. So the rest is taken away
beforehand: first of the padding, then of the elements.

Padding by other elements of the tensor (reflect, edge, wrap) is wrong by a tensor's size in the compiler. So
the elements are gathered by their indices.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from jitree.compiling.onnx_inputs import Shape, shape_of

_PADDING: Final[dict[str, Any]] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
"""Modes of ONNX, and of numpy."""
_WINDOWED: Final = ("Conv", "MaxPool", "AveragePool")


def replace_forms(model: Any) -> None:
    """Takes away what no window reaches, where there is one window, and gathers what pads. Shapes have to be
    known."""
    graph = model.graph
    shapes: dict[str, Shape | None] = {weight.name: tuple(weight.dims) for weight in graph.initializer}
    shapes |= {value.name: shape_of(value) for value in (*graph.input, *graph.value_info)}
    weights = {weight.name: weight for weight in graph.initializer}
    for index in reversed(range(len(graph.node))):
        node = graph.node[index]
        if not node.input:
            continue
        if node.op_type in _WINDOWED and len(node.output) == 1:
            ends = _trimmed(node, shapes)
            if ends:
                _slice_before(graph, index, ends)
        elif node.op_type == "Pad":
            _gather(graph, index, shapes.get(node.input[0]), weights)


def _gather(graph: Any, index: int, shape: Shape | None, weights: dict[str, Any]) -> None:
    """Replaces padding by elements of the tensor."""
    import onnx

    node = graph.node[index]
    mode = next((one.s.decode(errors="replace") for one in node.attribute if one.name == "mode"), "constant")
    given = [onnx.numpy_helper.to_array(weights[name]) for name in node.input[1::2] if name in weights]
    if mode not in _PADDING or shape is None or None in shape or len(given) != len(node.input[1::2]):
        return
    if not given or 0 in shape or (given[0] < 0).any():  # which takes elements away
        return
    axes = given[1].tolist() if len(given) == 2 else range(len(shape))
    if given[0].shape != (2 * len(axes),):
        return
    pads = np.reshape(given[0], (2, -1)).T.tolist()
    last, nodes = node.input[0], []
    for axis, pad in zip(axes, pads, strict=True):
        if any(pad):
            name = f"{node.output[0]}__{axis}"
            elements = np.pad(np.arange(shape[axis] or 0), pad, _PADDING[mode])
            graph.initializer.append(onnx.numpy_helper.from_array(elements, f"{name}_elements"))
            nodes.append(onnx.helper.make_node("Gather", [last, f"{name}_elements"], [name], name, axis=axis))
            last = name
    if nodes:
        nodes[-1].output[0] = node.output[0]
        del graph.node[index]
        for one in reversed(nodes):
            graph.node.insert(index, one)


def _trimmed(node: Any, shapes: dict[str, Shape | None]) -> dict[int, int]:
    """Shortens the padding; returns where the operand has to end, by axis."""
    given, attributes = shapes.get(node.input[0]), {one.name: one for one in node.attribute}
    kernel: Shape = _integers(attributes, "kernel_shape")
    if not kernel:  # of a convolution, which has weights
        kernel = next((shapes.get(name) or () for name in node.input[1:2]), ())[2:]
    automatic = attributes["auto_pad"].s if "auto_pad" in attributes else b"NOTSET"
    if given is None or automatic != b"NOTSET" or ("ceil_mode" in attributes and attributes["ceil_mode"].i):
        return {}
    rank, ends = len(given) - 2, {}
    strides, dilations = (_integers(attributes, name) or (1,) * rank for name in ("strides", "dilations"))
    pads = list(_integers(attributes, "pads") or (0,) * (2 * rank))
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


def _integers(attributes: dict[str, Any], name: str) -> tuple[int, ...]:
    return tuple(attributes[name].ints) if name in attributes else ()


def _slice_before(graph: Any, index: int, ends: dict[int, int]) -> None:
    import onnx

    node = graph.node[index]
    name = f"{node.output[0]}__trimmed"
    parts = {"starts": [0] * len(ends), "ends": [*ends.values()], "axes": [*ends]}
    for part, values in parts.items():
        tensor = onnx.helper.make_tensor(f"{name}_{part}", onnx.TensorProto.INT64, [len(values)], values)
        graph.initializer.append(tensor)
    inputs = [node.input[0], *(f"{name}_{part}" for part in parts)]
    node.input[0] = name
    graph.node.insert(index, onnx.helper.make_node("Slice", inputs, [name], name))
