"""ONNX files as modules: with the compiler, its importer and onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.compiling import checking, importer
from jitree.errors import DataLossError, InvalidArgumentError, UnimplementedError
from tests.api.onnx_files import chain
from tests.compiling import test_onnx_recurrent
from tests.compiling.steps import steps_once as steps_once
from tests.tools.command import jitree as command

REASON = "{} is not installed: pip install 'jitree[compile]' onnxruntime"
onnx = pytest.importorskip("onnx", reason=REASON.format("onnx"))
pytest.importorskip("onnxruntime", reason=REASON.format("onnxruntime"))
pytest.importorskip("iree.compiler.extras.onnx_importer", reason=REASON.format("iree-base-compiler"))

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("steps_once")]

WEIGHTS = [np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32) for _ in range(2)]
X = np.ones((3, 4), np.float32)
DECLARATION = "sync func @main(%x: tensor<3x4xf32>) -> (%soft_1: tensor<3x4xf32>)"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "chain.onnx"
    path.write_bytes(chain(WEIGHTS, 3))
    return path


def parsed(text: str, opset: int = 17) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')


def beside(models: Mapping[str, Any]) -> Any:
    """One model that does what several do: the compiler takes as long for it as for each of them.

    Values have the names of their models, which messages then have."""
    joined, *others = (
        onnx.compose.add_prefix(model, f"{name.replace(' ', '_')}_") for name, model in models.items()
    )
    for other in others:
        joined.graph.MergeFrom(other.graph)
    return joined


def compiles_without_a_word(model: Any, folder: Path) -> None:
    """All results are compared with those of onnxruntime."""
    path = folder / "m.onnx"
    onnx.save(model, path)
    outcome = command("compile", path, "-o", folder / "m.vmfb")
    assert outcome.code == 0, outcome.stderr
    assert outcome.stderr == ""
    assert "m.vmfb: largest error against onnxruntime " in outcome.stdout


def test_one_command_makes_a_module(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "chain.vmfb"
    outcome = command("compile", model, "-o", output)
    assert outcome.code == 0, outcome.stderr
    assert f"{output}: vmvx: {DECLARATION}\n{output}: largest error against onnxruntime " in outcome.stdout
    module = jitree.load(output, device="local-sync")
    assert DECLARATION in repr(module)
    assert np.asarray(module.main(x=X)).sum(axis=1) == pytest.approx(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chain.onnx", "chain.vmfb"]
    again = command("run", output, "--device=local-sync", "--input=3x4xf32=1")
    assert again.code == 0, again.stderr


def test_one_file_has_both_kinds_for_a_processor(model: Path) -> None:
    data = jitree.compile(model, target="vmvx,llvm-cpu")
    results = []
    for prefer in ("vmvx", "llvm-cpu"):
        with jitree.Session("local-sync", prefer=prefer) as session:
            results.append(np.asarray(session.load(data).main(X)).copy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)


@pytest.mark.parametrize("name", ["LSTM with everything", "GRU of both directions in rounds"])
def test_recurrent_operators_give_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    """The importer refuses the one, and computes the other without its peepholes."""
    operator, steps, given, settings = test_onnx_recurrent.CASES[name]
    arrays = test_onnx_recurrent.arrays_of(operator, 2, given)
    model = test_onnx_recurrent.model_of(operator, arrays, steps, given, **settings)
    compiles_without_a_word(model, tmp_path)


def test_models_in_memory_are_taken(model: Path) -> None:
    loaded = onnx.load(model)
    for given in (loaded, loaded.SerializeToString()):
        data = jitree.compile(given)
        assert [one.declaration for one in jitree.inspect(data).functions.values()] == [DECLARATION] * 2


def test_a_session_takes_modules_of_several_files(model: Path, tmp_path: Path) -> None:
    """Compiling decides their names; nothing is run."""
    compiled = partial(jitree.compile, check=False)
    made = [compiled(model, tmp_path / "2nd-model.v1.vmfb"), compiled(model)]
    made += [compiled(model, name="chosen"), compiled(model.read_bytes())]
    with jitree.Session("local-sync") as session:
        names = [session.load(one).name for one in made]
    assert names == ["_2nd_model", "chain", "chosen", "module"]
    with pytest.raises(InvalidArgumentError, match=r"'a\.b' cannot be the name of a module: it is to have"):
        jitree.compile(model, name="a.b")


def test_unsigned_integers_stay_unsigned() -> None:
    """The importer drops the sign of results."""
    types = {"a": "uint8", "b": "uint16", "c": "uint32", "d": "uint64"}
    taken, given = (
        ", ".join(f"{type_}[2,2] {name}{end}" for name, type_ in types.items()) for end in ("", "1")
    )
    added = " ".join(f"{name}1 = Add({name}, {name})" for name in types)
    data = jitree.compile(
        parsed(f"(float[1] z, {taken}) => ({given}, float[1] z1) {{ {added} z1 = Neg(z) }}")
    )
    [function, _] = jitree.inspect(data).functions.values()
    assert function.declaration.endswith(
        "(%a1: tensor<2x2xui8>, %b1: tensor<2x2xui16>, %c1: tensor<2x2xui32>, %d1: tensor<2x2xui64>, "
        "%z1: tensor<1xf32>)"
    )
    arguments = [np.full((2, 2), 100, type_) for type_ in types.values()]
    with jitree.Session("local-sync") as session:
        results = session.load(data).main(np.ones(1, np.float32), *arguments)
    for result, type_ in zip(results, (*types.values(), "float32"), strict=True):
        assert np.asarray(result).dtype == type_
    assert [np.asarray(result).max() for result in results] == [200, 200, 200, 200, -1]


def test_a_refusal_of_a_program_with_unsigned_results_names_the_node(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(
        parsed("(uint8[4] x, float[4] z) => (uint8[4] y, float[4] w) { y = Add(x, x) w = Acos(z) }"), path
    )
    with pytest.raises(
        UnimplementedError, match=r"Acos 'Acos_1' \(node 1 of 2, .*: the target vmvx has no acos;"
    ):
        jitree.compile(path, tmp_path / "m.vmfb")


def test_what_has_no_fraction_stays_as_it_is(tmp_path: Path) -> None:
    """Nearest resizing took six times as long: the compiler makes a copy only of indices as they were."""
    from iree.compiler.ir import Context, Module

    source, target = tmp_path / "lowered.mlir", tmp_path / "mended.mlirbc"
    text = """
