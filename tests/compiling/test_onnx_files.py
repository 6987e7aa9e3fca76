"""What is done to ONNX files before they are imported: with onnx, without a compiler."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree.compiling import onnx_files
from jitree.compiling.onnx_files import can_expand, opset_of, prepare, read_model
from jitree.compiling.onnx_inputs import ChosenInputs, choose, inputs_of
from jitree.compiling.programs import CompilerWork, MessageLog
from jitree.errors import InvalidArgumentError, ResourceExhaustedError, UnimplementedError
from tests.api.onnx_files import chain

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'jitree[compile]'")

NOTHING = ChosenInputs({}, {}, {})


def parsed(text: str, opset: int = 17) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')


def results(model: Any, **arguments: Any) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, arguments))


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def work(tmp_path: Path, notes: list[str], no_packages: None) -> CompilerWork:
    """Without onnxruntime, which folds constants."""
    return CompilerWork(str(tmp_path), MessageLog(str(tmp_path / "log")), time.monotonic() + 60, notes.append)


def test_weights_that_nothing_takes_any_more_go(work: CompilerWork) -> None:
    """Filters of phases came besides the filters: a model of more than a gigabyte had no room for both."""
    model = parsed("(float[1,1,2] x) => (float[1,1,4] y) { y = ConvTranspose<strides=[2]>(x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 1, 2), np.float32), "w"))
    program = prepare(model, NOTHING, 0, [], work).program
    names = {weight.name for weight in program.graph.initializer}
    assert names == {name for node in program.graph.node for name in node.input} - {"x"} - {
        name for node in program.graph.node for name in node.output
    }
    assert "w" not in names


def test_casts_of_arguments_have_names_of_their_own() -> None:
    model = parsed("(float[2] x, float[2] x__cast_0) => (float[2] y) { y = Add(x, x__cast_0) }")
    choose(model, ChosenInputs({}, {"x": "u8"}, {}))
    given = {"x": np.array([3, 4], np.uint8), "x__cast_0": np.ones(2, np.float32)}
    assert results(model, **given)[0].tolist() == [4, 5]


def test_element_types_are_cast_at_the_beginning() -> None:
    text = """(float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] a) { a = Neg(x) }, else_branch = e () => (float[2] b)
        { b = Abs(x) }> }"""
    model = parsed(text)
    choose(model, ChosenInputs({}, {"x": "u8"}, {}))
    onnx.checker.check_model(model, full_check=True)
    assert [one.type.tensor_type.elem_type for one in inputs_of(model)] == [2, 9]
    result = results(model, x=np.array([3, 4], np.uint8), c=np.array(True))[0]
    assert result.tolist() == [-3, -4]
    with pytest.raises(
        InvalidArgumentError, match=r"element type of input 'x': there is no 'f33'; there are f32"
    ):
        choose(model, ChosenInputs({}, {"x": "f33"}, {}))


def test_values_make_constants() -> None:
    text = """(float[2] x, int64 n, int32[2] k) => (float[2] y)
        { m = Cast<to=1>(n) l = Cast<to=1>(k) y = Sum(x, m, l) }"""
    model = parsed(text)
    choose(model, ChosenInputs({}, {}, {"n": [5], "k": (1, 2)}))
    assert [value.name for value in inputs_of(model)] == ["x"]
    assert results(model, x=np.zeros(2, np.float32))[0].tolist() == [6, 7]


@pytest.mark.parametrize("value", [[1, 2, 3], [1.5, 2], "two", [1 << 40, 0], None])
def test_values_that_do_not_fit(value: Any) -> None:
    model = parsed("(int32[2] k) => (int32[2] y) { y = Neg(k) }")
    with pytest.raises(InvalidArgumentError) as caught:
        choose(model, ChosenInputs({}, {}, {"k": value}))
    assert caught.value.message == f"value of input 'k': {value} does not fit: k: i32[2]"


def test_inputs_of_a_body_are_not_cast() -> None:
    """Those that have the name of an input of the model: the body took that in their place."""
    text = "(float[4] x) => (float[4] l, float[4,1] y) { z = Neg(x) l, y = Scan <num_scan_inputs=1, "
    text += (
        "body = b (float[4] x, float[1] r) => (float[4] n, float[1] o) { n = Add(x, r) o = Neg(r) }> (z, x) }"
    )
    model = parsed(text)
    choose(model, ChosenInputs({}, {"x": "f64"}, {}))
    x = np.arange(4, dtype=np.float64)
    np.testing.assert_array_equal(results(model, x=x)[0], x.sum() - x)


def test_files_that_are_damaged(tmp_path: Path) -> None:
    whole = chain([np.ones((8, 8), np.float32)], 2)
    path = tmp_path / "m.onnx"
    for data in (whole[:-30], b"", b"\x08\x07"):
        path.write_bytes(data)
        with pytest.raises(InvalidArgumentError) as caught:
            read_model(str(path), "m.onnx")
        assert caught.value.message.startswith("'m.onnx' is no ONNX file, or damaged: ")
        assert "\n" not in caught.value.message


def test_weights_in_files_that_are_missing(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(chain([np.ones((64, 64), np.float32)], 2))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert read_model(str(path), "m.onnx").graph.initializer[0].raw_data
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InvalidArgumentError, match=r"'m.onnx' is no ONNX file, or damaged: .*weights\.bin"):
        read_model(str(path), "m.onnx")


def test_opsets_are_converted(work: CompilerWork, notes: list[str]) -> None:
    old = parsed("(float[2] x) => (float[2] y) { y = Neg(x) }", 11)
    assert opset_of(prepare(old, NOTHING, 0, [], work).program) == 17
    assert opset_of(prepare(old, NOTHING, 18, [], work).program) == 18
    assert notes == ["constants are not folded: onnxruntime is not installed (pip install onnxruntime)"] * 2
    with pytest.raises(
        InvalidArgumentError, match=r"opset 99: the model has 11, and onnx cannot convert it: "
    ):
        prepare(old, NOTHING, 99, [], work)


def test_casts_of_arguments_are_not_those_of_a_body(work: CompilerWork) -> None:
    """What a body calls like an argument of the model is its own."""
    text = "(float[3,4] x, float[4] s) => (float[4] l, float[3,4] y) { l, y = Scan <num_scan_inputs=1, "
    text += (
        "body = b (float[4] m, float[4] x) => (float[4] n, float[4] o) { o = Neg(x) n = Add(m, x) }> (s, x) }"
    )
    model = parsed(text)
    choose(model, ChosenInputs({}, {"x": "u8"}, {}))
    x = np.arange(12, dtype=np.uint8).reshape(3, 4)
    [total, _] = results(model, x=x, s=np.zeros(4, np.float32))
    assert total.tolist() == x.sum(axis=0).tolist()


def test_functions_of_the_model_are_written_out(work: CompilerWork) -> None:
    """The importer does not know them, and their forms are replaced as those of other nodes."""
    text = '<ir_version: 10, opset_import: ["": 19, "own": 1]> g '
    text += "(float[4] x) => (float[7] y) { y = own.GRU(x) } "
    text += '<domain: "own", opset_import: ["": 19]> GRU (x) => (y) '
    text += '{ p = Constant<value_ints=[1,2]>() y = Pad<mode="edge">(x, p) }'
    model = onnx.parser.parse_model(text)
    program = prepare(model, NOTHING, 0, [], work).program
    assert not program.functions
    assert {node.op_type for node in program.graph.node} <= {"Constant", "Slice", "Concat", "Identity"}
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(results(program, x=x)[0], results(model, x=x)[0])


def calling(functions: str, call: str = "y = own.a(x)") -> Any:
    """A model of functions, of which each is ``name (x) => (y) {…}``."""
    texts = (
        f'<domain: "own", opset_import: ["": 19, "own": 1]> {each.strip()} ' for each in functions.split(";")
    )
    text = '<ir_version: 10, opset_import: ["": 19, "own": 1]> g '
    return onnx.parser.parse_model(f"{text}(float[4] x) => (float[4] y) {{ {call} }} {''.join(texts)}")


FUNCTIONS = {
    "one that calls itself": ("a (x) => (y) { y = own.a(x) }", r"call themselves, .*: 'own\.a'"),
    "two that call each other": (
        "a (x) => (y) { y = own.b(x) }; b (x) => (y) { y = own.a(x) }",
        r"call themselves, .*: 'own\.a', 'own\.b'",
    ),
    "one that calls itself in a branch": (
        "a (x) => (y) { c = Constant<value_int=1>() b = Cast<to=9>(c) "
        "y = If<then_branch=t () => (float[4] p) { p = own.a(x) }, "
        "else_branch=e () => (float[4] q) { q = Neg(x) }>(b) }",
        "call themselves",
    ),
    "many that call each other twice": (
        ";".join(f"f{n} (x) => (z) {{ y = own.f{n + 1}(x) z = own.f{n + 1}(y) }}" for n in range(40))
        + "; f40 (x) => (y) { y = Neg(x) }; a (x) => (y) { y = own.f0(x) }",
        "its functions make 1099511627777 nodes where they are written out",
    ),
    "one that takes what is outside": (
        "a (x) => (y) { y = Add(x, w) }",
        "function 'a': node 0 .*takes 'w', which nothing makes",
    ),
    "one that makes nothing": ("a (x) => (y) { z = Neg(x) }", "function 'a': nothing makes the result 'y'"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_are_refused(name: str, tmp_path: Path) -> None:
    """What onnx said of them was no status, or it wrote them out for ever, or took what is outside."""
    functions, message = FUNCTIONS[name]
    model = calling(functions, "w = Neg(x) y = own.a(x)")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InvalidArgumentError, match=f"'m.onnx': .*{message}"):
        read_model(str(path), "m.onnx")


def test_a_function_that_is_called_like_an_operator(tmp_path: Path) -> None:
    """onnxruntime takes ONNX's, and it was written out here."""
    text = '<ir_version: 10, opset_import: ["": 19]> g (float[4] x) => (float[4] y) { y = Relu(x) } '
    model = onnx.parser.parse_model(
        text + '<domain: "", opset_import: ["": 19]> Relu (a) => (b) { b = Neg(a) }'
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InvalidArgumentError, match="a function has the name of ONNX's 'Relu'"):
        read_model(str(path), "m.onnx")


