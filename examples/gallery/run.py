"""Runs all examples of the gallery and prints a table: results, errors against the original library, times.

    python examples/gallery/run.py
    python examples/gallery/run.py --target=cuda --device=cuda --only=voice,notes
    python examples/gallery/run.py --seconds=0        without times of calls

``error``: the largest difference from what the original library computed when the module was made, over the
largest value. ``first``: seconds of a process from its start to its first result, with an empty cache and
with the cache of the one before. ``call``: milliseconds of a call on the same arguments; beside it what
onnxruntime takes with as many threads, where it is installed and `prepare.py` has left the ONNX file. The
exit status is 1 if an error is too large.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from prepare import HERE, RECIPES, expected_path, kept_of, module_path, reference_path, weights_path

import jitree

Array = np.ndarray[Any, Any]


def open_call(
    name: str, target: str, session: jitree.Session
) -> tuple[Callable[[], list[Array]], list[Array]]:
    """What calls a module with its example, and the results of the original library."""
    model = session.load(module_path(name, target))
    with np.load(expected_path(name)) as file:
        kept = dict(file)
    arguments = in_order(kept, "argument")
    if weights_path(name).exists():
        with np.load(weights_path(name)) as file:
            arguments = [*(session.to_device(file[one]) for one in sorted(file)), *arguments]

    def call() -> list[Array]:
        results = model.main(*arguments)
        return [np.asarray(one) for one in (results if isinstance(results, tuple) else (results,))]

    return call, in_order(kept, "result")


def in_order(kept: dict[str, Array], kind: str) -> list[Any]:
    return [kept[f"{kind}{number}"] for number in range(sum(key.startswith(kind) for key in kept))]


def open_session(name: str, device: str) -> jitree.Session:
    if name != "similar":
        return jitree.Session(device)
    from similar.similar import package

    weights = {"wordllama": package() / "weights" / "l2_supercat_256.safetensors"}
    return jitree.Session(device, parameters=weights)


_MISSING = "is not there: python examples/gallery/prepare.py "


def error_of(results: Sequence[Array], expected: Sequence[Array]) -> float:
    return max(
        float(np.abs(kept_of(result).astype(np.float64) - one).max() / np.abs(one).max())
        for result, one in zip(results, expected, strict=True)
    )


def of_onnxruntime(name: str, threads: int) -> Callable[[], Any]:
    """The ONNX file that the package has, with the same arguments."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(reference_path(name)), options, providers=["CPUExecutionProvider"]
    )
    with np.load(expected_path(name)) as file:
        arguments = in_order(dict(file), "argument")
    named = dict(zip((one.name for one in session.get_inputs()), arguments, strict=True))
    return lambda: session.run(None, named)


def milliseconds(call: Callable[[], Any], seconds: float) -> float:
    """The median of the calls of that time."""
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def first_result(name: str, target: str, device: str, cache: str) -> float:
    """Seconds of a process that computes one."""
    command = [sys.executable, str(HERE / "run.py"), "--first", name, "--target", target, "--device", device]
    start = time.perf_counter()
    subprocess.run(
        command, check=True, env={**os.environ, "JITREE_CACHE_DIR": cache}, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def printed(example: str, target: str, device: str) -> str:
    """The first line that the example prints."""
    command = [sys.executable, str(HERE / example / f"{example}.py"), "--device", device]
    if example == "file_type":
        module = f"file_type_bf16.{'cuda' if target == 'cuda' else 'llvm-cpu'}.vmfb"
        command += ["--module", module, str(HERE / "file_type" / "file_type.py")]
    else:
        command += ["--target", target]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode and "NOT_FOUND; no such file" in ended.stderr:
        return _MISSING + example
    lines = (ended.stdout or ended.stderr).splitlines()
    return (lines[0] if ended.stdout else lines[-1]).replace(f"{HERE}/", "")


def row(name: str, options: argparse.Namespace) -> bool:
    """Prints what is known of a module; whether its error is small enough."""
    target = options.target
    if target not in RECIPES[name].targets:
        return True
    if not module_path(name, target).exists():
        print(f"{name:15} {_MISSING}{RECIPES[name].example}")
        return True
    if name == "similar" and importlib.util.find_spec("wordllama") is None:
        print(f"{name:15} has its weights in a package: pip install --no-deps wordllama")
        return True
    with tempfile.TemporaryDirectory() as cache:
        firsts = [first_result(name, target, options.device, cache) for _ in ("cold", "warm")]
    with open_session(name, options.device) as session:
        call, expected = open_call(name, target, session)
        error = error_of(call(), expected)
        own = f"{milliseconds(call, options.seconds):8.2f}" if options.seconds else f"{'-':>8}"
    other = f"{'-':>8}"
    if options.seconds and reference_path(name).exists():
        try:
            threads = 1 if options.device == "local-sync" else len(os.sched_getaffinity(0))
            other = f"{milliseconds(of_onnxruntime(name, threads), options.seconds):8.2f}"
        except ImportError:
            pass
    good = error <= RECIPES[name].tolerance
    note = "" if good else f"  above {RECIPES[name].tolerance:.0e}"
    print(f"{name:15} {error:8.1e} {firsts[0]:6.1f} {firsts[1]:6.1f} {own} {other}{note}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description="runs the examples of the gallery")
    parser.add_argument("--device", default="local-task")
    parser.add_argument("--target", default="vmvx", help="vmvx, llvm-cpu or cuda")
    parser.add_argument("--only", default="", help="examples, with commas between them")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first:
        with open_session(options.first, options.device) as session:
            open_call(options.first, options.target, session)[0]()
        return 0
    wanted = options.only.split(",") if options.only else [recipe.example for recipe in RECIPES.values()]
    print(f"{'module':15} {'error':>8} {'first: cold, warm s':>13} {'call ms':>8} {'onnxruntime':>8}")
    good = [row(name, options) for name, recipe in RECIPES.items() if recipe.example in wanted]
    print()
    for example in dict.fromkeys(wanted):
        print(f"{example:15} {printed(example, options.target, options.device)}", flush=True)
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
