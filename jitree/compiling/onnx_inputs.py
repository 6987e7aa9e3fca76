"""Checks ONNX models, and applies the caller's choice of shapes, types and values.

Checks refuse what ONNX does not allow and its tools take in part: a module of it would compute something
else, or the reason for a refusal would be another one.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from jitree.base.records import NamedTuple
from jitree.compiling.onnx_nodes import (
    NodeChain,
    Shape,
    graphs_in,
    graphs_of,
    made_in,
    names_of,
    nodes_in,
    shape_of,
)
from jitree.errors import InvalidArgumentError, pass_interruption

TYPES: Final = {
    1: "f32", 11: "f64", 10: "f16", 16: "bf16",
    3: "i8", 5: "i16", 6: "i32", 7: "i64", 22: "i4", 26: "i2",
    2: "ui8", 4: "ui16", 12: "ui32", 13: "ui64", 21: "ui4",
    9: "i1", 14: "complex<f32>", 15: "complex<f64>",
    17: "f8E4M3FN", 18: "f8E4M3FNUZ", 19: "f8E5M2", 20: "f8E5M2FNUZ", 24: "f8E8M0FNU",
}  # fmt: skip
"""Numbers of element types in ONNX, and names of the runtime."""
_ANY: Final = "?"
"""What some exporters call each size that may be any: it names none."""
_SEVERAL: Final = {"u8": "ui8", "u16": "ui16", "u32": "ui32", "u64": "ui64", "bool": "i1"}

_OWN: Final = ("", "ai.onnx")
"""Names of ONNX's own set of operators."""
_NONE: Final = 0
_DEEPEST: Final = 100
"""Functions in functions."""
_MOST_NODES: Final = 1 << 20
_BITS: Final = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
"""Of element types that are smaller than a byte, by their number."""


FunctionName = tuple[str, str, str]
"""Domain, name, overload."""


class ChosenInputs(NamedTuple):
    """By names of inputs; the empty name is that of the only one."""

    shapes: Mapping[str, Sequence[int | None]]
    types: Mapping[str, str]
    values: Mapping[str, Any]
    """Inputs that are constants from now on."""


def choose(model: Any, inputs: ChosenInputs) -> None:
    """Gives an ONNX model its inputs. INVALID_ARGUMENT for what does not fit it."""
    fix_values(model, inputs.values)
    fix_shapes(model, inputs.shapes)
    cast_inputs(model, inputs.types)


def inputs_of(model: Any) -> list[Any]:
    """What is passed to the model: old exporters list the weights, which have values, as well."""
    weights = {weight.name for weight in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def type_name(number: int) -> str:
    """As the runtime writes the element type."""
    return TYPES.get(number, f"onnx.{number}")


def shape_text(shape: Shape | None) -> str:
    return "of any shape" if shape is None else "x".join("?" if size is None else str(size) for size in shape)


def fix_shapes(model: Any, shapes: Mapping[str, Sequence[int | None]]) -> None:
    """Gives inputs the shapes. A size of one name is the same wherever the model has it. INVALID_ARGUMENT for
    an input that there is not, another number of dimensions, and a size that the model does not leave open.
    """
    symbols: dict[str, int] = {}
    for name, shape in shapes.items():
        value = _input(model, name, "shape")
        given = f"shape of input '{value.name}': {shape_text(tuple(shape))} has"
        known = shape_of(value)
        if known is None:
            for _ in shape:
                value.type.tensor_type.shape.dim.add()
        elif len(known) != len(shape):
            raise InvalidArgumentError(
                f"{given} {len(shape)} dimensions, and the model has {len(known)}: {_declared(value)}"
            )
        for axis, (size, dimension) in enumerate(zip(shape, value.type.tensor_type.shape.dim, strict=True)):
            if size is None:
                continue
            symbol = dimension.dim_param.strip(_ANY)
            fixed = symbols.get(symbol) if symbol else dimension.dim_value
            if fixed is not None and fixed > 0 and fixed != size:
                raise InvalidArgumentError(
                    f"{given} {size} at dimension {axis}, which is {fixed} in the model: {_declared(value)}"
                )
            if symbol:
                symbols[symbol] = size
            else:
                dimension.dim_value = size
    for value in (*model.graph.input, *model.graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in symbols:
                dimension.dim_value = symbols[dimension.dim_param]


def cast_inputs(model: Any, types: Mapping[str, str]) -> None:
    """Gives inputs other element types: the model casts what it gets to its own."""
    numbers = {name: number for number, name in TYPES.items()}
    for name, text in types.items():
        value = _input(model, name, "element type")
        wanted = _SEVERAL.get(text, text)
        if wanted not in numbers:
            raise InvalidArgumentError(
                f"element type of input '{value.name}': there is no '{text}'; there are {', '.join(numbers)}"
            )
        tensor = value.type.tensor_type
        if tensor.elem_type == numbers[wanted]:
            continue
        chain = NodeChain(f"{value.name}__cast", names_of(model.graph))
        inner = chain.op("Cast", value.name, to=tensor.elem_type)
        for node in model.graph.node:
            _rename(node, value.name, inner)
        chain.put(model.graph, 0)
        tensor.elem_type = numbers[wanted]


def fix_values(model: Any, values: Mapping[str, Any]) -> None:
    """Makes constants of inputs. INVALID_ARGUMENT for an input that there is not, and for other values."""
    import onnx

    for name, given in values.items():
        value = _input(model, name, "value")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape, array = shape_of(value), np.asarray(given)
        try:
            converted = array.astype(dtype, casting="same_kind")
            if shape is not None and None not in shape:
                converted = converted.reshape([size or 0 for size in shape])
        except (TypeError, ValueError):
            converted = None
        if converted is None or (dtype.kind in "iu" and not np.array_equal(converted.ravel(), array.ravel())):
            raise InvalidArgumentError(
                f"value of input '{value.name}': {given} does not fit: {_declared(value)}"
            )
        model.graph.initializer.append(onnx.numpy_helper.from_array(converted, value.name))
        model.graph.input.remove(value)


def _rename(node: Any, old: str, new: str) -> None:
    """Uses of a value, also in graphs within the node."""
    for index, name in enumerate(node.input):
        if name == old:
            node.input[index] = new
    for inner in graphs_of(node):
        if old not in made_in(inner):
            for each in inner.node:
                _rename(each, old, new)


def _input(model: Any, name: str, what: str) -> Any:
    """The input of a name; no name stands for the only one."""
    inputs = inputs_of(model)
    found = [value for value in inputs if value.name == name] if name else inputs
    if len(found) != 1:
        listed = ", ".join(_declared(value) for value in inputs)
        problem = f"there is no input '{name}'" if name else "it takes the name of an input (<name>=…)"
        raise InvalidArgumentError(f"{what}: {problem}; the model has {listed}")
    return found[0]


def _declared(value: Any) -> str:
    """``x: f32[1x3x?x?]``, with the model's own names of sizes."""
    tensor = value.type.tensor_type
    sizes = (
        size.dim_param or (str(size.dim_value) if size.dim_value > 0 else "?") for size in tensor.shape.dim
    )
    return f"{value.name}: {type_name(tensor.elem_type)}[{'x'.join(sizes)}]"


def check_model(model: Any, name: str) -> None:
    """Checks a model. INVALID_ARGUMENT for a damaged one, and for arguments and results that modules do not
    have, with the place in the model."""
    try:
        for kind, values in (("input", model.graph.input), ("result", model.graph.output)):
            for value in values:
                _check_type(kind, value)
        _check_versions(model)
        _check_graph(model.graph)
        for body in _bodies(model):
            try:
                _check_graph(body)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"function '{body.name}': {error.message}") from None
        _check_functions(model)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"'{name}': {error.message}") from None


