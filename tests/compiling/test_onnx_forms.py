"""Forms of operators that are replaced: they mean the same, wherever they are; others stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitree.compiling import onnx_forms
from jitree.compiling.onnx_forms import replace_forms
from jitree.compiling.onnx_nodes import graphs_in, shape_of
from jitree.errors import UnimplementedError
from tests.compiling.test_onnx_files import parsed, results

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'jitree[compile]'")

WINDOWS: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "padding of a convolution": (
        "(float[1,2,2] x, float[3,2,3] w) => (float[1,3,1] y) { y = Conv<strides=[2], pads=[1,1]>(x, w) }",
        {"x": (1, 2, 2), "w": (3, 2, 3)},
    ),
    "elements of a convolution": (
        "(float[1,2,6,5] x, float[3,2,3,3] w, float[3] b) => (float[1,3,1,1] y) "
        "{ y = Conv<strides=[4,4], pads=[0,0,0,1]>(x, w, b) }",
        {"x": (1, 2, 6, 5), "w": (3, 2, 3, 3), "b": (3,)},
    ),
    "dilated": (
        "(float[1,2,8] x, float[3,2,3] w) => (float[1,3,1] y) { y = Conv<strides=[4], dilations=[2]>(x, w) }",
        {"x": (1, 2, 8), "w": (3, 2, 3)},
    ),
    "maximum": (
        "(float[1,2,6] x) => (float[1,2,1] y) { y = MaxPool<kernel_shape=[3], strides=[4]>(x) }",
        {"x": (1, 2, 6)},
    ),
    "average": (
        "(float[1,2,5,4] x) => (float[1,2,1,1] y) "
        "{ y = AveragePool<kernel_shape=[3,3], strides=[5,4], pads=[1,1,1,1]>(x) }",
        {"x": (1, 2, 5, 4)},
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_are_put_once_reach_the_end(name: str) -> None:
    text, shapes = WINDOWS[name]
    random = np.random.default_rng(0)
    arguments = {key: random.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    model = parsed(text)
    expected = results(model, **arguments)
    changed = onnx.shape_inference.infer_shapes(model)
    replace_forms(changed)
    onnx.checker.check_model(changed, full_check=True)
    np.testing.assert_allclose(results(changed, **arguments)[0], expected[0], rtol=1e-6)
    assert changed.SerializeToString() != onnx.shape_inference.infer_shapes(model).SerializeToString()
    assert all(rest == 0 for rest in rests(changed))


def rests(model: Any) -> list[int]:
    """What windows do not reach, in each dimension."""
    model = onnx.shape_inference.infer_shapes(model)
    shapes = {value.name: shape_of(value) for value in (*model.graph.input, *model.graph.value_info)}
    found = []
    for node in model.graph.node:
        attributes = {one.name: list(one.ints) for one in node.attribute}
        if "strides" in attributes:
            kernel = attributes.get("kernel_shape") or list((shapes[node.input[1]] or ())[2:])
            rank = len(kernel)
            pads = attributes.get("pads", [0] * (2 * rank))
            for axis, size in enumerate((shapes[node.input[0]] or ())[2:]):
                reach = (kernel[axis] - 1) * attributes.get("dilations", [1] * rank)[axis] + 1
                found.append((size or 0) + pads[axis] + pads[axis + rank] - reach)
    return found


RULED: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "one window by the rule": (
        "(float[1,2,6] x, float[3,2,3] w) => (float[1,3,1] y) "
        '{ y = Conv<strides=[4], auto_pad="VALID">(x, w) }',
        {"x": (1, 2, 6), "w": (3, 2, 3)},
    ),
    "more before": (
        "(float[1,2,7,4] x, float[3,2,2,3] w) => (float[1,3,4,2] y) "
        '{ y = Conv<strides=[2,2], auto_pad="SAME_LOWER">(x, w) }',
        {"x": (1, 2, 7, 4), "w": (3, 2, 2, 3)},
    ),
    "more after": (
        "(float[1,2,8] x) => (float[1,2,3] y) "
        '{ y = MaxPool<kernel_shape=[4], strides=[3], auto_pad="SAME_UPPER">(x) }',
        {"x": (1, 2, 8)},
    ),
    "one more window": (
        "(float[1,2,6] x) => (float[1,2,2] y) { y = MaxPool<kernel_shape=[3], strides=[4], ceil_mode=1>(x) }",
        {"x": (1, 2, 6)},
    ),
    "a window of integers that is put once": (
        "(float[1,2,6,6] x, float[3,2,3,3] w) => (int32[1,3,1,1] y) "
        "{ i = Cast<to=3>(x) j = Cast<to=3>(w) y = ConvInteger<strides=[4,4]>(i, j) }",
        {"x": (1, 2, 6, 6), "w": (3, 2, 3, 3)},
    ),
}


@pytest.mark.parametrize("name", RULED)
def test_padding_by_a_rule_is_stated(name: str) -> None:
    text, shapes = RULED[name]
    random = np.random.default_rng(0)
    arguments = {key: np.float32(9 * random.standard_normal(shape)) for key, shape in shapes.items()}
    model = onnx.shape_inference.infer_shapes(parsed(text))
    expected, before = results(model, **arguments), model.SerializeToString()
    replace_forms(model)
    np.testing.assert_allclose(results(model, **arguments)[0], expected[0], rtol=1e-5)
    assert model.SerializeToString() != before
    assert not {one.name for node in model.graph.node for one in node.attribute} & {"auto_pad", "ceil_mode"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("ceil_mode=1", [2, 5, 7]),
        ("ceil_mode=1, pads=[1,0]", [1.5, 4, 6.5]),
        ("ceil_mode=1, pads=[1,0], count_include_pad=1", [1, 4, 6.5]),
        ("ceil_mode=1, pads=[1,2], count_include_pad=1", [1, 4, 13 / 3]),
    ],
)
def test_means_are_of_elements_and_not_of_what_is_beyond(settings: str, expected: list[float]) -> None:
    """As onnxruntime has it; the reference of onnx makes sums of ones that round up otherwise."""
    model = parsed(
        "(float[1,1,7] x) => (float[1,1,3] y) "
        f"{{ y = AveragePool<kernel_shape=[3], strides=[3], {settings}>(x) }}"
    )
    replace_forms(model)
    x = np.arange(1, 8, dtype=np.float32).reshape(1, 1, 7)
    np.testing.assert_allclose(results(model, x=x)[0].ravel(), expected)


def test_means_of_open_sizes_that_round_up_are_refused() -> None:
    text = "(float[1,1,N] x) => (float[1,1,M] y) { y = AveragePool<kernel_shape=[3], ceil_mode=1>(x) }"
    with pytest.raises(
        UnimplementedError, match=r"AveragePool that makes 'y' rounds up \(ceil_mode\), which"
    ):
        replace_forms(parsed(text))


UNCHANGED = {
    "two windows": "(float[1,2,7] x, float[3,2,3] w) => (float[1,3,2] y) { y = Conv<strides=[3]>(x, w) }",
    "open size": "(float[1,2,N] x, float[3,2,3] w) => (float[1,3,M] y) { y = Conv<strides=[4]>(x, w) }",
    "automatic, of an open size": "(float[1,2,N] x, float[3,2,3] w) => (float[1,3,M] y) "
    '{ y = Conv<strides=[4], auto_pad="SAME_UPPER">(x, w) }',
    "automatic, with less than no padding": "(float[1,2,8] x, float[3,2,1] w) => (float[1,3,4] y) "
    '{ y = Conv<strides=[2], auto_pad="SAME_UPPER">(x, w) }',
    "another rule": "(float[1,2,6] x, float[3,2,3] w) => (float[1,3,2] y) "
    '{ y = Conv<strides=[4], auto_pad="SIDEWAYS">(x, w) }',
    "padding by zeros": "(float[2] x) => (float[4] y) <int64[2] p = {1,1}> { y = Pad(x, p) }",
    "padding that is computed": '(float[2] x, int64[2] p) => (float[N] y) { y = Pad<mode="edge">(x, p) }',
    "quotients of what is not cast back": "(uint32[4] x, uint32[4] z) => (uint32[4] y) { y = Div(x, z) }",
    "transposed by one": "(float[1,1,4] x) => (float[1,1,5] y) <float[1,1,2] w = {1, 2}> "
    "{ y = ConvTranspose(x, w) }",
    "transposed by computed filters": "(float[1,2,4] x, float[2,3,2] w) => (float[1,3,8] y) "
    "{ y = ConvTranspose<strides=[2]>(x, w) }",
    "transposed of an open size": "(float[1,1,N] x) => (float[1,1,M] y) <float[1,1,2] w = {1, 2}> "
    "{ y = ConvTranspose<strides=[2]>(x, w) }",
    "transposed to more than there is": "(float[1,1,3] x) => (float[1,1,8] y) <float[1,1,2] w = {1, 2}> "
    "{ y = ConvTranspose<strides=[2], output_shape=[8]>(x, w) }",
    "transposed with more at its ends": "(float[1,1,3] x) => (float[1,1,N] y) <float[1,1,2] w = {1, 2}> "
    "{ y = ConvTranspose<strides=[2], pads=[-1,0]>(x, w) }",
    "transposed by no step": "(float[1,1,3] x) => (float[1,1,N] y) <float[1,1,2] w = {1, 2}> "
    "{ y = ConvTranspose<strides=[0]>(x, w) }",
    "transposed by thousands": "(float[1,1,1] x) => (float[1,1,2] y) <float[1,1,2] w = {1, 2}> "
    "{ y = ConvTranspose<strides=[300000000]>(x, w) }",
    "transposed in no groups": "(float[1,1,3] x) => (float[1,1,N] y) <float[1,1,2] w = {1, 2}> "
    "{ y = ConvTranspose<strides=[2], group=0>(x, w) }",
    "transposed by nothing": "(float[1,1,3] x) => (float[1,1,N] y) { y = ConvTranspose<strides=[2]>(x) }",
    "transposed without dimensions": "(float[1,1] x) => (float[1,1] y) <float[1,1] w = {1}> "
    "{ y = ConvTranspose(x, w) }",
    "blocks that are not full": "(float[1,6,2,3] x) => (float[1,N,4,6] y) "
    '{ y = DepthToSpace<blocksize=2, mode="CRD">(x) }',
    "blocks of nothing": "(float[1,4,2,3] x) => (float[1,N,4,6] y) "
    '{ y = DepthToSpace<blocksize=0, mode="CRD">(x) }',
    "blocks without channels": "(float[4] x) => (float[N] y) "
    '{ y = DepthToSpace<blocksize=2, mode="CRD">(x) }',
    "blocks as the importer takes them": "(float[1,4,2,3] x) => (float[1,1,4,6] y) "
    "{ y = DepthToSpace<blocksize=2>(x) }",
    "padding of a body, called like a constant outside": "(float[3,4] x, float s, int64[3,2] q) => "
    "(float l, float[3,N] y) <int64[2] p = {1,2}> { l, y = Scan <num_scan_inputs=2, "
    "body = b (float m, float[4] r, int64[2] p) => (float n, float[O] o) "
    '{ n = Neg(m) o = Pad<mode="edge">(r, p) }> (s, x, q) }',
    "less of a tensor": '(float[4] x) => (float[3] y) <int64[2] p = {0,-1}> { y = Pad<mode="edge">(x, p) }',
}


@pytest.mark.parametrize("names", ["y, i", "y,"])
def test_places_of_maxima_that_nothing_takes_go(names: str) -> None:
    model = parsed(f"(float[1,2,6] x) => (float[1,2,4] y) {{ {names} = MaxPool<kernel_shape=[3]>(x) }}")
    replace_forms(model)
    assert [*model.graph.node[0].output] == ["y"]


def test_places_of_maxima_are_refused() -> None:
    """The importer's are others, which only onnxruntime could tell."""
    text = "(float[1,2,6] x) => (float[1,2,4] y, int64[1,2,4] i) { y, i = MaxPool<kernel_shape=[3]>(x) }"
    with pytest.raises(
        UnimplementedError, match="MaxPool that makes 'y' gives places of maxima, which the imp"
    ):
        replace_forms(parsed(text))


