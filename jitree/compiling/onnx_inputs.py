"""What the caller chooses of a model's inputs: shapes, element types and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError

Shape = tuple[int | None, ...]
"""None: any size."""
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


def shape_of(value: Any) -> Shape | None:
    """The shape of an input or output; None where not even its rank is known."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        size.dim_value if size.HasField("dim_value") and size.dim_value >= 0 else None
        for size in tensor.shape.dim
    )


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
    import onnx

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
        inner = f"{value.name}__cast"
        for node in model.graph.node:
            _rename(node, value.name, inner)
        node = onnx.helper.make_node("Cast", [value.name], [inner], inner, to=tensor.elem_type)
        model.graph.node.insert(0, node)
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
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
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
