"""Times a transformer on a GPU with its products replaced by Triton, against the module as it was compiled.

    python perf/replaced_gpu.py transformer.vmfb [--seconds 1]

The module has four layers of 128 x 256 numbers and four heads; its inputs are the numbers and six weights a
layer. Dispatches work in one binding, and say by constants where in it their tensors are. Needs Triton and a
GPU.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from comparison import alternate

import jitree
from jitree.kernels import Kernel, by_triton

LAYER = [(256, 768), (256, 256), (256, 1024), (1024, 256), (256,), (256,)]
LAYERS, ROWS, TILE, STEP = 4, 128, 32, 64
NORMED, WIDE = 262144, 393216
"""Bytes before the input and the result of the first product of the second half of a layer."""
LIMIT = 1e-4


@triton.jit
def multiplied(lhs, rhs, row, column, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STEP: tl.constexpr):
    """A tile of a product whose sizes are multiples of the tile's."""
    sums = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    for begin in range(0, DEPTH, STEP):
        k = begin + tl.arange(0, STEP)
        left = tl.load(lhs + row[:, None] * DEPTH + k[None, :])
        right = tl.load(rhs + k[:, None] * COLUMNS + column[None, :])
        sums = tl.dot(left, right, sums, input_precision="tf32x3")
    return sums


@triton.jit
def attended(memory, weights, before, out, here, there, TILE: tl.constexpr, STEP: tl.constexpr):
    """The product after attention, and what it is added to."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    place = row[:, None] * 256 + column[None, :]
    sums = multiplied(memory + tl.multiple_of(here // 4, 16), weights, row, column, 256, 256, STEP)
    tl.store(out + place, sums + tl.load(before + there // 4 + place))


@triton.jit
def widened(
    memory, weights, same, NORMED: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr
):
    """The product before the activation, and that."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    x = multiplied(memory + NORMED // 4, weights, row, column, 1024, 256, STEP)
    tanh = 1 - 2 / (tl.exp(2 * 0.797884583 * (x + 0.044715 * x * x * x)) + 1)
    tl.store(same + WIDE // 4 + row[:, None] * 1024 + column[None, :], x * 0.5 * (1 + tanh))


@triton.jit
def narrowed(memory, weights, out, there, WIDE: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr):
    """The last product of a layer, and what it is added to."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    place = row[:, None] * 256 + column[None, :]
    sums = multiplied(memory + WIDE // 4, weights, row, column, 256, 1024, STEP)
    tl.store(out + there // 4 + place, sums + tl.load(memory + place))


def kernel(function: Any, bindings: int, columns: int, **places: int) -> Kernel:
    sizes = {"TILE": TILE, "STEP": STEP, "num_warps": 4, "num_stages": 3} | places
    return Kernel(function, ["?xf32"] * bindings, grid=(ROWS // TILE, columns // TILE), arguments=sizes)


def kernels() -> dict[str, Kernel]:
    return {
        "*dispatch_2_matmul*": by_triton.product(ROWS, 768, 256, places=(-1, 0, -2)),
        "*dispatch_12_matmul*": kernel(attended, 4, 256),
        "*dispatch_15_matmul*": kernel(widened, 3, 1024, NORMED=NORMED, WIDE=WIDE),
        "*dispatch_16_matmul*": kernel(narrowed, 3, 256, WIDE=WIDE),
    }


def read(function: Any, arrays: Any) -> Any:
    return np.asarray(function(*arrays))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("module", type=Path)
    parser.add_argument("--seconds", type=float, default=1)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    shapes = [(ROWS, 256), *LAYER * LAYERS]
    arrays = [generator.standard_normal(shape, np.float32) * np.float32(0.05) for shape in shapes]
    arrays[0] *= 20
    calls, results = [], []
    for replaced in (dict[str, Kernel](), kernels()):
        session = jitree.Session("cuda")
        function = session.load(options.module).transformer
        inputs = [session.to_device(array) for array in arrays]
        for name, each in replaced.items():
            session.replace(name, each, atol=LIMIT, rtol=LIMIT)
        calls.append(partial(read, function, inputs))
        calls[-1]()
        results.append(calls[-1]().copy())
    print(f"largest difference {np.abs(results[1] - results[0]).max():.2g}")
    first, second = alternate(calls, options.seconds)
    print(f"as compiled {first * 1e6:.1f} us, by Triton {second * 1e6:.1f} us, ratio {first / second:.2f}")


if __name__ == "__main__":
    main()
