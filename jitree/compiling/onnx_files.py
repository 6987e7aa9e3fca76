"""Prepares ONNX files for the compiler: shapes, constants, opset, operator forms, node names.

The tools of onnx and onnxruntime fix and infer shapes, fold constants and convert to a newer opset. Forms
of operators that the compiler refuses are replaced (`onnx_forms.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jitree.base.records import NamedTuple
from jitree.compiling.onnx_forms import replace_forms
from jitree.compiling.onnx_inputs import (
    ChosenInputs,
    check_model,
    choose,
    inputs_of,
    operator_of,
    state_defaults,
    tensors_of,
    type_name,
)
from jitree.compiling.onnx_nodes import (
    Shape,
    attribute,
    graphs_in,
    known_nodes,
    nodes_in,
    set_attributes,
    shape_of,
    taken_in,
)
from jitree.compiling.programs import INSTALL, CompilerWork
from jitree.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
    pass_interruption,
)

OLDEST_OPSET: Final = 17
"""The importer is written for this and later ones; it knows old forms of some operators only."""
_LAST_THAT_TURNS: Final = 10
"""The opset whose nearest Resize rounds down or up, as it grows or shrinks. Older ones only grow."""
_FIRST_WITH_PLACES: Final = 11
"""The opset whose Resize says where elements are taken."""
FUNCTION: Final = "main"
_VERSION: Final = 8
"""Of the file format: in older ones weights without an input of their name have no shape."""
_LARGEST: Final = (1 << 31) - (16 << 20)
"""Bytes of weights: a protocol buffer has 2 GiB at most."""


class NodePlace(NamedTuple):
    operator: str
    text: str
    """Where it is in the file, what it makes, and of what."""


class PreparedModel(NamedTuple):
    """A model for the importer."""

    program: Any
    """The model as it is imported."""
    reference: Any
    """The model with its shapes and types, and nothing else changed."""
    nodes: dict[str, NodePlace]
    """Where each node comes from, by the name that it has in errors."""
    declaration: str
    """Of the function that is made of it."""


def read_model(path: str, name: str) -> Any:
    """Reads an ONNX model. INVALID_ARGUMENT for what is no ONNX file, is damaged or lacks the files of its
    weights, and where arguments and results are no tensors of numbers."""
    try:
        import onnx
    except ImportError as error:
        raise UnavailableError(f"onnx cannot be imported ({error}): {INSTALL}") from None
    try:
        model = onnx.load(path)
    except Exception as error:
        pass_interruption(error)
        raise InvalidArgumentError(f"'{name}' is no ONNX file, or damaged: {first_line(error)}") from None
    if not model.graph.node and not model.graph.output:
        raise InvalidArgumentError(f"'{name}' is no ONNX file, or damaged: it has no graph")
    _require_room(model, f"'{name}'")
    check_model(model, name)
    return model


def _require_room(model: Any, what: str) -> None:
    if sum(len(tensor.raw_data) for tensor in tensors_of(model.graph)) > _LARGEST:
        raise ResourceExhaustedError(f"{what}: a model has 2 GiB at most here, with its weights")


def prepare(
    model: Any, inputs: ChosenInputs, opset: int, expanded: Sequence[str], work: CompilerWork
) -> PreparedModel:
    """Makes a model ready. ``opset`` 0: as it is, but not older than the importer knows. ``expanded``: the
    operators that are written by others. INVALID_ARGUMENT for inputs and opsets that do not fit."""
    import onnx

    origins = _origins(model)
    reference = onnx.ModelProto()
    reference.CopyFrom(model)
    choose(reference, inputs)
    _separate_names(reference)
    reference.ir_version = max(reference.ir_version, _VERSION)
    program = _expanded(_converted(_inferred(_written_out(reference), work), opset, work), expanded)
    program = _inferred(_folded(program, work), work)
    replace_forms(program)
    _drop_weights(program)
    _require_room(program, "the model with its forms for the compiler")
    program = _inferred(program, work)
    _store_bytes(program)
    program.graph.name = FUNCTION
    return PreparedModel(program, reference, _named(program, origins), declaration_of(program))


def _written_out(model: Any) -> Any:
    """The model without functions. UNIMPLEMENTED for those of opsets that onnx cannot convert to the
    model's."""
    import onnx.inliner

    program = onnx.ModelProto()
    program.CopyFrom(model)
    state_defaults(program)
    try:
        return onnx.inliner.inline_local_functions(program, convert_version=True)
    except Exception as error:
        pass_interruption(error)
        raise UnimplementedError(
            f"onnx cannot write the functions of the model out: {first_line(error)}; export the model with "
            "one opset for all of it"
        ) from None


