"""Times a replaced run of dispatches against the same module as it was compiled.

    python perf/replaced.py [--seconds 0.5] [--device local-sync]

The module makes numbers of a megabyte of weights, then multiplies: two dispatches. The kernels do both at
once, without the numbers in memory: one compiled by Numba, one by numpy's BLAS in Python. All are measured in
turn; the figure is the median time of the module over that of the kernel (above 1: the kernel is faster).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from comparison import alternate

import jitree
from jitree.kernels import Kernel

MODULE = Path(__file__).parent / "programs" / "dequantised.vmfb"
ROWS, SIZE, BLOCK = 8, 1024, 128
PAIR = ["dequantised.main_dispatch_0*", "dequantised.main_dispatch_1*"]
TYPES = [
    f"{SIZE}x{SIZE}xi8", f"{SIZE}xf32", f"{SIZE}x{SIZE}xf32", f"{ROWS}x{SIZE}xf32", f"{SIZE}x{SIZE}xf32",
    f"{ROWS}x{SIZE}xf32",
]  # fmt: skip
LIMITS = {"rtol": 1e-4, "atol": 1e-2}


@numba.njit(fastmath=True)
def compiled(weights: Any, scales: Any, _numbers: Any, x: Any, _same: Any, out: Any) -> None:
    """A block of columns stays in the first cache while all rows are added up."""
    sums = np.empty((ROWS, BLOCK), np.float32)
    for first in range(0, SIZE, BLOCK):
        sums[:] = 0
        for k in range(SIZE):
            for row in range(ROWS):
                factor = x[row, k]
                for column in range(BLOCK):
                    sums[row, column] += factor * np.float32(weights[k, first + column])
        for row in range(ROWS):
            for column in range(BLOCK):
                out[row, first + column] = sums[row, column] * scales[first + column]


def by_numpy(weights: Any, scales: Any, _numbers: Any, x: Any, _same: Any, out: Any) -> None:
    np.matmul(x, weights.astype(np.float32), out=out)
    out *= scales


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--device", default="local-sync")
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    x = generator.standard_normal((ROWS, SIZE), np.float32)
    weights = generator.integers(-128, 128, (SIZE, SIZE)).astype(np.int8)
    scales = generator.random(SIZE, np.float32)
    calls: dict[str, Callable[[], object]] = {}
    for name, kernel in {"as compiled": None, "by Numba": compiled, "by numpy": by_numpy}.items():
        session = jitree.Session(options.device)
        module = session.load(MODULE)
        if kernel is not None:
            session.replace(PAIR, Kernel(kernel, TYPES), **LIMITS)
        call = calls[name] = lambda main=module.main: main(x, weights, scales)  # type: ignore[misc]
        call()
    first, *_ = times = alternate([*calls.values()], options.seconds)
    for name, time in zip(calls, times, strict=True):
        print(f"{name:16}  {time * 1e6:8.1f} us  ratio {first / time:8.3f}")


if __name__ == "__main__":
    main()
