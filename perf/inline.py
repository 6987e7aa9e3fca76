"""Times programs without a device (``--iree-execution-model=inline-dynamic``) against iree-benchmark-module.

    python perf/inline.py [--seconds 0.5] [--rounds 5] [--peer PATH]

``iree.runtime`` of Python has no modules ``hal_inline`` and ``hal_loader``, so the peer is the tool, which is
a process, with inputs of the same shapes. Both are measured in turn, round by round; the figure is the median
of the peer's rounds over that of jitree's (above 1: jitree is faster). ``--peer`` is the tool, by default the
one that the Python environment or the path has.

The module is `programs/models.mlir` by iree-compile 3.13.0 with --iree-execution-model=inline-dynamic
--iree-hal-target-backends=llvm-cpu --iree-llvmcpu-target-cpu=generic --iree-llvmcpu-debug-symbols=false
--iree-vm-bytecode-module-strip-source-map.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from comparison import row, summary

MODULE = Path(__file__).parent / "programs" / "inline.vmfb"
TOOL = "iree-benchmark-module"
PROGRAMS = {
    "gru": ("128x96xf32", "96x288xf32", "96x288xf32", "288xf32"),
    "heat": ("128x128xf32",),
    "separable": ("1x56x56x32xf32", "3x3x1x32xf32", "1x1x32x64xf32", "3x3x1x64xf32", "1x1x64x128xf32"),
}
VALUE = 0.01
"""Of all elements, as the tool takes it."""


def own_call(name: str) -> Callable[[], object]:
    import jitree

    function = jitree.Session("local-sync").load(MODULE)[name]
    shapes = [tuple(map(int, text.split("x")[:-1])) for text in PROGRAMS[name]]
    arguments = [np.full(shape, VALUE, np.float32) for shape in shapes]
    return lambda: function(*arguments)


def own_time(call: Callable[[], object], seconds: float) -> float:
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peer_time(tool: str, name: str, seconds: float) -> float:
    inputs = [f"--input={shape}={VALUE}" for shape in PROGRAMS[name]]
    command = [
        tool, f"--module={MODULE}", f"--function={name}", *inputs, f"--benchmark_min_time={seconds}s",
        "--benchmark_format=json", "--benchmark_time_unit=us",
    ]  # fmt: skip
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = json.loads(text[text.index("{") :])["benchmarks"][0]
    return float(found["real_time"]) * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}[found["time_unit"]]


def compare(tool: str, name: str, seconds: float, rounds: int) -> float:
    call = own_call(name)
    own_time(call, seconds)  # pools are filled
    pairs = [(peer_time(tool, name, seconds), own_time(call, seconds)) for _ in range(rounds)]
    peer, own = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(row(name, peer, own).replace("iree.runtime", TOOL))
    return peer / own


def find_tool(chosen: str | None) -> str:
    beside = Path(sys.executable).with_name(TOOL)
    found = chosen or (str(beside) if beside.exists() else shutil.which(TOOL))
    if found is None:
        sys.exit(f"{TOOL} is not installed (pip install iree-base-runtime); --peer says where it is")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="times programs without a device")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each side in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", help=f"the path of {TOOL}")
    options = parser.parse_args(arguments)
    tool = find_tool(options.peer)
    print(summary([compare(tool, name, options.seconds, options.rounds) for name in PROGRAMS]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
