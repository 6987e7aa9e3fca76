"""Products that are not rounded before they are added: as processors do it at once, and in steps."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.base.platform import processor
from jitree.codegen.image.build import build
from jitree.codegen.image.compile import Target, host_target
from jitree.codegen.image.flat import Image, map_image
from jitree.codegen.image.generated import Generated, Unit
from jitree.codegen.numbers import rounded_once
from tests.dispatch.semantics_reference import EXACT, assert_same_bits, edge_columns

Array = npt.NDArray[np.float32]

_TEXT = """
declare float @"processor.rounded_once.float"(float, float, float)
define float @run(float %x, float %y, float %z) {
  %result = call float @"processor.rounded_once.float"(float %x, float %y, float %z)
  ret float %result
}
"""
_FEATURES = {"in steps": "", "at once": "+fma"} if processor.fuses() else {"in steps": ""}


class Compiled:
    def __init__(self, features: str) -> None:
        target = Target(host_target().triple, "", features)
        self._image: Image = map_image(build(Generated((Unit((_TEXT,), ("run",)),), ("run",), b""), target))
        kind = ctypes.CFUNCTYPE(ctypes.c_float, *[ctypes.c_float] * 3)
        self._function = kind(self._image.addresses["run"])

    def __call__(self, x: float, y: float, z: float) -> float:
        result: float = self._function(x, y, z)
        return result


@pytest.fixture(params=list(_FEATURES), scope="module")
def compiled(request: pytest.FixtureRequest) -> Compiled:
    return Compiled(_FEATURES[request.param])


def test_edge_values(compiled: Compiled) -> None:
    columns = edge_columns("fma.f32.fused")
    results = np.array([compiled(*row) for row in zip(*columns, strict=True)], np.float32)
    with np.errstate(all="ignore"):
        assert_same_bits("fma.f32.fused", columns, results, EXACT["fma.f32.fused"](*columns))


def test_where_rounding_twice_is_wrong(compiled: Compiled) -> None:
    """The sum lies beside the middle of two binary32 numbers, by less than binary64 tells."""
    x, y, z = 1.0 + 2.0**-12, 1.0 + 2.0**-12, 2.0**-60
    assert np.float32(x * y + z) == 1.0 + 2.0**-11  # the middle goes to the even neighbour
    assert compiled(x, y, z) == rounded_once(x, y, z) == 1.0 + 2.0**-11 + 2.0**-23
    assert compiled(x, y, -z) == rounded_once(x, y, -z) == 1.0 + 2.0**-11
    assert compiled(-x, y, -z) == rounded_once(-x, y, -z) == -(1.0 + 2.0**-11 + 2.0**-23)


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(x=floats, y=floats, z=floats)
def test_any_numbers(compiled: Compiled, x: float, y: float, z: float) -> None:
    columns = [np.array([value], np.float32) for value in (x, y, z)]
    with np.errstate(all="ignore"):
        expected = EXACT["fma.f32.fused"](*columns)
    for result in (compiled(x, y, z), rounded_once(x, y, z)):
        assert_same_bits("fma.f32.fused", columns, np.array([result], np.float32), expected)
