"""Writes `devices.mlir` and `members.mlir` (the layers are in `layers.mlir`) and compiles them.

python examples/tensor_parallel/program.py        # needs pip install '.[compile]'
python examples/tensor_parallel/program.py cuda   # for NVIDIA GPUs
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from model import NAMES, RANKS, SIZE, TOKENS, shard_shapes

HERE = Path(__file__).parent
X = f"tensor<{TOKENS}x{SIZE}xf32>"
FLAGS = {
    "llvm-cpu": [
        "--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=generic",
        "--iree-llvmcpu-debug-symbols=false",
    ],
    "cuda": ["--iree-cuda-target=sm_80", "--iree-hal-executable-debug-level=0"],
}  # fmt: skip
LAYERS = (("attention", NAMES[0], NAMES[1:5]), ("feed_forward", NAMES[5], NAMES[6:9]))
"""A function of `layers.mlir`, the scale before it, and its weights."""


def kind(name: str) -> str:
    return f"tensor<{'x'.join(map(str, shard_shapes()[name]))}xf32>"


def part(layer: str, scale: str, weights: tuple[str, ...], x: str, suffix: str) -> Iterator[str]:
    """What a device adds to a sum: %part_... of %x."""
    for name in (scale, *weights):
        yield f"%{name}{suffix} = util.global.load @{name}{suffix} : {kind(name)}"
    yield f"%y_{layer}{suffix} = util.call @norm({x}, %{scale}{suffix}) : ({X}, {kind(scale)}) -> {X}"
    values = ", ".join(f"%{name}{suffix}" for name in weights)
    kinds = ", ".join(kind(name) for name in weights)
    yield (
        f"%part_{layer}{suffix} = util.call @{layer}(%y_{layer}{suffix}, {values}) : ({X}, {kinds}) -> {X}"
    )


def devices() -> Iterator[str]:
    """One process: device i has shard i of each weight. Each device makes the sum of all parts."""
    ranks = range(RANKS)
    at = [f"#hal.device.promise<@__device_{rank}>" for rank in ranks]
    for name in NAMES:
        for rank in ranks:
            yield (
                f"util.global private @{name}_{rank} {{stream.affinity = {at[rank]}}} = "
                f'#flow.parameter.named<"model"::"{name}.weight.shard.{rank}"> : {kind(name)}'
            )
    yield f"util.func public @block(%x: {X}) -> {X} {{"
    for rank in ranks:
        yield f"%x_{rank} = flow.tensor.transfer %x : {X} to {at[rank]}"
    now = "x"
    for layer, scale, weights in LAYERS:
        for rank in ranks:
            yield from part(layer, scale, weights, f"%{now}_{rank}", f"_{rank}")
        for rank in ranks:
            total = f"%{now}_{rank}"
            for other in ranks:
                added, sum_ = f"%from_{layer}_{rank}_{other}", f"%sum_{layer}_{rank}_{other}"
                yield f"{added} = flow.tensor.transfer %part_{layer}_{other} : {X} to {at[rank]}"
                yield f"{sum_} = arith.addf {total}, {added} : {X}"
                total = sum_
            yield f"%after_{layer}_{rank} = flow.tensor.transfer {total} : {X} to {at[rank]}"
        now = f"after_{layer}"
    yield f"util.return %{now}_0 : {X}"
    yield "}"


def members() -> Iterator[str]:
    """Many processes: the program is the same, and each has its shard. The sum is a collective."""
    for name in NAMES:
        yield f'util.global private @{name} = #flow.parameter.named<"model"::"{name}.weight"> : {kind(name)}'
    yield f"util.func public @block(%x: {X}) -> {X} {{"
    yield "%channel = flow.channel.default : !flow.channel"
    now = "%x"
    for layer, scale, weights in LAYERS:
        yield from part(layer, scale, weights, now, "")
        yield f"%e_{layer} = tensor.empty() : {X}"
        yield (
            f"%total_{layer} = flow.collective.all_reduce sum, f32, %e_{layer}, %part_{layer}, %channel : "
            f"({X}, {X}, !flow.channel) -> %e_{layer} as {X}"
        )
        yield f"%after_{layer} = arith.addf {now}, %total_{layer} : {X}"
        now = f"%after_{layer}"
    yield f"util.return {now} : {X}"
    yield "}"


def main(target: str = "llvm-cpu") -> None:
    device = "local" if target == "llvm-cpu" else target
    for name, text, count in (("devices", devices, RANKS), ("members", members, 1)):
        note = f"// Made by program.py, which compiles it with layers.mlir.\n// {text.__doc__}"
        (HERE / f"{name}.mlir").write_text("\n".join([note, *text(), ""]))
        source = (HERE / "layers.mlir").read_text() + (HERE / f"{name}.mlir").read_text()
        chosen = [f"--iree-hal-target-device={device}[{number}]" for number in range(count)]
        command = ["iree-compile", *chosen, *FLAGS[target], "-", "-o", str(HERE / f"{name}.{target}.vmfb")]
        subprocess.run(command, input=source.encode(), check=True, timeout=300)


if __name__ == "__main__":
    main(*sys.argv[1:2])
