"""What ONNX does not allow, and its tools take in part: a module of it would compute something else, or the
reason for a refusal would be another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final

from jitree.compiling.onnx_inputs import TYPES
from jitree.errors import InvalidArgumentError, pass_interruption

_OWN: Final = ("", "ai.onnx")
"""Names of ONNX's own set of operators."""
_NONE: Final = 0
_BITS: Final = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
"""Of element types that are smaller than a byte, by their number."""


def check_model(model: Any, name: str) -> None:
    """INVALID_ARGUMENT for a damaged model, and for arguments and results that modules do not have, with the
    place in the model."""
    try:
        for kind, values in (("input", model.graph.input), ("result", model.graph.output)):
            for value in values:
                _check_type(kind, value)
        _check_versions(model)
        _check_order(model.graph, ())
        for tensor in tensors_of(model.graph):
            _check_size(tensor)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"'{name}': {error.message}") from None


def tensors_of(graph: Any) -> Iterator[Any]:
    """Those of initializers and attributes, also of graphs in nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors) if attribute.HasField("t") else attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                yield from tensors_of(inner)


def operator_of(node: Any) -> str:
    """With its domain, where that is not ONNX's own."""
    return str(node.op_type if node.domain in _OWN else f"{node.domain}.{node.op_type}")


def _check_type(kind: str, value: Any) -> None:
    """Results may have none: it is inferred."""
    import onnx

    what = f"{kind} '{value.name}'"
    given = value.type.WhichOneof("value")
    number = value.type.tensor_type.elem_type
    if given == "tensor_type" and number not in TYPES and number != _NONE:
        known = onnx.TensorProto.DataType.items()
        named = next((text for text, each in known if each == number), f"number {number}")
        raise InvalidArgumentError(
            f"{what} has elements of type {named}, which modules do not have; export the model without what "
            "takes or makes it, and do that before or after"
        )
    if given not in ("tensor_type", None):
        raise InvalidArgumentError(
            f"{what} is no tensor ({given.removesuffix('_type')}), and modules take and give tensors: "
            "export the model with these"
        )
    if kind == "input" and number == _NONE:
        raise InvalidArgumentError(f"{what} has no element type; the file is damaged")


def _check_versions(model: Any) -> None:
    versions = {("" if one.domain in _OWN else one.domain): one.version for one in model.opset_import}
    own = {(function.domain, function.name) for function in model.functions}
    for place, node in _nodes(model.graph):
        domain = "" if node.domain in _OWN else node.domain
        version = versions.get(domain, _NONE)
        if version <= 0 and (node.domain, node.op_type) not in own:
            said = f"version {version}" if domain in versions else "no version"
            raise InvalidArgumentError(
                f"{place} is of the operators of '{domain or 'ai.onnx'}', of which the file has {said} "
                "(opset_import); export the model anew"
            )


def _nodes(graph: Any) -> Iterator[tuple[str, Any]]:
    for index, node in enumerate(graph.node):
        yield f"node {index} ({operator_of(node)})", node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _check_order(graph: Any, outer: Sequence[set[str]]) -> None:
    """Each value is made once, before it is taken."""
    made: set[str] = set()
    for value in graph.input:
        if value.name in made:
            raise InvalidArgumentError(f"input '{value.name}' is there twice; each takes a name of its own")
        made.add(value.name)
    sparse = (weight.values for weight in graph.sparse_initializer)
    made |= {weight.name for weight in (*graph.initializer, *sparse)}
    scopes = (*outer, made)
    for index, node in enumerate(graph.node):
        place = f"node {index} ({operator_of(node)} '{node.name}')"
        for name in node.input:
            if name and not any(name in scope for scope in scopes):
                is_later = any(name in other.output for other in graph.node[index:])
                what = "is made later: nodes stand in the order in which they run" if is_later else ""
                raise InvalidArgumentError(f"{place} takes '{name}', which {what or 'nothing makes'}")
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _check_order(inner, scopes)
        for name in node.output:
            if name and name in made:
                raise InvalidArgumentError(f"{place} makes '{name}', which there is already")
            made.add(name)
    for value in graph.output:
        if not any(value.name in scope for scope in scopes):
            raise InvalidArgumentError(f"nothing makes the result '{value.name}'")


def _check_size(tensor: Any) -> None:
    import onnx

    place = f"weight '{tensor.name}'"
    if any(size < 0 for size in tensor.dims):
        raise InvalidArgumentError(f"{place} has the shape {list(tensor.dims)}; the file is damaged")
    try:
        size = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError:
        raise InvalidArgumentError(f"{place} has the unknown element type {tensor.data_type}") from None
    if not tensor.HasField("raw_data"):
        try:
            onnx.numpy_helper.to_array(tensor)
        except Exception as error:
            pass_interruption(error)
            raise InvalidArgumentError(f"{place} is damaged: {' '.join(str(error).split())}") from None
        return
    wanted = (prod(tensor.dims) * _BITS.get(tensor.data_type, 8 * size) + 7) // 8
    if len(tensor.raw_data) != wanted:
        raise InvalidArgumentError(
            f"{place} has {len(tensor.raw_data)} bytes, and its shape and element type take {wanted}; the "
            "file is damaged"
        )
