"""Measures on one node what limits many replicas, and says what it comes to for 10, 1,000 and 100,000.

    python perf/scale.py [--repeat 5] [--parameters 16e9] [--link 25e9] [--store 400e9] [--node 8]

* artefacts: bytes of the package, of a module, of the compiled code that the cache keeps for it, of a
  pickled function.
* starts: seconds of the processor until a new process has a first result, beyond `import numpy`; with an
  empty cache, a warm one, and for a function that comes as a pickle; and where that waits until all of the
  module is machine code (`tier="native"`). The least of several runs, which alternate; and by their medians
  what the whole process takes with the pickle, in times of a warm start.
* parameters: what 8 processes take of the memory that they share (PSS), and bytes a second of their digest.

The rest is arithmetic: `--parameters` bytes for each node of `--node` replicas, over links of `--link` bits a
second from one store of `--store`.
"""

from __future__ import annotations

import argparse
import base64
import math
import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import numpy as np
from startup import run_process

import jitree
from jitree.params.irpa import plan, write
from jitree.params.provider import array_entry

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "examples" / "digits"
SHARED = ROOT / "tests" / "data" / "programs" / "shared.vmfb"
PROCESSES = 8
REPLICAS = (10, 1000, 100_000)
CALL = (
    "import base64, pickle, numpy, jitree; x = numpy.zeros((8, 8), numpy.float32); "
    "numpy.asarray({function}(x))"
)
OPENED = "jitree.load({path!r}, device='local-sync').classify"
NATIVE = "jitree.load({path!r}, device='local-sync', tier='native').classify"
PICKLED = "pickle.loads(base64.b64decode({data!r}))"


def bytes_under(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def environment(cache: Path) -> Mapping[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "JITREE_CACHE_DIR": str(cache)}
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    return given


def starts(module: Path, repeat: int, folder: Path) -> dict[str, float]:
    """Seconds of the processor for each way to start, the bytes that the cache has then, and the whole
    process with a pickle by that of a warm start."""
    function = jitree.load(module, device="local-sync").classify
    data = base64.b64encode(pickle.dumps(function)).decode()
    opened = CALL.format(function=OPENED.format(path=str(module)))
    programs = {
        "numpy": "import numpy",
        "empty cache": opened,
        "warm": opened,
        "pickle": CALL.format(function=PICKLED.format(data=data)),
        "native, empty cache": CALL.format(function=NATIVE.format(path=str(module))),
    }
    warm = folder / "warm"
    runs: dict[str, list[float]] = {name: [] for name in programs}
    for name in ("native, empty cache", "warm", "warm"):  # fills the cache
        run_process(programs[name], environment(warm))
    for turn in range(repeat):
        for name, program in programs.items():
            cache = folder / f"{turn}, {name}" if "empty" in name else warm
            runs[name].append(run_process(program, environment(cache))[0])
    numpy = min(runs.pop("numpy"))
    found = {name: min(seconds) - numpy for name, seconds in runs.items()}
    whole = median(runs["pickle"]) / median(runs["warm"])
    return found | {"cache": float(bytes_under(warm)), "whole": whole}


def shares(path: str) -> tuple[int, int]:
    """Bytes of this process: of what is mapped of a file its part (PSS), and all of it."""
    proportional = whole = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if " " in name:
            inside = line.endswith(path)
        elif inside and name in ("Pss", "Rss"):
            proportional += (int(rest.split()[0]) << 10) * (name == "Pss")
            whole += (int(rest.split()[0]) << 10) * (name == "Rss")
    return proportional, whole


def use(program: jitree.Program, path: str, pipe: Connection) -> None:
    np.asarray(program.open().modules["shared"].sums(np.ones(4096, np.float32)))
    pipe.send(None)
    pipe.recv()  # until all have called it
    pipe.send(shares(path))
    pipe.recv()


def measure_sharing(folder: Path) -> tuple[int, float, list[tuple[int, int]]]:
    """Bytes of the parameters, seconds of their digest, and what each process has of them."""
    weights = np.ones((2048, 4096), np.float32)
    path = str(folder / "weights.irpa")
    write(path, plan([array_entry("w", weights)]))
    start = time.process_time()
    program = jitree.Program(SHARED, device="local-sync", parameters=f"model={path}")
    seconds = time.process_time() - start
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(PROCESSES)]
    processes = [context.Process(target=use, args=(program, path, there)) for _, there in ends]
    for process in processes:
        process.start()
    for here, _ in ends:
        here.recv()
    for here, _ in ends:
        here.send(None)
    found = [here.recv() for here, _ in ends]
    for (here, _), process in zip(ends, processes, strict=True):
        here.send(None)
        process.join()
    return weights.nbytes, seconds, found


def arithmetic(replicas: int, compiling: float, options: argparse.Namespace) -> str:
    """Nodes that have the parameters give them to others, each to one at a time."""
    nodes = -(-replicas // options.node)
    moved = nodes * options.parameters
    copy = options.parameters * 8 / options.link
    fetch = max(copy, moved * 8 / options.store)
    passed = copy * math.ceil(math.log2(nodes + 1))
    return (
        f"{replicas:7} replicas on {nodes} nodes: {moved / 1e12:.4g} TB of parameters ({options.node} times "
        f"that without sharing), {fetch:.4g} s from one store, {passed:.3g} s from node to node; compiling "
        f"in empty caches {compiling * nodes:.4g} s of processors"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--parameters", type=float, default=16e9)
    parser.add_argument("--link", type=float, default=25e9)
    parser.add_argument("--store", type=float, default=400e9)
    parser.add_argument("--node", type=int, default=8)
    options = parser.parse_args()
    compiling = 0.0
    package = [
        path for path in (ROOT / "jitree").rglob("*") if path.is_file() and path.parent.name != "__pycache__"
    ]
    print(f"the package: {sum(path.stat().st_size for path in package)} bytes")
    with tempfile.TemporaryDirectory() as name:
        for target in ("llvm-cpu", "vmvx"):
            module = DIGITS / f"digits.{target}.vmfb"
            folder = Path(name) / target
            found = starts(module, options.repeat, folder)
            pickled = len(pickle.dumps(jitree.load(module, device="local-sync").classify))
            print(f"{module.name}: {module.stat().st_size} bytes; a pickle of its function {pickled}")
            print(f"  the cache keeps {found.pop('cache'):.0f} bytes; first result in ms of the processor:")
            whole = found.pop("whole")
            print("  " + ", ".join(f"{name} {seconds * 1e3:.0f}" for name, seconds in found.items()))
            print(f"  the whole process, pickle by warm: {whole:.2f}")
            compiling = max(compiling, found["native, empty cache"] - found["warm"])
        size, seconds, processes = measure_sharing(Path(name))
        total, mapped = map(sum, zip(*processes, strict=True))
        print(f"{size} bytes of parameters in {PROCESSES} processes: {total} (PSS), {mapped} (RSS)")
        print(f"  digest: {size / seconds / 1e9:.2f} GB a second")
    for line in map(partial(arithmetic, compiling=compiling, options=options), REPLICAS):
        print(line)


if __name__ == "__main__":
    main()
