"""Shows the memory that trained models take beside onnxruntime, and what compiling their kernels takes.

    python perf/trained_memory.py [--threads 1] [--calls 20] [--processors 2] [--only REGEX]
        [--folder DIRECTORY]

Each runtime has a separate process, which loads the model of `trained.py` and calls it. A peak is the most
resident memory of that process (VmHWM of Linux), with Python, numpy and the runtime itself; jitree's is the
greater of a process with an empty cache and one with a full one. The processes that compile kernels meanwhile
are not in it; `compiled` is how long `jitree cache warm` takes with an empty cache on so many processors (0:
all). A ratio is onnxruntime's peak over jitree's (above 1: jitree takes less). Needs what `trained.py` needs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trained
from comparison import summary

VMVX = {"vmvx": trained.TARGETS["vmvx"]}


def peak() -> int:
    """Bytes of resident memory that this process has had at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise OSError("this system does not say how much memory a process has had")


def member(runtime: str, file: Path, name: str, options: argparse.Namespace) -> None:
    """What a process of one runtime does; prints its peak."""
    value = trained.argument(trained.MODELS[name].shape, name)
    call: Callable[[], Any]
    if runtime == "onnxruntime":
        call = trained.of_onnxruntime(file, value, options.threads)
    else:
        import jitree

        device = "local-sync" if options.threads == 1 else f"local-task://?threads={options.threads}"
        call = trained.of_jitree(jitree.Session(device), file, value)
    for _ in range(options.calls):
        call()
    print(peak())


def measured(runtime: str, file: Path, name: str, options: argparse.Namespace, cache: str) -> int:
    """The peak of a new process."""
    command = [sys.executable, __file__, "--member", runtime, str(file), name]
    command += ["--threads", str(options.threads), "--calls", str(options.calls)]
    environment = {**os.environ, "JITREE_CACHE_DIR": cache}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=600)
    return int(done.stdout.split()[-1])


def compile_seconds(file: Path, cache: str, processors: int) -> float:
    command = [sys.executable, "-m", "jitree", "cache", "warm", str(file)]
    environment = {**os.environ, "JITREE_CACHE_DIR": cache}
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(every)[: processors or None])
    try:
        start = time.perf_counter()
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=600)
        return time.perf_counter() - start
    finally:
        os.sched_setaffinity(0, every)


def compare(name: str, files: dict[str, Path], options: argparse.Namespace) -> float:
    """onnxruntime's peak over jitree's."""
    with tempfile.TemporaryDirectory() as cold, tempfile.TemporaryDirectory() as cache:
        seconds = compile_seconds(files["vmvx"], cache, options.processors)
        own = max(measured("jitree", files["vmvx"], name, options, folder) for folder in (cold, cache))
        peer = measured("onnxruntime", files["onnx"], name, options, cache)
    sizes = f"jitree {own / 1e6:6.1f} MB  onnxruntime {peer / 1e6:6.1f} MB  ratio {peer / own:.3f}"
    print(f"{name:12s} {sizes}  compiled in {seconds:.1f} s", flush=True)
    return peer / own


def main() -> int:
    parser = argparse.ArgumentParser(description="shows the memory of trained models")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--processors", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path, default=Path("trained-models"))
    parser.add_argument("--member", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        runtime, file, name = options.member
        member(runtime, Path(file), name, options)
        return 0
    options.folder.mkdir(exist_ok=True)
    ratios = []
    for name, source, shape in trained.available(options.only, options.folder):
        files = trained.compiled(options.folder, name, source, shape, VMVX)
        if "vmvx" in files:
            ratios.append(compare(name, files, options))
    print(summary(ratios))
    return 0


if __name__ == "__main__":
    sys.exit(main())
