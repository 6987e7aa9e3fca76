"""ONNX models that are damaged or have what modules do not have."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree.compiling.onnx_files import NodePlace, prepare, read_model
from jitree.compiling.onnx_inputs import ChosenInputs
from jitree.compiling.programs import CompilerWork, MessageLog
from jitree.errors import InvalidArgumentError

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'jitree[compile]'")


def parsed(text: str, head: str = '"": 17') -> Any:
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{head}]> g {text}")


def refusal(model: Any, folder: Path) -> str:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InvalidArgumentError) as caught:
        read_model(str(path), "m.onnx")
    return caught.value.message.removeprefix("'m.onnx': ")


GRAPHS = {
    "(float[2] x) => (float[2] z) { a = Add(x, b) b = Relu(a) z = Relu(b) }": (
        "node 0 (Add '') takes 'b', which is made later: nodes stand in the order in which they run"
    ),
    "(float[2] x) => (float[2] z) { z = Add(x, no) }": "node 0 (Add '') takes 'no', which nothing makes",
    "(float[2] x) => (float[2] z) { z = Relu(x) z = Neg(x) }": (
        "node 1 (Neg '') makes 'z', which there is already"
    ),
    "(float[2] x) => (float[2] z) { y = Relu(x) }": "nothing makes the result 'z'",
    "(float[2] x, float[2] x) => (float[2] z) { z = Relu(x) }": (
        "input 'x' is there twice; each takes a name of its own"
    ),
    "(bool c, float[2] x) => (float[2] z) { z = If (c) <then_branch = t () => (float[2] y) "
    "{ y = Relu(no) }, else_branch = e () => (float[2] w) { w = Neg(x) }> }": (
        "node 0 (Relu '') takes 'no', which nothing makes"
    ),
    "(bool c, float[2] x) => (float[2] z) { y = Neg(x) z = If (c) <then_branch = t () => (float[2] y) "
    "{ y = Relu(x) }, else_branch = e () => (float[2] w) { w = Neg(x) }> }": (
        "node 0 (Relu '') makes 'y', which there is already"
    ),
    "(float[2] x) => (float[2] z) { z = acme.Magic(x) }": (
        "node 0 (acme.Magic) is of the operators of 'acme', of which the file has no version (opset_import); "
        "export the model anew"
    ),
    "(string[2] x) => (float[2] z) { z = Cast<to=1>(x) }": (
        "input 'x' has elements of type STRING, which modules do not have; export the model without what "
        "takes or makes it, and do that before or after"
    ),
    "(float[2] x) => (seq(float[2]) z) { z = SequenceConstruct(x) }": (
        "result 'z' is no tensor (sequence), and modules take and give tensors: export the model with these"
    ),
}


@pytest.mark.parametrize("text", GRAPHS)
def test_graphs_that_onnx_does_not_allow(text: str, tmp_path: Path) -> None:
    assert refusal(parsed(text), tmp_path) == GRAPHS[text]


@pytest.mark.parametrize(("head", "said"), [('"": 0', "version 0"), ('"other": 1', "no version")])
def test_operators_without_a_version(head: str, said: str, tmp_path: Path) -> None:
    model = parsed("(float[2] x) => (float[2] z) { z = Relu(x) }", head)
    assert f"of the operators of 'ai.onnx', of which the file has {said}" in refusal(model, tmp_path)


def _short(tensor: Any) -> None:
    tensor.raw_data = b"abc"


def _negative(tensor: Any) -> None:
    tensor.dims[0] = -5


def _unknown(tensor: Any) -> None:
    tensor.data_type = 77


def _few(tensor: Any) -> None:
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0])


TENSORS: dict[str, tuple[Callable[[Any], None], str]] = {
    "short": (_short, "weight 'w' has 3 bytes, and its shape and element type take 8; the file is damaged"),
    "negative": (_negative, r"weight 'w' has the shape \[-5\]; the file is damaged"),
    "unknown": (_unknown, "weight 'w' has the unknown element type 77"),
    "few": (_few, "weight 'w' is damaged: cannot reshape array of size 1 into shape .*"),
}


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("is_attribute", [False, True])
def test_weights_that_are_damaged(kind: str, is_attribute: bool, tmp_path: Path) -> None:
    damage, text = TENSORS[kind]
    tensor = onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")
    damage(tensor)
    if is_attribute:
        model = parsed("(float[2] x) => (float[2] z) { w = Constant() z = Add(x, w) }")
        attribute = model.graph.node[0].attribute.add()
        attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
        attribute.t.CopyFrom(tensor)
    else:
        model = parsed("(float[2] x, float[2] w) => (float[2] z) { z = Add(x, w) }")
        model.graph.initializer.append(tensor)
    assert re.fullmatch(text, refusal(model, tmp_path))


@pytest.fixture
def work(tmp_path: Path, no_packages: None) -> CompilerWork:
    return CompilerWork(str(tmp_path), MessageLog(str(tmp_path / "log")), float("inf"), lambda text: None)


def prepared(model: Any, folder: Path, work: CompilerWork) -> Any:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return prepare(read_model(str(path), "m.onnx"), ChosenInputs({}, {}, {}), 0, (), work)


def test_what_is_allowed_is_taken(tmp_path: Path, work: CompilerWork) -> None:
    """Values of the graph outside, a result that is an argument or a weight, and empty names."""
    text = (
        "(bool c, float[2] x) => (float[2] z, float[2] x, float[1] w) <float[1] w = {1}> { y = Clip(x, , ) "
        "z = If (c) <then_branch = t () => (float[2] a) { a = Relu(y) }, else_branch = e () => (float[2] b) "
        "{ b = Neg(x) }> }"
    )
    assert len(prepared(parsed(text), tmp_path, work).program.graph.output) == 3


def test_small_elements_are_stored_as_bytes(tmp_path: Path, work: CompilerWork) -> None:
    """The importer takes those of 4 bits, of which helpers of onnx make numbers, as bytes only."""
    model = parsed("(float s) => (float[5] z) { z = DequantizeLinear(w, s) }", '"": 21')
    values = [-8, 7, 0, 1, -1]
    model.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.INT4, [5], values))
    assert not model.graph.initializer[0].HasField("raw_data")
    weight = prepared(model, tmp_path, work).program.graph.initializer[0]
    assert len(weight.raw_data) == 3 and not weight.int32_data
    assert onnx.numpy_helper.to_array(weight).astype(int).tolist() == values


def test_nodes_with_one_name_are_told_apart(tmp_path: Path, work: CompilerWork) -> None:
    model = parsed("(float[2] x) => (float[2] z) { y = Relu(x) z = Neg(y) }")
    for node in model.graph.node:
        node.name = "same"
    found = prepared(model, tmp_path, work)
    assert [node.name for node in found.reference.graph.node] == ["same", "same_"]


def test_operators_of_others_have_their_domain(tmp_path: Path, work: CompilerWork) -> None:
    model = parsed("(float[2] x) => (float[2] z) { z = com.acme.Gelu(x) }", '"": 20, "com.acme": 1')
    found = prepared(model, tmp_path, work)
    assert found.nodes == {"Gelu_0": NodePlace("com.acme.Gelu", "node 0 of 1, makes 'z' of 'x'")}


def test_sizes_of_zero_are_sizes(tmp_path: Path, work: CompilerWork) -> None:
    model = parsed("(float[0,3] x) => (float[0,3] z) { z = Relu(x) }")
    declared = "sync func @main(%x: tensor<0x3xf32>) -> (%z: tensor<0x3xf32>)"
    assert prepared(model, tmp_path, work).declaration == declared


FORMS = (
    "(float[1,1,4] x) => (float[1,1,4] z) { z = MaxPool(x) }",
    "(float[1,1,4] x) => (float[1,1,4] z) { z = Conv(x) }",
    "(float[1,1,4] x) => (float[1,1,4] z) { z = MaxPool<kernel_shape=[2], pads=[1]>(x) }",
    "(float[1,1,4] x) => (float[1,1,4] z) { z = MaxPool<kernel_shape=[2], strides=[2,2]>(x) }",
    '(float[1,1,4] x) => (float[1,1,4] z) { z = Pad<mode="reflect">(x) }',
    '(float[4] x) => (float[9] z) <int64[3] p = {1,2,3}> { z = Pad<mode="edge">(x, p) }',
    '(float[0] x) => (float[2] z) <int64[2] p = {1,1}> { z = Pad<mode="edge">(x, p) }',
    "() => (float[4] z) { z = Pad() }",
)


@pytest.mark.parametrize("text", FORMS)
def test_operators_that_lack_something_stay_as_they_are(text: str) -> None:
    """It is the importer that refuses them, with their place."""
    from jitree.compiling.onnx_forms import replace_forms

    model = parsed(text)
    nodes = [node.SerializeToString() for node in model.graph.node]
    replace_forms(model)
    assert [node.SerializeToString() for node in model.graph.node] == nodes