def can_expand(operator: str) -> bool:
    """Whether ONNX says what an operator is by others."""
    import onnx

    schema = onnx.defs.get_schema(operator) if onnx.defs.has(operator) else None
    return bool(schema and (schema.has_function or schema.has_context_dependent_function))


def _expanded(model: Any, operators: Sequence[str]) -> Any:
    import onnx.inliner

    if not operators:
        return model
    names = [("", operator) for operator in operators]
    return onnx.inliner.inline_selected_functions(model, names, inline_schema_functions=True)


def opset_of(model: Any) -> int:
    """Of ONNX's own operators; 0 if it has none."""
    return next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)


def _converted(model: Any, opset: int, work: CompilerWork) -> Any:
    import onnx

    current = opset_of(model)
    wanted = opset or max(current, OLDEST_OPSET)
    if wanted == current or not current:
        return model
    if current == _LAST_THAT_TURNS < wanted:
        model = _folded(model, work)  # scales are often computed of shapes
    try:
        converted = onnx.version_converter.convert_version(model, wanted)
    except Exception as error:
        pass_interruption(error)
        message = f"opset {wanted}: the model has {current}, and onnx cannot convert it: {first_line(error)}"
        if opset:
            raise InvalidArgumentError(message) from None
        work.note(message)
        return model
    if current < _FIRST_WITH_PLACES <= wanted:
        _resize_from_corners(converted.graph, current)
    return converted


def _resize_from_corners(graph: Any, opset: int) -> None:
    """Says where a Resize takes its elements, which onnx's converter leaves out.

    Those of opset 10 and older count from the corner; they round down what grows, and up what shrinks.
    UNIMPLEMENTED for what no later opset can say.
    """
    for node, known in known_nodes(graph):
        if operator_of(node) != "Resize":
            continue
        scales, is_nearest = known.array(node.input[2]), attribute(node, "mode", b"") != b"linear"
        what, shrinks = f"Resize that makes '{node.output[0]}'", scales is not None and (scales < 1).any()
        if is_nearest and scales is None and opset == _LAST_THAT_TURNS:
            raise UnimplementedError(
                f"{what} has computed scales: it rounds as it grows or shrinks, which no later opset can "
                "say; give the shapes of all inputs (--input-shape=), with onnxruntime installed, or export "
                "the model with a newer opset"
            )
        if is_nearest and shrinks and (scales > 1).any():
            raise UnimplementedError(
                f"{what} grows and shrinks, which no later opset can say; export the model with a newer "
                "opset, or with two Resize"
            )
        rounding = "ceil" if shrinks else "floor"
        set_attributes(node, coordinate_transformation_mode="asymmetric", nearest_mode=rounding)


