"""Shows the memory that trained models take beside onnxruntime, and what compiling their kernels takes.

    python perf/trained_memory.py [--threads 1] [--calls 20] [--processors 2] [--only REGEX]
        [--folder DIRECTORY]

Each runtime has a separate process, which loads the model of `trained.py` and calls it. A peak is the most
resident memory of that process (VmHWM of Linux), with Python, numpy and the runtime itself; jitree's is the
greater of a process with an empty cache and one with a full one. The processes that compile kernels meanwhile
are not in it; `compiled` is how long all kernels take that are compiled at once, on so many processors (0:
all). A ratio is onnxruntime's peak over jitree's (above 1: jitree takes less). Needs what `trained.py` needs.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trained
from comparison import summary
from peers import of_onnxruntime

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
        call = of_onnxruntime(file, [value], options.threads)
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


def compile_kernels(file: Path, processors: int) -> None:
    """What a process does that compiles a model's kernels, as the builder of images does; prints how long it
    took, and what all its processes took of processors."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: processors or None])
    start = time.perf_counter()
    gc.disable()
    from jitree.codegen.image.build import build, generate
    from jitree.codegen.image.compile import host_target
    from jitree.loaders.vmvx import kernels as vmvx_kernels
    from jitree.vmfb.decode import BytecodeModule

    for executable in vmvx_kernels.executables(BytecodeModule.load(file).module):
        for recipe in vmvx_kernels.recipes(executable):
            build(generate(recipe), host_target())
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(time.perf_counter() - start, sum(usage.ru_utime + usage.ru_stime for usage in usages))


def compile_times(file: Path, processors: int) -> list[float]:
    """What :func:`compile_kernels` prints, of a new process."""
    command = [sys.executable, __file__, "--compile", str(file), "--processors", str(processors)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
    return [float(text) for text in done.stdout.split()]


def fill(cache: str, file: Path) -> None:
    """Builds all machine code that the model takes."""
    command = [sys.executable, "-m", "jitree", "cache", "warm", str(file)]
    environment = {**os.environ, "JITREE_CACHE_DIR": cache}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=600)


def compare(name: str, files: dict[str, Path], options: argparse.Namespace) -> float:
    """onnxruntime's peak over jitree's."""
    with tempfile.TemporaryDirectory() as cold, tempfile.TemporaryDirectory() as cache:
        wall, busy = compile_times(files["vmvx"], options.processors)
        fill(cache, files["vmvx"])
        own = max(measured("jitree", files["vmvx"], name, options, folder) for folder in (cold, cache))
        peer = measured("onnxruntime", files["onnx"], name, options, cache)
    sizes = f"jitree {own / 1e6:6.1f} MB  onnxruntime {peer / 1e6:6.1f} MB  ratio {peer / own:.3f}"
    print(f"{name:12s} {sizes}  compiled in {wall:.1f} s ({busy:.1f} of processors)", flush=True)
    return peer / own


def main() -> int:
    parser = argparse.ArgumentParser(description="shows the memory of trained models")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--processors", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path, default=Path("trained-models"))
    parser.add_argument("--member", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--compile", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        compile_kernels(options.compile, options.processors)
        return 0
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
