"""How many vectors this processor keeps in registers."""

from __future__ import annotations

from functools import cache

from jitree.base import processor


@cache
def accumulators() -> int:
    """Vectors of 16 binary32 numbers that a tile may carry through its loops, beside what it loads.

    16 of 32 registers with AVX-512. Elsewhere a vector takes two registers or four, and 6 of them do: 16
    made matrix products twice and convolutions four times as slow on AVX2.
    """
    return 16 if "avx512f" in processor.words("flags") else 6