def test_functions_of_a_newer_opset(work: CompilerWork) -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 17, "own": 1]> g (float[4] x) => (float[4] y) { y = own.a(x) } '
    )
    model = onnx.parser.parse_model(
        text + '<domain: "own", opset_import: ["": 20]> a (x) => (y) { y = Gelu(x) }'
    )
    with pytest.raises(UnimplementedError, match=r"cannot write the functions .* one opset for all of it"):
        prepare(model, NOTHING, 0, [], work)


def test_defaults_of_functions(work: CompilerWork) -> None:
    """onnx left them out as it wrote functions out: LeakyRelu took its own."""
    model = calling(
        "b <alpha: float = 0.5> (x) => (y) { y = LeakyRelu<alpha: float = @alpha>(x) }; a (x) => (y) "
        "{ c = own.b(x) d = own.b<alpha = 0.25>(c) e = Constant<value_int=1>() f = Cast<to=9>(e) "
        "y = If<then_branch=t () => (float[4] p) { p = own.b(d) }, "
        "else_branch=e () => (float[4] q) { q = Neg(x) }>(f) }"
    )
    program = prepare(model, NOTHING, 0, [], work).program
    found = results(program, x=np.full(4, -16, np.float32))[0]
    np.testing.assert_array_equal(found, np.full(4, -1, np.float32))


