"""Times cold starts: with machine code that came along, a warm cache, an empty one; onnxruntime beside it.

    python perf/starts.py [--trained FOLDER] [--only REGEX] [--device local-task] [--repeat 5]

For each of them new processes are started in turn, in which a program loads a VMVX model and calls it once.
Given are the medians of seconds from the import of numpy to the first result, of what of a processor the
process took after that import, and of what the shortest call of the next second takes of a processor: a busy
machine changes these two less. Packs are made for levels of processors, as for another machine. Without a
compiler a process finds jitree, numpy and ml_dtypes, and nothing else. Without `--trained` the model is that
of the digits example; with it those of `trained.py`, which the folder keeps, with their ONNX files in
onnxruntime.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
from cases import Case
from ways import digits, trained

LEVELS = "x86-64-v3,x86-64-v4" if os.uname().machine == "x86_64" else os.uname().machine
OWN = """
import jitree
module = jitree.load(model, device=device, compiled=packed or None)
function = module[next(name for name in module.names if "$async" not in name)]
def call():
    results = function(*arguments)
    for result in results if isinstance(results, tuple) else (results,):
        np.asarray(result)
"""
PEER = """
import onnxruntime
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
given = {item.name: value for item, value in zip(session.get_inputs(), arguments)}
def call():
    session.run(None, given)
"""
PROGRAM = """
import sys, time
import numpy as np
model, device, packed, values = sys.argv[1:]
arguments = [value for _, value in sorted(np.load(values).items())]
begun, spent = time.perf_counter(), time.process_time()
{}
call()
first = time.perf_counter() - begun, time.process_time() - spent
shortest, end = 1e9, time.perf_counter() + 1
while time.perf_counter() < end:
    begun = time.process_time()
    call()
    shortest = min(shortest, time.process_time() - begun)
print(*first, shortest)
"""

Start = tuple[float, float, float]
"""Seconds until the first result; of them seconds of a processor; such seconds of a call at full speed."""


def cases(options: argparse.Namespace) -> Iterator[Case]:
    if options.trained:
        yield from trained(options.trained, options.only)
    else:
        yield digits()


def measured(program: str, *words: str, cache: str, packages: Path | None = None) -> Start:
    """In a new process, which has no packages but those of a folder, if one is given."""
    command = [sys.executable, *(["-S"] if packages else []), "-c", PROGRAM.format(program), *words]
    environment = os.environ | {"JITREE_CACHE_DIR": cache}
    if packages is not None:
        environment["PYTHONPATH"] = str(packages)
    output = subprocess.check_output(command, text=True, env=environment)
    seconds, spent, call = map(float, output.split())
    return seconds, spent, call


def without_compiler(folder: Path) -> Path:
    """A folder with what a process needs that compiles nothing."""
    folder.mkdir()
    for name in ("jitree", "numpy", "ml_dtypes"):
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.submodule_search_locations
        place = Path(spec.submodule_search_locations[0])
        for path in (place, *place.parent.glob(f"{name}.libs")):
            (folder / path.name).symlink_to(path)
    return folder


def command(*words: str, cache: str) -> None:
    environment = os.environ | {"JITREE_CACHE_DIR": cache}
    subprocess.run(
        [sys.executable, "-m", "jitree", "cache", *words], check=True, capture_output=True, env=environment
    )


def starts(case: Case, options: argparse.Namespace, folder: Path) -> dict[str, list[Start]]:
    """By way, what each start took."""
    values, packed, warm = folder / "values.npz", folder / "model.jit", str(folder / "warm")
    np.savez(values, **{f"{place:03}": value for place, value in enumerate(case.arguments)})
    command("pack", str(case.module), "-o", str(packed), f"--processor={LEVELS}", cache=warm)
    command("warm", str(case.module), cache=warm)
    rest = str(case.module), options.device
    packages = without_compiler(folder / "packages")
    onnx = Path(str(case.module).replace(".vmvx.vmfb", ".onnx"))
    found: dict[str, list[Start]] = {}
    for turn in range(options.repeat + 1):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
            ways = {
                "model.jit": lambda empty=empty: measured(OWN, *rest, str(packed), str(values), cache=empty),
                "model.jit, no compiler": lambda empty=empty: measured(
                    OWN, *rest, str(packed), str(values), cache=empty, packages=packages
                ),
                "warm cache": lambda: measured(OWN, *rest, "", str(values), cache=warm),
                "empty cache": lambda empty=empty: measured(OWN, *rest, "", str(values), cache=empty),
            }
            if onnx.exists():
                ways["onnxruntime"] = lambda: measured(PEER, str(onnx), "", "", str(values), cache=warm)
            for name, start in ways.items():
                taken = start()
                if turn:  # the first one only fills caches of the system
                    found.setdefault(name, []).append(taken)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="times cold starts")
    parser.add_argument("--trained", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="local-task")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    for case in cases(options):
        with tempfile.TemporaryDirectory() as folder:
            for name, taken in starts(case, options, Path(folder)).items():
                seconds, spent, call = (median(column) for column in zip(*taken, strict=True))
                print(
                    f"{case.name:12s} {name:22s} {seconds:7.3f} s  of a processor {spent:7.3f} s"
                    f"  a call {call * 1e3:8.3f} ms of a processor",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
