"""Types and shapes of what dispatches read and write, from the names of exports; onlookers that leave."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from jitree import Session
from jitree.errors import CancelledError
from jitree.observe.export_names import parse
from jitree.observe.observation import Onlooker
from jitree.observe.regions import PlacedTensor, Regions, inputs_of, outputs_of, place_factors
from jitree.observe.tensors import ObservedDispatch
from tests.api.programs import PROGRAMS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "lengths", "written", "types"),
    [
        ("f_dispatch_0_elementwise_D_f32xi1xf32", (36, 9, 36), (2,), "9xf32 9xi1 9xf32"),
        ("f_dispatch_0_elementwise_D_i8xf32xf16", (9, 36, 18), (2,), "9xi8 9xf32 9xf16"),
        ("f_dispatch_0_elementwise_D_f32xf16", (36, 18), (1,), "9xf32 9xf16"),
        ("f_dispatch_0_reduction_5x9_f32xf32xi32", (180, 20, 20), (1, 2), "5x9xf32 5xf32 5xi32"),
        ("f_dispatch_0_reduction_5x9_f32xi32xf32", (180, 20, 20), (1, 2), "5x9xf32 5xi32 5xf32"),
        ("f_dispatch_0_generic_5x9_f32xi64", (180, 40), (1,), "5x9xf32 5xi64"),
    ],
)
def test_types_by_names_and_lengths(
    name: str, lengths: Sequence[int], written: Sequence[int], types: str
) -> None:
    operands = [(4096 * (number + 1), length) for number, length in enumerate(lengths)]
    changes = [operands[number] for number in written]
    outputs = outputs_of(operands, changes, parse(name), {}, Regions())
    inputs = inputs_of(operands, outputs, parse(name), {}, Regions())
    assert [tensor.type for tensor in (*inputs, *outputs)] == types.split()


def test_a_block_that_is_as_long_as_another_input() -> None:
    """One allocation of the call is bound to both: the tensor that was put there is read, not the whole."""
    name, regions = parse("f_dispatch_0_matmul_8x16x16_f32"), Regions()
    block, made = (4096, 1024), (4096, 512)
    regions = regions.forget(block)
    kind = name.outputs[0]
    regions = regions.put(PlacedTensor(made, kind, "name", "before (dispatch 3)"))
    operands = [block, (8192, 1024), block]
    outputs = outputs_of(operands, [(4608, 512)], name, {}, regions)
    inputs = inputs_of(operands, outputs, name, {}, regions)
    assert inputs[0].type == "8x16xf32" and inputs[0].origin == "before (dispatch 3)"


@pytest.mark.parametrize("loops", ["9" * 5000, "9" * 19, "1x" * 100 + "1", f"{10**17}x0x{10**17}"])
def test_names_with_loops_that_nothing_has(loops: str) -> None:
    """Programs may have any names: Python refuses to read thousands of digits."""
    name = parse(f"f_dispatch_0_elementwise_{loops}_f32")
    assert name.loops == () and name.outputs == [] and name.operation == "elementwise"


def test_names_of_many_dispatches() -> None:
    """A name with a line's end had each of its parts read to there: a minute for 1 MB."""
    code = "import sys\nfrom jitree.observe.export_names import parse\nprint(parse(sys.stdin.read()).loops)"
    text = "_dispatch_0_" * (1 << 16) + "4_f32\n\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=text, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "()\n"


def test_outputs_come_in_the_order_of_bindings() -> None:
    """Wherever their memory lies."""
    name = parse("f_dispatch_0_reduction_5x9_f32xf32xi32")
    for operands in ([(4096, 180), (8192, 20), (12288, 20)], [(4096, 180), (12288, 20), (8192, 20)]):
        changes = sorted(operands[1:])
        outputs = outputs_of(operands, changes, name, {}, Regions())
        assert [(tensor.binding, tensor.type) for tensor in outputs] == [(1, "5xf32"), (2, "5xi32")]


