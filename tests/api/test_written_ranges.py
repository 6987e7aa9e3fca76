"""Which tensors a dispatch has written, from the bytes that have changed."""

from __future__ import annotations

import pytest

from jitree.observe.export_names import parse
from jitree.observe.regions import PlacedTensor, Regions, completed, inputs_of, joined, outputs_of

ROWS = [(4096 + 64 * row, 63) for row in range(32)]


def test_rows_whose_last_byte_stays_the_same_are_one_tensor() -> None:
    """Each has the length of a tensor that the name may mean, but for the last byte: so has all of it."""
    name = parse("f_dispatch_11_batch_matmul_1x16x32x64_f32")
    written = joined([ROWS], name)
    assert written == [(4096, 2047)]
    outputs = outputs_of([(4096, 8192)], written, name, {}, Regions())
    assert [tensor.type for tensor in outputs] == ["1x16x32xf32"]


@pytest.mark.parametrize(
    ("text", "group", "expected"),
    [
        ("f_dispatch_0_reduction_4x71_f32xf32xi64", [(0, 16), (64, 32)], [(0, 16), (64, 32)]),
        ("f_dispatch_0_matmul_4x71x64_f32", [(0, 63), (64, 63)], [(0, 127)]),
        ("f_dispatch_0_slow", [(0, 5)], [(0, 5)]),
    ],
)
def test_ranges_that_are_several_tensors(
    text: str, group: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    assert joined([group], parse(text)) == expected


PRODUCT = parse("f_dispatch_1_matmul_16x32x32_f32")
BLOCK = (4096, 4096)
LEFT = Regions().put(PlacedTensor((4096, 2048), PRODUCT.outputs[0], "name", "f_dispatch_0 (dispatch 0)"))


@pytest.mark.parametrize(
    ("change", "regions", "expected"),
    [
        ((4096 + 128, 1920), LEFT, (4096, 2048)),  # the first row was NaN before, and is
        ((4096, 1920), LEFT, (4096, 2048)),
        ((4096 + 128, 1792), LEFT, (4096, 2048)),
        ((4096 + 128, 1920), Regions(), (4096 + 128, 1920)),  # nothing was there: that is no part of it
        ((4096 + 2048 - 256, 2048 - 128), LEFT, (4096 + 2048 - 256, 2048 - 128)),
        ((4096, 2048), LEFT, (4096, 2048)),
    ],
)
def test_rows_that_stay_the_same_are_written(
    change: tuple[int, int], regions: Regions, expected: tuple[int, int]
) -> None:
    assert completed(change, [BLOCK, (16384, 4096), BLOCK], PRODUCT, regions) == expected


def test_a_block_of_two_results_is_no_operand_of_its_length() -> None:
    regions = LEFT.put(PlacedTensor((6144, 2048), PRODUCT.outputs[0], "name", "f_dispatch_1 (dispatch 3)"))
    operands = [BLOCK, (16384, 4096), (32768, 2048)]
    outputs = outputs_of(operands, [(32768, 2048)], PRODUCT, {}, regions)
    inputs = inputs_of(operands, outputs, PRODUCT, {}, regions)
    assert [tensor.type for tensor in (*inputs, *outputs)] == ["16x32xf32", "32x32xf32", "16x32xf32"]
    assert inputs[0].origin == "f_dispatch_1 (dispatch 3)"