def _folded(model: Any, work: CompilerWork) -> Any:
    """The model after onnxruntime has computed what is constant; as it is where that cannot be done."""
    import onnx

    given, folded = work.path("given.onnx"), work.path("folded.onnx")
    Path(given).write_bytes(model.SerializeToString())
    refusal = work.ask_peer("fold", given, folded)
    if refusal:
        work.note(f"constants are not folded: {refusal}")
        return model
    model = onnx.load(folded)
    used = {node.domain for node in nodes_in(model.graph)} | {""}
    kept = [one for one in model.opset_import if one.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return model


def _inferred(model: Any, work: CompilerWork) -> Any:
    """With the shapes of all values. What the file says of results is taken where nothing else is known:
    exporters leave shapes there that the model does not have."""
    import onnx

    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    except Exception as error:
        pass_interruption(error)
        work.note(f"shapes are not inferred: {first_line(error)}")
        return model
    stated = {value.name: value for value in model.graph.output}
    for value in inferred.graph.output:
        if shape_of(value) is None:
            value.CopyFrom(stated[value.name])
    known = {value.name for value in inferred.graph.value_info}
    inferred.graph.value_info.extend(value for value in model.graph.value_info if value.name not in known)
    return inferred


def _drop_weights(model: Any) -> None:
    """Takes weights from the inputs, and those away that nothing takes: forms have others of their own."""
    kept = inputs_of(model)
    del model.graph.input[:]
    model.graph.input.extend(kept)
    taken = taken_in(model.graph)
    for graph in graphs_in(model.graph):
        for index in reversed(range(len(graph.initializer))):
            if graph.initializer[index].name not in taken:
                del graph.initializer[index]


def _store_bytes(model: Any) -> None:
    """The importer takes elements of all types as bytes, and of some types else."""
    import onnx

    for tensor in tensors_of(model.graph):
        if not tensor.HasField("raw_data") and tensor.data_type != onnx.TensorProto.STRING:
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _separate_names(model: Any) -> None:
    """onnxruntime refuses nodes that share a name, which other tools do not mind."""
    found: set[str] = set()
    for node in nodes_in(model.graph):
        while node.name and node.name in found:
            node.name += "_"
        found.add(node.name)


def _origins(model: Any) -> dict[str, str]:
    """Where a value is made in the file, by its name."""
    return {
        output: f"node {index} of {count}{inside}"
        for node, index, count, inside in _nodes(model.graph, "")
        for output in node.output
        if output
    }


def _nodes(graph: Any, inside: str) -> Iterator[tuple[Any, int, int, str]]:
    """Lists nodes, also of graphs in nodes, with their place and their graph's."""
    for index, node in enumerate(graph.node):
        yield node, index, len(graph.node), inside
        for one in node.attribute:
            for inner in (one.g, *one.graphs):
                yield from _nodes(inner, f" in {one.name} of {node.op_type} '{node.name}'")


def _named(model: Any, origins: Mapping[str, str]) -> dict[str, NodePlace]:
    """Gives each node a name of its own, and tells where it comes from."""
    found: dict[str, NodePlace] = {}
    takers: dict[str, str] = {}
    for node, *_ in reversed([*_nodes(model.graph, "")]):
        places = [origins.get(output) or takers.get(output) for output in node.output]
        takers |= {name: place for place in places if place for name in node.input}
    for node, index, _, _ in _nodes(model.graph, ""):
        name = node.name or f"{node.op_type}_{index}"
        while name in found:
            name += f"_{index}"
        node.name = name
        made = [output for output in node.output if output]
        taker = next((f", for {takers[output]}" for output in made if output in takers), "")
        place = next((origins[one] for one in made if one in origins), f"not in the file itself{taker}")
        takes = ", ".join(f"'{one}'" for one in node.input if one) or "nothing"
        makes = ", ".join(f"'{one}'" for one in made)
        found[name] = NodePlace(operator_of(node), f"{place}, makes {makes} of {takes}")
    return found


def declaration_of(model: Any) -> str:
    """Declares arguments and results (names, types, shapes) as the compiler does for other programs."""
    arguments, results = (", ".join(_declared(one)) for one in (model.graph.input, model.graph.output))
    return f"sync func @{FUNCTION}({arguments}) -> ({results})"


def _declared(values: Sequence[Any]) -> list[str]:
    names: dict[str, None] = {}
    for value in values:
        name = re.sub(r"\W", "_", value.name, flags=re.ASCII) or "_"
        name = f"_{name}" if name[0].isdigit() else name
        while name in names:
            name += "_"
        names[name] = None
    return [f"%{name}: {_tensor(value)}" for name, value in zip(names, values, strict=True)]


def _tensor(value: Any) -> str:
    shape: Shape | None = shape_of(value)
    if shape is None:
        return "!hal.buffer_view"
    sizes = "".join("?x" if size is None else f"{size}x" for size in shape)
    return f"tensor<{sizes}{type_name(value.type.tensor_type.elem_type)}>"


def first_line(error: object) -> str:
    """What an error of another library says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
