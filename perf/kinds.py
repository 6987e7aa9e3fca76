"""Times kinds of operators: jitree on portable VMVX files, against onnxruntime, OpenVINO and MNN, and against
what the machine could do.

    python perf/kinds.py [--only REGEX] [--seconds 0.5] [--threads 1] [--folder DIRECTORY]
                         [--gflops 115] [--gigabytes 20]

Each model has one operator some times in a row, so that layouts of a runtime's own are made once. Models are
kept, and calls timed, as by `unseen.py`. A row has operations (a multiplication and an addition are two) and
bytes of what is read and written, weights too, in all operators; then GFLOP/s of each runtime (GB/s, where
there are no products), and its share of the limit: the time that operations take at `--gflops`, or bytes at
`--gigabytes` if that is longer, over its own. Both limits are of one thread. What stays in caches may exceed
them. Errors are those of `exact.py`; a peer with `!` is less exact.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from exact import FACTOR, error_of, reference
from graphs import Graph
from unseen import arguments_of, chosen, least_seconds, of_jitree, of_peers, parser_of

import jitree

_REPEATED: Final = 3
"""Operators in a row."""


class Kind(NamedTuple):
    """One operator of some size."""

    shape: tuple[int, ...]
    """Of the argument."""
    add: Callable[[Graph, str], str]
    products: float
    """Multiply-adds for an element of the result."""
    weights: int = 0
    """Their numbers."""
    times: int = _REPEATED


def _upsampled(g: Graph, x: str) -> str:
    scales = g.constant((1, 1, 2, 2))
    return g.op("Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric")


def _normalised(g: Graph, x: str) -> str:
    return g.layer_norm(x, 256)


def _transposed(g: Graph, x: str) -> str:
    return g.op("Transpose", x, perm=[0, 2, 1])


def _recurrent(g: Graph, x: str) -> str:
    size = 256
    weight, inner = (g.weight(1, 4 * size, size, inputs=size) for _ in range(2))
    bias = g.constant(g.random.standard_normal((1, 8 * size)) * 0.1)
    states, _, _ = g.ops("LSTM", x, weight, inner, bias, results=3, hidden_size=size)
    return g.op("Reshape", states, g.shape(64, 1, size))


KINDS: Final = {
    "convolution 1x1": Kind((1, 128, 28, 28), lambda g, x: g.conv(x, 128, 1), 128, 128 * 128),
    "convolution 1x1, 14x14": Kind((1, 256, 14, 14), lambda g, x: g.conv(x, 256, 1), 256, 256 * 256),
    "convolution 3x3": Kind((1, 64, 56, 56), lambda g, x: g.conv(x, 64), 9 * 64, 9 * 64 * 64),
    "convolution 3x3, 14x14": Kind((1, 256, 14, 14), lambda g, x: g.conv(x, 256), 9 * 256, 9 * 256 * 256),
    "convolution 3x3, 7x7": Kind((1, 512, 7, 7), lambda g, x: g.conv(x, 512), 9 * 512, 9 * 512 * 512),
    "first convolution 7x7": Kind((1, 3, 224, 224), lambda g, x: g.conv(x, 64, 7, 2), 147, 147 * 64, 1),
    "strided 3x3": Kind((1, 64, 56, 56), lambda g, x: g.conv(x, 128, 3, 2), 9 * 64, 9 * 64 * 128, 1),
    "depthwise 3x3": Kind((1, 128, 28, 28), lambda g, x: g.depthwise(x, 3), 9, 9 * 128),
    "depthwise 5x5": Kind((1, 240, 14, 14), lambda g, x: g.depthwise(x, 5), 25, 25 * 240),
    "depthwise 3x3, strided": Kind((1, 96, 112, 112), lambda g, x: g.depthwise(x, 3, 2), 9, 9 * 96, 1),
    "transposed 4x4": Kind((1, 64, 24, 18), lambda g, x: g.transposed(x, 64, 4, 1), 4 * 64, 16 * 64 * 64, 2),
    "product": Kind((1, 128, 256), lambda g, x: g.linear(x, 256, 256), 256, 256 * 256),
    "product of a row": Kind((1, 512), lambda g, x: g.linear(x, 512, 512), 512, 512 * 512),
    "LSTM": Kind((64, 1, 256), _recurrent, 2 * 4 * 256, 2 * 4 * 256 * 256, 1),
    "softmax": Kind((1, 256, 256), lambda g, x: g.op("Softmax", x, axis=-1), 0),
    "normalisation": Kind((1, 256, 256), _normalised, 0),
    "resize": Kind((1, 32, 40, 40), _upsampled, 0, times=1),
    "layout": Kind((1, 256, 256), _transposed, 0, times=1),
}  # fmt: skip


def model_of(name: str, folder: Path) -> tuple[Path, Path]:
    """The model and its module, which are written once."""
    model, module = (folder / f"{re.sub('[^a-z0-9]+', '_', name.lower())}.{end}" for end in ("onnx", "vmfb"))
    if not module.exists():
        g, kind = Graph(), KINDS[name]
        x = g.input(kind.shape)
        for _ in range(kind.times):
            x = kind.add(g, x)
        jitree.compile(g.saved(model, x), module)
    return model, module


def work_of(kind: Kind, given: int, result: int) -> tuple[float, float]:
    """Operations and bytes of all operators, whose arguments grow evenly from the first to the last."""
    results = [given * (result / given) ** (step / kind.times) for step in range(kind.times + 1)]
    moved = sum(results[:-1]) + sum(results[1:]) + kind.weights * kind.times
    return 2 * kind.products * sum(results[1:]), 4 * moved


def measure(name: str, options: argparse.Namespace) -> None:
    model, module = model_of(name, options.folder)
    values = list(arguments_of(model).values())
    calls = {"jitree": of_jitree(module, values, options.threads)}
    calls |= of_peers(model, values, options.threads)
    results = {runtime: np.asarray(call()) for runtime, call in calls.items()}
    taken = least_seconds(calls, options)
    expected = reference(model, values)
    errors = {runtime: error_of(result, expected) for runtime, result in results.items()}
    operations, moved = work_of(KINDS[name], values[0].size, expected.size)
    limit = max(operations / options.gflops, moved / options.gigabytes) / options.threads / 1e9
    amount, unit = (operations, "GFLOP/s") if operations else (moved, "GB/s")
    bound = FACTOR * max(errors["jitree"], errors.get("onnxruntime", 0.0))
    texts = []
    for runtime, seconds in taken.items():
        mark = "!" if errors[runtime] > bound else " "
        texts.append(f"{runtime} {amount / seconds / 1e9:6.1f} {limit / seconds:4.2f}{mark}")
    print(f"{name:23s} {operations / 1e6:7.1f} MFLOP {moved / 1e6:5.2f} MB {unit:7s}", *texts, flush=True)


def main() -> int:
    parser = parser_of("times kinds of operators", "kinds-models", 0.5)
    parser.add_argument("--gflops", type=float, default=115.0, help="of one thread")
    parser.add_argument("--gigabytes", type=float, default=20.0, help="a second, of one thread")
    options = parser.parse_args()
    for name in chosen(KINDS, options):
        measure(name, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
