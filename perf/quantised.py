"""Times products of bytes that are added up to i32: VMVX kernels on jitree, machine code of IREE's compiler
for this processor on iree.runtime, and onnxruntime.

    python perf/quantised.py [--seconds 0.5] [--only REGEX]

A row is a program: operations (a product and a sum are two) a second of each runtime, in thousands of
millions, on one thread, and how much faster jitree is. Arrays are on the device and results are
read back. onnxruntime runs `MatMulInteger` and `ConvInteger` with constant filters, and is left out where it
is not installed (it needs `onnx`, too). Needs the extras `perf` and `compile`.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from comparison import alternate, summary
from kernels import PROGRAMS, Peer, compiled, own_call

import jitree

SOURCE = PROGRAMS / "quantised.mlir"
MODULE = PROGRAMS / "quantised_vmvx.vmfb"
Shape = tuple[int, ...]


class Case(NamedTuple):
    """One program, and the same for onnxruntime, which has no transposed products and no rows of channels."""

    left: Shape
    right: Shape
    operations: int
    operator: str
    onnx_left: Shape
    onnx_right: Shape
    onnx_unsigned: bool = False


def product(rows: int, depth: int, columns: int, transposed: bool = False, unsigned: bool = False) -> Case:
    left, right = (rows, depth), (depth, columns)
    own = right[::-1] if transposed else right
    return Case(left, own, 2 * rows * depth * columns, "MatMulInteger", left, right, unsigned)


def convolution(image: Shape, filters: Shape, planes: bool) -> Case:
    """``image`` and ``filters`` are in the order of onnxruntime, planes of channels."""
    batch, channels, high, wide = image
    features, _, rows, columns = filters
    work = 2 * batch * features * channels * rows * columns * (high - rows + 1) * (wide - columns + 1)
    own = (image, filters)
    if not planes:
        own = (batch, high, wide, channels), (rows, columns, channels, features)
    return Case(*own, work, "ConvInteger", image, filters)


CASES = {
    "square": product(512, 512, 512),
    "square_u8_s8": product(512, 512, 512, unsigned=True),
    "transposed": product(512, 512, 512, transposed=True),
    "skinny": product(16, 512, 1024),
    "vector": product(1, 1024, 1024),
    "vector_transposed": product(1, 1024, 1024, transposed=True),
    "conv_1x1": convolution((1, 128, 28, 28), (128, 128, 1, 1), planes=False),
    "conv_3x3": convolution((1, 64, 30, 30), (64, 64, 3, 3), planes=False),
    "conv_3x3_planes": convolution((1, 64, 30, 30), (64, 64, 3, 3), planes=True),
}
"""By export of the program."""


def onnx_call(case: Case, random: np.random.Generator) -> Callable[[], Any] | None:
    """None where onnxruntime or onnx is not installed."""
    if not all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))):
        return None
    import onnx
    import onnxruntime

    filters = onnx.numpy_helper.from_array(numbers(random, case.onnx_right), "b")
    kind = onnx.TensorProto.UINT8 if case.onnx_unsigned else onnx.TensorProto.INT8
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(case.operator, ["a", "b"], ["y"])],
        "graph",
        [onnx.helper.make_tensor_value_info("a", kind, case.onnx_left)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)],
        [filters],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    left = numbers(random, case.onnx_left).view(np.uint8 if case.onnx_unsigned else np.int8)
    return lambda: session.run(None, {"a": left})


def numbers(random: np.random.Generator, shape: Shape) -> np.ndarray[Any, np.dtype[np.int8]]:
    return random.integers(-128, 128, shape, np.int8)


def main() -> int:
    parser = argparse.ArgumentParser(description="times products of bytes: jitree, iree.runtime, onnxruntime")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {"llvm-cpu": [], "onnxruntime": []}
    with tempfile.TemporaryDirectory() as folder, jitree.Session("local-sync", tier="native") as session:
        peer, module = Peer(compiled(SOURCE, Path(folder)), "local-sync"), session.load(MODULE)
        for name, case in CASES.items():
            if not re.search(options.only, name):
                continue
            random = np.random.default_rng(0)
            arguments = [numbers(random, case.left), numbers(random, case.right)]
            calls = [own_call(session, module, name, arguments), peer.call(name, arguments)]
            np.testing.assert_array_equal(calls[0](), calls[1](), err_msg=name)
            other = onnx_call(case, random)
            own, *others = alternate([*calls, *([other] if other else [])], options.seconds)
            line = f"{name:18s} jitree {case.operations / own / 1e9:7.1f}"
            for peer_name, seconds in zip(ratios, others, strict=False):
                ratios[peer_name].append(seconds / own)
                line += f"  {peer_name} {case.operations / seconds / 1e9:7.1f} ratio {seconds / own:6.2f}"
            print(line, flush=True)
    for peer_name, found in ratios.items():
        if found:
            print(f"{peer_name}: {summary(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