def _check_graph(graph: Any) -> None:
    _check_order(graph, ())
    for tensor in tensors_of(graph):
        _check_size(tensor)


def _bodies(model: Any) -> Iterator[Any]:
    """Functions of the model as graphs: they see nothing from outside."""
    import onnx

    def values(names: Sequence[str]) -> list[Any]:
        return [onnx.ValueInfoProto(name=name) for name in names]

    for one in model.functions:
        yield onnx.helper.make_graph(one.node, one.name, values(one.input), values(one.output))


def _check_functions(model: Any) -> None:
    """Refuses functions that never end, or make too many nodes when written out. One that is called
    like an operator of ONNX's onnxruntime would take for that."""
    import onnx

    versions = [one.version for one in model.opset_import if one.domain in _OWN]
    left = {(one.domain, one.name, one.overload): one for one in model.functions}
    for domain, name, _ in left:
        if domain in _OWN and versions and onnx.defs.has(name, versions[0]):
            raise InvalidArgumentError(f"a function has the name of ONNX's '{name}'; give it another domain")
    sizes: dict[FunctionName, int] = {}
    for _ in range(_DEEPEST):
        known = [key for key, one in left.items() if not _calls(one, left)]
        sizes |= {key: _written_out(left.pop(key), sizes) for key in known}
    if left:
        names = ", ".join(f"'{domain}.{name}'" for domain, name, _ in left)
        raise InvalidArgumentError(
            f"functions call themselves, or each other more than {_DEEPEST} times over: {names}"
        )
    size = _written_out(model.graph, sizes)
    if size > _MOST_NODES:
        raise InvalidArgumentError(
            f"its functions make {size} nodes where they are written out; a model has {_MOST_NODES} at most"
        )


def _written_out(graph: Any, sizes: Mapping[FunctionName, int]) -> int:
    return sum(sizes.get((one.domain, one.op_type, one.overload), 1) for one in nodes_in(graph))


def _calls(graph: Any, functions: Container[FunctionName]) -> bool:
    return any((one.domain, one.op_type, one.overload) in functions for one in nodes_in(graph))


def state_defaults(model: Any) -> None:
    """Gives calls of functions the attributes that they leave out: onnx forgets the defaults."""
    defaults = {(one.domain, one.name, one.overload): one.attribute_proto for one in model.functions}
    for graph in (model.graph, *model.functions):
        for node in nodes_in(graph):
            given = {one.name for one in node.attribute}
            others = defaults.get((node.domain, node.op_type, node.overload), ())
            node.attribute.extend(one for one in others if one.name not in given)


def tensors_of(graph: Any) -> Iterator[Any]:
    """Those of initializers and attributes, also of graphs in nodes."""
    for each in graphs_in(graph):
        yield from each.initializer
        for attribute in (one for node in each.node for one in node.attribute):
            yield from (attribute.t, *attribute.tensors) if attribute.HasField("t") else attribute.tensors


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
    numbered = (pair for each in graphs_in(model.graph) for pair in enumerate(each.node))
    for index, node in numbered:
        domain = "" if node.domain in _OWN else node.domain
        version = versions.get(domain, _NONE)
        if version <= 0 and (node.domain, node.op_type) not in own:
            said = f"version {version}" if domain in versions else "no version"
            raise InvalidArgumentError(
                f"node {index} ({operator_of(node)}) is of the operators of '{domain or 'ai.onnx'}', of "
                f"which the file has {said} (opset_import); export the model anew"
            )


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
        for inner in graphs_of(node):
            _check_order(inner, scopes)
        for name in node.output:
            if name and any(name in scope for scope in scopes):
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