def test_constants_of_functions_that_are_damaged(tmp_path: Path) -> None:
    model = calling("a (x) => (y) { w = Constant<value = float[1] {2}>() y = Add(x, w) }")
    tensor = model.functions[0].node[0].attribute[0].t
    tensor.ClearField("float_data")
    tensor.raw_data = b"123"
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InvalidArgumentError, match=r"has 3 bytes, and its shape and element type take 4"):
        read_model(str(path), "m.onnx")


def test_models_that_grow_beyond_what_a_file_holds(
    work: CompilerWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forms may have more weights than the model: filters of phases have zeros besides."""
    model = parsed("(float[1,1,2] x) => (float[1,1,9] y) { y = ConvTranspose<strides=[7]>(x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 1, 2), np.float32), "w"))
    monkeypatch.setattr(onnx_files, "_LARGEST", 20)
    with pytest.raises(ResourceExhaustedError, match="with its forms for the compiler: a model has 2 GiB"):
        prepare(model, NOTHING, 0, [], work)


OLD_SIZES: dict[str, tuple[int, str, list[float], list[float]]] = {
    "Upsample that interpolates": (
        9,
        'Upsample<mode="linear">(x, s)',
        [1, 2],
        [0, 0.5, 1, 1.5, 2, 2.5, 3, 3],
    ),
    "Upsample of an attribute": (8, "Upsample<scales=[1.0, 1.5]>(x)", [1, 1], [0, 0, 1, 2, 2, 3]),
    "Resize that grows": (10, "Resize(x, s)", [1, 1.5], [0, 0, 1, 2, 2, 3]),
    "Resize that shrinks": (10, "Resize(x, s)", [1, 0.6], [0, 2]),
    "Resize that interpolates": (10, 'Resize<mode="linear">(x, s)', [1, 2], [0, 0.5, 1, 1.5, 2, 2.5, 3, 3]),
}


@pytest.mark.parametrize("name", OLD_SIZES)
def test_old_sizes_count_from_the_corner(name: str, work: CompilerWork) -> None:
    """The converter of onnx left it to the default of later opsets, which takes other elements."""
    opset, operator, scales, expected = OLD_SIZES[name]
    model = parsed(f"(float[1,4] x) => (float[A,B] y) {{ y = {operator} }}", opset)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(scales, np.float32), "s"))
    program = prepare(model, NOTHING, 0, [], work).program
    found = results(program, x=np.arange(4, dtype=np.float32).reshape(1, 4))[0]
    np.testing.assert_allclose(found, [expected], atol=1e-6)


def test_old_sizes_that_are_computed(work: CompilerWork) -> None:
    """It was rounded down, as what grows: a Resize that shrank took other elements."""
    text = "(float[4] x, float[1] s) => (float[A] y) { y = Resize(x, s) }"
    with pytest.raises(UnimplementedError, match=r"Resize that makes 'y' has computed scales: it rounds as"):
        prepare(parsed(text, 10), NOTHING, 0, [], work)
    text = text.replace("Resize", 'Resize<mode="linear">')
    assert prepare(parsed(text, 10), NOTHING, 0, [], work).program


def test_old_sizes_that_later_opsets_cannot_say(work: CompilerWork) -> None:
    model = parsed("(float[4,4] x) => (float[A,B] y) <float[2] s = {0.6, 1.5}> { y = Resize(x, s) }", 10)
    with pytest.raises(
        UnimplementedError, match=r"Resize that makes 'y' grows and shrinks, which no later op"
    ):
        prepare(model, NOTHING, 0, [], work)


def test_nodes_get_names_and_keep_their_places(work: CompilerWork) -> None:
    model = parsed("(float[2] x) => (float[2] y) { a = Neg(x) b = Neg(a) y = Add(a, b) }")
    model.graph.node[2].name = "Neg_0"
    prepared = prepare(model, NOTHING, 0, [], work)
    names = [node.name for node in prepared.program.graph.node]
    assert len({*names}) == 3
    assert prepared.nodes[names[0]] == ("Neg", "node 0 of 3, makes 'a' of 'x'")
    assert prepared.nodes[names[2]] == ("Add", "node 2 of 3, makes 'y' of 'a', 'b'")
    assert prepared.declaration == "sync func @main(%x: tensor<2xf32>) -> (%y: tensor<2xf32>)"


def test_all_nodes_of_a_form_tell_the_operator(work: CompilerWork) -> None:
    text = "(float[4] x) => (float[7] y) <int64[2] p = {1,2}> "
    prepared = prepare(parsed(text + '{ a = Neg(x) y = Pad<mode="edge">(a, p) }'), NOTHING, 0, [], work)
    made = [
        place.text.partition(", makes")[0] for place in prepared.nodes.values() if place.operator != "Neg"
    ]
    assert made == ["not in the file itself, for node 1 of 2"] * (len(made) - 1) + ["node 1 of 2"]


def test_shapes_of_results_are_those_of_the_program(work: CompilerWork) -> None:
    model = parsed("(float[2,N] x) => (float[1,seqlen] y) { y = Transpose(x) }")
    prepared = prepare(model, ChosenInputs({"x": (2, 5)}, {}, {}), 0, [], work)
    assert prepared.declaration.endswith("-> (%y: tensor<5x2xf32>)")


def test_weights_of_old_files_have_shapes(work: CompilerWork) -> None:
    model = parsed("(float[2,3] x, float[3,4] w) => (float[2,4] y) { y = MatMul(x, w) }", 9)
    model.ir_version = 3
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 4), np.float32), "w"))
    prepared = prepare(model, NOTHING, 0, [], work)
    assert [value.name for value in prepared.program.graph.input] == ["x"]
    assert prepared.declaration.endswith("-> (%y: tensor<2x4xf32>)")


def test_operators_that_onnx_writes_by_others_are_expanded(work: CompilerWork) -> None:
    assert can_expand("Gelu") and not can_expand("Conv") and not can_expand("linalg.generic")
    model = parsed("(float[4] x) => (float[4] y) { y = Gelu(x) }", 20)

    def kinds(expanded: list[str]) -> set[str]:
        prepared = prepare(model, NOTHING, 0, expanded, work)
        return {node.op_type for node in prepared.program.graph.node}

    assert kinds([]) == {"Gelu"}
    assert "Gelu" not in kinds(["Gelu"]) and "Erf" in kinds(["Gelu"])
