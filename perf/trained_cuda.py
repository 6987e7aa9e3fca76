"""Times trained models on a GPU: jitree against the cuda driver of iree.runtime, torch and onnxruntime.

    python perf/trained_cuda.py [--seconds 2] [--only REGEX] [--folder DIRECTORY] [--kernels 5]

The models are those of trained.py, compiled for cuda and kept in the folder; one whose files lie there needs
no package and no compiler. Times are of a call with a numpy array, result read back to numpy, all measured
alternately in one run. torch runs the ONNX graph node by node (onnx_torch.py) with TF32 off, as IREE's
kernels compute; onnxruntime takes part where it has its CUDA provider. `busy` is the time in which at least
one kernel or copy of the call is on the GPU, from CUPTI's records by torch.profiler: what a call takes beyond
it are launches, waits and Python, what differs in it are kernels. `error` is the largest difference from
torch's result over the largest value of that. `--kernels` lists those with the most time on both sides.
Needs the extras `perf` and `cuda`, torch and onnx.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from cases import Case, peer_function
from comparison import alternate
from onnx_torch import Graph
from trained import arguments_of, measure_all, of_jitree, program_name

import jitree

_TARGETS = {"cuda": ("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80")}
_PROFILED_CALLS = 20
_WARM_CALLS = 10
"""After which a call takes the way that it takes from then on."""

Call = Callable[[], Any]


class Busy(NamedTuple):
    """Of a call on the GPU."""

    seconds: float
    launches: float
    """Kernels and copies."""
    kernels: Counter[str]
    """Seconds by name."""


def of_torch(model: Path, value: np.ndarray[Any, Any]) -> Call:
    graph = Graph(model, value, "cuda")
    return lambda: graph(torch.from_numpy(value).to("cuda")).cpu().numpy()


def of_iree(case: Case, value: np.ndarray[Any, Any]) -> Call:
    function, _ = peer_function(case, "cuda")
    return lambda: function(value).to_host()


def of_onnxruntime(model: Path, value: np.ndarray[Any, Any]) -> Call | None:
    """None where it has no provider for CUDA, or that does not load."""
    try:
        import onnxruntime
    except ImportError:
        return None
    provider = ("CUDAExecutionProvider", {"use_tf32": 0})
    if provider[0] not in onnxruntime.get_available_providers():
        return None
    session = onnxruntime.InferenceSession(str(model), providers=[provider])
    if provider[0] not in session.get_providers():
        return None
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: value})[0]


def busy(call: Call) -> Busy:
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(_PROFILED_CALLS):
            call()
        torch.cuda.synchronize()
    found = [event for event in profiled.events() if event.device_type == DeviceType.CUDA]
    kernels = Counter[str]()
    for event in found:
        kernels[event.name] += event.time_range.elapsed_us() / 1e6 / _PROFILED_CALLS
    covered = union((event.time_range.start, event.time_range.end) for event in found)
    return Busy(covered / 1e6 / _PROFILED_CALLS, len(found) / _PROFILED_CALLS, kernels)


def union(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of what the intervals cover together."""
    covered, end = 0.0, -np.inf
    for start, stop in sorted(intervals):
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return covered


def measure(
    name: str, files: dict[str, Path], value: np.ndarray[Any, Any], options: argparse.Namespace
) -> dict[str, float]:
    """Prints a model's line; its ratios: times of the others over that of jitree."""
    with jitree.Session(device="cuda") as session:
        own = of_jitree(session, files["cuda"], value)
        (loaded,) = session.modules.values()
        case = Case(name, files["cuda"], program_name(loaded), ())
        calls = {
            "jitree": own,
            "iree.runtime": of_iree(case, value),
            "torch": of_torch(files["onnx"], value),
        }
        other = of_onnxruntime(files["onnx"], value)
        if other is not None:
            calls["onnxruntime"] = other
        expected = calls["torch"]()
        error = np.abs(own() - expected).max() / np.abs(expected).max()
        for call in calls.values():
            for _ in range(_WARM_CALLS):
                call()
        times = dict(zip(calls, alternate(list(calls.values()), options.seconds), strict=True))
        works = {runtime: busy(calls[runtime]) for runtime in ("jitree", "torch")}
    texts = [f"{runtime} {seconds * 1e3:7.2f}" for runtime, seconds in times.items()]
    for runtime, work in works.items():
        share = work.seconds / times[runtime]
        texts.append(f"{runtime} busy {work.seconds * 1e3:7.3f} ({share:4.0%}, {work.launches:.0f} launches)")
    print(f"{name:12s}", "  ".join(texts), f" ms  error {error:.1e}", flush=True)
    for runtime, work in works.items():
        for kernel, seconds in work.kernels.most_common(options.kernels):
            print(f"    {runtime:8s} {seconds * 1e6:9.1f} us  {kernel[:90]}", flush=True)
    own_time = times.pop("jitree")
    ratios = {f"wall of {runtime} / jitree": seconds / own_time for runtime, seconds in times.items()}
    if all(work.seconds for work in works.values()):  # CUPTI may be another tool's
        ratios["kernels of torch / jitree"] = works["torch"].seconds / works["jitree"].seconds
    return ratios


def main() -> int:
    options = arguments_of("times trained models on a GPU", kernels=0)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    measure_all(_TARGETS, "cuda", measure, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