_TRANSPOSED = "kernel_shape=[2,2], strides=[2,2]"
REFUSED = {
    "no stride": "ConvTranspose<kernel_shape=[2,2], strides=[0,2]>(x, w)",
    "no group": f"ConvTranspose<{_TRANSPOSED}, group=0>(x, w)",
    "less than a group": f"ConvTranspose<{_TRANSPOSED}, group=-1>(x, w)",
    "negative padding": f"ConvTranspose<{_TRANSPOSED}, pads=[-1,-1,0,0]>(x, w)",
    "more than a stride": f"ConvTranspose<{_TRANSPOSED}, output_padding=[2,0]>(x, w)",
    "less than nothing more": f"ConvTranspose<{_TRANSPOSED}, output_padding=[-1,0]>(x, w)",
    "another kernel": "ConvTranspose<kernel_shape=[3,3], strides=[2,2]>(x, w)",
    "filters of other channels": f"ConvTranspose<{_TRANSPOSED}>(x, short)",
    "filters without features": f"ConvTranspose<{_TRANSPOSED}>(x, none)",
    "a bias of another size": f"ConvTranspose<{_TRANSPOSED}>(x, w, wide)",
    "strides that leave nearly zeros alone": "ConvTranspose<kernel_shape=[2,2], strides=[30000,30000]>(x, w)",
    "rows without a dimension": "ConvTranspose(flat, matrix)",
    "blocks without a size": 'DepthToSpace<mode="CRD">(x)',
    "empty blocks": 'DepthToSpace<blocksize=0, mode="CRD">(x)',
    "blocks that channels do not fill": 'DepthToSpace<blocksize=3, mode="CRD">(x)',
    "blocks of no image": 'DepthToSpace<blocksize=2, mode="CRD">(row)',
    "padding of an axis that there is not": 'Pad<mode="edge">(x, p, , axis)',
    "padding by fractions": 'Pad<mode="edge">(row, half)',
    "padding of what is no list of axes": 'Pad<mode="edge">(x, p, , one)',
    "padding by more than all memory": 'Pad<mode="edge">(row, billions)',
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_tools_refuse_is_left_to_them(name: str) -> None:
    """It is no exception here, and nothing else is computed."""
    model = parsed(
        f"(float[1,4,2,3] x, float[4] row, float[1,4] flat) => (float[A,B,C,D] y) {{ y = {REFUSED[name]} }}",
        19,
    )
    shapes = {"w": (4, 3, 2, 2), "short": (2, 3, 2, 2), "none": (4, 0, 2, 2), "wide": (4,), "matrix": (4, 3)}
    arrays: dict[str, Any] = {part: np.ones(shape, np.float32) for part, shape in shapes.items()}
    arrays |= {"p": np.array([1, 1]), "axis": np.array([4]), "half": np.array([0.5, 0.5], np.float32)}
    arrays |= {"billions": np.array([1 << 40, 1]), "one": np.array(1)}
    weights = [onnx.numpy_helper.from_array(array, part) for part, array in arrays.items()]
    model.graph.initializer.extend(weights)
    before = model.SerializeToString()
    replace_forms(model)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("name", UNCHANGED)
def test_other_forms_stay_as_they_are(name: str) -> None:
    model = onnx.shape_inference.infer_shapes(parsed(UNCHANGED[name]))
    before = model.SerializeToString()
    replace_forms(model)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("pieces", [32, 1])
def test_padding_by_elements_takes_them(mode: str, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, or where these are too many, one by one."""
    monkeypatch.setattr(onnx_forms, "_MOST_PIECES", pieces)
    x = np.arange(15, dtype=np.float32).reshape(1, 3, 5)
    for pads, axes in (([0, 1, 2, 0, 2, 1], None), ([0, 0, 4, 0, 0, 0], None), ([1, 3], [-1]), ([1, 0], [1])):
        given = f"<int64[{len(pads)}] p = {{{','.join(map(str, pads))}}}"
        if axes is not None:
            given += f", int64[{len(axes)}] a = {{{','.join(map(str, axes))}}}"
        inputs = "x, p" if axes is None else "x, p, , a"
        model = parsed(
            f'(float[1,3,5] x) => (float[A,B,C] y) {given}> {{ y = Pad<mode="{mode}">({inputs}) }}', 19
        )
        model = onnx.shape_inference.infer_shapes(model)
        expected = results(model, x=x)[0]
        replace_forms(model)
        assert {node.op_type for node in model.graph.node} == (
            {"Gather", "Identity"} if pieces == 1 else {"Slice", "Concat", "Identity"}
        )
        np.testing.assert_array_equal(results(model, x=x)[0], expected)


UNSIGNED: dict[str, tuple[str, Any]] = {
    "maxima": ("MaxPool<kernel_shape=[2], strides=[2]>(x)", [[[200, 250]]]),
    "the maximum of the only window": ("MaxPool<kernel_shape=[2], strides=[4]>(x)", [[[200]]]),
    "sizes": ("Abs(x)", [[[7, 200, 128, 250]]]),
    "bounds": ("Clip(x, low, high)", [[[9, 200, 128, 200]]]),
    "an upper bound": ("Clip(x, , high)", [[[7, 200, 128, 200]]]),
    "quotients": ("Div(x, low)", [[[0, 22, 14, 27]]]),
    "rests": ("Mod(x, high)", [[[7, 0, 128, 50]]]),
    "the largest": ("TopK(x, two)", [[[250, 200]]]),
}


@pytest.mark.parametrize("name", UNSIGNED)
def test_unsigned_bytes_are_computed_in_wider_elements(name: str) -> None:
    """The compiler takes them for signed."""
    call, expected = UNSIGNED[name]
    outputs = "y, places" if "TopK" in call else "y"
    model = parsed(
        "(uint8[1,1,4] x) => (uint8[1,1,N] y) <uint8 low = {9}, uint8 high = {200}, "
        f"int64[1] two = {{2}}> {{ {outputs} = {call} }}"
    )
    replace_forms(model)
    x = np.array([[[7, 200, 128, 250]]], np.uint8)
    found = results(model, x=x)[0]
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, expected)
    [node] = [node for node in model.graph.node if node.op_type == call.partition("(")[0].partition("<")[0]]
    made = {one: node for node in model.graph.node for one in node.output}
    taken = {one for one in node.input if one not in ("", "two")}
    assert {made[one].op_type for one in taken} <= {"Cast", "Slice"}


PHASES = {
    "2 by 2": "kernel_shape=[2,2], strides=[2,2]",
    "4 by 4, whose edges go": "kernel_shape=[4,4], strides=[2,2], pads=[1,1,1,1]",
    "3 by 3, one more": "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]",
    "unequal": "kernel_shape=[2,5], strides=[3,2], pads=[0,1,0,0], output_padding=[2,0]",
    "one stride": "kernel_shape=[3,3], strides=[1,2]",
    "padding of more than a filter": "kernel_shape=[2,2], strides=[2,2], pads=[0,1,2,3]",
    "more after": 'kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER"',
    "more before": 'kernel_shape=[3,4], strides=[2,1], auto_pad="SAME_LOWER"',
    "by no padding": 'kernel_shape=[3,3], strides=[2,2], auto_pad="VALID"',
    "dilated": "kernel_shape=[3,2], strides=[2,3], dilations=[2,3], pads=[1,0,2,1], output_padding=[1,0]",
}


@pytest.mark.parametrize("name", PHASES)
def test_phases_of_a_transposed_convolution_are_features(name: str) -> None:
    random = np.random.default_rng(0)
    rows, columns = map(int, PHASES[name][14:17].split(","))
    text = f"(float[N,4,3,5] x) => (float[N,C,I,J] y) {{ y = ConvTranspose<{PHASES[name]}>(x, w, b) }}"
    model = parsed(text)
    for weight, shape in (("w", (4, 3, rows, columns)), ("b", (3,))):
        array = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, weight))
    x = random.standard_normal((2, 4, 3, 5)).astype(np.float32)
    expected = results(model, x=x)[0]
    replace_forms(model)
    operators = ["Conv", "Reshape", "Transpose", "Reshape", "Slice", "Identity"]
    assert [node.op_type for node in model.graph.node] == operators
    np.testing.assert_allclose(results(model, x=x)[0], expected, atol=1e-5)


def test_a_stated_size_is_padding() -> None:
    """The reference of onnx refuses it."""
    changed = []
    for settings in ("output_shape=[6]", "pads=[1,0]"):
        model = parsed(
            "(float[1,1,3] x) => (float[1,1,6] y) <float[1,1,3] w = {1,2,3}> "
            f"{{ y = ConvTranspose<strides=[2], {settings}>(x, w) }}"
        )
        replace_forms(model)
        changed.append(model.SerializeToString())
    assert changed[0] == changed[1]
    assert b"ConvTranspose" not in changed[0].replace(b"__ConvTranspose", b"")


@pytest.mark.parametrize("channels", [4, 12])
def test_channels_of_blocks_are_ordered_as_the_importer_takes_them(channels: int) -> None:
    x = np.arange(channels * 6, dtype=np.float32).reshape(1, channels, 2, 3)
    text = f"(float[N,{channels},H,W] x) => (float[N,C,I,J] y) "
    model = parsed(text + '{ y = DepthToSpace<blocksize=2, mode="CRD">(x) }')
    expected = results(model, x=x)[0]
    replace_forms(model)
    assert [node.op_type for node in model.graph.node][:-1] == ["Gather"] * (channels > 4)
    assert [one.s for one in model.graph.node[-1].attribute if one.name == "mode"] == [b"DCR"]
    np.testing.assert_array_equal(results(model, x=x)[0], expected)


PLACES = {
    "names that are taken": "(float[4] x, float[1] y__Pad_0, float[1] y__Pad_1) => (float[7] y) "
    "<int64[2] p = {1,2}> { y__Pad_2 = Add(y__Pad_0, y__Pad_1) z = Neg(y__Pad_2) "
    'y = Pad<mode="edge">(x, p) }',
    "beside an open size": "(float[N,4] x) => (float[N,7] y) <int64[4] p = {0,1,0,2}> "
    '{ y = Pad<mode="wrap">(x, p) }',
    "of a result": "(float[4] x) => (float[4] q, float[7] y) <int64[2] p = {1,2}> "
    '{ q = Neg(x) y = Pad<mode="edge">(q, p) }',
    "by a constant node": "(float[4] x) => (float[7] y) "
    '{ p = Constant<value_ints=[1,2]>() y = Pad<mode="edge">(x, p) }',
    "without axes": '(float[4] x) => (float[7] y) <int64[2] p = {1,2}> { y = Pad<mode="edge">(x, p, , ) }',
    "of two results": "(float[4] x) => (float[7] y, float[7] z) <int64[2] p = {1,2}> "
    '{ y = Pad<mode="edge">(x, p) z = Neg(y) }',
    "in a branch": "(float[4] x, bool c) => (float[7] y) <int64[2] p = {1,2}> { h = Neg(x) y = If (c) "
    '<then_branch = t () => (float[7] a) { b = Neg(h) a = Pad<mode="edge">(b, p) }, '
    'else_branch = e () => (float[7] d) <int64[2] o = {2,1}> { d = Pad<mode="wrap">(h, o) }> }',
    "in rounds": "(float[3,4] x, float[7] s) => (float[7] l, float[3,7] y) <int64[2] p = {1,2}> "
    "{ l, y = Scan <num_scan_inputs=1, body = b (float[7] m, float[4] r) => (float[7] n, float[7] o) "
    '{ o = Pad<mode="edge">(r, p) n = Add(m, o) }> (s, x) }',
}


@pytest.mark.parametrize("name", PLACES)
def test_forms_are_replaced_wherever_they_are(name: str) -> None:
    model = parsed(PLACES[name], 19)
    random = np.random.default_rng(0)
    arguments: dict[str, Any] = {
        one.name: np.float32(random.standard_normal([size or 0 for size in shape_of(one) or ()]))
        for one in model.graph.input
    }
    arguments |= {"c": np.array(True)} if "c" in arguments else {}
    expected = results(model, **arguments)
    changed = onnx.shape_inference.infer_shapes(model)
    replace_forms(changed)
    onnx.checker.check_model(changed, full_check=True)
    assert "Pad" not in {node.op_type for graph in graphs_in(changed.graph) for node in graph.node}
    for one, other in zip(results(changed, **arguments), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_names_of_a_body_hide_those_outside() -> None:
    """The constant outside was taken for what the body gets under its name."""
    text = "(float[2,4] x, int64[2] k) => (int64[2] l, float[2,7] y) <int64[2] p = {1,2}> "
    text += "{ l, y = Scan <num_scan_inputs=1, body = b (int64[2] p, float[4] r) => (int64[2] n, float[7] o) "
    text += '{ n = Identity(p) o = Pad<mode="edge">(r, p) }> (k, x) }'
    model = parsed(text, 19)
    arguments = {"x": np.arange(8, dtype=np.float32).reshape(2, 4), "k": np.array([3, 0])}
    expected = results(model, **arguments)
    replace_forms(model)
    for one, other in zip(results(model, **arguments), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("operator", ["Pad", "DepthToSpace", "ConvTranspose", "Resize", "GRU", "MaxPool"])
def test_operators_of_others_stay_as_they_are(operator: str) -> None:
    """Another's GRU is not ONNX's."""
    text = f"(float[1,8,8] x) => (float[A,B,C] y) <float[1,24,8] w = {{{','.join('1' * 192)}}}> "
    text += f'{{ y = acme.{operator}<mode="edge", strides=[9], kernel_shape=[3]>(x, w, w) }}'
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 19, "acme": 1]> g {text}')
    before = model.SerializeToString()
    replace_forms(model)
    assert model.SerializeToString() == before