func.func @index(%x: f32, %least: f32) -> (i64, i64) {{
  %most = arith.constant {most} : f32
  %zero = arith.constant 0.0 : f32
  %whole = math.floor %x : f32
  %above = arith.maximumf %whole, {bound} : f32
  %between = arith.minimumf %above, %most : f32
  %index = arith.fptosi %between : f32 to i64
  return %index, %index : i64, i64
}}
"""
    for most, bound, is_mended in (
        ("47.0", "%zero", False),
        ("47.5", "%zero", True),
        ("47.0", "%least", True),
    ):
        source.write_text(text.format(most=most, bound=bound))
        importer.mend(str(source), str(target), "() -> ()")
        with Context():
            assert ("math.ceil" in str(Module.parseFile(str(target)))) == is_mended


def test_bytes_go_in_where_the_model_takes_integers(model: Path) -> None:
    data = jitree.compile(model, input_dtypes={"x": "ui8"})
    with jitree.Session("local-sync") as session:
        result = session.load(data).main(np.ones((3, 4), np.uint8))
        assert np.asarray(result).sum(axis=1) == pytest.approx(1)


def test_a_wrong_result_is_an_error_and_a_departure_a_warning(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "chain.vmfb"
    monkeypatch.setattr(checking, "error_of", lambda result, expected: 0.5)
    with pytest.raises(DataLossError) as caught:
        jitree.compile(model, output)
    assert str(caught.value) == (
        f"DATA_LOSS; '{model}': 'soft_1' departs from onnxruntime's result by 5.0e-01 of its largest value; "
        "--check=false (check=False) keeps the module"
    )
    assert not output.exists()
    jitree.compile(model, output, check=False)
    monkeypatch.setattr(checking, "error_of", lambda result, expected: 5e-3)
    with pytest.warns(
        UserWarning, match=r"'soft_1' departs from onnxruntime's result by 5.0e-03 of its larg"
    ):
        jitree.compile(model, output)
    outcome = command("compile", model, "-o", output)
    assert (outcome.code, outcome.stderr.count("\n")) == (0, 1)
    assert "warning: 'soft_1' departs from onnxruntime's result by 5.0e-03" in outcome.stderr


def test_quantised_results_may_be_steps_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What rounds to other steps here and in onnxruntime is no wrong result; half of the range is."""
    model = tmp_path / "m.onnx"
    text = "(float[4] x) => (float[4] z) <float s = {0.1}, int8 p = {0}> "
    onnx.save(parsed(text + "{ y = QuantizeLinear(x, s, p) z = DequantizeLinear(y, s, p) }"), model)
    monkeypatch.setattr(checking, "error_of", lambda result, expected: 2e-2)
    with pytest.warns(UserWarning, match="'z' departs from onnxruntime's result by 2.0e-02"):
        jitree.compile(model, tmp_path / "m.vmfb")
    monkeypatch.setattr(checking, "error_of", lambda result, expected: 0.5)
    with pytest.raises(DataLossError):
        jitree.compile(model, tmp_path / "m.vmfb")


