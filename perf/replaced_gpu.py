"""Times modules on a GPU with kernels of Triton and cuBLAS, against the modules as they were compiled.

    python perf/replaced_gpu.py [transformer.vmfb] [--seconds 1]

`dequantised` is a run of two dispatches, numbers of bytes and their product, that one kernel does; the others
are a product, softmax and layer normalisation. A transformer has four layers of 128 x 256 numbers and four
heads; its inputs are the numbers and six weights a layer. Its dispatches work in one binding, and say by
constants where in it their tensors are. `numpy` calls a function on the host. Needs Triton and a GPU.
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
from jitree.kernels import Kernel, by_cublas, by_triton, triton_source

PROGRAM = Path(__file__).parent / "programs" / "replaced_cuda.vmfb"

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


@triton.jit
def dequantised(
    weights, scales, numbers, x, same, out, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """A tile of a product whose second factor is bytes, scaled by column."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    sums = tl.zeros((TILE, TILE), tl.float32)
    for begin in range(0, DEPTH, STEP):
        k = begin + tl.arange(0, STEP)
        left = tl.load(x + row[:, None] * DEPTH + k[None, :])
        right = tl.load(weights + k[:, None] * COLUMNS + column[None, :]).to(tl.float32)
        sums = tl.dot(left, right, sums, input_precision="tf32x3")
    tl.store(out + row[:, None] * COLUMNS + column[None, :], sums * tl.load(scales + column)[None, :])


@triton.jit
def normalised(
    x, sums, same, again, factors, summands, out, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    EPSILON: tl.constexpr,
):  # fmt: skip
    """Both dispatches of layer normalisation."""
    triton_source.layer_norm(x, factors, summands, out, COLUMNS, WIDTH, EPSILON)


def by_numpy(scores, out):
    weights = np.exp(scores - scores.max(1, keepdims=True))
    out[:] = weights / weights.sum(1, keepdims=True)


PAIR = ["*dequantised_dispatch_0*", "*dequantised_dispatch_1*"]
LAYERED = ["*layer_norm_dispatch_0*", "*layer_norm_dispatch_1*"]
SOFTMAX = "*softmax_dispatch_0*"
TILES = {"COLUMNS": 1024, "DEPTH": 1024, "TILE": 32, "STEP": 64, "num_warps": 4, "num_stages": 3}
ROW = {"COLUMNS": 768, "WIDTH": 1024, "EPSILON": 1e-5, "num_warps": 4}
DEQUANTISED = Kernel(dequantised, ["?xi8", *["?xf32"] * 5], grid=(2, 32), arguments=TILES)
NORMALISED = Kernel(normalised, ["?xf32"] * 7, grid=16384, arguments=ROW)
CASES: list[tuple[str, Any, Any]] = [
    ("dequantised by Triton", PAIR, lambda: DEQUANTISED),
    ("product by Triton", "*product_dispatch_0*", lambda: by_triton.product(1024, 1024, 1024)),
    ("product by cuBLAS", "*product_dispatch_0*", lambda: by_cublas.product(1024, 1024, 1024)),
    ("softmax by Triton", SOFTMAX, lambda: by_triton.softmax(16384, 1024)),
    ("softmax by numpy", SOFTMAX, lambda: Kernel(by_numpy, ["16384x1024xf32"] * 2)),
    ("layer_norm by Triton", LAYERED, lambda: NORMALISED),
]
INPUTS = {
    "dequantised": [(64, 1024), (1024, 1024), (1024,)],
    "product": [(1024, 1024)] * 2,
    "softmax": [(16384, 1024)],
    "layer_norm": [(16384, 768), (768,), (768,)],
}


def inputs_of(name: str) -> list[Any]:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape, np.float32) for shape in INPUTS[name]]
    if name == "dequantised":
        arrays[1] = np.clip(arrays[1] * 40, -128, 127).astype(np.int8)
        arrays[2] = np.abs(arrays[2]) * np.float32(0.02)
    return arrays


def ready(options: argparse.Namespace) -> None:
    """Calls with arrays of the device; what comes back is waited for, not read."""
    for title, names, make in CASES:
        function = title.split()[0]
        calls, results = [], []
        for is_replaced in (False, True):
            session = jitree.Session("cuda")
            module = session.load(PROGRAM)
            inputs = [session.to_device(array) for array in inputs_of(function)]
            if is_replaced:
                try:
                    session.replace(names, make(), atol=1e-2, rtol=1e-3)
                except jitree.errors.UnavailableError as error:
                    print(f"{title}: {error}")
                    break
            call = partial(done, module[function], inputs)
            call()
            calls.append(call)
            results.append(np.asarray(call()))
        else:
            first, second = alternate(calls, options.seconds)
            near = np.abs(results[1] - results[0]).max()
            times = f"{first * 1e6:8.1f} us, {second * 1e6:8.1f} us, ratio {first / second:.2f}"
            print(f"{title:22} {times}, largest difference {near:.2g}", flush=True)


def done(function: Any, arrays: Any) -> Any:
    return function(*arrays).wait()


def read(function: Any, arrays: Any) -> Any:
    return np.asarray(function(*arrays))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("module", type=Path, nargs="?", help="a transformer")
    parser.add_argument("--seconds", type=float, default=1)
    options = parser.parse_args()
    ready(options)
    if options.module is not None:
        transform(options)


def transform(options: argparse.Namespace) -> None:
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