@pytest.mark.parametrize(
    ("name", "outputs", "inputs"),
    [
        ("main_dispatch_46_matmul_4x71x64_f32", "4x71xf32", "4x64xf32 64x71xf32 71xf32"),
        ("main_dispatch_2_mmt4d_1x3x4x2x4x1_bf16xbf16xf32", "1x3x2x4xf32", "1x4x2x1xbf16 3x4x4x1xbf16"),
        ("f_dispatch_0_batch_mmt4d_7x1x3x4x2x4x1_f32", "7x1x3x2x4xf32", "7x1x4x2x1xf32 7x3x4x4x1xf32"),
        ("f_dispatch_0_softmax_2x6x4xf32_dispatch_tensor_store", "2x6x4xf32", "2x6x4xf32"),
        ("f_dispatch_1_reduction_5x9_f32xi32", "5xi32", "5x9xf32"),
        ("f_dispatch_0_elementwise_4_f32xi1", "4xi1", "4xf32"),
        ("f_dispatch_0_elementwise_8_f32xf8E5M2", "8xf8E5M2", "8xf32"),
        ("f_dispatch_0_matmul_4x8x8_f8E4M3FNUZxf8E4M3FNUZxf32", "4x8xf32", "4x8xf8E4M3FNUZ"),
        ("f_dispatch_0_elementwise_8_f8E4M3FN", "8xf8E4M3FN", "8xf8E4M3FN"),
        ("f_dispatch_0_conv_2d_nhwc_hwcf_1x6x6x4x3x3x3_f32", "1x6x6x4xf32", ""),
        ("f_dispatch_3_elementwise_4x32_f32_pack", "", "4x32xf32"),
        ("f_dispatch_3_unpack_elementwise_4x32_f32", "4x32xf32", "4x32xf32"),
        ("f_dispatch_0_elementwise_D_f32", "", ""),
        ("f_dispatch_3", "", ""),
        ("unnamed", "", ""),
    ],
)
def test_names_of_exports(name: str, outputs: str, inputs: str) -> None:
    parsed = parse(name)
    assert set(outputs.split()) <= set(map(str, parsed.outputs))
    assert set(inputs.split()) <= set(map(str, parsed.inputs))
    assert bool(parsed.outputs) is bool(outputs)


@pytest.mark.parametrize(
    ("name", "constants", "expected"),
    [
        ("f_dispatch_0_matmul_4x8x32_f32", (512, 4096), (12288, "32x8xf32", 4096)),
        ("f_dispatch_0_mmt4d_1x2x32x4x4x1_f32", (0, 512, 4096), (12288, "2x32x4x1xf32", 4096)),
        ("f_dispatch_0_matmul_4x8x32_f32", (512,), (8192, "2048xf32", None)),
        ("f_dispatch_0_matmul_4x8x32_f32", (512, 4096, 64), (8192, "2048xf32", None)),
        ("f_dispatch_0_matmul_4x8x32_f32", (512, 8000), (8192, "2048xf32", None)),
        ("f_dispatch_0_matmul_4x8x32_f32", (512, 100), (8192, "2048xf32", None)),
        ("f_dispatch_0_matmul_like_4x8x32_f32", (512, 4096), (8192, "2048xf32", None)),
        ("f_dispatch_0_elementwise_4x8_f32", (512, 4096), (8192, "2048xf32", None)),
    ],
)
def test_the_part_of_a_block_of_constants(
    name: str, constants: Sequence[int], expected: tuple[int, str, int | None]
) -> None:
    """Where a number of the dispatch says it that is no place of another tensor, and fits."""
    operands = [(4096, 1024), (8192, 8192), (4096, 1024)]
    parsed, regions = parse(name), Regions()
    kind = parse("f_dispatch_0_elementwise_4x32_" + parsed.types[0].name).outputs[0]
    regions = regions.put(PlacedTensor((4608, kind.byte_length), kind, "name", "before (dispatch 3)"))
    outputs = outputs_of(operands, [(4096, 128)], parsed, {}, regions)
    inputs = inputs_of(operands, outputs, parsed, {}, regions)
    place_factors(inputs, outputs, operands, parsed, constants)
    assert inputs[0].extent[0] == 4608
    assert (inputs[1].extent[0], inputs[1].type, inputs[1].offset) == expected


@pytest.mark.parametrize(
    ("elements", "least", "most"),
    [([np.inf] * 3, np.inf, np.inf), ([np.nan, -np.inf], -np.inf, -np.inf),
     ([np.inf, -np.inf], -np.inf, np.inf), ([np.inf, 1, np.nan], 1, 1),
     ([np.nan], np.nan, np.nan), ([], np.nan, np.nan), ([1e308, -1e308], -1e308, 1e308)],
)  # fmt: skip
def test_least_and_greatest_without_a_usual_range(elements: list[float], least: float, most: float) -> None:
    from jitree.observe.tolerance import statistics

    array = np.array(elements, np.float64)
    found = statistics(lambda: iter([array]), array.shape, "f32")
    np.testing.assert_equal([found.min, found.max, found.absmax], [least, most, max(abs(least), abs(most))])


class _Leaving(Onlooker):
    """Looks at one dispatch, leaves, and has the call cancelled."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        self._session._observed().remove(self)
        self._session.cancel()


@pytest.mark.parametrize("device", ["local-sync", "local-task://?threads=2"])
def test_the_last_one_leaves_as_the_call_is_cancelled(device: str) -> None:
    """Machine code told of the failure where nobody was to be told any more: the process ended."""
    session = Session(device)
    layers = session.load(PROGRAMS / "chain.vmfb").layers
    x = np.ones((4, 8), np.float32)
    for _ in range(50):
        layers(x)
    for _ in range(3):
        with session.looked_at(_Leaving(session)), suppress(CancelledError):  # or it is done before
            layers(x)
    assert layers(x).shape == (4, 8)
