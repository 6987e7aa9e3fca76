"""Builds nodes in the place of others, with names that are new.

Each form of an operator that is written by others (`onnx_forms.py`) is such a chain: nodes, and the constants
that they take. What is known of the values of a graph stands beside it: a form needs their shapes, and the
elements of those that are constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from jitree.base.records import NamedTuple

NOT_SET: Final = b"NOTSET"
"""The rule of padding that is stated."""
RULES: Final = (NOT_SET, b"VALID", b"SAME_UPPER", b"SAME_LOWER")
Shape = tuple[int | None, ...]
"""None: any size."""


class NodeChain:
    """Nodes and their constants, for the place of a node or before it."""

    def __init__(self, name: str, taken: set[str]) -> None:
        """``name``: what their names begin with; ``taken``: all names of the model, to which theirs come."""
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self._name, self._taken = name, taken
        self._results: set[str] = set()

    def inner(self) -> NodeChain:
        """A chain for a graph in one of the nodes."""
        return NodeChain(f"{self._name}_round", self._taken)

    def fresh(self) -> str:
        """A name of a value."""
        name = f"{self._name}_{len(self.nodes) + len(self.tensors)}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def constant(self, values: Any) -> str:
        import onnx

        name = self.fresh()
        self.tensors.append(onnx.numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def ops(self, operator: str, count: int, *inputs: str, **settings: Any) -> list[str]:
        """Adds a node; returns its results."""
        import onnx

        names = [self.fresh() for _ in range(count)]
        self.nodes.append(onnx.helper.make_node(operator, inputs, names, names[0], **settings))
        return names

    def op(self, operator: str, *inputs: str, **settings: Any) -> str:
        return self.ops(operator, 1, *inputs, **settings)[0]

    def split(self, value: str, sizes: Sequence[int], axis: int = -1) -> list[str]:
        if len(sizes) == 1:
            return [value]
        return self.ops("Split", len(sizes), value, self.constant(sizes), axis=axis)

    def joined(self, values: Sequence[str], axis: int) -> str:
        return values[0] if len(values) == 1 else self.op("Concat", *values, axis=axis)

    def reshaped(self, value: str, *sizes: int) -> str:
        return self.op("Reshape", value, self.constant(sizes))

    def gathered(self, value: str, elements: Any, axis: int) -> str:
        return self.op("Gather", value, self.constant(elements), axis=axis)

    def sliced(self, value: str, starts: Any, ends: Any, axes: Sequence[int]) -> str:
        return self.op("Slice", value, *(self.constant(each) for each in (starts, ends, axes)))

    def give(self, results: Sequence[str], values: Sequence[str]) -> None:
        """Makes the values the results of the node, which goes. Results without names are not given."""
        import onnx

        for name, value in zip(results, values, strict=False):
            if name:
                self.nodes.append(onnx.helper.make_node("Identity", [value], [name]))
                self._results.add(name)

    def put(self, graph: Any, index: int) -> None:
        """Puts the nodes before another one; in its place where they give its results."""
        if self._results:
            del graph.node[index]
        graph.initializer.extend(self.tensors)
        for node in reversed(self.nodes):
            graph.node.insert(index, node)


class KnownValues(NamedTuple):
    """What is known of values by their names: shapes, types and constants."""

    shapes: Mapping[str, Shape | None]
    types: Mapping[str, int]
    """Numbers of element types."""
    constants: Mapping[str, Any]
    """Tensors of ONNX."""

    def array(self, name: str) -> Any:
        """The elements of a constant; None for what is computed, words, or left out."""
        import onnx

        tensor = self.constants.get(name)
        if tensor is None or tensor.data_type == onnx.TensorProto.STRING:
            return None
        return onnx.numpy_helper.to_array(tensor)

    def within(self, graph: Any) -> KnownValues:
        """What the nodes of a graph know, which take values from outside as well. Not those whose names it
        gives to its own."""
        own = made_in(graph)

        def seen(outer: Mapping[str, Any]) -> dict[str, Any]:
            return {name: one for name, one in outer.items() if name not in own}

        shapes, types, constants = map(seen, self)
        constants |= {weight.name: weight for weight in graph.initializer}
        for node in graph.node:
            tensor = _constant(node) if node.op_type == "Constant" and node.output else None
            if tensor is not None:
                constants[node.output[0]] = tensor
        shapes |= {name: tuple(one.dims) for name, one in constants.items()}
        types |= {name: one.data_type for name, one in constants.items()}
        for one in (*graph.input, *graph.value_info, *graph.output):
            shapes[one.name], types[one.name] = shape_of(one), one.type.tensor_type.elem_type
        return KnownValues(shapes, types, constants)


def shape_of(value: Any) -> Shape | None:
    """The shape of an input or output; None where not even its rank is known."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        size.dim_value if size.HasField("dim_value") and size.dim_value >= 0 else None
        for size in tensor.shape.dim
    )


