"""Times builds of trained models on jitree: the flags of the compiler that docs/compiling.md is about.

    python perf/builds.py [--only REGEX] [--folder DIRECTORY] [--rounds 10]

The models are those of trained.py. A figure is the least time of the processor of a call on one thread, all
builds in turn. Builds that the compiler refuses are left out.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trained import COMPILER_SECONDS, argument, available, compiled, of_jitree, run

import jitree

_LOCAL = "--iree-hal-target-device=local"
_VMVX, _LLVM = (f"--iree-hal-local-target-device-backends={name}" for name in ("vmvx", "llvm-cpu"))
_HOST = "--iree-llvmcpu-target-cpu=host"
BUILDS = {
    "vmvx": (_VMVX,),
    "vmvx -O2": (_VMVX, "--iree-opt-level=O2"),
    "vmvx -O3": (_VMVX, "--iree-opt-level=O3"),
    "vmvx data tiling": (_VMVX, "--iree-opt-data-tiling"),
    "vmvx microkernels": (_VMVX, "--iree-vmvx-enable-microkernels"),
    "llvm-cpu generic": (_LLVM, "--iree-llvmcpu-target-cpu=generic"),
    "llvm-cpu": (_LLVM, _HOST),
    "llvm-cpu -O3": (_LLVM, _HOST, "--iree-opt-level=O3"),
    "both, fastest": (_LLVM, _VMVX, _HOST, "--iree-hal-link-executables=false"),
}
_CALLS = 3


def imported(folder: Path, name: str, source: Path, shape: tuple[int, ...]) -> Path:
    """The program of a model, as the compiler takes it."""
    model = compiled(folder, name, source, shape, {})["onnx"]
    program = model.with_suffix(".mlir")
    if not program.exists():
        run("iree-import-onnx", str(model), "--opset-version=17", "-o", str(program))
    return program


def built(folder: Path, name: str, program: Path, flags: tuple[str, ...]) -> Path | None:
    module = folder / f"{program.stem}.{re.sub(r'[^a-zA-Z0-9]+', '_', name)}.vmfb"
    try:
        if not module.exists():
            command = ("iree-compile", str(program), "-o", str(module), _LOCAL, *flags)
            subprocess.run(command, check=True, timeout=COMPILER_SECONDS, stderr=subprocess.DEVNULL)
    except (subprocess.SubprocessError, OSError):
        print(f"  {name:18s} does not compile")
        return None
    return module


def least(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of the processor."""
    found = {name: float("inf") for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(_CALLS):
                start = time.process_time()
                call()
                found[name] = min(found[name], time.process_time() - start)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="times builds of trained models")
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path, default=Path("trained-models"))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    for name, source, shape in available(options.only, options.folder):
        print(name, flush=True)
        program = imported(options.folder, name, source, shape)
        calls = {}
        for build, flags in BUILDS.items():
            module = built(options.folder, build, program, flags)
            if module is not None:
                prefer = "fastest" if _LLVM in flags and _VMVX in flags else None
                session = jitree.Session("local-sync", tier="native", prefer=prefer)
                calls[build] = of_jitree(session, module, argument(shape, name))
                calls[build]()
        for build, seconds in least(calls, options.rounds).items():
            print(f"  {build:18s} {seconds * 1e3:8.2f} ms", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