def test_a_refusal_names_the_node(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = "g (float[4] x) => (float[2] y) { a = Neg(x) y = made.up.Unknown(a, a) }"
    onnx.save(onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17, "made.up": 1]> ' + text), path)
    with (
        pytest.raises(UnimplementedError) as caught,
        pytest.warns(UserWarning, match=r"not folded: onnxrunt"),
    ):
        jitree.compile(path, tmp_path / "m.vmfb")
    assert str(caught.value) == (
        f"UNIMPLEMENTED; the compiler refuses '{path}': made.up.Unknown 'Unknown_1' (node 1 of 2, makes 'y' "
        "of 'a', 'a'): the compiler has no rule for this operator with these types and attributes; give the "
        "shapes of all inputs (--input-shape=), another --opset, or export the model with other operators; "
        f"its messages are in '{tmp_path}/m.vmfb.log'"
    )


def test_operators_of_others_are_not_onnxs(tmp_path: Path) -> None:
    """The importer has no domains: it made a module that computes ONNX's operator of this name."""
    text = '<ir_version: 8, opset_import: ["": 17, "acme": 1]> g '
    text += "(float[4] x) => (float[4] y) { y = acme.Neg(x) }"
    with (
        pytest.raises(
            UnimplementedError, match=r"acme\.Neg 'Neg_0' \(node 0 of 1, .*: the compiler has no rule"
        ),
        pytest.warns(UserWarning, match="not folded"),
    ):
        jitree.compile(onnx.parser.parse_model(text), tmp_path / "m.vmfb")


TOGETHER = {
    "a window that is put once": (
        "(float[1,2,6] x, float[3,2,3] w) => (float[1,3,1] y) { y = Conv<strides=[4]>(x, w) }"
    ),
    "padding by a rule": (
        "(float[1,2,6] x, float[3,2,3] w) => (float[1,3,1] y) "
        '{ y = Conv<strides=[4], auto_pad="VALID">(x, w) }'
    ),
    "means of less": (
        "(float[1,2,7] x) => (float[1,2,3] y) "
        "{ y = AveragePool<kernel_shape=[3], strides=[3], ceil_mode=1>(x) }"
    ),
    "padding by elements beside an open size": (
        '(float[N,5,5] x) => (float[N,8,8] y) <int64[6] p = {0,1,1,0,2,2}> { y = Pad<mode="reflect">(x, p) }'
    ),
    "padding by elements": (
        '(float[1,6] x) => (float[1,10] y) <int64[4] p = {0,2,0,2}> { y = Pad<mode="reflect">(x, p) }'
    ),
    "a transposed convolution in groups": (
        "(float[1,2,2,3] x) => (float[1,2,4,6] y) <float[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> "
        "{ y = ConvTranspose<strides=[2,2], group=2>(x, w) }"
    ),
    "a transposed convolution to a stated size": (
        "(float[1,2,2,3] x) => (float[1,2,3,6] y) <float[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> "
        "{ y = ConvTranspose<strides=[2,2], group=2, output_shape=[3,6]>(x, w) }"
    ),
    "blocks that are the faster channels": (
        '(float[1,12,2,3] x) => (float[1,3,4,6] y) { y = DepthToSpace<blocksize=2, mode="CRD">(x) }'
    ),
    "sizes between elements": (
        "(float[1,2,3,4] x) => (float[1,2,6,8] y) <float[4] s = {1,1,2,2}> "
        '{ y = Resize<mode="linear">(x, , s) }'
    ),
    "maxima of bytes": (
        "(uint8[1,2,8] x) => (uint8[1,2,3] y) { y = MaxPool<kernel_shape=[3], strides=[2]>(x) }"
    ),
    "bounds of bytes": "(uint8[8] x) => (uint8[8] y) <uint8 h = {200}> { y = Clip(x, , h) }",
    "the order of bytes": (
        "(uint8[9] x) => (uint8[3] y, int64[3] i) <int64[1] k = {3}> { y, i = TopK(x, k) }"
    ),
    "quotients of bytes": "(uint8[9] x) => (uint8[9] y) <uint8 h = {200}> { y = Div(x, h) }",
    "rests of bytes": "(uint8[9] x) => (uint8[9] y) <uint8 h = {200}> { y = Mod(x, h) }",
    "sizes of bytes": "(uint8[9] x) => (uint8[9] y) { y = Abs(x) }",
    "a truth value": "(bool[3] x) => (bool[3] y) { y = Not(x) }",
}
ALONE = {
    "f64": "(double[3,4] x) => (double[3] y) <int64[1] a = {1}> { y = ReduceSum<keepdims=0>(x, a) }",
    "fractions that are cut off": "(float[2,9] x) => (int32[2,9] y) { y = Cast<to=6>(x) }",
    "roots that are integers": "(int32[32,3] x) => (int32[32,1] y) { y = ReduceL2<axes=[1]>(x) }",
    "a size that depends on values, stated wrongly": "(float[4] x) => (int64[1,9] y) { y = NonZero(x) }",
    "nothing to give": "() => (float[2] y) { y = Constant<value = float[2] {1, 2}>() }",
    "an open size": "(float[N,3] x) => (float[N,3] y) { y = Softmax(x) }",
}
"""What decides how all of a program is compiled, or what it takes and gives."""


def test_operators_in_one_program_compute_what_onnxruntime_does(tmp_path: Path) -> None:
    compiles_without_a_word(beside({name: parsed(text) for name, text in TOGETHER.items()}), tmp_path)


@pytest.mark.parametrize("name", ALONE)
def test_forms_of_programs_compute_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    compiles_without_a_word(parsed(ALONE[name]), tmp_path)
