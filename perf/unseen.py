"""Times models that nothing here was tuned for: jitree on portable VMVX files, against onnxruntime, OpenVINO
and MNN on the ONNX files, as far as they are installed.

    python perf/unseen.py [--only REGEX] [--seconds 1] [--threads 1] [--folder DIRECTORY]

The models are those of `unseen_models.py`, with random weights, some also quantised by onnxruntime. Each is
written and compiled by `jitree compile` once and kept in the folder. All calls are made in turn, for numpy
arrays in and out; on one thread a figure is the least processor time of a call, so that it holds on a
busy machine, and on several the least time. Beside each is the error against 64 bits, with `!` where a peer
is less exact and does not count for `best` (`exact.py`); `first` is what load and first call take with an
empty cache. Needs the extra `compile`, onnxruntime and onnx.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from apart import Timed
from comparison import summary
from exact import compared, reference
from peers import installed
from trained import device, program_name
from unseen_models import MODELS, QUANTISED

import jitree

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]
_CALLS = 3
"""Calls in a turn after one that is not timed: the others have emptied the caches."""
_WORDS = 2000
"""Numbers of words are less."""
_EIGHT_BITS = "_i8"


def arguments_of(model: Path) -> dict[str, Array]:
    import onnx

    random, found = np.random.default_rng(1), {}
    for value in onnx.load(model).graph.input:
        kind = value.type.tensor_type
        shape = [size.dim_value for size in kind.shape.dim]
        is_whole = kind.elem_type == onnx.TensorProto.INT64
        given = random.integers(0, _WORDS, shape) if is_whole else random.standard_normal(shape)
        found[value.name] = given.astype(np.int64 if is_whole else np.float32)
    return found


def quantised(model: Path, target: Path) -> Path:
    """Weights and activations in eight bits, with signs, as QuantizeLinear and DequantizeLinear say."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = [arguments_of(model)]

        def get_next(self) -> dict[str, Array] | None:
            return self._left.pop() if self._left else None

    quantize_static(
        str(model), str(target), Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
        op_types_to_quantize=["Conv", "MatMul", "Gemm", "Add"],
    )  # fmt: skip
    return target


def files_of(name: str, folder: Path) -> tuple[Path, Path]:
    """The model and its module. Runtimes round quantised models differently: these are not compared here."""
    model, module = (folder / f"{name}.{suffix}" for suffix in ("onnx", "vmfb"))
    of = name.removesuffix(_EIGHT_BITS)
    if not model.exists():
        given = MODELS[of](folder / f"{of}.onnx")
        model = given if of == name else quantised(given, model)
    if not module.exists():
        jitree.compile(model, module, check=of == name)
    return model, module


def of_jitree(module: Path, values: Sequence[Array], threads: int) -> Call:
    session = jitree.Session(device(threads), tier="native")
    loaded = session.load(module)
    function = loaded[program_name(loaded)]

    def call() -> Any:
        results = function(*values)
        return np.asarray(results[0] if isinstance(results, tuple) else results)

    return call


def of_peers(model: Path, values: Sequence[Array], threads: int) -> dict[str, Call]:
    """Calls of the other runtimes. MNN's converter ends the process for models of eight bits."""
    is_ending = model.stem.endswith(_EIGHT_BITS)
    made = {name: make for name, make in installed().items() if not (is_ending and name.startswith("MNN"))}
    return {name: make(model, values, threads) for name, make in made.items()}


def least_seconds(calls: Mapping[str, Call], options: argparse.Namespace) -> dict[str, float]:
    clock = time.process_time if options.threads == 1 else time.perf_counter
    taken: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + options.seconds * len(calls)
    while time.perf_counter() < end or len(taken["jitree"]) < 2 * _CALLS:
        for name, call in calls.items():
            call()
            for _ in range(_CALLS):
                start = clock()
                call()
                taken[name].append(clock() - start)
    return {name: min(times) for name, times in taken.items()}


def measure(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Prints a row, and gives the ratio to each other runtime and to the fastest."""
    model, module = files_of(name, options.folder)
    values = list(arguments_of(model).values())
    start = time.perf_counter()
    calls = {"jitree": of_jitree(module, values, options.threads)}
    results = {"jitree": calls["jitree"]()}
    first = time.perf_counter() - start
    for runtime, call in of_peers(model, values, options.threads).items():
        calls[runtime], results[runtime] = call, np.asarray(call())
    times = least_seconds(calls, options)
    timed = {runtime: Timed(results[runtime], seconds) for runtime, seconds in times.items()}
    text, ratios = compared(timed, reference(model, values))
    print(f"{name:18s}", text, f" first {first:.1f} s", flush=True)
    return ratios


def parser_of(description: str, folder: str, seconds: float) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(folder))
    return parser


def chosen(names: Iterable[str], options: argparse.Namespace) -> list[str]:
    """Those that are asked for; there is a folder for them then."""
    options.folder.mkdir(exist_ok=True)
    return [name for name in names if re.search(options.only, name)]


def main() -> int:
    options = parser_of("times models that nothing was tuned for", "unseen-models", 1.0).parse_args()
    ratios: dict[str, list[float]] = {}
    for name in chosen((*MODELS, *(f"{name}{_EIGHT_BITS}" for name in QUANTISED)), options):
        for what, ratio in measure(name, options).items():
            ratios.setdefault(what, []).append(ratio)
    for what, found in ratios.items():
        print(f"{what}: {summary(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
