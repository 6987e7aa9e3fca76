"""Times a call of 100 dispatches as the compilers of January 2024 and of 3.13 have it.

    python perf/older_releases.py [--seconds 1.0] [--peer PYTHON]

Modules of the first half of 2024 push the arguments of each dispatch by calls of their own (ABI 0.2). The
figure is the median time of the module of 3.13 over that of the older one, both by jitree, alternately in one
run. `--peer` names a Python that has `iree-runtime==20240129.785` and `numpy<2`, which cannot be installed
beside a newer one. That Python runs the older module in a process of its own. The second figure is its median
time over that of jitree (above 1: jitree is faster).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

PROGRAMS = Path(__file__).parent / "programs"
OLD, NEW = PROGRAMS / "dispatches_20240129.vmfb", PROGRAMS / "dispatches.vmfb"
DEVICES = ("local-sync", "local-task")

PEER = f"""
import statistics, sys, time
import numpy
import iree.runtime as rt
config = rt.Config(sys.argv[1])
context = rt.SystemContext(config=config)
context.add_vm_module(rt.VmModule.mmap(context.instance, {str(OLD)!r}))
x = rt.asdevicearray(config.device, numpy.ones(64, numpy.float32))
times, end = [], time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < end:
    start = time.perf_counter()
    context.modules.dispatches.chain(x).to_host()
    times.append(time.perf_counter() - start)
print(statistics.median(times))
"""


def own_call(module: Path, device: str) -> Callable[[], object]:
    import jitree

    session = jitree.Session(device)
    chain, x = session.load(module).chain, session.to_device(np.ones(64, np.float32))
    return lambda: np.asarray(chain(x))


def own_times(device: str, seconds: float) -> tuple[float, float]:
    """Median seconds of a call of the older module, and of the newer one."""
    calls = own_call(OLD, device), own_call(NEW, device)
    times: tuple[list[float], list[float]] = [], []
    end = time.perf_counter() + 2 * seconds
    while time.perf_counter() < end:
        for call, found in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def peer_time(python: str, device: str, seconds: float) -> float:
    command = [python, "-c", PEER, device, str(seconds)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description="times modules of older releases")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--peer", help="a Python with iree-runtime==20240129.785")
    options = parser.parse_args()
    for device in DEVICES:
        old, new = own_times(device, options.seconds)
        line = f"{device:10s}  20240129 {old * 1e6:7.1f} us  3.13 {new * 1e6:7.1f} us  ratio {new / old:6.2f}"
        if options.peer:
            peer = peer_time(options.peer, device, options.seconds)
            line += f"  iree.runtime {peer * 1e6:7.1f} us  ratio {peer / old:6.2f}"
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
