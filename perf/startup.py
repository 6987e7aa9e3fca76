"""Times what happens before the first result: jitree against iree.runtime, in separate processes.

    python perf/startup.py [--repeat 10] [--instructions 1000 10000 100000 1000000]
    python perf/startup.py --pythons PYTHON3.11 PYTHON3.12 ... [--repeat 10]

* import: of the package, beyond `python -c 'import numpy'`.
* first result: of a small module in a new process, beyond the same; and with an empty cache folder.
* load: of a module of 100 dispatches, in a process where another module has been loaded before.
* load by size: of modules of so many VM instructions, per instruction; it must not grow.

Given are the least of several runs: processor time, which counts what the process does at its end as well,
and for processes, which alternate, also the time from start to end, which tells less on a busy machine. A
ratio is iree.runtime's time by jitree's. Needs the extra `perf`. With `--pythons` the first two are measured
for each of these interpreters, which need numpy, ml_dtypes, numba, llvmlite and iree-base-runtime.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import jitree

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
SMALL = FOLDER / "programs" / "call.vmfb"
DISPATCHES = FOLDER / "programs" / "dispatches.vmfb"

OWN_RESULT = f"""
import numpy, jitree
session = jitree.Session('local-sync')
x = numpy.ones(16, numpy.float32)
numpy.asarray(session.load({str(SMALL)!r}).add(x, x))
"""
PEER_RESULT = f"""
import numpy, iree.runtime as rt
config = rt.Config('local-sync')
context = rt.SystemContext(config=config)
context.add_vm_module(rt.VmModule.mmap(context.instance, {str(SMALL)!r}))
x = numpy.ones(16, numpy.float32)
context.modules.call.add(x, x).to_host()
"""
PROGRAMS = {
    "numpy": "import numpy",
    "import": "import numpy, jitree; jitree.Session",
    "import, iree.runtime": "import numpy, iree.runtime",
    "first result": OWN_RESULT,
    "first result, empty cache": OWN_RESULT,
    "first result, iree.runtime": PEER_RESULT,
}
PEERS = {
    "import": "import, iree.runtime",
    "first result": "first result, iree.runtime",
    "first result, empty cache": "first result, iree.runtime",
}
"""What to compare with."""


def run_process(python: str, program: str, environment: Mapping[str, str]) -> tuple[float, float]:
    """Seconds of the processor, and from start to end."""
    start = time.perf_counter()
    process = subprocess.Popen([python, "-c", program], env=environment, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, program)
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start


def measure_processes(python: str, repeat: int) -> dict[str, tuple[float, float]]:
    """As :func:`run_process` for each program, the least of several runs. The first run of each only fills
    caches."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    base = {**os.environ, "PYTHONPATH": path}
    base.pop("PYTHONDONTWRITEBYTECODE", None)
    base["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads take processor time that varies
    best = dict.fromkeys(PROGRAMS, (float("inf"), float("inf")))
    for turn in range(repeat + 1):
        for name, program in PROGRAMS.items():
            with tempfile.TemporaryDirectory() as empty:
                extra = {"JITREE_CACHE_DIR": empty} if "empty" in name else {}
                seconds = run_process(python, program, {**base, **extra})
            if turn:
                best[name] = min(best[name][0], seconds[0]), min(best[name][1], seconds[1])
    return best


def least(action: Callable[[], object], repeat: int) -> float:
    """Seconds of the processor."""
    times = []
    for _ in range(repeat):
        start = time.thread_time()
        action()
        times.append(time.thread_time() - start)
    return min(times)


def own_load(module: Path | bytes) -> None:
    with jitree.Session("local-sync", tier="fast") as session:
        session.load(module)


def peer_load(module: Path) -> None:
    import iree.runtime

    config = iree.runtime.Config("local-sync")
    context = iree.runtime.SystemContext(config=config)
    context.add_vm_module(iree.runtime.VmModule.mmap(context.instance, str(module)))


def straight_line(instructions: int) -> bytes:
    """A module of so many instructions, in functions of a hundred."""
    sys.path.insert(0, str(ROOT))
    from tests.assembler import Assembler

    body = ["%i1 = const.i32 1", *["%i0 = add.i32 %i0, %i1"] * 98, "return [%i0]"]
    module = Assembler("straight")
    for number in range(max(1, instructions // 100)):
        module.function(f"f{number}", "0i_i", "\n".join(body))
    return module.build()


def print_processes(python: str, repeat: int) -> None:
    """Prints what an interpreter's processes take."""
    times = measure_processes(python, repeat)
    numpy = times["numpy"]
    print(f"import of numpy: {numpy[0] * 1e3:.1f} ms of the processor, {numpy[1] * 1e3:.1f} ms; beyond it:")
    for name, peer in PEERS.items():
        for kind, unit in enumerate(("of the processor", "from start to end")):
            own, theirs = times[name][kind] - numpy[kind], times[peer][kind] - numpy[kind]
            print(line(name, own, theirs, unit), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="times starts: jitree against iree.runtime")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--instructions", type=int, nargs="*", default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--pythons", nargs="+", default=[], help="interpreters to measure")
    options = parser.parse_args()
    for python in options.pythons:
        version = subprocess.check_output([python, "-c", "import sys; print(sys.version)"], text=True)
        print(f"Python {version.split()[0]}, {python}")
        print_processes(python, options.repeat)
    if options.pythons:
        return 0
    print_processes(sys.executable, options.repeat)
    own_load(DISPATCHES)
    own = least(partial(own_load, DISPATCHES), options.repeat)
    print(line("load of 100 dispatches", own, least(partial(peer_load, DISPATCHES), options.repeat)))
    for count in options.instructions:
        module = straight_line(count)
        seconds = least(partial(own_load, module), 3)
        print(f"load of {count:7d} instructions  jitree {seconds / count * 1e6:7.2f} us each")
    return 0


def line(name: str, own: float, peer: float, unit: str = "") -> str:
    ratio = f"ratio {peer / own:6.3f}" if own > 0 else "ratio      -"  # beyond numpy, on a busy machine
    times = f"iree.runtime {peer * 1e3:7.1f} ms  jitree {own * 1e3:7.1f} ms"
    return f"{name:27s} {times}  {ratio}  {unit}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
