"""What this processor keeps in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from jitree.base import processor
from jitree.codegen.vector_math.registers import FUNCTIONS, LANES


@cache
def accumulators() -> int:
    """Vectors of 16 binary32 numbers that a tile may carry through its loops, beside what it loads.

    16 of 32 registers with AVX-512. Elsewhere a vector takes two registers or four, and 6 of them do: 16
    made matrix products twice and convolutions four times as slow on AVX2.
    """
    return 16 if "avx512f" in processor.words("flags") else 6


@cache
def copies() -> int:
    """Iterations of a tile that share the vectors which they load; the rest of the tile lies along the lanes.

    A square of 4 by 4 loads least. Where 12 of 16 registers are accumulators, one vector (two registers) and
    one element for all lanes are what is left beside them: 6 by 1. With 2 or 3 vectors some were spilled.
    """
    return 4 if "avx512f" in processor.words("flags") else 6


@cache
def has_masks() -> bool:
    """Whether a load under a mask takes no longer than another, and keeps what the other lanes held."""
    return "avx512f" in processor.words("flags")


@cache
def dot_lanes() -> int:
    """Lanes of 32 bits to which one instruction adds four products of bytes each; 0: there is none."""
    flags = processor.words("flags")
    if "avx512_vnni" in flags and "avx512vl" in flags:
        return 16
    return 8 if "avx_vnni" in flags else 0


@cache
def pair_lanes() -> int:
    """Lanes to which one instruction adds two products of bfloat16 numbers each; 0: there is none."""
    return 16 if "avx512_bf16" in processor.words("flags") else 0


def vector_functions(lanes: int) -> Mapping[str, Callable[..., float]]:
    """The functions of vector mathematics that are written otherwise for vectors of so many lanes."""
    tables = lanes == LANES and "avx512f" in processor.words("flags")
    return FUNCTIONS if tables else {}
