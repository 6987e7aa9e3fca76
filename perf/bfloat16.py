"""Times products of bfloat16 numbers that are added up to f32: VMVX kernels on jitree, against the same
numbers as f32, machine code of IREE's compiler for this processor on iree.runtime, and torch.

    python perf/bfloat16.py [--seconds 0.5] [--only REGEX]

A row is a program: operations (a product and a sum are two) a second of each, in thousands of millions, on
one thread, and how much faster jitree is with bfloat16 numbers. It is checked that its results are those of
f32 bit for bit. Arrays are on the device and results are read back. torch multiplies matrices and gives
bfloat16 numbers; it is left out where it is not installed. Needs the extras `perf` and `compile`.
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

import ml_dtypes
import numpy as np
from comparison import alternate, summary
from kernels import PROGRAMS, Peer, compiled, own_call

import jitree

SOURCE = PROGRAMS / "bfloat16.mlir"
MODULE = PROGRAMS / "bfloat16_vmvx.vmfb"
Shape = tuple[int, ...]


class Case(NamedTuple):
    """One program."""

    left: Shape
    right: Shape
    operations: int
    is_product: bool = True


def product(rows: int, depth: int, columns: int, batch: Shape = ()) -> Case:
    work = 2 * rows * depth * columns * (batch[0] if batch else 1)
    return Case((*batch, rows, depth), (*batch, depth, columns), work)


def convolution(image: Shape, filters: Shape, work: int) -> Case:
    return Case(image, filters, 2 * work, is_product=False)


CASES = {
    "square": product(512, 512, 512),
    "transposed": product(512, 512, 512),
    "skinny": product(16, 512, 1024),
    "vector": product(1, 1024, 1024),
    "batch": product(128, 64, 128, (8,)),
    "conv_1x1": convolution((1, 28, 28, 128), (1, 1, 128, 128), 28 * 28 * 128 * 128),
    "conv_3x3": convolution((1, 30, 30, 64), (3, 3, 64, 64), 28 * 28 * 64 * 9 * 64),
    "conv_3x3_planes": convolution((1, 64, 30, 30), (64, 64, 3, 3), 28 * 28 * 64 * 9 * 64),
}
"""By export of the program, without the type of its numbers."""


def torch_call(name: str, case: Case, arguments: list[Any]) -> Callable[[], Any] | None:
    """None where torch is not installed, and for what is no product of matrices."""
    if not case.is_product or not importlib.util.find_spec("torch"):
        return None
    import torch

    torch.set_num_threads(1)
    left, right = (torch.from_numpy(item.astype(np.float32)).to(torch.bfloat16) for item in arguments)
    if name == "transposed":
        right = right.T
    return lambda: left @ right


def main() -> int:
    parser = argparse.ArgumentParser(description="times products of bfloat16 numbers: jitree and others")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {"f32": [], "llvm-cpu": [], "torch": []}
    with tempfile.TemporaryDirectory() as folder, jitree.Session("local-sync", tier="native") as session:
        peer, module = Peer(compiled(SOURCE, Path(folder)), "local-sync"), session.load(MODULE)
        for name, case in CASES.items():
            if not re.search(options.only, name):
                continue
            random = np.random.default_rng(0)
            arguments: list[Any] = [
                random.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
                for shape in (case.left, case.right)
            ]
            wide = [item.astype(np.float32) for item in arguments]
            calls = [
                own_call(session, module, f"{name}_bf16", arguments),
                own_call(session, module, f"{name}_f32", wide),
                peer.call(f"{name}_bf16", arguments),
            ]
            first, second = (call().view(np.uint32) for call in calls[:2])
            np.testing.assert_array_equal(first, second, err_msg=name)
            other = torch_call(name, case, arguments)
            own, *others = alternate([*calls, *([other] if other else [])], options.seconds)
            line = f"{name:16s} jitree {case.operations / own / 1e9:6.1f}"
            for peer_name, seconds in zip(ratios, others, strict=False):
                ratios[peer_name].append(seconds / own)
                line += f"  {peer_name} {case.operations / seconds / 1e9:6.1f} ratio {seconds / own:5.2f}"
            print(line, flush=True)
    for peer_name, found in ratios.items():
        if found:
            print(f"{peer_name}: {summary(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
