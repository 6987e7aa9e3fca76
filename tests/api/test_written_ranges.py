"""Which tensors a dispatch has written, from the bytes that have changed."""

from __future__ import annotations

import pytest

from jitree.observe.export_names import parse
from jitree.observe.regions import Regions, joined, outputs_of

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
