"""``python -m tests.exhaustive [FUNCTION …]``: functions of one binary32 number on all 2**32 of them.

Each result of the machine code (vectors of this processor; with ``--avx2`` as one with AVX2 alone has them;
with ``--plain`` without its extensions, where multiplications and additions round by themselves) is compared
with the exact value rounded to nearest even. The binary64 function of numpy or the C library tells where that
is beyond doubt: its error, one to four units in the last place, is taken as 128. Where a rounding boundary is
nearer than that, :mod:`exact_functions` decides.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

import numba
import numpy as np

from jitree.codegen.image.compile import Target
from tests import exact_functions
from tests.dispatch.vector_functions import avx2_target, compiled, plain_target

CHUNK: Final = 1 << 18
DOUBT: Final = 2.0**-46
"""Relative error that the binary64 functions stay below."""
KEPT: Final = 4096
"""Doubtful arguments of a chunk, and wrong ones, of which the first are kept."""


@numba.vectorize(["float64(float64)"])  # type: ignore[untyped-decorator]
def _erf(x: float) -> float:
    return math.erf(x)


LIBRARY: Final[dict[str, Callable[[Any], Any]]] = {
    "exp.f32": np.exp, "exp2.f32": np.exp2, "expm1.f32": np.expm1, "log.f32": np.log, "log2.f32": np.log2,
    "log10.f32": np.log10, "log1p.f32": np.log1p, "tanh.f32": np.tanh,
    "erf.f32": _erf, "sin.f32": np.sin, "cos.f32": np.cos,
    "atan.f32": np.arctan,
}  # fmt: skip


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def check(values: Any, results: Any, doubtful: Any, wrong: Any) -> tuple[int, int]:
    """How many results are not told by the values and which, how many are wrong and which."""
    doubts = errors = 0
    for index in range(values.size):
        value = values[index]
        low, high = np.float32(value * (1.0 - DOUBT)), np.float32(value * (1.0 + DOUBT))
        result = results[index]
        if low != high and (low == low or high == high):
            if doubts < KEPT:
                doubtful[doubts] = index
            doubts += 1
        elif (result != low or math.copysign(1.0, result) != math.copysign(1.0, low)) and not (
            result != result and low != low
        ):
            if errors < KEPT:
                wrong[errors] = index
            errors += 1
    return doubts, errors


def check_part(work: tuple[str, Target | None, int, int]) -> tuple[list[int], list[tuple[float, int]]]:
    """Bits of arguments with wrong results, and (distance from the boundary, bits) of the doubtful ones."""
    mnemonic, target, first, last = work
    function = compiled(mnemonic, target)
    doubtful, wrong = np.empty(KEPT, np.int64), np.empty(KEPT, np.int64)
    out, values = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float64)
    errors: list[int] = []
    hard: list[tuple[float, int]] = []
    for start in range(first, last, CHUNK):
        arguments = np.arange(start, start + CHUNK, dtype=np.uint32).view(np.float32)
        results = function(arguments, out=out)
        with np.errstate(all="ignore"):
            values[:] = LIBRARY[mnemonic](arguments.astype(np.float64))
        doubts, failures = check(values, results, doubtful, wrong)
        if doubts > KEPT:
            raise AssertionError(
                f"{mnemonic}: the binary64 function leaves {doubts} of {CHUNK} arguments in doubt"
            )
        errors += [start + int(index) for index in wrong[: min(failures, KEPT)]]
        for index in map(int, doubtful[:doubts]):
            exact = exact_functions.FUNCTIONS[mnemonic](Fraction(float(arguments[index])))
            hard.append((exact_functions.distance_from_midpoint(exact), start + index))
            if exact_functions.rounded(exact) != float(results[index]):
                errors.append(start + index)
    return errors, hard


def run(mnemonic: str, target: Target | None, processes: int) -> int:
    """How many arguments have a wrong result."""
    began = time.monotonic()
    parts = [(mnemonic, target, first, first + (1 << 28)) for first in range(0, 1 << 32, 1 << 28)]
    errors: list[int] = []
    hard: list[tuple[float, int]] = []
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for wrong, doubtful in pool.imap_unordered(check_part, parts):
            errors += wrong
            hard += doubtful
    seconds = time.monotonic() - began
    print(
        f"{mnemonic:9s} 4294967296 arguments, {len(errors)} wrong, "
        f"{len(hard)} decided exactly, {seconds:.0f} s"
    )
    for bits in sorted(errors)[:8]:
        print(f"  wrong: {bits:#010x} ({exact_functions.of_bits(bits)!r})")
    nearest = sorted(hard)[:12]
    print("  nearest to a boundary:", " ".join(f"{bits:#010x}" for _, bits in nearest), flush=True)
    return len(errors)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("functions", nargs="*", default=sorted(LIBRARY), metavar="FUNCTION")
    parser.add_argument("--plain", action="store_true", help="without the processor's extensions")
    parser.add_argument("--avx2", action="store_true", help="as a processor with AVX2 alone")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    target = plain_target() if arguments.plain else avx2_target() if arguments.avx2 else None
    return 1 if sum([run(name, target, arguments.processes) for name in arguments.functions]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
