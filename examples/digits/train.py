"""Trains the digit classifier and writes everything classify.py needs.

    pip install scikit-learn '.[compile]'
    python examples/digits/train.py

takes a few seconds and writes beside this file: ``digits.mlir`` (the network with its weights),
``digits.llvm-cpu.vmfb`` (any x86-64 or aarch64), ``digits.vmvx.vmfb`` (any machine) and ``images/`` (one
digit of each kind, never seen in training). The data are the 1797 handwritten 8x8 digits that come with
scikit-learn. The result is the same on every run with the same numpy.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from network import Adam, Array, Parameters, gradients, initial_parameters, probabilities
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
HELD_OUT = 360
EPOCHS = 60
BATCH = 32
LAYOUTS = {
    "x86_64": "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128",
    "aarch64": "e-m:e-p270:32:32-p271:32:32-p272:64:64-i8:8:32-i16:16:32-i64:64-i128:128-n32:64-S128-Fn32",
}
"""How LLVM lays out data on the processors that ``digits.llvm-cpu.vmfb`` has machine code for."""
FORMATS = {"x86_64": "embedded-elf-x86_64", "aarch64": "embedded-elf-arm_64"}
FEATURES = {"x86_64": "", "aarch64": "+reserve-x18"}

Labels = NDArray[np.int64]


def load() -> tuple[Array, Labels, Array, Labels]:
    """Training images and labels, then those held out; images [N, 8, 8] in 0..1."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order] / 16).astype("f4")
    labels = digits.target[order].astype("i8")
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def shifted(images: Array, rng: np.random.Generator) -> Array:
    """Each image moved by up to one pixel in both directions."""
    result = np.zeros_like(images)
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    for index, (down, right) in enumerate(rng.integers(0, 3, (len(images), 2))):
        result[index] = padded[index, down : down + 8, right : right + 8]
    return result


def train(images: Array, labels: Labels) -> Parameters:
    rng = np.random.default_rng(1)
    parameters = initial_parameters(rng)
    optimiser = Adam(parameters)
    for epoch in range(EPOCHS):
        order = rng.permutation(len(images))
        rate = 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
        for start in range(0, len(images), BATCH):
            chosen = order[start : start + BATCH]
            optimiser.step(gradients(parameters, shifted(images[chosen], rng), labels[chosen]), rate)
    return parameters


def accuracy(parameters: Parameters, images: Array, labels: Labels) -> float:
    return float((probabilities(parameters, images).argmax(axis=1) == labels).mean())


def constant(name: str, value: Array) -> str:
    shape = "x".join(map(str, value.shape))
    return f'%{name} = arith.constant dense<"0x{value.tobytes().hex().upper()}"> : tensor<{shape}xf32>'


def to_mlir(parameters: Parameters, note: str) -> str:
    """The network with its weights as an MLIR module."""
    text = (HERE / "network.mlir.in").read_text()
    constants = "\n  ".join(constant(name, value) for name, value in sorted(parameters.items()))
    return text.replace("@NOTE@", note).replace("@PARAMETERS@", constants)


def for_processors(text: str) -> str:
    """The module with both processors as targets, which the compiler's flags name one of."""
    targets = ", ".join(
        f'#hal.executable.target<"llvm-cpu", "{FORMATS[name]}", {{cpu = "generic", '
        f'cpu_features = "{FEATURES[name]}", data_layout = "{layout}", native_vector_size = 16 : i64, '
        f'target_triple = "{name}-unknown-unknown-eabi-elf"}}>'
        for name, layout in LAYOUTS.items()
    )
    lines = text.splitlines()
    aliases = [line for line in lines if line.startswith("#")]
    device = f'#hal.device.target<"local", [{targets}]> : !hal.device'
    body = [line for line in lines if not line.startswith("#")]
    return "\n".join(
        [*aliases, f"module @module attributes {{hal.device.targets = [{device}]}} {{", *body, "}"]
    )


def compile_for(target: str, text: str) -> None:
    output = HERE / f"digits.{target}.vmfb"
    command = ["iree-compile", "--iree-vm-bytecode-module-strip-source-map=true", "-o", str(output)]
    if target == "llvm-cpu":
        subprocess.run([*command, "-"], input=for_processors(text).encode(), check=True)
    else:
        source = str(HERE / "digits.mlir")
        subprocess.run([*command, f"--iree-hal-target-backends={target}", source], check=True)
    print(f"{output.name}: {output.stat().st_size} bytes")


def write_images(images: Array, labels: Labels) -> None:
    """The first held-out image of each digit, as plain-text PGM files with 16 grey levels."""
    (HERE / "images").mkdir(exist_ok=True)
    for digit in range(10):
        pixels = np.rint(images[int(np.argmax(labels == digit))] * 16).astype(int)
        rows = "\n".join(" ".join(f"{value:2d}" for value in row) for row in pixels)
        (HERE / "images" / f"{digit}.pgm").write_text(f"P2\n8 8\n16\n{rows}\n")


def main() -> None:
    images, labels, unseen, unseen_labels = load()
    parameters = train(images, labels)
    score = accuracy(parameters, unseen, unseen_labels)
    note = f"{score:.1%} of {HELD_OUT} held-out digits are right."
    print(f"training {accuracy(parameters, images, labels):.1%}; {note}")
    if score < 0.96:
        sys.exit("the accuracy is too low; nothing written")
    text = to_mlir(parameters, note)
    (HERE / "digits.mlir").write_text(text)
    write_images(unseen, unseen_labels)
    for target in ("llvm-cpu", "vmvx"):
        compile_for(target, text)


if __name__ == "__main__":
    main()