def attribute(node: Any, name: str, default: Any) -> Any:
    """What a node has by a name: a number, a word, or a list of either, as the default is. One of another
    type is zero, or empty."""
    found = next((one for one in node.attribute if one.name == name), None)
    if found is None:
        return default
    return {int: found.i, bytes: found.s, tuple: (*found.ints, *found.strings)}[type(default)]


def shared_padding(rule: bytes, total: Any) -> tuple[Any, Any]:
    """Padding before and after the elements: the odd one is before them, or after (SAME_UPPER)."""
    before = total // 2 if rule == b"SAME_UPPER" else total - total // 2
    return before, total - before


def set_attributes(node: Any, **values: Any) -> None:
    """Gives a node attributes in the place of those of their names; None takes one away."""
    import onnx

    kept = [one for one in node.attribute if one.name not in values]
    kept += onnx.helper.make_node("", [], [], **values).attribute
    del node.attribute[:]
    node.attribute.extend(kept)


def graphs_of(node: Any) -> Iterator[Any]:
    """The branches and bodies of a node."""
    for attribute in node.attribute:
        yield from (attribute.g, *attribute.graphs)


NOTHING_KNOWN: Final = KnownValues({}, {}, {})


def known_nodes(graph: Any, outside: KnownValues = NOTHING_KNOWN) -> Iterator[tuple[Any, KnownValues]]:
    """Lists nodes, also of graphs in nodes, with what is known where they are."""
    known = outside.within(graph)
    for node in graph.node:
        yield node, known
        for inner in graphs_of(node):
            yield from known_nodes(inner, known)


def graphs_in(graph: Any) -> Iterator[Any]:
    """A graph, and those in its nodes."""
    yield graph
    for node in graph.node:
        for inner in graphs_of(node):
            yield from graphs_in(inner)


def nodes_in(graph: Any) -> Iterator[Any]:
    """Nodes of a graph or function, and those in its nodes."""
    return (node for each in graphs_in(graph) for node in each.node)


def made_in(graph: Any) -> set[str]:
    """Names that a graph makes: they hide those around it."""
    return {one.name for one in graph.input} | {name for node in graph.node for name in node.output}


def taken_in(graph: Any) -> set[str]:
    """Names of values that nodes take, or that are results."""
    return {
        name
        for each in graphs_in(graph)
        for names in (*(node.input for node in each.node), (value.name for value in each.output))
        for name in names
    }


def names_of(graph: Any) -> set[str]:
    """All names of values."""
    made = (made_in(each) | {one.name for one in each.initializer} for each in graphs_in(graph))
    return taken_in(graph).union(*made)


def _constant(node: Any) -> Any:
    """The tensor of a Constant; None for words and for what is sparse."""
    import onnx

    for attribute in node.attribute:
        if attribute.name == "value":
            return attribute.t
        if attribute.name in ("value_float", "value_floats", "value_int", "value_ints"):
            dtype = np.float32 if "float" in attribute.name else np.int64
            return onnx.numpy_helper.from_array(np.array(onnx.helper.get_attribute_value(attribute), dtype))
    return None
