"""Writes `decoder.mlir`, the step of the model, and compiles it for processors and for NVIDIA GPUs.

python examples/decoder/program.py        # needs pip install '.[compile]'
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Sequence
from pathlib import Path

from model import (
    BATCH,
    EPSILON,
    GROUPS,
    HEADS,
    HIDDEN,
    LAYERS,
    LENGTH,
    LETTER_COUNT,
    PAGE,
    PAGES,
    SIZE,
    WIDTH,
    shapes,
)

HERE = Path(__file__).parent
ROWS = PAGES * PAGE
KEPT = GROUPS * SIZE
CACHE = f"tensor<{ROWS}x{LAYERS}x2x{KEPT}xf32>"
TARGETS = {
    "llvm-cpu": [
        "--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=generic", "--iree-llvmcpu-debug-symbols=false",
    ],
    "cuda": [
        "--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80", "--iree-hal-executable-debug-level=0",
    ],
}  # fmt: skip


def tensor(shape: Sequence[int], kind: str = "f32") -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{kind}>"


class Program:
    """The text of the function, one `linalg.generic` after the other."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"%t{self._count}"

    def write(self, text: str) -> str:
        """A line whose value gets a name."""
        name = self.name()
        self.lines.append(f"    {name} = {text}")
        return name

    def over(
        self,
        shape: Sequence[int],
        inputs: Sequence[tuple[str, Sequence[int], str]],
        body: Sequence[str],
        summed: Sequence[int] = (),
        start: str = "%zero",
    ) -> str:
        """A tensor of f32. Each input is (value, its shape, which of d0, d1 … its axes are); in the body they
        are %x0, %x1 …, indices %i0, %i1 …, and what has been summed so far %sum; its last value is %r."""
        axes = len(shape) + len(summed)
        dims = ", ".join(f"d{axis}" for axis in range(axes))
        result = ", ".join(f"d{axis}" for axis in range(len(shape)))
        maps = [f"affine_map<({dims}) -> ({chosen})>" for _, _, chosen in inputs]
        maps.append(f"affine_map<({dims}) -> ({result})>")
        kinds = ['"parallel"'] * len(shape) + ['"reduction"'] * len(summed)
        first = self.write(f"tensor.empty() : {tensor(shape)}")
        if summed:
            first = self.write(
                f"linalg.fill ins({start} : f32) outs({first} : {tensor(shape)}) -> {tensor(shape)}"
            )
        values = ", ".join(value for value, _, _ in inputs)
        types = ", ".join(tensor(given) for _, given, _ in inputs)
        taken = ", ".join([*(f"%x{number}: f32" for number in range(len(inputs))), "%sum: f32"])
        ins = f"ins({values} : {types}) " if inputs else ""
        name = self.write(
            f"linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{', '.join(kinds)}]}} "
            f"{ins}outs({first} : {tensor(shape)}) {{"
        )
        self.lines += [f"    ^bb0({taken}):"]
        self.lines += [f"      %i{axis} = linalg.index {axis} : index" for axis in range(axes)]
        self.lines += [f"      {line}" for line in body]
        self.lines += ["      linalg.yield %r : f32", f"    }} -> {tensor(shape)}"]
        return name

    # -- parts of the model ----------------------------------------------------------------------------

    def product(self, x: str, weight: str, inner: int, outer: int) -> str:
        inputs = [(x, (BATCH, inner), "d0, d2"), (weight, (inner, outer), "d2, d1")]
        body = ["%p = arith.mulf %x0, %x1 : f32", "%r = arith.addf %sum, %p : f32"]
        return self.over((BATCH, outer), inputs, body, (inner,))

    def plus(self, x: str, y: str) -> str:
        inputs = [(x, (BATCH, WIDTH), "d0, d1"), (y, (BATCH, WIDTH), "d0, d1")]
        return self.over((BATCH, WIDTH), inputs, ["%r = arith.addf %x0, %x1 : f32"])

    def norm(self, x: str, weight: str) -> str:
        squares = ["%p = arith.mulf %x0, %x0 : f32", "%r = arith.addf %sum, %p : f32"]
        total = self.over((BATCH,), [(x, (BATCH, WIDTH), "d0, d1")], squares, (WIDTH,))
        inputs = [(x, (BATCH, WIDTH), "d0, d1"), (weight, (WIDTH,), "d1"), (total, (BATCH,), "d0")]
        return self.over((BATCH, WIDTH), inputs, [
            f"%width = arith.constant {float(WIDTH)!r} : f32",
            f"%epsilon = arith.constant {EPSILON:.9e} : f32",
            "%mean = arith.divf %x2, %width : f32", "%moved = arith.addf %mean, %epsilon : f32",
            "%root = math.rsqrt %moved : f32", "%scaled = arith.mulf %x0, %root : f32",
            "%r = arith.mulf %scaled, %x1 : f32",
        ])  # fmt: skip

    def turned(self, x: str, width: int) -> str:
        """Rotary positions."""
        half = SIZE // 2
        kind = tensor((BATCH, width))
        return self.over((BATCH, width), [(x, (BATCH, width), "d0, d1")], [
            f"%size = arith.constant {SIZE} : index", f"%half = arith.constant {half} : index",
            f"%rate = arith.constant {-math.log(10000.0) / half:.9e} : f32",
            "%at = arith.remui %i1, %size : index", "%pair = arith.remui %at, %half : index",
            "%lower = arith.cmpi ult, %at, %half : index", "%up = arith.addi %i1, %half : index",
            "%down = arith.subi %i1, %half : index", "%other = arith.select %lower, %up, %down : index",
            "%number = arith.index_cast %pair : index to i32", "%n = arith.sitofp %number : i32 to f32",
            "%power = arith.mulf %n, %rate : f32", "%speed = math.exp %power : f32",
            "%p = tensor.extract %positions[%i0] : " + tensor((BATCH,), "i32"),
            "%time = arith.sitofp %p : i32 to f32", "%angle = arith.mulf %time, %speed : f32",
            "%cos = math.cos %angle : f32", "%sin = math.sin %angle : f32",
            f"%y = tensor.extract {x}[%i0, %other] : {kind}", "%minus = arith.negf %y : f32",
            "%signed = arith.select %lower, %minus, %y : f32", "%a = arith.mulf %x0, %cos : f32",
            "%b = arith.mulf %signed, %sin : f32", "%r = arith.addf %a, %b : f32",
        ])  # fmt: skip

    def store(self, cache: str, k: str, v: str, layer: int) -> str:
        """The cache with the keys and values of the new tokens: each is one copy to where it belongs."""
        inputs = [(k, (BATCH, KEPT), "d0, d2"), (v, (BATCH, KEPT), "d0, d2")]
        both = self.over((BATCH, 2, KEPT), inputs, [
            "%none = arith.constant 0 : index", "%is_key = arith.cmpi eq, %i1, %none : index",
            "%r = arith.select %is_key, %x0, %x1 : f32",
        ])  # fmt: skip
        one, row = tensor((1, 2, KEPT)), tensor((1, 1, 2, KEPT))
        for request in range(BATCH):
            part = self.write(
                f"tensor.extract_slice {both}[{request}, 0, 0] [1, 2, {KEPT}] [1, 1, 1] "
                f": {tensor((BATCH, 2, KEPT))} to {one}"
            )
            part = self.write(
                f"tensor.expand_shape {part} [[0, 1], [2], [3]] output_shape [1, 1, 2, {KEPT}] "
                f": {one} into {row}"
            )
            cache = self.write(
                f"tensor.insert_slice {part} into {cache}[%place{request}, {layer}, 0, 0] [1, 1, 2, {KEPT}] "
                f"[1, 1, 1, 1] : {row} into {CACHE}"
            )
        return cache

    def attention(self, q: str, cache: str, layer: int) -> str:
        def kept(which: int, request: str, token: str, head: str, inside: str) -> list[str]:
            return [
                f"%shared = arith.constant {HEADS // GROUPS} : index",
                f"%size = arith.constant {SIZE} : index",
                f"%layer = arith.constant {layer} : index", f"%which = arith.constant {which} : index",
                f"%row = tensor.extract %rows[{request}, {token}] : {tensor((BATCH, LENGTH), 'i32')}",
                "%at = arith.index_cast %row : i32 to index", f"%group = arith.divui {head}, %shared : index",
                "%begin = arith.muli %group, %size : index", f"%end = arith.addi %begin, {inside} : index",
                f"%c = tensor.extract {cache}[%at, %layer, %which, %end] : {CACHE}",
            ]  # fmt: skip

        seen = [
            f"%p = tensor.extract %positions[%i0] : {tensor((BATCH,), 'i32')}",
            "%position = arith.index_cast %p : i32 to index",
            "%is_seen = arith.cmpi ule, %i2, %position : index",
        ]
        each, wide = (BATCH, HEADS, LENGTH), (BATCH, HEADS, SIZE)
        queries = self.write(
            f"tensor.expand_shape {q} [[0], [1, 2]] output_shape [{BATCH}, {HEADS}, {SIZE}] "
            f": {tensor((BATCH, WIDTH))} into {tensor(wide)}"
        )
        scores = self.over(each, [(queries, wide, "d0, d1, d3")], [
            *kept(0, "%i0", "%i2", "%i1", "%i3"), f"%scale = arith.constant {1 / math.sqrt(SIZE):.9e} : f32",
            "%b = arith.mulf %x0, %scale : f32", "%m = arith.mulf %b, %c : f32",
            "%r = arith.addf %sum, %m : f32",
        ], (SIZE,))  # fmt: skip
        largest = self.over((BATCH, HEADS), [(scores, each, "d0, d1, d2")], [
            *seen, "%known = arith.select %is_seen, %x0, %lowest : f32",
            "%r = arith.maximumf %sum, %known : f32",
        ], (LENGTH,), "%lowest")  # fmt: skip
        shares = self.over(each, [(scores, each, "d0, d1, d2"), (largest, each[:2], "d0, d1")], [
            *seen, "%distance = arith.subf %x0, %x1 : f32", "%e = math.exp %distance : f32",
            "%r = arith.select %is_seen, %e, %zero : f32",
        ])  # fmt: skip
        total = self.over(
            each[:2], [(shares, each, "d0, d1, d2")], ["%r = arith.addf %sum, %x0 : f32"], (LENGTH,)
        )
        inputs = [(shares, each, "d0, d1, d3"), (total, each[:2], "d0, d1")]
        found = self.over(wide, inputs, [
            *kept(1, "%i0", "%i3", "%i1", "%i2"), "%part = arith.divf %x0, %x1 : f32",
            "%m = arith.mulf %part, %c : f32", "%r = arith.addf %sum, %m : f32",
        ], (LENGTH,))  # fmt: skip
        return self.write(
            f"tensor.collapse_shape {found} [[0], [1, 2]] : {tensor(wide)} into {tensor((BATCH, WIDTH))}"
        )

    def step(self) -> str:
        """The function."""
        x = self.over((BATCH, WIDTH), [], [
            f"%token = tensor.extract %tokens[%i0] : {tensor((BATCH,), 'i32')}",
            "%at = arith.index_cast %token : i32 to index",
            f"%r = tensor.extract %embedding[%at, %i1] : {tensor((LETTER_COUNT, WIDTH))}",
        ])  # fmt: skip
        cache = "%cache"
        for layer in range(LAYERS):
            y = self.norm(x, f"%norm_{layer}")
            q = self.turned(self.product(y, f"%q_{layer}", WIDTH, WIDTH), WIDTH)
            k = self.turned(self.product(y, f"%k_{layer}", WIDTH, KEPT), KEPT)
            cache = self.store(cache, k, self.product(y, f"%v_{layer}", WIDTH, KEPT), layer)
            x = self.plus(x, self.product(self.attention(q, cache, layer), f"%o_{layer}", WIDTH, WIDTH))
            y = self.norm(x, f"%hidden_norm_{layer}")
            gate = self.product(y, f"%gate_{layer}", WIDTH, HIDDEN)
            up = self.product(y, f"%up_{layer}", WIDTH, HIDDEN)
            inputs = [(gate, (BATCH, HIDDEN), "d0, d1"), (up, (BATCH, HIDDEN), "d0, d1")]
            hidden = self.over((BATCH, HIDDEN), inputs, [
                "%one = arith.constant 1.0 : f32", "%minus = arith.negf %x0 : f32",
                "%e = math.exp %minus : f32", "%more = arith.addf %e, %one : f32",
                "%open = arith.divf %x0, %more : f32", "%r = arith.mulf %open, %x1 : f32",
            ])  # fmt: skip
            x = self.plus(x, self.product(hidden, f"%down_{layer}", HIDDEN, WIDTH))
        scores = self.product(self.norm(x, "%last_norm"), "%head", WIDTH, LETTER_COUNT)
        arguments = [
            f"%tokens: {tensor((BATCH,), 'i32')}", f"%positions: {tensor((BATCH,), 'i32')}",
            f"%rows: {tensor((BATCH, LENGTH), 'i32')}",
            *(f"%place{request}: index" for request in range(BATCH)),
            *(f"%{name}: {tensor(shape)}" for name, shape in shapes().items()),
            f"%cache: {CACHE} {{iree.abi.output = 1 : index}}",
        ]  # fmt: skip
        results = f"{tensor((BATCH, LETTER_COUNT))}, {CACHE}"
        head = f"  func.func @decode_bs{BATCH}({', '.join(arguments)}) -> ({results}) {{"
        constants = ["    %zero = arith.constant 0.0 : f32", "    %lowest = arith.constant 0xFF800000 : f32"]
        return "\n".join([head, *constants, *self.lines, f"    return {scores}, {cache} : {results}", "  }"])


def main() -> None:
    source = HERE / "decoder.mlir"
    note = "// Made by program.py: a token of each request goes through the layers and into the cache."
    source.write_text(f"{note}\nmodule @decoder {{\n{Program().step()}\n}}\n")
    for target, flags in TARGETS.items():
        command = ["iree-compile", *flags, source.name, "-o", f"decoder.{target}.vmfb"]
        subprocess.run(command, check=True, timeout=300, cwd=HERE)


if __name__ == "__main__":
    main()
